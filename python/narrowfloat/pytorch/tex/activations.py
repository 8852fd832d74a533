# SPDX-License-Identifier: Apache-2.0
"""Entries for activation functions, plain and gated, and their gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from narrowfloat.pytorch._native import column_sums
from narrowfloat.pytorch._types import TensorLike
from narrowfloat.pytorch.quantized_tensor import Quantizer
from narrowfloat.pytorch.tex._gates import (
    GELU,
    QGELU,
    RELU,
    SIGMOID,
    SILU,
    SRELU,
    Function,
    Gate,
    clamped_swish,
    gated_gradients,
    gated_value,
    halves,
    situ,
)
from narrowfloat.pytorch.tex._outputs import deliver_activation, sums_float32, working_dtype
from narrowfloat.pytorch.tex.casts import plain

_UNARY = {"gelu": GELU, "qgelu": QGELU, "relu": RELU, "srelu": SRELU, "silu": SILU}
_GATED = {"glu": SIGMOID, "geglu": GELU, "qgeglu": QGELU, "reglu": RELU, "sreglu": SRELU}
_GATED["swiglu"] = SILU

__all__ = [
    "clamped_dswiglu",
    "clamped_swiglu",
    "dsituglu",
    "situglu",
    *(f"dbias_d{name}" for name in _UNARY),
    *(prefix + name for name in _UNARY | _GATED for prefix in ("", "d")),
]

Tensor = torch.Tensor
Entry = Callable[..., Any]


def check_gradient(entry: str, grad: Tensor, shape: torch.Size) -> None:
    """Raises ValueError unless a gradient has the columns and the size of `shape`."""
    if grad.shape[-1:] != shape[-1:] or grad.numel() != shape.numel():
        raise ValueError(
            f"{entry}: the gradient must have shape {tuple(shape)}, got {tuple(grad.shape)}"
        )


def gated_shape(entry: str, x: Tensor) -> torch.Size:
    """Returns the shape of a gated activation. Errors: ValueError for an odd last dimension."""
    if x.dim() == 0 or x.shape[-1] % 2 != 0:
        raise ValueError(
            f"{entry}: a gated activation needs an even last dimension, got shape {tuple(x.shape)}"
        )
    return torch.Size((*x.shape[:-1], x.shape[-1] // 2))


def _argument(function: Function, x: Tensor, work: torch.dtype) -> Tensor:
    """Returns the argument in float32; unchanged if one operator rounds its float32 result."""
    return x if function.rounds_once and work == x.dtype else x.float()


@torch.no_grad()
def _unary(function: Function, input: Tensor, quantizer: Quantizer | None) -> TensorLike:
    x = plain(input)
    argument = _argument(function, x, working_dtype(quantizer, x.dtype))
    return deliver_activation(function.value(argument), x.dtype, quantizer)


def _unary_gradient(
    entry: str, function: Function, grad: Tensor, x: Tensor, work: torch.dtype
) -> Tensor:
    """Returns the gradient of an activation in `work` or float32."""
    check_gradient(entry, grad, x.shape)
    argument = _argument(function, x, work)
    return function.gradient(plain(grad).to(argument.dtype).view(x.shape), argument)


def _unary_entries(name: str, function: Function) -> dict[str, Entry]:
    """Returns the entries of a plain activation: value, gradient, gradient with bias gradient."""

    def forward(input: Tensor, quantizer: Quantizer | None) -> TensorLike:
        return _unary(function, input, quantizer)

    @torch.no_grad()
    def backward(grad: Tensor, fwd_input: Tensor, quantizer: Quantizer | None) -> TensorLike:
        x = plain(fwd_input)
        work = working_dtype(quantizer, x.dtype)
        return deliver_activation(
            _unary_gradient(f"d{name}", function, grad, x, work), x.dtype, quantizer
        )

    @torch.no_grad()
    def with_bias(grad: Tensor, fwd_input: Tensor, quantizer: Quantizer | None) -> list[Any]:
        x = plain(fwd_input)
        exact = sums_float32(quantizer)
        work = torch.float32 if exact else working_dtype(quantizer, x.dtype)
        value = _unary_gradient(f"dbias_d{name}", function, grad, x, work).to(work)
        bias = column_sums(value if exact else value.to(x.dtype)).to(grad.dtype)
        return [bias, deliver_activation(value, grad.dtype, quantizer)]

    forward.__doc__ = f"Returns {name} of `input`, quantized unless the quantizer is None."
    backward.__doc__ = f"Returns `grad` times the derivative of {name} at `fwd_input`, quantized."
    with_bias.__doc__ = f"Returns [d{name}() summed over the rows, d{name}()]."
    return {name: forward, f"d{name}": backward, f"dbias_d{name}": with_bias}


@torch.no_grad()
def _gated(entry: str, gate: Gate, input: Tensor, quantizer: Quantizer | None) -> TensorLike:
    x = plain(input).contiguous()
    shape = gated_shape(entry, x)
    value = gated_value(gate, *halves(x)).view(shape)
    return deliver_activation(value, x.dtype, quantizer)


@torch.no_grad()
def _gated_backward(
    entry: str, gate: Gate, grad: Tensor, fwd_input: Tensor, quantizer: Quantizer | None
) -> TensorLike:
    x = plain(fwd_input).contiguous()
    check_gradient(entry, grad, gated_shape(entry, x))
    a, b = halves(x)
    both = torch.empty_like(x, dtype=working_dtype(quantizer, x.dtype))
    gradients = gated_gradients(gate, plain(grad).float().reshape(a.shape), a, b)
    for half, gradient in zip(halves(both), gradients, strict=True):
        half.copy_(gradient)
    return deliver_activation(both, x.dtype, quantizer)


def _gated_entries(name: str, act: Function) -> dict[str, Entry]:
    """Returns the entries of a gated activation: value and gradient."""
    gate = Gate(act)

    def forward(input: Tensor, quantizer: Quantizer | None) -> TensorLike:
        return _gated(name, gate, input, quantizer)

    def backward(grad: Tensor, fwd_input: Tensor, quantizer: Quantizer | None) -> TensorLike:
        return _gated_backward(f"d{name}", gate, grad, fwd_input, quantizer)

    forward.__doc__ = (
        f"Returns the first half of the last dimension of `input` through {name}'s gate times the "
        "second half, quantized unless the quantizer is None."
    )
    backward.__doc__ = f"Returns the gradient of both halves of `fwd_input` of {name}, quantized."
    return {name: forward, f"d{name}": backward}


def situglu(
    input: Tensor, quantizer: Quantizer | None, beta1: float = 4.0, beta2: float = 25.0
) -> TensorLike:
    """Returns beta1 * tanh(a / beta1) * sigmoid(a) * beta2 * tanh(b / beta2) of the halves a, b."""
    return _gated("situglu", checked_situ("situglu", beta1, beta2), input, quantizer)


def dsituglu(
    grad: Tensor,
    fwd_input: Tensor,
    quantizer: Quantizer | None,
    beta1: float = 4.0,
    beta2: float = 25.0,
) -> TensorLike:
    """Returns the gradient of both halves of situglu(), quantized."""
    gate = checked_situ("dsituglu", beta1, beta2)
    return _gated_backward("dsituglu", gate, grad, fwd_input, quantizer)


def checked_situ(entry: str, beta1: float, beta2: float) -> Gate:
    """Returns the gate of situglu. Errors: ValueError unless bounds are finite and positive."""
    for name, beta in (("beta1", beta1), ("beta2", beta2)):
        if not 0 < beta < float("inf"):
            raise ValueError(f"{entry}: {name} must be finite and positive, got {beta}")
    return situ(beta1, beta2)


def clamped_swiglu(
    input: Tensor,
    quantizer: Quantizer | None,
    limit: float = 7.0,
    alpha: float = 1.702,
    glu_linear_offset: float = 1.0,
) -> TensorLike:
    """Returns a * sigmoid(alpha * a) * (b + offset) of halves clamped to the limit, quantized.

    a is clamped from above, b on both sides before the offset is added.
    """
    gate = clamped_swish(limit, alpha, glu_linear_offset)
    return _gated("clamped_swiglu", gate, input, quantizer)


def clamped_dswiglu(
    grad: Tensor,
    fwd_input: Tensor,
    quantizer: Quantizer | None,
    limit: float = 7.0,
    alpha: float = 1.702,
    glu_linear_offset: float = 1.0,
) -> TensorLike:
    """Returns the gradient of both halves of clamped_swiglu(), quantized."""
    gate = clamped_swish(limit, alpha, glu_linear_offset)
    return _gated_backward("clamped_dswiglu", gate, grad, fwd_input, quantizer)


def _named() -> dict[str, Entry]:
    entries: dict[str, Entry] = {}
    for name, function in _UNARY.items():
        entries |= _unary_entries(name, function)
    for name, function in _GATED.items():
        entries |= _gated_entries(name, function)
    for name, entry in entries.items():
        entry.__name__ = entry.__qualname__ = name
    return entries


globals().update(_named())
