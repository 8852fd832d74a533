# SPDX-License-Identifier: Apache-2.0
"""Entries that normalize rows: LayerNorm and RMSNorm, forward and backward.

All arithmetic is in float32. Sums have PyTorch's order, so the last bits differ from a GPU's.
"""

from __future__ import annotations

from typing import Any

import torch

from narrowfloat.pytorch._types import TensorLike
from narrowfloat.pytorch.constants import DType, TE_DType_To_Torch
from narrowfloat.pytorch.quantized_tensor import Quantizer
from narrowfloat.pytorch.tex._outputs import deliver
from narrowfloat.pytorch.tex.casts import plain

__all__ = ["layernorm_bwd", "layernorm_fwd", "rmsnorm_bwd", "rmsnorm_bwd_add", "rmsnorm_fwd"]

Tensor = torch.Tensor


def _rows(tensor: Tensor) -> Tensor:
    return plain(tensor).float().reshape(-1, tensor.shape[-1])


def _gamma(weight: Tensor, zero_centered: bool) -> Tensor:
    gamma = plain(weight).float()
    return gamma + 1 if zero_centered else gamma


def _check_columns(entry: str, x: Tensor, *parameters: tuple[str, Tensor | None]) -> None:
    if x.dim() == 0:
        raise ValueError(f"{entry}: the input must have a last dimension, got a scalar")
    for name, parameter in parameters:
        if parameter is not None and tuple(parameter.shape) != (x.shape[-1],):
            raise ValueError(
                f"{entry}: {name} must have shape ({x.shape[-1]},), got {tuple(parameter.shape)}"
            )


def _check_gradient(entry: str, dz: Tensor, x: Tensor, **statistics: Tensor) -> None:
    if dz.numel() != x.numel() or dz.shape[-1] != x.shape[-1]:
        raise ValueError(
            f"{entry}: the gradient must have the input's shape, got {tuple(dz.shape)} for "
            f"{tuple(x.shape)}"
        )
    rows = x.shape[:-1].numel()
    for name, values in statistics.items():
        if values.numel() != rows:
            raise ValueError(
                f"{entry}: {name} must have one value per row, got {values.numel()} for {rows} rows"
            )


def _reciprocal_deviation(centered: Tensor, eps: float) -> Tensor:
    """Returns 1 / sqrt(mean square + eps) of every row."""
    squares = torch.linalg.vector_norm(centered, dim=-1).square_()
    return squares.div_(centered.shape[-1]).add_(eps).rsqrt_()


@torch.no_grad()
def layernorm_fwd(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    eps: float,
    ln_out: TensorLike | None,
    quantizer: Quantizer | None,
    otype: DType | torch.dtype,
    sm_margin: int,
    zero_centered_gamma: bool,
) -> list[Any]:
    """Returns [normalized rows, means, reciprocal deviations]; statistics are float32 of the rows.

    The result is weight * (x - mean) / sqrt(variance + eps) + bias; a zero-centred weight has 1
    added. Errors: ValueError unless weight and bias have one value per column.
    """
    _check_columns("layernorm_fwd", input, ("weight", weight), ("bias", bias))
    rows = _rows(input)
    mean = rows.mean(-1)
    centered = rows - mean[:, None]
    deviation = _reciprocal_deviation(centered, eps)
    value = centered.mul_(deviation[:, None])
    gamma = _gamma(weight, zero_centered_gamma)
    value = value.mul_(gamma) if bias is None else torch.addcmul(plain(bias).float(), value, gamma)
    dtype = TE_DType_To_Torch[DType.cast(otype)]
    return [deliver(value.view(input.shape), dtype, quantizer, ln_out), mean, deviation]


@torch.no_grad()
def rmsnorm_fwd(
    input: Tensor,
    weight: Tensor,
    eps: float,
    ln_out: TensorLike | None,
    quantizer: Quantizer | None,
    otype: DType | torch.dtype,
    sm_margin: int,
    zero_centered_gamma: bool,
) -> list[Any]:
    """Returns [normalized rows, None, reciprocal root mean squares]; the latter are float32.

    The result is weight * x / sqrt(mean square + eps); a zero-centred weight has 1 added.
    Errors: ValueError unless the weight has one value per column.
    """
    _check_columns("rmsnorm_fwd", input, ("weight", weight))
    rows = _rows(input)
    deviation = _reciprocal_deviation(rows, eps)
    value = (rows * deviation[:, None]).mul_(_gamma(weight, zero_centered_gamma))
    dtype = TE_DType_To_Torch[DType.cast(otype)]
    return [deliver(value.view(input.shape), dtype, quantizer, ln_out), None, deviation]


def _input_gradient(grad: Tensor, normalized: Tensor, deviation: Tensor) -> Tensor:
    """Returns the gradient of the rows before scaling; overwrites `grad`.

    grad: of the normalized rows; its component along `normalized` is subtracted.
    """
    along = (grad * normalized).mean(-1, keepdim=True)
    return grad.addcmul_(normalized, along, value=-1).mul_(deviation[:, None])


@torch.no_grad()
def layernorm_bwd(
    dz: Tensor,
    x: Tensor,
    mu: Tensor,
    rsigma: Tensor,
    gamma: Tensor,
    sm_margin: int = 0,
    zero_centered_gamma: bool = False,
) -> list[Tensor]:
    """Returns [input gradient, weight gradient, bias gradient] from layernorm_fwd()'s statistics.

    The first has the input's dtype, the others have the weight's. Errors: ValueError for shapes
    that do not agree.
    """
    _check_columns("layernorm_bwd", x, ("gamma", gamma))
    _check_gradient("layernorm_bwd", dz, x, mu=mu, rsigma=rsigma)
    dy = _rows(dz)
    normalized = (_rows(x) - mu.view(-1, 1)).mul_(rsigma.view(-1, 1))
    dgamma, dbeta = (dy * normalized).sum(0), dy.sum(0)
    grad = dy * _gamma(gamma, zero_centered_gamma)
    grad.sub_(grad.mean(-1, keepdim=True))  # the rows were centred
    dx = _input_gradient(grad, normalized, rsigma.view(-1))
    return [dx.view(x.shape).to(x.dtype), dgamma.to(gamma.dtype), dbeta.to(gamma.dtype)]


def _rmsnorm_bwd(
    entry: str, dz: Tensor, x: Tensor, rsigma: Tensor, gamma: Tensor, zero_centered: bool
) -> tuple[Tensor, Tensor]:
    """Returns the gradients of the rows, in float32, and of the weight."""
    _check_columns(entry, x, ("gamma", gamma))
    _check_gradient(entry, dz, x, rsigma=rsigma)
    dy = _rows(dz)
    normalized = _rows(x) * rsigma.view(-1, 1)
    dgamma = (dy * normalized).sum(0).to(gamma.dtype)
    dx = _input_gradient(dy * _gamma(gamma, zero_centered), normalized, rsigma.view(-1))
    return dx, dgamma


@torch.no_grad()
def rmsnorm_bwd(
    dz: Tensor,
    x: Tensor,
    rsigma: Tensor,
    gamma: Tensor,
    sm_margin: int = 0,
    zero_centered_gamma: bool = False,
) -> list[Tensor]:
    """Returns [input gradient, weight gradient], in the dtypes of input and weight.

    Errors: ValueError for shapes that do not agree.
    """
    dx, dgamma = _rmsnorm_bwd("rmsnorm_bwd", dz, x, rsigma, gamma, zero_centered_gamma)
    return [dx.view(x.shape).to(x.dtype), dgamma]


@torch.no_grad()
def rmsnorm_bwd_add(
    dz: Tensor,
    x: Tensor,
    add: Tensor,
    rsigma: Tensor,
    gamma: Tensor,
    sm_margin: int = 0,
    zero_centered_gamma: bool = False,
) -> list[Tensor]:
    """Returns rmsnorm_bwd() with `add` added to the input gradient before it is rounded."""
    if add.numel() != x.numel():
        raise ValueError(
            f"rmsnorm_bwd_add: add must have the input's shape, got {tuple(add.shape)} for "
            f"{tuple(x.shape)}"
        )
    dx, dgamma = _rmsnorm_bwd("rmsnorm_bwd_add", dz, x, rsigma, gamma, zero_centered_gamma)
    dx += _rows(add)
    return [dx.view(x.shape).to(x.dtype), dgamma]
