# SPDX-License-Identifier: Apache-2.0
"""Compares mm, addmm, bmm, baddbmm, linear and matmul of quantized tensors with nf.qgemm."""

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
import torch
from families import ALL, E4M3, SCHEMES, sample
from narrowfloat.pytorch._arrays import core_tensor
from narrowfloat.pytorch.cpp_extensions import general_gemm

import narrowfloat as nf
from narrowfloat import pytorch as nfp

Quantized = nfp.QuantizedTensor
linear = torch.nn.functional.linear
NUMPY = {torch.float32: np.float32, torch.bfloat16: ml_dtypes.bfloat16, torch.float16: np.float16}
# Families with both directions. nvfp4_row_scaled is made without columnwise codes.
BOTH = [kind for kind in SCHEMES if kind != "nvfp4_row_scaled"]
M, N, K = 32, 96, 64
PARTS = {"TN": ((M, K), (N, K)), "NN": ((M, K), (K, N)), "NT": ((K, M), (K, N))}
both = pytest.mark.parametrize("kind", BOTH)
layouts = pytest.mark.parametrize("layout", list(PARTS))


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().view(torch.uint8)


def assert_bits(got: torch.Tensor, want: torch.Tensor) -> None:
    assert type(got) is torch.Tensor
    assert got.dtype == want.dtype and got.shape == want.shape
    assert torch.equal(bits(got), bits(want))


def pair(kind: str, layout: str, dtype: torch.dtype = torch.float32) -> tuple[Quantized, Quantized]:
    return tuple(
        ALL[kind]()(sample(*shape, dtype=dtype, seed=i)).detach()
        for i, shape in enumerate(PARTS[layout])
    )


def factors(x: Quantized, w: Quantized, layout: str) -> tuple[torch.Tensor, torch.Tensor]:
    return (x.t() if layout == "NT" else x), (w.t() if layout == "TN" else w)


def by_core(
    x: Quantized, w: Quantized, layout: str, dtype: torch.dtype, **options: np.ndarray
) -> torch.Tensor:
    usages = {"TN": ("rowwise", "rowwise"), "NN": ("rowwise", "columnwise")}
    first, second = usages.get(layout, ("columnwise", "columnwise"))
    operands = core_tensor(x, (first,)), core_tensor(w, (second,))
    y = nf.qgemm(*operands, layout=layout, dtype=NUMPY[dtype], **options)
    return torch.from_numpy(y.view(np.uint8)).view(dtype)


@layouts
@both
@pytest.mark.parametrize("dtype", list(NUMPY))
def test_bytes_of_the_core(kind: str, layout: str, dtype: torch.dtype) -> None:
    x, w = pair(kind, layout, dtype)
    want = by_core(x, w, layout, dtype)
    first, second = factors(x, w, layout)
    assert_bits(torch.mm(first, second), want)
    assert_bits(first @ second, want)
    with torch.inference_mode():
        assert_bits(torch.mm(first, second), want)


@both
@pytest.mark.parametrize("inference", [False, True])
def test_linear(kind: str, inference: bool) -> None:
    x, w = pair(kind, "TN", torch.bfloat16)
    bias = sample(N, dtype=torch.bfloat16, seed=4)
    addend = bias.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    with torch.inference_mode(inference):
        assert_bits(linear(x, w), by_core(x, w, "TN", torch.bfloat16))
        assert_bits(linear(x, w, bias), by_core(x, w, "TN", torch.bfloat16, bias=addend))


@pytest.mark.parametrize("kind", ["float8_current", "mxfp8", "nvfp4"])
def test_linear_of_leading_dimensions(kind: str) -> None:
    x, w = ALL[kind]()(sample(2, 16, K)).detach(), ALL[kind]()(sample(N, K, seed=1)).detach()
    want = general_gemm(w, x)[0]
    assert want.shape == (2, 16, N)
    assert_bits(linear(x, w), want)
    assert_bits(linear(x, w, torch.zeros(N)), want)
    assert_bits(x @ w.mT, want)


@layouts
@pytest.mark.parametrize("kind", ["float8_delayed", "mxfp8", "blockwise_1d", "nvfp4"])
def test_addmm(kind: str, layout: str) -> None:
    x, w = pair(kind, layout)
    first, second = factors(x, w, layout)
    product = by_core(x, w, layout, torch.float32)
    matrix, row, column = sample(M, N, seed=6), sample(N, seed=7), sample(M, 1, seed=8)
    assert_bits(torch.addmm(row, first, second), product + row)
    assert_bits(torch.addmm(matrix, first, second), product + matrix)
    assert_bits(torch.addmm(column, first, second), product + column)
    assert_bits(torch.addmm(matrix, first, second, alpha=0.5, beta=2), product * 0.5 + matrix * 2)
    nothing = torch.full((N,), float("nan"))
    assert_bits(torch.addmm(nothing, first, second, beta=0), product)


@layouts
@pytest.mark.parametrize("kind", ["float8_current", "mxfp8", "mxfp8_2d", "nvfp4"])
def test_stacks(kind: str, layout: str) -> None:
    """Checks that each matrix is multiplied as if it were alone, with the scales of the stack."""
    shapes = [(3, *shape) for shape in PARTS[layout]]
    x, w = (ALL[kind]()(sample(*shape, seed=i)).detach() for i, shape in enumerate(shapes))
    first = x.mT if layout == "NT" else x
    second = w.transpose(1, 2) if layout == "TN" else w
    want = torch.stack([by_core(x[i], w[i], layout, torch.float32) for i in range(3)])
    assert_bits(torch.bmm(first, second), want)
    assert_bits(first @ second, want)
    addend = sample(3, M, N, seed=9)
    assert_bits(torch.baddbmm(addend, first, second), want + addend)
    assert_bits(torch.baddbmm(addend[0], first, second, beta=2), want + addend[0] * 2)
    with torch.inference_mode():
        assert_bits(torch.matmul(x, x.new_zeros(3, K, M)) if layout == "NN" else first @ second,
                    torch.zeros(3, M, M) if layout == "NN" else want)  # fmt: skip


def test_a_stack_whose_columns_end_inside_of_a_block_is_read_by_rows_alone() -> None:
    make = ALL["blockwise_1d"]()
    plain = sample(2, 16, K), sample(2, 48, K, seed=1)
    x, w = (make(stack).detach() for stack in plain)
    want = torch.stack([general_gemm(make(b), make(a))[0] for a, b in zip(*plain, strict=True)])
    assert_bits(torch.bmm(x, w.mT), want)


def test_columns_of_one_scale_are_transposed_for_tt() -> None:
    x, w = (ALL["float8_current"]()(sample(*s)).detach() for s in ((K, M), (N, K)))
    want = general_gemm(w, ALL["float8_current"]()(x.dequantize().t().contiguous()))[0]
    assert_bits(x.t() @ w.t(), want)


Values = Callable[[Quantized, Quantized], tuple[torch.Tensor, torch.Tensor]]
VALUES: dict[str, Values] = {
    "plain second": lambda x, w: (x, w.dequantize().t()),
    "plain first": lambda x, w: (x.dequantize(), w.t()),
    "MXFP8 columns are not stored transposed": lambda x, w: (
        nfp.MXFP8Quantizer(E4M3)(sample(K, M)).detach().t(), w.t()
    ),
    "formats differ": lambda x, w: (nfp.NVFP4Quantizer()(sample(M, K)).detach(), w.t()),
    "high precision": lambda x, w: (nfp.IdentityQuantizer()(sample(M, K)).detach(), w.t()),
    "no columns": lambda x, w: (
        x, nfp.MXFP8Quantizer(E4M3, columnwise=False)(sample(K, N)).detach()
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", list(VALUES))
def test_other_pairs_are_products_of_values(case: str) -> None:
    first, second = VALUES[case](*pair("mxfp8", "TN"))
    plain = [t.dequantize() if isinstance(t, nfp.QuantizedTensor) else t + 0 for t in
             (first, second)]  # fmt: skip
    assert_bits(first @ second, plain[0] @ plain[1])


def test_a_transform_on_one_side_is_not_multiplied() -> None:
    """Checks that codes are not multiplied if only one operand is transformed."""
    transformed = nfp.NVFP4Quantizer(with_rht=True, with_post_rht_amax=True)
    x = nfp.NVFP4Quantizer()(sample(M, K, dtype=torch.bfloat16)).detach()
    w = transformed(sample(K, N, dtype=torch.bfloat16, seed=1)).detach()
    assert_bits(x @ w, x.dequantize() @ w.dequantize())
    v = transformed(sample(K, M, dtype=torch.bfloat16, seed=2)).detach()
    assert_bits(v.t() @ w, by_core(v, w, "NT", torch.bfloat16))


def test_types_that_differ_and_wrong_sizes_are_refused_by_torch() -> None:
    x, w = pair("mxfp8", "TN")
    half = ALL["mxfp8"]()(sample(N, K, dtype=torch.float16)).detach()
    with pytest.raises(RuntimeError, match="expected m1 and m2 to have the same dtype"):
        torch.mm(x, half.t())
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        torch.mm(x, w)


def test_no_rows() -> None:
    empty = ALL["float8_current"]()(torch.empty(0, K)).detach()
    assert (empty @ pair("float8_current", "TN")[1].t()).shape == (0, N)


def test_a_transpose_is_a_view() -> None:
    x, w = pair("mxfp8", "TN")
    view = w.t()
    w.zero_()
    assert not (x @ view).any() and not (view + 0).any()


def test_gradients_are_of_the_values() -> None:
    """Checks that autograd multiplies the plain incoming gradient by the values."""
    x, w = (q.requires_grad_() for q in pair("mxfp8", "TN"))
    y = linear(x, w)
    gradient = sample(M, N, seed=3)
    y.backward(gradient)
    assert_bits(y, by_core(x, w, "TN", torch.float32))
    assert_bits(x.grad, gradient @ w.dequantize())
    assert_bits(w.grad, gradient.t() @ x.dequantize())


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_in_a_graph(backend: str) -> None:
    x, w = pair("mxfp8", "TN")

    def products(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> tuple:
        return x @ w.t(), linear(x, w, bias), torch.bmm(x.unsqueeze(0), w.unsqueeze(0).mT)

    bias = sample(N)
    compiled = torch.compile(products, backend=backend, fullgraph=True)
    for got, want in zip(compiled(x, w, bias), products(x, w, bias), strict=True):
        assert_bits(got, want)


@pytest.mark.parametrize("kind", list(ALL))
def test_a_transpose_has_at_most_two_dimensions(kind: str) -> None:
    weight = ALL[kind]()(sample(128, 64)).detach().unsqueeze(0)
    calls = (
        lambda: weight.t(),
        lambda: torch.ops.aten.t.default(weight),
        lambda: torch.nn.functional.linear(sample(5, 64), weight),
        lambda: torch.nn.functional.linear(weight, weight),
    )
    for call in calls:
        with pytest.raises(
            RuntimeError,
            match=r"^t\(\) expects a tensor with <= 2 dimensions, but self is 3D$",
        ):
            call()
    assert weight.mT.shape == (1, 64, 128)
