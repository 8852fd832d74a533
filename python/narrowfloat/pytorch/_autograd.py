# SPDX-License-Identifier: Apache-2.0
"""Autograd functions of quantized tensors. Quantizing is straight-through for gradients."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import torch
from torch.autograd import forward_ad
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from narrowfloat.pytorch._native import has_values, skips
from narrowfloat.pytorch._types import Context, Quantized

Result = TypeVar("Result")


def without_gradients(function: Callable[..., Result]) -> Callable[..., Result]:
    """Returns the function decorated by torch.no_grad(), and faster if gradients are off."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Result:
        if not torch.is_grad_enabled():
            return function(*args, **kwargs)
        with torch.no_grad():
            return function(*args, **kwargs)

    return call


def is_in_forward_mode() -> bool:
    """Returns whether forward mode computes derivatives, which no_grad() does not prevent."""
    return forward_ad._current_level >= 0


def has_derivatives(tensor: object) -> bool:
    """Returns whether the results of operations on the tensor may have derivatives."""
    needs_graph = torch.is_grad_enabled() and getattr(tensor, "requires_grad", False)
    return needs_graph or is_in_forward_mode()


def running_transform() -> str | None:
    """Returns the kind of the running transform of torch.func, which wraps new tensors; or None."""
    interpreter = torch._C._functorch.peek_interpreter_stack()
    return None if interpreter is None else interpreter.key().name


def refuse_transforms(tensor: object) -> None:
    """Raises NotImplementedError for a tensor that a transform of torch.func wraps.

    It has no memory of its own.
    """
    transform = running_transform()
    if transform is None or not isinstance(tensor, torch.Tensor):
        return
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        raise NotImplementedError(
            f"quantize: the input must not belong to a transform of torch.func, got {transform}; "
            "quantize outside of the transform"
        )


class _Write:
    """Stands in for an operator that writes its only argument; does nothing."""

    _schema = torch.ops.aten.zero_.default._schema

    def __call__(self, tensor: torch.Tensor) -> None:
        pass


def keep_saved(tensor: object) -> None:
    """Tells allow_mutation_on_saved_tensors() of a write that no operator does, before it.

    The context then copies the tensor if it is saved for a backward pass.
    """
    enabled = torch.autograd.graph._allow_mutation_on_saved_tensors_enabled
    if not enabled or not isinstance(tensor, torch.Tensor):
        return
    write: Any = _Write()
    for mode in _get_current_dispatch_mode_stack():
        if isinstance(mode, torch.autograd.graph._CloneArgBeforeMutateMode):
            mode.__torch_dispatch__(write, (), (tensor,))


def count_write(tensor: object, noop_flag: torch.Tensor | None = None) -> None:
    """Increments the version of a tensor written without an operator, for autograd's checks.

    noop_flag: a write with flag 1 is not counted. A flag in device memory or in a graph is not
    read, and its write is not counted, because such programs skip most writes.
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
        if not tensor.is_inference():  # checked last, because every write calls this function
            raise


def is_in_backward() -> bool:
    """Returns whether autograd's engine is running; a forward pass is then a recomputation."""
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1


class _QuantizeFunc(torch.autograd.Function):
    """Quantizes in forward; passes the gradient through."""

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
        # NVFP4 with columnwise data only has the shape of the flattened tensor.
        return grad if grad.shape == ctx.input_shape else grad.reshape(ctx.input_shape), None

    @staticmethod
    def jvp(ctx: Context, tangent: torch.Tensor, _: object) -> torch.Tensor:
        return tangent.clone()


class _DequantizeFunc(torch.autograd.Function):
    """Dequantizes in forward; passes the gradient through."""

    @staticmethod
    def forward(ctx: Context, tensor: Quantized, dtype: torch.dtype) -> torch.Tensor:
        # Not the buffer itself, since the output of a function becomes part of the graph.
        ctx.dtype = dtype
        return tensor._decode(dtype).detach()

    @staticmethod
    def backward(ctx: Context, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad, None

    @staticmethod
    def jvp(ctx: Context, tangent: torch.Tensor, _: object) -> torch.Tensor:
        return tangent.to(ctx.dtype, copy=True)


class _IdentityFunc(torch.autograd.Function):
    """An alias, or with `init_kwargs` a tensor of the same class with these fields replaced."""

    @staticmethod
    def forward(
        ctx: Context,
        tensor: torch.Tensor,
        init_kwargs: dict[str, Any] | None = None,
    ) -> torch.Tensor:
        ctx.dtype = ctx.input_dtype = tensor.dtype
        if init_kwargs is None:  # as TransformerEngine calls it
            return tensor.detach()
        changes = dict(init_kwargs)
        if "dtype" in changes:
            changes["fake_dtype"] = changes.pop("dtype")
        ctx.dtype = changes.get("fake_dtype", tensor.dtype)
        quantized: Any = tensor
        return quantized._rebuild(changes.pop("shape", None), **changes)

    @staticmethod
    def backward(ctx: Context, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad.to(ctx.input_dtype), None

    @staticmethod
    def jvp(ctx: Context, tangent: torch.Tensor, _: object) -> torch.Tensor:
        return tangent.to(ctx.dtype, copy=True)


class _ViewFunc:
    """A view that stays quantized; its class defines the possible shapes.

    An operator makes the view, so that autograd records its base, and writes to it have gradients.
    """

    @staticmethod
    def apply(tensor: torch.Tensor, shape: torch.Size | None = None) -> torch.Tensor:
        """Returns the view, or an alias if `shape` is None. Errors: as the class."""
        if shape is None:
            return torch.ops.aten.alias.default(tensor)
        view = torch.ops.aten.view.default(tensor, shape)
        quantized: Any = tensor
        # The operator returns values if the strides of a part do not allow a view.
        return view if hasattr(view, "_make_view") else quantized._make_view(shape)


class _ReshapeFunc:
    """A view, or a copy of every buffer if the strides of a part do not allow a view."""

    @staticmethod
    def apply(tensor: torch.Tensor, shape: torch.Size | None = None) -> torch.Tensor:
        """Returns the view or the copy. Errors: as the class, if its blocks forbid both."""
        if shape is None:
            return torch.ops.aten.alias.default(tensor)
        view = torch.ops.aten.reshape.default(tensor, shape)
        if hasattr(view, "_make_view"):
            return view
        quantized: Any = tensor
        copies = quantized._cloned_buffers(torch.contiguous_format)
        return _ViewFunc.apply(_IdentityFunc.apply(tensor, copies), shape)


class _FirstOrderFunc(torch.autograd.Function):
    """Returns gradients without a derivative: a backward pass through them raises."""

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
    """Returns the gradients as outputs of a node whose backward pass raises RuntimeError.

    Without the node they would be constants with zero derivatives. name: of the layer. origins: the
    tensors that they depend on; at least one requires a gradient. A derivative by a tensor without
    a path in the graph would be zero, too.
    """
    given = [gradient for gradient in gradients if gradient is not None]
    if not given:
        return gradients
    made = iter(_FirstOrderFunc.apply(name, len(origins), *origins, *given))
    return tuple(None if gradient is None else next(made) for gradient in gradients)


def resolve_shape(shape: tuple[Any, ...], current: torch.Size) -> torch.Size:
    """Returns the shape given by view()'s arguments: ints or one sequence, at most one -1.

    Errors: RuntimeError, as torch.Tensor.view().
    """
    if len(shape) == 1 and not isinstance(shape[0], (int, torch.SymInt)):
        shape = tuple(shape[0])
    # view() of a meta tensor applies every rule and has every message.
    return torch.empty(current, device="meta").view(shape).shape
