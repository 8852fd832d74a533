# SPDX-License-Identifier: Apache-2.0
"""Compares activations of the native module and their gradients with float64."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from bounds import assert_near
from narrowfloat.pytorch import tex
from narrowfloat.pytorch.quantized_tensor import Quantizer
from narrowfloat.pytorch.tensor.float8_tensor import Float8CurrentScalingQuantizer, Float8Quantizer
from narrowfloat.pytorch.tensor.mxfp8_tensor import MXFP8Quantizer
from narrowfloat.pytorch.tensor.nvfp4_tensor import NVFP4Quantizer

Tensor = torch.Tensor
E4M3 = tex.DType.kFloat8E4M3

# PyTorch's exponentials and hyperbolic tangents are off by at most 4 ulp. A value has fewer than
# 20 roundings. Exponents are products, whose error grows with their magnitude: at most 8 standard
# deviations times 1.702, which is less than 16.
ROUNDINGS = 20 + 16

LIMIT, ALPHA, OFFSET = 1.5, 1.702, 1.0
BETA1, BETA2 = 4.0, 25.0


def gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": gelu,
    "qgelu": lambda x: x * torch.sigmoid(1.702 * x),
    "relu": lambda x: x.clamp(min=0),
    "srelu": lambda x: x.clamp(min=0) ** 2,
    "silu": lambda x: x * torch.sigmoid(x),
}
GATES: dict[str, Callable[[Tensor], Tensor]] = {
    "glu": torch.sigmoid,
    "geglu": UNARY["gelu"],
    "qgeglu": UNARY["qgelu"],
    "reglu": UNARY["relu"],
    "sreglu": UNARY["srelu"],
    "swiglu": UNARY["silu"],
}


def situ_gate(a: Tensor, b: Tensor) -> Tensor:
    bounded = BETA2 * torch.tanh(b / BETA2)
    return BETA1 * torch.tanh(a / BETA1) * torch.sigmoid(a) * bounded


def clamped_gate(a: Tensor, b: Tensor) -> Tensor:
    a = torch.where(a > LIMIT, LIMIT, a)
    b = torch.where(b.abs() > LIMIT, LIMIT * b.sign(), b)
    return a * torch.sigmoid(ALPHA * a) * (b + OFFSET)


def pairwise(gate: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda a, b: gate(a) * b


# Per gated function: its formula on the two halves, and its arguments after the quantizer.
GATED: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], tuple]] = {
    **{name: (pairwise(gate), ()) for name, gate in GATES.items()},
    "situglu": (situ_gate, (BETA1, BETA2)),
    "clamped_swiglu": (clamped_gate, (LIMIT, ALPHA, OFFSET)),
}
SCALED = ("swiglu", "situglu", "clamped_swiglu")
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
SHAPES = [(5, 34), (2, 3, 64), (1, 2), (0, 16), (7,)]


def gradient_of(name: str) -> str:
    return "clamped_dswiglu" if name == "clamped_swiglu" else f"d{name}"


def sample(shape: tuple, dtype: torch.dtype) -> Tensor:
    """Returns rows that are not adjacent in memory, with some values of 0 and some of LIMIT."""
    torch.manual_seed(5)
    wide = torch.randn(*shape[:-1], shape[-1] + 3) * 2
    wide[..., ::7] = 0
    wide[..., 3::5] = LIMIT
    return wide.to(dtype)[..., : shape[-1]]


def magnitudes(x: Tensor) -> Tensor:
    """Returns a bound on an activation's terms and derivatives: squares are the largest."""
    return 2 + 4 * x.double().abs() + 2 * x.double().square()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", UNARY)
def test_unary(name: str, dtype: torch.dtype, shape: tuple) -> None:
    x, grad = sample(shape, dtype), torch.randn(shape).to(dtype)
    y = getattr(tex, name)(x, None)
    exact_x = x.double().requires_grad_()
    exact = UNARY[name](exact_x)
    exact.backward(grad.double())
    assert y.dtype == dtype
    assert_near(y, exact.detach(), magnitudes(x), ROUNDINGS, name)
    dx = getattr(tex, f"d{name}")(grad, x, None)
    assert dx.dtype == dtype
    reach = grad.double().abs() * magnitudes(x)
    assert_near(dx, exact_x.grad, reach, ROUNDINGS, f"d{name}")
    if len(shape) > 1:
        bias, again = getattr(tex, f"dbias_d{name}")(grad, x, None)
        assert torch.equal(again, dx) and bias.dtype == dtype
        rows = dx.double().flatten(0, -2)
        assert_near(bias, rows.sum(0), rows.abs().sum(0), rows.shape[0], "bias")


@pytest.mark.parametrize("shape", [s for s in SHAPES if s[-1] % 2 == 0])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", GATED)
def test_gated(name: str, dtype: torch.dtype, shape: tuple) -> None:
    function, parameters = GATED[name]
    x = sample(shape, dtype)
    exact_x = x.double().requires_grad_()
    exact = function(*exact_x.chunk(2, -1))
    grad = torch.randn(exact.shape).to(dtype)
    exact.backward(grad.double())
    y = getattr(tex, name)(x, None, *parameters)
    a, b = (magnitudes(half) for half in x.chunk(2, -1))
    assert y.dtype == dtype
    assert_near(y, exact.detach(), a * b, ROUNDINGS, name)
    dx = getattr(tex, gradient_of(name))(grad, x, None, *parameters)
    assert dx.dtype == dtype and dx.shape == shape
    reach = (grad.double().abs() * a * b).repeat(*[1] * (len(shape) - 1), 2)
    assert_near(dx, exact_x.grad, reach, ROUNDINGS, gradient_of(name))


def test_clamps_pass_gradients_at_the_limit() -> None:
    x = torch.tensor([[LIMIT, -LIMIT, LIMIT, -LIMIT]])
    dx = tex.clamped_dswiglu(torch.ones(1, 2), x, None, LIMIT)
    assert dx.ne(0).all()
    over = tex.clamped_dswiglu(torch.ones(1, 2), x * 2, None, LIMIT)
    assert over.ne(0).tolist() == [[False, True, False, False]]


def test_nan_is_no_positive_value() -> None:
    nan = torch.full((2,), float("nan"))
    assert tex.relu(nan, None).tolist() == tex.srelu(nan, None).tolist() == [0, 0]


def interleaved(x: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Returns the halves of columns that alternate in runs of `size`."""
    runs = x.split(size, -1)
    return torch.cat(runs[::2], -1), torch.cat(runs[1::2], -1)


@pytest.mark.parametrize("scale_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [0, 32])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SCALED)
def test_scaled_gated(name: str, dtype: torch.dtype, size: int, scale_dtype: torch.dtype) -> None:
    function, parameters = GATED[name]
    x, scales = sample((2, 3, 128), dtype), torch.rand(6).to(scale_dtype)
    grad = torch.randn(2, 3, 64).to(dtype)
    exact_x = x.double().requires_grad_()
    exact_scales = scales.double().requires_grad_()
    halves = interleaved(exact_x, size or 64)
    exact = function(*halves) * exact_scales.view(2, 3, 1)
    exact.backward(grad.double())
    y = getattr(tex, f"scaled_{name}")(x, scales, None, *parameters, glu_interleave_size=size)
    a, b = (magnitudes(half.detach()) for half in halves)
    assert y.dtype == dtype
    assert_near(y, exact.detach(), a * b, ROUNDINGS, name)
    backward = getattr(tex, f"scaled_{gradient_of(name)}")
    dx, dscales = backward(grad, x, scales, None, *parameters, glu_interleave_size=size)
    reach = grad.double().abs() * a * b
    both = torch.stack((reach, reach), -2).view(2, 3, 2, -1)
    if size:
        runs = reach.split(size, -1)
        both = torch.cat([run for run in runs for _ in range(2)], -1)
    assert_near(dx, exact_x.grad, both.reshape(x.shape), ROUNDINGS, "dx")
    assert dscales.dtype == scale_dtype and dscales.shape == scales.shape
    sums = reach.sum(-1).flatten()
    assert_near(dscales, exact_scales.grad, sums, ROUNDINGS + 64, "dscales")
    same, none = backward(
        grad, x, scales, None, *parameters, glu_interleave_size=size, compute_scale_grad=False
    )
    assert none is None and torch.equal(same, dx)


@pytest.mark.parametrize("dtype", DTYPES)
def test_scaled_srelu(dtype: torch.dtype) -> None:
    x, scales = sample((3, 33), dtype), torch.rand(3, 1)
    grad = torch.randn(3, 33).to(dtype)
    exact_x, exact_scales = x.double().requires_grad_(), scales.double().requires_grad_()
    exact = exact_x.clamp(min=0) ** 2 * exact_scales
    exact.backward(grad.double())
    y = tex.scaled_srelu(x, scales, None)
    assert_near(y, exact.detach(), exact.detach(), ROUNDINGS, "y")
    dx, dscales = tex.scaled_dsrelu(grad, x, scales, None)
    assert_near(dx, exact_x.grad, exact_x.grad.abs(), ROUNDINGS, "dx")
    sums = (grad.double() * x.double().square()).abs().sum(-1, keepdim=True)
    assert_near(dscales, exact_scales.grad, sums, ROUNDINGS + 33, "dscales")
    assert tex.scaled_dsrelu(grad, x, scales, None, False)[1] is None


def quantizers() -> dict[str, Any]:
    return {
        "delayed": Float8Quantizer(torch.tensor([4.0]), torch.zeros(1), E4M3),
        "mxfp8": MXFP8Quantizer(E4M3),
        "current": Float8CurrentScalingQuantizer(E4M3),
        "nvfp4": NVFP4Quantizer(),
        "nvfp4 tiles": NVFP4Quantizer(with_2d_quantization=True),
        "nvfp4 transformed": NVFP4Quantizer(with_rht=True, with_post_rht_amax=True),
    }


@pytest.mark.parametrize("kind", ["delayed", "mxfp8", "nvfp4 transformed"])
def test_quantized_outputs_round_where_a_gpu_does(kind: str) -> None:
    x, grad = sample((64, 128), torch.bfloat16), torch.randn(64, 128).bfloat16()
    x32, grad32, keeps = x.float(), grad.float(), kind == "delayed"
    source, g = (x32, grad32) if keeps else (x, grad)
    halved = grad[:, :64], g[:, :64]
    pairs = [
        (lambda q: tex.gelu(x, q), lambda: tex.gelu(source, None)),
        (lambda q: tex.swiglu(x, q), lambda: tex.swiglu(source, None)),
        (lambda q: tex.dgelu(grad, x, q), lambda: tex.dgelu(g, source, None)),
        (lambda q: tex.dswiglu(halved[0], x, q), lambda: tex.dswiglu(halved[1], source, None)),
    ]
    for entry, plain in pairs:
        made = entry(quantizers()[kind])
        expected = tex.quantize(plain(), quantizers()[kind])
        assert made.dtype == torch.bfloat16
        assert torch.equal(
            made.dequantize(dtype=torch.float32), expected.dequantize(dtype=torch.float32)
        )


def codes_under_exact_amax(value: Tensor, quantizer: Quantizer) -> Tensor:
    """Quantizes rounded values together with a separate block of the exact amax; decodes them."""
    rows = 16  # of a tile
    beside = torch.zeros(rows, value.shape[-1])
    beside[0, 0] = amax = value.abs().max()
    assert amax != amax.bfloat16().float(), "the two amaxes must differ"
    rounded = value.bfloat16().float().clamp(-amax, amax)  # codes saturate
    made = tex.quantize(torch.cat([rounded, beside]), quantizer)
    return made.dequantize(dtype=torch.float32)[:-rows]


@pytest.mark.parametrize("kind", ["current", "nvfp4", "nvfp4 tiles"])
def test_amaxes_are_those_of_values_that_are_not_rounded(kind: str) -> None:
    torch.manual_seed(0)
    x, grad = torch.rand(64, 128).bfloat16() * 2, torch.randn(64, 128).bfloat16()
    x32, grad32, half = x.float(), grad.float(), grad[:, :64]
    pairs = [
        (lambda q: tex.gelu(x, q), tex.gelu(x32, None)),
        (lambda q: tex.swiglu(x, q), tex.swiglu(x32, None)),
        (lambda q: tex.dgelu(grad, x, q), tex.dgelu(grad32, x32, None)),
        (lambda q: tex.dswiglu(half, x, q), tex.dswiglu(half.float(), x32, None)),
        (lambda q: tex.dbias_dgelu(grad, x, q)[1], tex.dgelu(grad32, x32, None)),
    ]
    for entry, value in pairs:
        made = entry(quantizers()[kind])
        assert made.dtype == torch.bfloat16
        expected = codes_under_exact_amax(value, quantizers()[kind])
        assert torch.equal(made.dequantize(dtype=torch.float32), expected)


@pytest.mark.parametrize("kind", ["delayed", "mxfp8", "current"])
def test_bias_gradients_sum_where_a_gpu_does(kind: str) -> None:
    x, grad = sample((64, 128), torch.bfloat16), torch.randn(64, 128).bfloat16()
    bias, made = tex.dbias_dgelu(grad, x, quantizers()[kind])
    value = tex.dgelu(grad.float(), x.float(), None)
    if kind == "current":  # the other two sum unrounded values
        value = value.bfloat16().float()
    assert torch.equal(bias, value.sum(0).bfloat16())
    expected = tex.dgelu(grad, x, quantizers()[kind])
    assert torch.equal(made.dequantize(), expected.dequantize())


@pytest.mark.parametrize(
    "call,message",
    [
        (
            lambda x: tex.swiglu(x, None),
            "swiglu: a gated activation needs an even last dimension, got shape (3, 5)",
        ),
        (
            lambda x: tex.dgelu(x[:2], x, None),
            "dgelu: the gradient must have shape (3, 5), got (2, 5)",
        ),
        (
            lambda x: tex.dglu(x[:, :3], x[:, :4], None),
            "dglu: the gradient must have shape (3, 2), got (3, 3)",
        ),
        (
            lambda x: tex.situglu(x[:, :4], None, -1.0),
            "situglu: beta1 must be finite and positive, got -1.0",
        ),
        (
            lambda x: tex.scaled_swiglu(x[:, :4], torch.ones(2), None),
            "scaled_swiglu: needs one scale per row, got 2 scales for 3 rows",
        ),
        (
            lambda x: tex.scaled_swiglu(x[:, :4], torch.ones(3), None, 2),
            "scaled_swiglu: glu_interleave_size must be a multiple of 32 that divides 2 columns, "
            "got 2",
        ),
        (
            lambda x: tex.scaled_dsrelu(x[:1], x, torch.ones(3), None),
            "scaled_dsrelu: the gradient must have shape (3, 5), got (1, 5)",
        ),
    ],
)
def test_bad_arguments_are_refused(call: Callable, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        call(torch.ones(3, 5))
    assert str(caught.value) == message
