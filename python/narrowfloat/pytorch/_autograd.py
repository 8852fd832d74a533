# SPDX-License-Identifier: Apache-2.0
"""Autograd functions of quantized tensors. Quantizing is straight-through: gradients pass as they
are, in full precision."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import torch

from narrowfloat.pytorch._native import has_values, skips
from narrowfloat.pytorch._types import Context, Quantized

Result = TypeVar("Result")


def without_gradients(function: Callable[..., Result]) -> Callable[..., Result]:
    """Returns the function as torch.no_grad() decorates it, faster where gradients are off."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Result:
        if not torch.is_grad_enabled():
            return function(*args, **kwargs)
        with torch.no_grad():
            return function(*args, **kwargs)

    return call


def running_transform() -> str | None:
    """Returns the kind of the transform of torch.func that runs: tensors made in it are wrapped."""
    interpreter = torch._C._functorch.peek_interpreter_stack()
    return None if interpreter is None else interpreter.key().name


def count_write(tensor: object, noop_flag: torch.Tensor | None = None) -> None:
    """Counts a write that no operator made, so that a backward pass knows what has changed.

    noop_flag: a write whose flag is 1 is not counted. A flag in device memory or in a graph is not
    read, and the write not counted: such programs skip most of them.
    """
    if not isinstance(tensor, torch.Tensor):
        return
    if noop_flag is not None:
        unread = torch.compiler.is_compiling() or noop_flag.is_cuda or not has_values(noop_flag)
        if unread or skips(noop_flag):
            return
    try:
        torch.autograd.graph.increment_version(tensor)
    except RuntimeError:
        if not tensor.is_inference():  # asked late, because every write comes here
            raise


def is_in_backward() -> bool:
    """Returns whether autograd's engine is running: a forward pass then is a second one."""
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1


class _QuantizeFunc(torch.autograd.Function):
    """Quantizes in forward, lets the gradient through."""

    @staticmethod
    def forward(
        ctx: Context,
        tensor: torch.Tensor,
        quantize_impl: Callable[[torch.Tensor], torch.Tensor],
    ) -> torch.Tensor:
        ctx.input_shape = tensor.shape
        return quantize_impl(tensor)

    @staticmethod
    def backward(ctx: Context, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        # NVFP4 columns alone have the shape of the flattened tensor.
        return grad if grad.shape == ctx.input_shape else grad.reshape(ctx.input_shape), None


class _DequantizeFunc(torch.autograd.Function):
    """Dequantizes in forward, lets the gradient through."""

    @staticmethod
    def forward(ctx: Context, tensor: Quantized, dtype: torch.dtype) -> torch.Tensor:
        # Not the buffer itself: the output of a function becomes part of the graph.
        return tensor._decode(dtype).detach()

    @staticmethod
    def backward(ctx: Context, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad, None


class _IdentityFunc(torch.autograd.Function):
    """An alias, or with `init_kwargs` a tensor of the same class with these fields replaced."""

    @staticmethod
    def forward(
        ctx: Context,
        tensor: torch.Tensor,
        init_kwargs: dict[str, Any] | None = None,
    ) -> torch.Tensor:
        ctx.input_dtype = tensor.dtype
        if init_kwargs is None:  # TransformerEngine's call
            return tensor.detach()
        changes = dict(init_kwargs)
        if "dtype" in changes:
            changes["fake_dtype"] = changes.pop("dtype")
        quantized: Any = tensor
        return quantized._rebuild(changes.pop("shape", None), **changes)

    @staticmethod
    def backward(ctx: Context, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad.to(ctx.input_dtype), None


class _ViewFunc:
    """A view that stays quantized; the type says which are possible.

    An operator makes it, so that autograd knows whose view it is, and writes to it have gradients.
    """

    @staticmethod
    def apply(tensor: torch.Tensor, shape: torch.Size | None = None) -> torch.Tensor:
        """Returns the view, or an alias if `shape` is None. Errors: those of the type."""
        if shape is None:
            return torch.ops.aten.alias.default(tensor)
        view = torch.ops.aten.view.default(tensor, shape)
        quantized: Any = tensor
        # The operator gives values where the strides of a part do not allow a view.
        return view if hasattr(view, "_make_view") else quantized._make_view(shape)


class _ReshapeFunc:
    """A view, or a copy of every buffer where the strides of a part do not allow a view."""

    @staticmethod
    def apply(tensor: torch.Tensor, shape: torch.Size | None = None) -> torch.Tensor:
        """Returns the view or the copy. Errors: those of the type, if its blocks forbid both."""
        if shape is None:
            return torch.ops.aten.alias.default(tensor)
        view = torch.ops.aten.reshape.default(tensor, shape)
        if hasattr(view, "_make_view"):
            return view
        quantized: Any = tensor
        copies = quantized._cloned_buffers(torch.contiguous_format)
        return _ViewFunc.apply(_IdentityFunc.apply(tensor, copies), shape)


class _FirstOrderFunc(torch.autograd.Function):
    """Returns gradients that have no derivative: a backward pass through them raises."""

    @staticmethod
    def forward(
        ctx: Context, name: str, origins: int, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.name = name
        return tuple(gradient.detach() for gradient in tensors[origins:])

    @staticmethod
    def backward(ctx: Context, *grads: torch.Tensor) -> NoReturn:
        raise RuntimeError(
            f"{ctx.name}: second-order gradients are not supported in quantized products; call "
            "backward() or torch.autograd.grad() without create_graph=True, or run the layer "
            "without a recipe"
        )


def first_order_only(
    name: str, gradients: tuple[torch.Tensor | None, ...], *origins: torch.Tensor
) -> tuple[torch.Tensor | None, ...]:
    """Returns the gradients in a graph whose backward pass raises RuntimeError.

    Without it they would be constants, and what is derived from them zero. name: of the layer.
    origins: what they depend on; at least one requires a gradient. A derivative by a tensor that no
    path of the graph leads to would be zero, too.
    """
    given = [gradient for gradient in gradients if gradient is not None]
    if not given:
        return gradients
    made = iter(_FirstOrderFunc.apply(name, len(origins), *origins, *given))
    return tuple(None if gradient is None else next(made) for gradient in gradients)


def resolve_shape(shape: tuple[Any, ...], current: torch.Size) -> torch.Size:
    """Returns the shape that the arguments of view() ask for: ints or one sequence, at most one -1.

    Errors: RuntimeError, as torch.Tensor.view() raises it.
    """
    if len(shape) == 1 and not isinstance(shape[0], (int, torch.SymInt)):
        shape = tuple(shape[0])
    # A meta tensor applies every rule and has every message.
    return torch.empty(current, device="meta").view(shape).shape
