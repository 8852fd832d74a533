# SPDX-License-Identifier: Apache-2.0
"""Entries for activations that multiply each row by a scale.

Mixtures of experts use them. Results are rounded to the input's dtype before quantization.
"""

from __future__ import annotations

from typing import Any

import torch

from narrowfloat.pytorch._types import TensorLike
from narrowfloat.pytorch.quantized_tensor import Quantizer
from narrowfloat.pytorch.tex._gates import (
    SILU,
    SRELU,
    Gate,
    clamped_swish,
    gated_gradients,
    gated_value,
    halves,
)
from narrowfloat.pytorch.tex.activations import check_gradient, checked_situ, gated_shape
from narrowfloat.pytorch.tex.casts import plain, quantize

__all__ = [
    "scaled_clamped_dswiglu",
    "scaled_clamped_swiglu",
    "scaled_dsituglu",
    "scaled_dsrelu",
    "scaled_dswiglu",
    "scaled_situglu",
    "scaled_srelu",
    "scaled_swiglu",
]

Tensor = torch.Tensor
_SWISH = Gate(SILU)
# Kernels load whole vectors of an interleaved half.
_INTERLEAVE_MULTIPLE = 32


def _quantized(value: Tensor, quantizer: Quantizer | None) -> TensorLike:
    return value if quantizer is None else quantize(value, quantizer)


def _scales(entry: str, x: Tensor, scales: Tensor, ndim: int) -> Tensor:
    """Returns the scales in float32, (rows, 1, ...), to broadcast over `ndim` dimensions."""
    rows = x.shape[:-1].numel()
    if scales.numel() != rows:
        raise ValueError(
            f"{entry}: needs one scale per row, got {scales.numel()} scales for {rows} rows"
        )
    return plain(scales).float().reshape(rows, *[1] * (ndim - 1))


def _gated_shape(entry: str, x: Tensor, interleave: int) -> torch.Size:
    shape = gated_shape(entry, x)
    if interleave and (interleave % _INTERLEAVE_MULTIPLE or shape[-1] % interleave):
        raise ValueError(
            f"{entry}: glu_interleave_size must be a multiple of {_INTERLEAVE_MULTIPLE} that "
            f"divides {shape[-1]} columns, got {interleave}"
        )
    return shape


@torch.no_grad()
def _gated(
    entry: str,
    gate: Gate,
    input: Tensor,
    act_scales: Tensor,
    quantizer: Quantizer | None,
    interleave: int,
) -> TensorLike:
    x = plain(input).contiguous()
    shape = _gated_shape(entry, x, interleave)
    value = gated_value(gate, *halves(x, interleave))
    value.mul_(_scales(entry, x, act_scales, value.dim()))
    return _quantized(value.to(x.dtype).view(shape), quantizer)


@torch.no_grad()
def _gated_backward(
    entry: str,
    gate: Gate,
    grad: Tensor,
    fwd_input: Tensor,
    act_scales: Tensor,
    quantizer: Quantizer | None,
    interleave: int,
    compute_scale_grad: bool,
) -> tuple[Any, Tensor | None]:
    x = plain(fwd_input).contiguous()
    check_gradient(entry, grad, _gated_shape(entry, x, interleave))
    a, b = halves(x, interleave)
    g = plain(grad).float().reshape(a.shape)
    scales = _scales(entry, x, act_scales, g.dim())
    both = torch.empty_like(x)
    gradients = gated_gradients(gate, g * scales, a, b)
    for half, gradient in zip(halves(both, interleave), gradients, strict=True):
        half.copy_(gradient)
    scale_grad = None
    if compute_scale_grad:
        sums = gated_value(gate, a, b).mul_(g).flatten(1).sum(1)
        scale_grad = sums.to(act_scales.dtype).view(act_scales.shape)
    return _quantized(both, quantizer), scale_grad


def scaled_swiglu(
    input: Tensor, act_scales: Tensor, quantizer: Quantizer | None, glu_interleave_size: int = 0
) -> TensorLike:
    """Returns swiglu of every row times its scale, quantized unless the quantizer is None.

    glu_interleave_size: columns that alternate between the halves; 0 for two whole halves.
    Errors: ValueError unless there is one scale per row and the columns divide.
    """
    return _gated("scaled_swiglu", _SWISH, input, act_scales, quantizer, glu_interleave_size)


def scaled_dswiglu(
    grad: Tensor,
    fwd_input: Tensor,
    act_scales: Tensor,
    quantizer: Quantizer | None,
    glu_interleave_size: int = 0,
    compute_scale_grad: bool = True,
) -> tuple[Any, Tensor | None]:
    """Returns the gradients of scaled_swiglu()'s input, quantized, and of its scales, or None."""
    return _gated_backward(
        "scaled_dswiglu", _SWISH, grad, fwd_input, act_scales, quantizer, glu_interleave_size,
        compute_scale_grad,
    )  # fmt: skip


def scaled_situglu(
    input: Tensor,
    act_scales: Tensor,
    quantizer: Quantizer | None,
    beta1: float = 4.0,
    beta2: float = 25.0,
    glu_interleave_size: int = 0,
) -> TensorLike:
    """Returns situglu() of every row times its scale; arguments as scaled_swiglu()."""
    gate = checked_situ("scaled_situglu", beta1, beta2)
    return _gated("scaled_situglu", gate, input, act_scales, quantizer, glu_interleave_size)


def scaled_dsituglu(
    grad: Tensor,
    fwd_input: Tensor,
    act_scales: Tensor,
    quantizer: Quantizer | None,
    beta1: float = 4.0,
    beta2: float = 25.0,
    glu_interleave_size: int = 0,
    compute_scale_grad: bool = True,
) -> tuple[Any, Tensor | None]:
    """Returns the gradients of scaled_situglu()'s input, quantized, and of its scales, or None."""
    gate = checked_situ("scaled_dsituglu", beta1, beta2)
    return _gated_backward(
        "scaled_dsituglu", gate, grad, fwd_input, act_scales, quantizer, glu_interleave_size,
        compute_scale_grad,
    )  # fmt: skip


def scaled_clamped_swiglu(
    input: Tensor,
    act_scales: Tensor,
    quantizer: Quantizer | None,
    limit: float = 7.0,
    alpha: float = 1.702,
    glu_linear_offset: float = 1.0,
    glu_interleave_size: int = 0,
) -> TensorLike:
    """Returns clamped_swiglu() of every row times its scale; arguments as scaled_swiglu()."""
    gate = clamped_swish(limit, alpha, glu_linear_offset)
    return _gated("scaled_clamped_swiglu", gate, input, act_scales, quantizer, glu_interleave_size)


def scaled_clamped_dswiglu(
    grad: Tensor,
    fwd_input: Tensor,
    act_scales: Tensor,
    quantizer: Quantizer | None,
    limit: float = 7.0,
    alpha: float = 1.702,
    glu_linear_offset: float = 1.0,
    glu_interleave_size: int = 0,
    compute_scale_grad: bool = True,
) -> tuple[Any, Tensor | None]:
    """Returns the gradients of scaled_clamped_swiglu()'s input, quantized, and of its scales."""
    gate = clamped_swish(limit, alpha, glu_linear_offset)
    return _gated_backward(
        "scaled_clamped_dswiglu", gate, grad, fwd_input, act_scales, quantizer, glu_interleave_size,
        compute_scale_grad,
    )  # fmt: skip


@torch.no_grad()
def scaled_srelu(input: Tensor, act_scales: Tensor, quantizer: Quantizer | None) -> TensorLike:
    """Returns srelu() of every row times its scale, quantized unless the quantizer is None."""
    x = plain(input)
    scales = _scales("scaled_srelu", x, act_scales, 2)
    value = SRELU.value(x.float().reshape(-1, x.shape[-1])).mul_(scales)
    return _quantized(value.to(x.dtype).view(x.shape), quantizer)


@torch.no_grad()
def scaled_dsrelu(
    grad: Tensor,
    fwd_input: Tensor,
    act_scales: Tensor,
    quantizer: Quantizer | None,
    compute_scale_grad: bool = True,
) -> tuple[Any, Tensor | None]:
    """Returns the gradients of scaled_srelu()'s input, quantized, and of its scales, or None."""
    x = plain(fwd_input)
    check_gradient("scaled_dsrelu", grad, x.shape)
    argument = x.float().reshape(-1, x.shape[-1])
    g = plain(grad).float().reshape(argument.shape)
    scales = _scales("scaled_dsrelu", x, act_scales, 2)
    gradient = SRELU.gradient(g * scales, argument).to(x.dtype).view(x.shape)
    scale_grad = None
    if compute_scale_grad:
        sums = SRELU.value(argument).mul_(g).sum(1)
        scale_grad = sums.to(act_scales.dtype).view(act_scales.shape)
    return _quantized(gradient, quantizer), scale_grad
