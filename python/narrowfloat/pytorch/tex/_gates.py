# SPDX-License-Identifier: Apache-2.0
"""Defines the activation functions: values, derivatives, and gated combinations."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch.nn import functional

__all__: list[str] = []

Tensor = torch.Tensor
_aten = torch.ops.aten


class Function(NamedTuple):
    """A function of float32 tensors, and its derivative times a gradient.

    rounds_once: both are one operator of PyTorch, which also computes narrower dtypes in float32
    and rounds the result.
    """

    value: Callable[[Tensor], Tensor]
    gradient: Callable[[Tensor, Tensor], Tensor]  # of (gradient of the value, argument)
    rounds_once: bool = False


class Gate(NamedTuple):
    """The two factors of a gated activation: act(first half) * linear(second half)."""

    act: Function
    linear: Function | None = None  # None is the identity


def _positive(x: Tensor, value: Tensor) -> Tensor:
    """Returns `value` where x > 0 and 0 elsewhere; 0 for NaN, as on a GPU."""
    return torch.where(x > 0, value, value.new_zeros(()))


def _gelu_gradient(grad: Tensor, x: Tensor) -> Tensor:
    return _aten.gelu_backward(grad, x, approximate="tanh")


def swish(alpha: float) -> Function:
    """Returns x * sigmoid(alpha * x)."""

    def gradient(grad: Tensor, x: Tensor) -> Tensor:
        gate = torch.sigmoid(alpha * x)
        return grad * gate * (1 + alpha * x * (1 - gate))

    return Function(lambda x: x * torch.sigmoid(alpha * x), gradient)


GELU = Function(lambda x: functional.gelu(x, approximate="tanh"), _gelu_gradient, rounds_once=True)
QGELU = swish(1.702)
RELU = Function(lambda x: _positive(x, x), lambda grad, x: _positive(x, grad), rounds_once=True)
SRELU = Function(
    lambda x: _positive(x, x).square(), lambda grad, x: _positive(x, x).mul_(2).mul_(grad)
)
SILU = Function(functional.silu, _aten.silu_backward, rounds_once=True)
SIGMOID = Function(torch.sigmoid, lambda grad, x: _aten.sigmoid_backward(grad, torch.sigmoid(x)))


def _bounded(bound: float) -> Function:
    """Returns bound * tanh(x / bound)."""

    def gradient(grad: Tensor, x: Tensor) -> Tensor:
        return _aten.tanh_backward(grad, torch.tanh(x / bound))

    return Function(lambda x: torch.tanh(x / bound).mul_(bound), gradient)


def situ(beta1: float, beta2: float) -> Gate:
    """Returns the gate beta1 * tanh(a / beta1) * sigmoid(a), with beta2 * tanh(b / beta2)."""
    bounded = _bounded(beta1)

    def gradient(grad: Tensor, x: Tensor) -> Tensor:
        gate = torch.sigmoid(x)
        through_gate = _aten.sigmoid_backward(grad * bounded.value(x), gate)
        return bounded.gradient(grad * gate, x) + through_gate

    act = Function(lambda x: bounded.value(x).mul_(torch.sigmoid(x)), gradient)
    return Gate(act, _bounded(beta2))


def clamped_swish(limit: float, alpha: float, offset: float) -> Gate:
    """Returns the gate swish(min(a, limit)), with clamp(b, -limit, limit) + offset.

    Gradients are 0 where a value is clamped, not where it equals the limit.
    """
    free = swish(alpha)

    def gradient(grad: Tensor, x: Tensor) -> Tensor:
        return torch.where(x <= limit, free.gradient(grad, x.clamp(max=limit)), 0.0)

    def linear_gradient(grad: Tensor, x: Tensor) -> Tensor:
        return torch.where(x.abs() > limit, 0.0, grad)

    linear = Function(lambda x: x.clamp(-limit, limit).add_(offset), linear_gradient)
    return Gate(Function(lambda x: free.value(x.clamp(max=limit)), gradient), linear)


def halves(x: Tensor, interleave: int = 0) -> tuple[Tensor, Tensor]:
    """Returns views of the gated and the linear half of the last dimension.

    Both have shape (rows, blocks, columns of a block). interleave: columns per block of each half;
    0 for contiguous halves.
    """
    width = x.shape[-1] // 2
    columns = interleave or width or 1
    blocks = x.view(x.shape[:-1].numel(), width // columns, 2, columns)
    return blocks[:, :, 0], blocks[:, :, 1]


def gated_value(gate: Gate, a: Tensor, b: Tensor) -> Tensor:
    """Returns the activation of two halves in float32."""
    value = gate.act.value(a.float())
    return value.mul_(b if gate.linear is None else gate.linear.value(b.float()))


def gated_gradients(gate: Gate, grad: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the gradients of both halves in float32. Requires: `grad` is float32."""
    a = a.float()
    linear = b if gate.linear is None else gate.linear.value(b.float())
    act_gradient = gate.act.gradient(grad * linear, a)
    linear_gradient = gate.act.value(a).mul_(grad)
    if gate.linear is not None:
        linear_gradient = gate.linear.gradient(linear_gradient, b.float())
    return act_gradient, linear_gradient
