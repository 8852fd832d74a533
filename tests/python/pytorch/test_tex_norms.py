# SPDX-License-Identifier: Apache-2.0
"""Compares LayerNorm and RMSNorm of the native module with float64."""

from collections.abc import Callable

import pytest
import torch
from bounds import assert_near
from narrowfloat.pytorch import tex
from narrowfloat.pytorch.constants import TE_DType
from narrowfloat.pytorch.tensor.float8_blockwise_tensor import Float8BlockQuantizer
from narrowfloat.pytorch.tensor.float8_tensor import Float8CurrentScalingQuantizer, Float8Quantizer
from narrowfloat.pytorch.tensor.mxfp8_tensor import MXFP8Quantizer

from narrowfloat import pytorch as nfp

Tensor = torch.Tensor
E4M3 = tex.DType.kFloat8E4M3
EPS = 1e-5
# A value has fewer than 16 roundings, without the sums over up to 300 columns. PyTorch computes
# these in at least 4 partial sums of at most 80 terms each.
ROUNDINGS = 100

DTYPES = [
    (torch.float32, torch.float32),
    (torch.bfloat16, torch.bfloat16),
    (torch.float16, torch.float16),
    (torch.bfloat16, torch.float32),
]
SHAPES = [(5, 33), (2, 3, 64), (1, 1), (7, 300), (0, 16)]


def arguments(shape: tuple, dtype: torch.dtype, weight_dtype: torch.dtype) -> tuple:
    """Returns input, weight, bias and gradient. Rows of the input are not adjacent in memory."""
    torch.manual_seed(3)
    wide = torch.randn(*shape[:-1], shape[-1] + 3) + 2
    x = wide.to(dtype)[..., : shape[-1]]
    weight = (torch.randn(shape[-1]) + 1).to(weight_dtype)
    bias = torch.randn(shape[-1]).to(weight_dtype)
    return x, weight, bias, torch.randn(shape).to(dtype)


def exact_layernorm(
    x: Tensor, weight: Tensor, bias: Tensor, zero_centered: bool
) -> tuple[Tensor, ...]:
    """Returns (x - mean) / sqrt(variance + eps) * weight + bias in float64, and its parts."""
    x = x.double()
    mean = x.mean(-1, keepdim=True)
    deviation = ((x - mean).square().mean(-1, keepdim=True) + EPS).rsqrt()
    gamma = weight.double() + (1 if zero_centered else 0)
    return (x - mean) * deviation * gamma + bias.double(), mean, deviation, gamma


@pytest.mark.parametrize("zero_centered", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype,weight_dtype", DTYPES)
def test_layernorm(
    dtype: torch.dtype, weight_dtype: torch.dtype, shape: tuple, zero_centered: bool
) -> None:
    x, weight, bias, dz = arguments(shape, dtype, weight_dtype)
    y, mu, rsigma = tex.layernorm_fwd(
        x, weight, bias, EPS, None, None, TE_DType[dtype], 0, zero_centered
    )
    exact, mean, deviation, gamma = exact_layernorm(x, weight, bias, zero_centered)
    spread = x.double().abs() + x.double().abs().mean(-1, keepdim=True)
    assert y.dtype == dtype and y.shape == shape and y.is_contiguous()
    assert_near(y, exact, spread * deviation * gamma.abs() + bias.double().abs(), ROUNDINGS, "y")
    assert mu.dtype == rsigma.dtype == torch.float32 and mu.shape == rsigma.shape == (
        x.shape[:-1].numel(),
    )
    assert_near(mu, mean.flatten(), x.double().abs().mean(-1).flatten(), ROUNDINGS, "mean")

    exact_x = x.double().requires_grad_()
    exact_w = weight.double().requires_grad_()
    exact_b = bias.double().requires_grad_()
    exact_layernorm(exact_x, exact_w, exact_b, zero_centered)[0].backward(dz.double())
    dx, dgamma, dbeta = tex.layernorm_bwd(dz, x, mu, rsigma, weight, 0, zero_centered)
    assert dx.dtype == dtype and dgamma.dtype == dbeta.dtype == weight_dtype
    g, reach = dz.double().abs() * gamma.abs(), spread * deviation
    along = (g * reach).mean(-1, keepdim=True)
    magnitude = deviation * (g + g.mean(-1, keepdim=True) + reach * along)
    assert_near(dx, exact_x.grad, magnitude, ROUNDINGS, "dx")
    weights = (dz.double().abs() * reach).flatten(0, -2).sum(0)
    assert_near(dgamma, exact_w.grad, weights, ROUNDINGS, "dgamma")
    sums = dz.double().abs().flatten(0, -2).sum(0)
    assert_near(dbeta, exact_b.grad, sums, ROUNDINGS, "dbeta")


@pytest.mark.parametrize("zero_centered", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype,weight_dtype", DTYPES)
def test_rmsnorm(
    dtype: torch.dtype, weight_dtype: torch.dtype, shape: tuple, zero_centered: bool
) -> None:
    x, weight, _, dz = arguments(shape, dtype, weight_dtype)
    add = torch.randn(shape).to(dtype)
    y, none, rsigma = tex.rmsnorm_fwd(x, weight, EPS, None, None, TE_DType[dtype], 0, zero_centered)
    assert none is None and y.dtype == dtype and y.shape == shape

    exact_x, exact_w = x.double().requires_grad_(), weight.double().requires_grad_()
    gamma = exact_w + (1 if zero_centered else 0)
    deviation = (exact_x.square().mean(-1, keepdim=True) + EPS).rsqrt()
    exact = exact_x * deviation * gamma
    exact.backward(dz.double())
    assert_near(y, exact.detach(), exact.detach().abs(), ROUNDINGS, "y")

    dx, dgamma = tex.rmsnorm_bwd(dz, x, rsigma, weight, 0, zero_centered)
    assert dx.dtype == dtype and dgamma.dtype == weight_dtype
    g = (dz.double() * gamma.detach()).abs()
    normalized = (exact_x * deviation).detach().abs()
    along = (g * normalized).mean(-1, keepdim=True)
    magnitude = deviation.detach() * (g + normalized * along)
    assert_near(dx, exact_x.grad, magnitude, ROUNDINGS, "dx")
    weights = (dz.double().abs() * normalized).flatten(0, -2).sum(0)
    assert_near(dgamma, exact_w.grad, weights, ROUNDINGS, "dgamma")

    added, same = tex.rmsnorm_bwd_add(dz, x, add, rsigma, weight, 0, zero_centered)
    assert torch.equal(same, dgamma)
    assert_near(
        added, exact_x.grad + add.double(), magnitude + add.double().abs(), ROUNDINGS, "add"
    )


def test_output_is_filled_and_inputs_stay() -> None:
    x, weight, bias, dz = arguments((4, 32), torch.float32, torch.float32)
    copies = [t.clone() for t in (x, weight, bias, dz)]
    out = torch.empty(4, 32)
    y, mu, rsigma = tex.layernorm_fwd(
        x, weight, bias, EPS, out, None, TE_DType[torch.float32], 0, False
    )
    assert y is out
    tex.layernorm_bwd(dz, x, mu, rsigma, weight)
    tex.rmsnorm_fwd(x, weight, EPS, None, None, TE_DType[torch.float32], 0, False)
    tex.rmsnorm_bwd_add(dz, x, dz, rsigma, weight)
    for tensor, copy in zip((x, weight, bias, dz), copies, strict=True):
        assert torch.equal(tensor, copy)


def norm(quantizer: nfp.Quantizer | None, out: object = None) -> torch.Tensor:
    x, weight, bias, _ = arguments((128, 128), torch.bfloat16, torch.bfloat16)
    return tex.layernorm_fwd(
        x, weight, bias, EPS, out, quantizer, TE_DType[torch.bfloat16], 0, False
    )[0]


def test_a_given_scale_applies_to_the_float32_value() -> None:
    x, weight, bias, _ = arguments((128, 128), torch.bfloat16, torch.bfloat16)
    scale, amax = torch.tensor([8.0]), torch.zeros(1)
    made = norm(Float8Quantizer(scale, amax, E4M3))
    assert made.dtype == torch.bfloat16
    y32 = tex.layernorm_fwd(x, weight, bias, EPS, None, None, TE_DType[torch.float32], 0, False)[0]
    again = torch.zeros(1)
    assert torch.equal(made._data, tex.quantize(y32, Float8Quantizer(scale, again, E4M3))._data)
    assert float(amax) == float(again) == float(y32.abs().max())
    rounded = tex.quantize(y32.bfloat16(), Float8Quantizer(scale, again, E4M3))
    assert not torch.equal(made._data, rounded._data)  # rounding changes codes here


@pytest.mark.parametrize(
    "quantizer",
    [
        MXFP8Quantizer(E4M3),
        Float8CurrentScalingQuantizer(E4M3),
        Float8BlockQuantizer(E4M3, rowwise=True, columnwise=True),
    ],
    ids=lambda q: type(q).__name__,
)
def test_other_quantizers_read_rounded_values(quantizer: nfp.Quantizer) -> None:
    made, plain = norm(quantizer), tex.quantize(norm(None), quantizer)
    for name in ("_data", "_rowwise_data", "_columnwise_data", "_rowwise_scale_inv"):
        expected = getattr(plain, name, None)
        assert expected is None or torch.equal(getattr(made, name), expected)
    out = quantizer.make_empty((128, 128), dtype=torch.bfloat16)
    assert norm(quantizer, out) is out
    assert torch.equal(out.dequantize(), plain.dequantize())


@pytest.mark.parametrize(
    "call,message",
    [
        (
            lambda x, w: tex.rmsnorm_fwd(x, w[:3], EPS, None, None, tex.DType.kFloat32, 0, False),
            "rmsnorm_fwd: weight must have shape (4,), got (3,)",
        ),
        (
            lambda x, w: tex.layernorm_fwd(
                x, w, w[:2], EPS, None, None, tex.DType.kFloat32, 0, False
            ),
            "layernorm_fwd: bias must have shape (4,), got (2,)",
        ),
        (
            lambda x, w: tex.layernorm_bwd(x, x, w[:2], w, w),
            "layernorm_bwd: mu must have one value per row, got 2 for 3 rows",
        ),
        (
            lambda x, w: tex.rmsnorm_bwd(x[:2], x, w[:3], w),
            "rmsnorm_bwd: the gradient must have the input's shape, got (2, 4) for (3, 4)",
        ),
        (
            lambda x, w: tex.rmsnorm_bwd_add(x, x, x[:1], w[:3], w),
            "rmsnorm_bwd_add: add must have the input's shape, got (1, 4) for (3, 4)",
        ),
        (
            lambda x, w: tex.rmsnorm_fwd(x[0, 0], w, EPS, None, None, tex.DType.kFloat32, 0, False),
            "rmsnorm_fwd: the input must have a last dimension, got a scalar",
        ),
    ],
)
def test_bad_shapes_are_refused(call: Callable, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        call(torch.ones(3, 4), torch.ones(4))
    assert str(caught.value) == message
