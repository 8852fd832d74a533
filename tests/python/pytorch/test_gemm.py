# SPDX-License-Identifier: Apache-2.0
"""Tests general_gemm: every family in every layout, the steps after the sum, and errors."""

import math
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
import torch
from families import ALL, sample
from linear_by_hand import sums_of_strips
from narrowfloat.pytorch import tex
from narrowfloat.pytorch.constants import DType
from narrowfloat.pytorch.cpp_extensions import (
    general_gemm,
    general_grouped_gemm,
    general_grouped_gemm_for_grouped_tensor,
)
from narrowfloat.pytorch.cpp_extensions.operands import unwrap_tensor
from narrowfloat.pytorch.custom_recipes.reference_current_scaling import (
    CurrentScalingQuantizerRef,
)
from narrowfloat.pytorch.quantized_tensor import Quantizer
from narrowfloat.pytorch.tensor.float8_blockwise_tensor import Float8BlockQuantizer
from narrowfloat.pytorch.tensor.float8_tensor import (
    Float8CurrentScalingQuantizer,
    Float8Quantizer,
)
from narrowfloat.pytorch.tensor.mxfp8_tensor import MXFP8Quantizer
from narrowfloat.pytorch.tensor.nvfp4_tensor import NVFP4Quantizer
from narrowfloat.pytorch.utils import set_non_tn_fp8_gemm_supported
from torch_golden import assert_tensor

import narrowfloat as nf

E4M3, E5M2 = DType.kFloat8E4M3, DType.kFloat8E5M2
M, N, K = 64, 96, 160
SHAPES = {"TN": ((M, K), (N, K)), "NN": ((M, N), (N, K)), "NT": ((M, N), (M, K))}
NUMPY = {torch.float32: np.float32, torch.bfloat16: ml_dtypes.bfloat16, torch.float16: np.float16}


def to_mxfp8() -> Quantizer:
    return MXFP8Quantizer(E4M3)


def swizzling(quantizer: Quantizer) -> Quantizer:
    quantizer.optimize_for_gemm = True
    return quantizer


# The quantizer of both operands, and the scheme and options of the same codes in NumPy.
FAMILIES: dict[str, tuple[Callable[[], Quantizer], str, dict]] = {
    "delayed": (lambda: Float8Quantizer(torch.full((1,), 8.0), torch.zeros(1), E4M3),
                "fp8_e4m3", {"scale": 8.0}),
    "current": (lambda: Float8CurrentScalingQuantizer(E4M3), "fp8_e4m3", {}),
    "current_e5m2": (lambda: Float8CurrentScalingQuantizer(E5M2), "fp8_e5m2", {}),
    "mxfp8": (lambda: MXFP8Quantizer(E4M3), "mxfp8_e4m3", {}),
    "mxfp8_swizzled": (lambda: swizzling(MXFP8Quantizer(E5M2)), "mxfp8_e5m2", {"swizzled": True}),
    "block_1d": (lambda: Float8BlockQuantizer(E4M3, rowwise=True, columnwise=True,
                                              block_scaling_dim=1), "fp8_block1x128_e4m3", {}),
    "block_2d": (lambda: Float8BlockQuantizer(E4M3, rowwise=True, columnwise=True),
                 "fp8_block128x128_e4m3", {}),
    "nvfp4": (NVFP4Quantizer, "nvfp4", {}),
    "nvfp4_2d": (lambda: NVFP4Quantizer(with_2d_quantization=True), "nvfp4_2d", {}),
    "nvfp4_4over6": (lambda: NVFP4Quantizer(nvfp4_use_4over6=True, nvfp4_e4m3_max=256),
                     "nvfp4", {"four_over_six": "mae", "e4m3_max": 256.0}),
}  # fmt: skip


def operands(family: str, layout: str, seed: int = 0) -> tuple:
    """Returns B and A, quantized by the PyTorch face and then by the NumPy face."""
    make, scheme, options = FAMILIES[family]
    torch.manual_seed(seed)
    plain = [torch.randn(shape).to(torch.bfloat16) for shape in SHAPES[layout]]
    arrays = [t.view(torch.int16).numpy().view(ml_dtypes.bfloat16) for t in plain]
    return (
        *(make()(t) for t in plain),
        *(nf.quantize(x, scheme, columnwise=True, **options) for x in arrays),
    )


@pytest.mark.parametrize("layout", list(SHAPES))
@pytest.mark.parametrize("family", list(FAMILIES))
def test_bytes_of_every_family_and_layout(family: str, layout: str) -> None:
    b, a, core_b, core_a = operands(family, layout)
    for dtype, numpy_dtype in NUMPY.items():
        want = nf.qgemm(core_b, core_a, layout=layout, dtype=numpy_dtype)
        y, bias_grad, gelu_input, extra = general_gemm(a, b, out_dtype=dtype, layout=layout)
        assert (y.dtype, y.shape) == (dtype, want.shape)
        assert_tensor(y, want, f"{family} {layout} {dtype}")
        assert bias_grad is None and gelu_input is None and extra is None
    # The same with only the directions that the product reads.
    usages = {"TN": (True, True), "NN": (True, False), "NT": (False, False)}[layout]
    for tensor, rowwise in zip((b, a), usages, strict=True):
        tensor.update_usage(rowwise_usage=rowwise, columnwise_usage=not rowwise)
    assert_tensor(general_gemm(a, b, out_dtype=torch.float16, layout=layout)[0], want, "one")


def test_per_tensor_codes_serve_both_directions_where_the_device_says_so() -> None:
    want = [nf.qgemm(*operands("current", layout)[2:], layout=layout) for layout in SHAPES]
    before = set_non_tn_fp8_gemm_supported(True)
    try:
        for layout, expected in zip(SHAPES, want, strict=True):
            b, a = operands("current", layout)[:2]
            assert a._transpose is None and b._transpose is None
            y = general_gemm(a, b, out_dtype=torch.float32, layout=layout)[0]
            assert_tensor(y, expected, layout)
    finally:
        set_non_tn_fp8_gemm_supported(before)


def test_leading_dimensions_come_back() -> None:
    quantizer = MXFP8Quantizer(E4M3)
    x, w, dy = torch.randn(2, 32, 64), torch.randn(96, 64), torch.randn(2, 32, 96)
    qx, qw, qdy = quantizer(x), quantizer(w), quantizer(dy)
    assert general_gemm(qw, qx, layout="TN")[0].shape == (2, 32, 96)
    assert general_gemm(qw, qdy, layout="NN")[0].shape == (2, 32, 64)
    assert general_gemm(qx, qdy, layout="NT")[0].shape == (96, 64)


def test_bare_storages_know_their_dtype() -> None:
    quantizer = MXFP8Quantizer(E4M3)
    quantizer.internal = True
    x, w = torch.randn(32, 64).to(torch.float16), torch.randn(96, 64).to(torch.float16)
    assert general_gemm(quantizer(w), quantizer(x))[0].dtype == torch.float16


def test_out_dtype() -> None:
    b, a, *_ = operands("mxfp8", "TN")
    assert general_gemm(a, b)[0].dtype == a.dtype == torch.bfloat16
    out = torch.empty(M, N)
    assert general_gemm(a, b, out=out)[0] is out


@pytest.mark.parametrize("family", ["current", "block_1d", "nvfp4", "mxfp8"])
@pytest.mark.parametrize("dtype", list(NUMPY), ids=str)
def test_bias_and_accumulation_are_the_librarys(family: str, dtype: torch.dtype) -> None:
    b, a, core_b, core_a = operands(family, "TN")
    bias, held = torch.randn(N).to(torch.bfloat16), torch.randn(M, N).to(dtype)
    core_bias = bias.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    core_held = held.clone().view(torch.uint8).numpy().view(NUMPY[dtype])
    want = nf.qgemm(
        core_b, core_a, bias=core_bias, out=core_held, accumulate=True, dtype=NUMPY[dtype]
    )
    for beta in (None, 1.0):
        out = held.clone()
        y = general_gemm(a, b, out_dtype=dtype, bias=bias, out=out, accumulate=True, beta=beta)[0]
        assert y is out
        assert_tensor(y, want, family)


@pytest.mark.parametrize("family", ["current", "mxfp8", "nvfp4"])
def test_alpha_and_beta(family: str) -> None:
    """Checks that each step is computed in fp32, and that the result is rounded once."""
    b, a, core_b, core_a = operands(family, "TN")
    total = torch.from_numpy(nf.qgemm(core_b, core_a))
    bias, out = torch.randn(N), torch.randn(M, N).to(torch.bfloat16)
    y = general_gemm(a, b, alpha=0.5, beta=0.25, accumulate=True, out=out.clone(), bias=bias)[0]
    want = (total * 0.5 + bias + out.float() * 0.25).to(torch.bfloat16)
    assert_tensor(y, want, "alpha and beta")


HALF_STEPS = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}


def small_operands(family: str) -> tuple:
    """Returns B and A of a product with items around 1, and the product in fp32."""
    make = FAMILIES[family][0]
    torch.manual_seed(3)
    b, a = make()(torch.randn(M, K)), make()(torch.randn(N, K) * 0.08)
    return b, a, general_gemm(a, b, out_dtype=torch.float32)[0]


def gelu_and_gradient(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns GELU and its derivative in float64, without cancellation where both are small."""
    x = x.double()
    slope = 2 * math.sqrt(2 / math.pi)
    v = slope * (x + 0.044715 * x**3)
    gradient = v.sigmoid() * (1 + x * (-v).sigmoid() * slope * (1 + 3 * 0.044715 * x**2))
    return x * v.sigmoid(), gradient


def assert_rounded(y: torch.Tensor, want: torch.Tensor, size: torch.Tensor) -> None:
    """Asserts that y is near `want`, which is computed in float64.

    Bound: half a step of fp32 for GELU, another for the accumulation, half a step of the dtype,
    2^-25 for subnormal float16, and 2^-50 for the roundings of float64. size: the sum of the
    magnitudes of the terms.
    """
    steps = (2 * 2.0**-24 + HALF_STEPS[y.dtype]) * (1 + 2.0**-7) * size
    least = 2.0**-25 if y.dtype == torch.float16 else 0.0
    assert ((y.double() - want).abs() <= steps + least + 2.0**-50 * (1 + size)).all()


@pytest.mark.parametrize("options", [{}, {"alpha": 0.5}, {"gelu": True}])
@pytest.mark.parametrize("family", ["current", "nvfp4", "plain"])
def test_a_beta_of_zero_does_not_read_the_output(family: str, options: dict) -> None:
    b, a, *_ = operands("current" if family == "plain" else family, "TN")
    if family == "plain":
        b, a = b.dequantize(), a.dequantize()
    want = general_gemm(a, b, torch.float32, **options)[0]
    for shape in ((M, N), (2, M // 2, N)):
        out = torch.full(shape, torch.nan)
        y = general_gemm(a, b, out=out, accumulate=True, beta=0.0, **options)[0]
        assert y is out and torch.equal(out.reshape(M, N), want)


@pytest.mark.parametrize("layout", ["TN", "NN", "NT"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_alpha_keeps_the_order_of_a_plain_products_sums(dtype: torch.dtype, layout: str) -> None:
    shapes = {"TN": ((64, 96), (32, 96)), "NN": ((96, 64), (32, 96)), "NT": ((96, 64), (96, 32))}
    a, b = (torch.randn(shape, dtype=dtype) for shape in shapes[layout])
    y = general_gemm(a, b, layout=layout, out_dtype=dtype)[0]
    halved = general_gemm(a, b, layout=layout, out_dtype=dtype, alpha=0.5)[0]
    # Halving is exact except for subnormal float16. Items up to 2^-10 are not compared.
    assert torch.equal(halved, 0.5 * y.where(y.abs() > 2**-10, halved * 2))


@pytest.mark.parametrize("alpha", [1.0, 0.5])
@pytest.mark.parametrize("family", ["mxfp8", "identity"])
def test_a_derivative_of_gelu_needs_its_point(family: str, alpha: float) -> None:
    a, b = (ALL[family]()(sample(rows, 64)).detach() for rows in (64, 32))
    for point, got in ((None, "None"), (torch.ones(3, 3), r"\(3, 3\)")):
        rule = rf"^general_gemm: gelu with grad needs gelu_in of shape \(32, 64\), .*, got {got}$"
        with pytest.raises(ValueError, match=rule):
            general_gemm(a, b, gelu=True, grad=True, gelu_in=point, alpha=alpha)


@pytest.mark.parametrize("dtype", list(NUMPY), ids=str)
@pytest.mark.parametrize("family", ["current", "mxfp8", "block_1d", "nvfp4"])
def test_gelu_is_rounded_once(family: str, dtype: torch.dtype) -> None:
    b, a, total = small_operands(family)
    bias, held = torch.randn(N), torch.randn(M, N).to(dtype)
    y, _, gelu_input, _ = general_gemm(a, b, out_dtype=dtype, gelu=True, bias=bias)
    assert_tensor(gelu_input, (total + bias).to(dtype), "gelu's input")
    want = gelu_and_gradient(total + bias)[0]
    assert_rounded(y, want, want.abs())
    out = held.clone()
    options = {"gelu": True, "bias": bias, "out": out, "accumulate": True}
    assert general_gemm(a, b, out_dtype=dtype, **options)[0] is out
    assert_rounded(out, want + held, want.abs() + held.double().abs())
    y = general_gemm(a, b, out_dtype=dtype, gelu=True, bias=bias, quantization_params=to_mxfp8())[0]
    plain = general_gemm(a, b, out_dtype=dtype, gelu=True, bias=bias)[0]
    assert_tensor(y._rowwise_data, to_mxfp8()(plain)._rowwise_data, "quantized")


@pytest.mark.parametrize("dtype", list(NUMPY), ids=str)
@pytest.mark.parametrize("family", ["current", "mxfp8", "block_1d", "nvfp4"])
def test_gradient_of_gelu_is_rounded_once(family: str, dtype: torch.dtype) -> None:
    b, a, total = small_operands(family)
    held = torch.randn(M, N).to(dtype)
    for point in (torch.randn(M, N).to(dtype) * 2, torch.randn(M, N) * 2):
        want = total.double() * gelu_and_gradient(point)[1]
        options = {"out_dtype": dtype, "gelu": True, "gelu_in": point, "grad": True}
        y = general_gemm(a, b, **options)[0]
        assert_rounded(y, want, want.abs())
        out = held.clone()
        general_gemm(a, b, out=out, accumulate=True, beta=0.5, **options)
        assert_rounded(out, want + held.double() * 0.5, want.abs() + held.double().abs())


@pytest.mark.parametrize("grad", [False, True])
def test_a_graph_has_the_same_gelu(grad: bool) -> None:
    b, a, total = small_operands("mxfp8")
    options = {"out_dtype": torch.float32, "gelu": True, "grad": grad}
    point = total.clone() if grad else None

    def function(a: torch.Tensor, b: torch.Tensor, point: torch.Tensor | None) -> tuple:
        return general_gemm(a, b, gelu_in=point, **options)[::2]

    results = torch.compile(function, fullgraph=True, backend="aot_eager")(a, b, point)
    for got, want in zip(results, function(a, b, point), strict=True):
        assert (got is None) == (want is None)
        if want is not None:
            assert_tensor(got, want, "a graph's")


def test_threads_do_not_change_gelu() -> None:
    b, a, _ = small_operands("mxfp8")
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            results.append(general_gemm(a, b, gelu=True)[::2])
    finally:
        torch.set_num_threads(before)
    for one, other in zip(*results, strict=True):
        assert_tensor(one, other, "threads")


@pytest.mark.parametrize("family", ["current", "block_2d", "mxfp8"])
def test_with_grad_a_bias_asks_for_its_gradient(family: str) -> None:
    b, a, core_b, core_a = operands(family, "NT")
    y, bias_grad, *_ = general_gemm(a, b, layout="NT", grad=True, bias=torch.zeros(N))
    assert_tensor(y, nf.qgemm(core_b, core_a, layout="NT", dtype=ml_dtypes.bfloat16), "no bias")
    want = torch.from_numpy(core_b.dequantize(np.float32)).sum(0).to(torch.bfloat16)
    assert_tensor(bias_grad, want, "bias gradient")


@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize("family", ["current", "mxfp8", "block_1d", "nvfp4"])
def test_with_gelu_and_grad_a_bias_asks_for_the_sums_of_the_result(
    family: str, quantized: bool
) -> None:
    make = FAMILIES[family][0]
    torch.manual_seed(4)
    b, a = make()(torch.randn(320, K)), make()(torch.randn(N, K) * 0.08)
    options = {"gelu": True, "gelu_in": torch.randn(320, N), "grad": True}
    options["out_dtype"] = torch.bfloat16
    want = general_gemm(a, b, **options)[0]
    options["quantization_params"] = to_mxfp8() if quantized else None
    y, bias_grad, gelu_input, _ = general_gemm(a, b, bias=torch.zeros(N), **options)
    assert gelu_input is None
    assert_tensor(bias_grad, sums_of_strips(want).to(torch.bfloat16), "bias gradient")
    if quantized:
        assert_tensor(y._rowwise_data, to_mxfp8()(want)._rowwise_data, "quantized")
    else:
        assert_tensor(y, want, "gradient")


def test_sums_of_a_gradient_do_not_accumulate() -> None:
    b, a, total = small_operands("mxfp8")
    options = {"gelu": True, "gelu_in": total, "grad": True, "bias": torch.zeros(N)}
    with pytest.raises(NotImplementedError) as raised:
        general_gemm(a, b, out=total.clone(), accumulate=True, **options)
    assert raised.value.args == (
        "general_gemm: gelu with grad and bias needs accumulate=False, because the sums of the "
        "bias are of this gradient alone",
    )


OUTPUTS = {
    "delayed": lambda: Float8Quantizer(torch.full((1,), 4.0), torch.zeros(1), E4M3),
    "current": lambda: Float8CurrentScalingQuantizer(E4M3),
    "mxfp8": lambda: MXFP8Quantizer(E4M3),
    "block": lambda: Float8BlockQuantizer(E4M3, rowwise=True, columnwise=True),
    "nvfp4": NVFP4Quantizer,
}


@pytest.mark.parametrize("name", list(OUTPUTS))
def test_quantized_outputs(name: str) -> None:
    b, a, core_b, core_a = operands("current", "TN")
    quantizer = OUTPUTS[name]()
    y = general_gemm(a, b, quantization_params=quantizer)[0]
    total = torch.from_numpy(nf.qgemm(core_b, core_a))
    # Only delayed scaling quantizes the fp32 result, without rounding to bfloat16 first.
    want = OUTPUTS[name]()(total if name == "delayed" else total.to(torch.bfloat16))
    assert type(y) is type(want) and y.dtype == torch.bfloat16 and y.shape == (M, N)
    assert_tensor(y.dequantize(torch.float32), want.dequantize(torch.float32), name)
    if name == "delayed":
        assert quantizer.amax.item() == total.abs().max().item()
        out = OUTPUTS[name]().make_empty((M, N))
        assert general_gemm(a, b, quantization_params=quantizer, out=out)[0] is out


def test_a_watching_quantizer_sees_the_result() -> None:
    class Watcher:
        def __init__(self, parent: Quantizer | None) -> None:
            self.parent_quantizer, self.seen = parent, []

        def process_gemm_output(self, y: torch.Tensor) -> torch.Tensor:
            self.seen.append(y)
            return y

    b, a, *_ = operands("mxfp8", "TN")
    plain, quantizing = Watcher(None), Watcher(MXFP8Quantizer(E4M3))
    y = general_gemm(a, b, quantization_params=plain)[0]
    assert plain.seen[0] is y and type(y) is torch.Tensor
    y = general_gemm(a, b, quantization_params=quantizing)[0]
    assert quantizing.seen[0] is y and type(y) is type(a)
    reference = CurrentScalingQuantizerRef(torch.float8_e4m3fn)
    x, w = torch.randn(4, 8), torch.randn(6, 8)
    y = general_gemm(reference(w), reference(x), quantization_params=plain)[0]
    assert plain.seen[1] is y


def test_row_scaled_operands() -> None:
    torch.manual_seed(1)
    x, w = torch.randn(M, K).to(torch.bfloat16), torch.randn(N, K).to(torch.bfloat16)
    a = NVFP4Quantizer()(w)
    b = NVFP4Quantizer(columnwise=False, row_scaled_nvfp4=True)(x)
    arrays = [t.view(torch.int16).numpy().view(ml_dtypes.bfloat16) for t in (x, w)]
    core_b = nf.quantize(arrays[0], "nvfp4", row_scaled=True)
    total = torch.from_numpy(nf.qgemm(core_b, nf.quantize(arrays[1], "nvfp4")))
    bias, out = torch.randn(N).to(torch.bfloat16), torch.randn(M, N).to(torch.bfloat16)
    rounded = (total + bias.float()).to(torch.bfloat16)
    assert_tensor(general_gemm(a, b, bias=bias)[0], rounded, "bias before the rounding")
    y = general_gemm(a, b, bias=bias, out=out.clone(), accumulate=True)[0]
    want = (rounded.float() + out.float()).to(torch.bfloat16)
    assert_tensor(y, want, "accumulation behind it")
    for refused in ({"gelu": True}, {"quantization_params": MXFP8Quantizer(E4M3)},
                    {"grad": True, "bias": bias}):  # fmt: skip
        with pytest.raises(AssertionError) as raised:
            general_gemm(a, b, **refused)
        assert str(raised.value) == (
            "general_gemm: row-scaled NVFP4 takes no gelu, output quantizer or bias gradient"
        )


def test_a_row_scaled_tensor_without_rows_has_amaxes() -> None:
    """Checks that they are 0: TransformerEngine multiplies by them, and NaN would give NaN."""
    quantizer = NVFP4Quantizer(row_scaled_nvfp4=True)
    destination = quantizer.make_empty((0, 256), dtype=torch.bfloat16)
    destination._amax_columnwise.fill_(float("nan"))
    quantizer.update_quantized(torch.zeros(0, 256, dtype=torch.bfloat16), destination)
    assert torch.equal(destination._amax_columnwise, torch.zeros(256))


@pytest.mark.parametrize("quantized", [False, True])
def test_products_of_nothing(quantized: bool) -> None:
    make = Float8CurrentScalingQuantizer(E4M3) if quantized else (lambda t: t)
    for b_shape, a_shape, shape in (
        ((0, 32), (16, 32), (0, 16)),
        ((8, 0), (16, 0), (8, 16)),
    ):
        a, b, bias = make(torch.zeros(a_shape)), make(torch.zeros(b_shape)), torch.ones(16)
        y = general_gemm(a, b, bias=bias)[0]
        assert torch.equal(y, torch.zeros(shape))
        out = torch.full(shape, 3.0)
        assert torch.equal(general_gemm(a, b, out=out, accumulate=True)[0], torch.full(shape, 3.0))
        assert torch.equal(general_gemm(a, b, out=out)[0], torch.zeros(shape))
    dy = make(torch.zeros(0, 16))
    y, bias_grad, *_ = general_gemm(
        make(torch.zeros(0, 8)), dy, layout="NT", grad=True, bias=torch.ones(16)
    )
    assert torch.equal(y, torch.zeros(16, 8)) and torch.equal(bias_grad, torch.zeros(16))


def test_plain_operands() -> None:
    torch.manual_seed(2)
    x, w, dy = torch.randn(2, 8, 6), torch.randn(5, 6), torch.randn(2, 8, 5)
    flat_x, flat_dy = x.reshape(16, 6), dy.reshape(16, 5)
    # The error of fp32 sums of at most 16 products of randn is far below 1e-5 in any order.
    for a, b, layout, want in ((w, x, "TN", x @ w.t()), (w, dy, "NN", dy @ w),
                               (x, dy, "NT", flat_dy.t() @ flat_x)):  # fmt: skip
        y = general_gemm(a, b, layout=layout)[0]
        torch.testing.assert_close(y, want, atol=1e-5, rtol=0)
        half = general_gemm(a.bfloat16(), b.bfloat16(), layout=layout)[0]
        assert half.dtype == torch.bfloat16 and half.shape == want.shape


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"layout": "TT"}, AssertionError, "GEMM layout TT not supported."),
        ({"beta": 0.5}, ValueError, "general_gemm: scale must be zero when there is no "
                                    "accumulation, beta is 0.5"),
        ({"accumulate": True}, ValueError,
         "general_gemm: accumulate needs out to be a plain tensor"),
        ({"out": torch.zeros(N, M).t()}, ValueError,
         "general_gemm: Output tensor is not contiguous."),
        ({"out": torch.zeros(M, N + 1)}, ValueError,
         "general_gemm: out must be (64, 96) torch.float32, got (64, 97) torch.float32"),
        ({"out": torch.zeros(N, M)}, ValueError,
         "general_gemm: out must be (64, 96) torch.float32, got (96, 64) torch.float32"),
        ({"out": torch.zeros(M * N)}, ValueError,
         "general_gemm: out must be (64, 96) torch.float32, got (6144,) torch.float32"),
        ({"out": torch.zeros(M, N), "out_dtype": torch.float16}, ValueError,
         "general_gemm: out must be (64, 96) torch.float16, got (64, 96) torch.float32"),
        ({"A": None}, RuntimeError, "general_gemm: an operand has no rowwise data"),
        ({"A": torch.zeros(N, K)}, RuntimeError,
         "general_gemm: operands must have the same scaling_mode, got Tensor and MXFP8Tensor"),
        ({"A": Float8CurrentScalingQuantizer(E4M3)(torch.zeros(N, K))}, RuntimeError,
         "general_gemm: operands must have the same scaling_mode, got Float8Tensor and "
         "MXFP8Tensor"),
        ({"A": MXFP8Quantizer(E4M3)(torch.zeros(N, 64))}, ValueError,
         "general_gemm: inner sizes differ, A is (96, 64) and B is (64, 160), TN"),
        ({"A": MXFP8Quantizer(E4M3, rowwise=False)(torch.zeros(N, K))}, RuntimeError,
         "MXFP8Tensor has no rowwise data"),
        ({"A": 3}, TypeError, "general_gemm: an operand must be a tensor, got <class 'int'>"),
        ({"ub": 1}, NotImplementedError,
         "general_gemm: overlap with communication needs a GPU"),
    ],
)  # fmt: skip
def test_wrong_calls_say_why_and_write_nothing(change: dict, error: type, message: str) -> None:
    b, a, *_ = operands("mxfp8", "TN")
    arguments = {"A": a, "B": b} | change
    with pytest.raises(error) as raised:
        general_gemm(arguments.pop("A"), arguments.pop("B"), **arguments)
    assert str(raised.value) == message
    if isinstance(change.get("out"), torch.Tensor):
        assert not change["out"].any()


def test_other_output_quantizers() -> None:
    class Other(Quantizer):
        def update_quantized(self, src: object, dst: object, *, noop_flag: object = None) -> None:
            raise AssertionError("not asked")

    b, a, *_ = operands("mxfp8", "TN")
    with pytest.raises(NotImplementedError) as raised:
        general_gemm(a, b, quantization_params=Other(rowwise=True, columnwise=True))
    assert str(raised.value) == "general_gemm: Other cannot quantize the output"


def test_unwrap_tensor() -> None:
    plain, q = torch.zeros(2, 2), MXFP8Quantizer(E4M3)(torch.zeros(32, 32))

    class Pair:
        rowwise_sub_storage, columnwise_sub_storage = q, None

    class Watched:
        def get_tensor(self, transpose: bool) -> torch.Tensor:
            return plain if transpose else q

    assert unwrap_tensor(plain, "rowwise") is plain and unwrap_tensor(q, "columnwise") is q
    assert unwrap_tensor(Pair(), "rowwise") is q
    assert unwrap_tensor(Watched(), "rowwise") is q
    assert unwrap_tensor(Watched(), "columnwise") is plain
    with pytest.raises(RuntimeError) as raised:
        unwrap_tensor(Pair(), "columnwise")
    assert str(raised.value) == "general_gemm: an operand has no columnwise data"
    with pytest.raises(ValueError) as raised:
        unwrap_tensor(q, "diagonal")
    assert str(raised.value) == (
        "unwrap_tensor: usage must be 'rowwise' or 'columnwise', got 'diagonal'"
    )


@pytest.mark.parametrize("single", [False, True])
def test_grouped(single: bool) -> None:
    quantizer, splits = MXFP8Quantizer(E4M3), [32, 64, 0, 32]
    x = [torch.randn(m, 64) for m in splits]
    w = [torch.randn(96, 64) for _ in splits]
    a, b = [quantizer(t) for t in w], [quantizer(t) for t in x]
    bias = [torch.randn(96) for _ in splits]
    want = [general_gemm(p, q, bias=v)[0] for p, q, v in zip(a, b, bias, strict=True)]
    out = [torch.empty(sum(splits), 96)] if single else [torch.empty(m, 96) for m in splits]
    y, biases, gelu = general_grouped_gemm(
        a, b, out, None, torch.float32, m_splits=splits, bias=bias, use_bias=True,
        single_output=single,
    )  # fmt: skip
    assert (y is out[0]) if single else all(p is q for p, q in zip(y, out, strict=True))
    for got, expected in zip(y.split(splits) if single else y, want, strict=True):
        # Both functions add no bias to an empty product.
        assert_tensor(got, expected, "member")
    assert biases == bias and gelu == [None] * 4
    with pytest.raises(ValueError) as raised:
        general_grouped_gemm(a[:2], b, out, m_splits=splits, single_output=single)
    assert str(raised.value) == (
        "general_grouped_gemm: A, B and out must have the same length, got 2, 4 and 4"
    )
    with pytest.raises(ValueError) as raised:
        general_grouped_gemm(a, b, out, single_output=True)
    assert str(raised.value) == "general_grouped_gemm: single_output needs m_splits, got None"


@pytest.mark.parametrize("layout", list(SHAPES))
def test_grouped_tensors(layout: str) -> None:
    quantizer, splits = MXFP8Quantizer(E4M3), torch.tensor([32, 64, 32])
    whole = {"TN": (64, 96), "NN": (96, 64), "NT": (96, 64)}[layout]
    x = torch.randn(128, whole[0])
    b = tex.group_quantize(x, quantizer, 3, splits)
    if layout == "NT":
        a = tex.group_quantize(torch.randn(128, whole[1]), quantizer, 3, splits)
        out = [torch.randn(96, 64) for _ in range(3)]
    else:
        shape = (96, 64)
        a = [quantizer(torch.randn(shape)) for _ in range(3)]
        out = list(torch.randn(128, whole[1]).split(splits.tolist()))
    members = a if isinstance(a, list) else a.split_into_quantized_tensors()
    alpha, beta = [1.0, 0.5, 2.0], torch.tensor([1.0, 0.0, 0.5])
    want = [
        general_gemm(p, q, layout=layout, out=o.clone(), accumulate=True, alpha=f, beta=g)[0]
        for p, q, o, f, g in zip(
            members, b.split_into_quantized_tensors(), out, alpha, beta.tolist(), strict=True
        )
    ]
    got = general_grouped_gemm_for_grouped_tensor(
        a, b, out, layout=layout, accumulate=True, alpha=alpha, beta=beta
    )
    assert got is out
    for mine, expected in zip(out, want, strict=True):
        assert_tensor(mine, expected, layout)
    with pytest.raises(ValueError) as raised:
        general_grouped_gemm_for_grouped_tensor(a, b, out[:2], layout=layout)
    assert str(raised.value) == (
        "general_grouped_gemm_for_grouped_tensor: A, B, out, bias, alpha and beta must have one "
        "length, got 3, 3, 2, 3, 3, 3"
    )
