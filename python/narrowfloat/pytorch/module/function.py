# SPDX-License-Identifier: Apache-2.0
"""The differentiable product of a linear layer: y = x w^T + bias, for one weight or several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from narrowfloat.pytorch._autograd import first_order_only
from narrowfloat.pytorch._native import column_sums
from narrowfloat.pytorch._product_mode import get_product_mode, mode_of_this_thread
from narrowfloat.pytorch._types import Context, TensorLike
from narrowfloat.pytorch.module.products import multiply
from narrowfloat.pytorch.module.watching import Slots, is_watching
from narrowfloat.pytorch.quantized_tensor import (
    QuantizedTensorStorage,
    Quantizer,
    prepare_for_saving,
    restore_from_saved,
)
from narrowfloat.pytorch.tensor._fsdp import is_of_one_pass

# Gradients of weights and of biases; None for one that is not computed.
Gradients = tuple[list[torch.Tensor | None], list[torch.Tensor | None]]


@dataclass
class Call:
    """The settings of one forward pass of a layer and its backward pass.

    slots, kept: one per weight; kept has cached quantized weights, or None. splits: the number of
    input rows of each weight. dtype: of activations and of all gradients.
    backward_override: as the recipe's. saves_input: backward quantizes the input again.
    ends_step: runs the step of delayed scaling after the backward pass. fused: weights with their
    gradients in main_grad, added to it if `accumulates`. put_wgrad: stores a function that computes
    the gradients of parameters later. product_mode: of all products.
    """

    name: str
    dtype: torch.dtype
    slots: Sequence[Slots]
    kept: Sequence[Any]
    splits: Sequence[int]
    grad_enabled: bool = True
    backward_override: str | None = None
    saves_input: bool = False
    ends_step: Callable[[], None] | None = None
    fused: Sequence[torch.Tensor] | None = None
    accumulates: bool = False
    put_wgrad: Callable[[Callable[[], Gradients]], None] | None = None
    product_mode: str = field(default_factory=get_product_mode)

    def column(self, name: str) -> list[Quantizer | None]:
        """Returns the quantizers of one tensor, one per weight."""
        return [getattr(slots, name) for slots in self.slots]


class LinearFunction(torch.autograd.Function):
    """y = x w^T + bias and its gradients; each operand and result has its slot's quantizer."""

    @staticmethod
    def forward(
        ctx: Context, x: torch.Tensor, call: Call, *parameters: Any
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Computes y from x (rows, in), weights (out, in) and then biases (out,) or None.

        Rows of y are in the order of x, in `call.dtype`. The second result is an empty tensor that
        connects the backward pass to this node.
        """
        count = len(call.slots)
        weights, biases = parameters[:count], parameters[count:]
        needs = [call.grad_enabled and need for need in ctx.needs_input_grad]
        ctx.needs_dgrad, ctx.needs_wgrad = needs[0], needs[2 : 2 + count]
        ctx.needs_dbias = needs[2 + count :]
        ctx.call, ctx.bias_dtypes = call, [None if b is None else b.dtype for b in biases]
        with plain_arithmetic(x.device.type):
            parts = _split(x, call.splits)
            xs = _activations(parts, call, any(ctx.needs_wgrad))
            ws = _weights(weights, call, ctx.needs_dgrad)
            added = [None if bias is None else bias.to(call.dtype) for bias in biases]
            y = join(multiply("fprop", call.name, xs, ws, call.dtype, call.column("output"), added))
        if not call.grad_enabled:
            return y, None
        saved, ctx.tensor_objects = prepare_for_saving(*_for_backward(ctx, parts, weights, xs, ws))
        origin = torch.empty(0)
        ctx.save_for_backward(origin, *saved)
        return y, origin

    @staticmethod
    def backward(ctx: Context, dy: torch.Tensor, _: torch.Tensor | None) -> tuple[Any, ...]:
        """Computes the gradients of x, the weights and the biases, which have no derivative."""
        origin, *saved = ctx.saved_tensors  # a checkpoint recomputes them here, with gradients
        with torch.no_grad():
            dx, *others = _backward(ctx, dy, saved)
        if torch.is_grad_enabled() and _has_second_order(ctx, dy):
            dx, *others = first_order_only(ctx.call.name, (dx, *others), dy, origin)
        return dx, None, *others


def _has_second_order(ctx: Context, dy: TensorLike) -> bool:
    """Returns whether a gradient depends on a tensor that requires one."""
    return getattr(dy, "requires_grad", False) or (ctx.needs_dgrad and any(ctx.needs_wgrad))


def _backward(
    ctx: Context, dy: TensorLike, saved: Sequence[torch.Tensor]
) -> tuple[torch.Tensor | None, ...]:
    """Returns the gradients of x, the weights and the biases."""
    call, count = ctx.call, len(ctx.call.slots)
    restored = restore_from_saved(ctx.tensor_objects, saved)
    with plain_arithmetic(dy.device.type), mode_of_this_thread(call.product_mode):
        xs, ws = _backward_operands(ctx, restored[:count], restored[count:])
        dy = dy.contiguous() if not isinstance(dy, QuantizedTensorStorage) else dy
        gradients = _gradients(ctx, dy)
        dx = None
        if ctx.needs_dgrad:
            watchers = _backward_column(call, "dgrad")
            dx = join(multiply("dgrad", call.name, gradients, ws, call.dtype, watchers))
        if call.put_wgrad is None:
            dws, dbs = _parameter_gradients(ctx, dy, gradients, xs)
            # Empties the storages again: a second pass over a retained graph restores them.
            ctx.tensor_objects = prepare_for_saving(*restored)[1]
        else:
            call.put_wgrad(lambda: _parameter_gradients(ctx, dy, gradients, xs))
            dws, dbs = [None] * count, [None] * count
    if call.ends_step is not None:
        call.ends_step()
    return dx, *dws, *dbs


def quantize(
    tensor: TensorLike,
    quantizer: Quantizer | None,
    dtype: torch.dtype,
    *,
    rowwise: bool,
    columnwise: bool,
) -> TensorLike:
    """Returns an operand of gemms: a debug tensor, a quantized tensor, or plain in `dtype`.

    rowwise, columnwise: which of its two gemms will run. A quantized tensor is not quantized again;
    without a quantizer it is dequantized.
    """
    if quantizer is None:
        return _plain(tensor, dtype)
    if is_watching(quantizer):
        quantizer.set_usage(rowwise=rowwise, columnwise=columnwise)
        return quantizer.quantize(_plain(tensor, tensor.dtype), dtype=dtype)
    if isinstance(tensor, QuantizedTensorStorage):
        tensor.update_usage(rowwise or None, columnwise or None)
        return tensor
    rowwise = rowwise or not quantizer.COLUMNS_ALONE
    quantizer.set_usage(rowwise=rowwise, columnwise=columnwise)
    return quantizer.quantize(tensor)


def quantize_weight(
    weight: TensorLike, quantizer: Quantizer | None, dtype: torch.dtype, needs_dgrad: bool
) -> TensorLike:
    """Returns the weight as an operand of gemms; a quantized parameter is not quantized again.

    Errors: AssertionError if a feature would change a quantized parameter.
    """
    if not isinstance(weight, QuantizedTensorStorage):
        return quantize(weight, quantizer, dtype, rowwise=True, columnwise=needs_dgrad)
    if quantizer is None or getattr(quantizer, "parent_quantizer", quantizer) is None:
        plain = weight.dequantize(dtype=dtype)
        return quantize(plain, quantizer, dtype, rowwise=True, columnwise=needs_dgrad)
    if not is_of_one_pass(weight):
        weight.update_usage(True, needs_dgrad or None)
    return quantizer.wrap_quantized_tensor(weight) if is_watching(quantizer) else weight


def join(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Returns the parts concatenated along the first dimension; a single part unchanged."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def plain_arithmetic(device_type: str) -> AbstractContextManager[Any]:
    """Returns a context without torch.autocast, which would round the operands of fp32 products."""
    if not torch.is_autocast_enabled(device_type):
        return nullcontext()
    return torch.autocast(device_type, enabled=False)


def _plain(tensor: TensorLike, dtype: torch.dtype) -> torch.Tensor:
    if isinstance(tensor, QuantizedTensorStorage):
        return tensor.dequantize(dtype=dtype)
    return tensor.to(dtype)


def _split(tensor: TensorLike, splits: Sequence[int]) -> Sequence[Any]:
    return [tensor] if len(splits) == 1 else tensor.split(list(splits))


def _activations(parts: Sequence[Any], call: Call, needs_wgrad: bool) -> list[Any]:
    columnwise = needs_wgrad and call.backward_override is None and not call.saves_input
    return [
        quantize(part, slots.activation, call.dtype, rowwise=True, columnwise=columnwise)
        for part, slots in zip(parts, call.slots, strict=True)
    ]


def _weights(weights: Sequence[Any], call: Call, needs_dgrad: bool) -> list[Any]:
    columnwise = needs_dgrad and call.backward_override is None
    return [
        quantize_weight(weight, slots.weight, call.dtype, columnwise) if kept is None else kept
        for weight, slots, kept in zip(weights, call.slots, call.kept, strict=True)
    ]


def _for_backward(
    ctx: Context, parts: Sequence[Any], weights: Sequence[Any], xs: Sequence[Any], ws: Sequence[Any]
) -> list[Any]:
    """Returns the input's parts and the weights for backward; None for those it does not read."""
    override = ctx.call.backward_override
    if override == "high_precision":
        ws = weights
    if override == "high_precision" or ctx.call.saves_input:
        xs = parts
    elif override is None and any(ctx.needs_wgrad):
        for operand, part in zip(xs, parts, strict=True):
            # A tensor that was passed quantized is not changed, because others may read its rows.
            if operand is not part and isinstance(operand, QuantizedTensorStorage):
                operand.update_usage(rowwise_usage=False, columnwise_usage=True)
    return [
        *(x if needed else None for x, needed in zip(xs, ctx.needs_wgrad, strict=True)),
        *(weight if ctx.needs_dgrad else None for weight in ws),
    ]


def _backward_column(call: Call, name: str) -> list[Quantizer | None]:
    """Returns quantizers of a tensor of the backward pass; None for each under an override."""
    if call.backward_override is not None:
        return [None] * len(call.slots)
    return call.column(name)


def _backward_operands(
    ctx: Context, xs: Sequence[Any], ws: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    call = ctx.call
    if call.backward_override is not None:
        dtype = call.dtype
        return (
            [None if x is None else _plain(x, dtype) for x in xs],
            [None if w is None else _plain(w, dtype) for w in ws],
        )
    if call.saves_input:
        xs = [
            None
            if x is None
            else quantize(x, slots.activation, call.dtype, rowwise=False, columnwise=True)
            for x, slots in zip(xs, call.slots, strict=True)
        ]
    return list(xs), list(ws)


def _gradients(ctx: Context, dy: TensorLike) -> list[Any]:
    """Returns dy as an operand of gemms, one part per weight."""
    call = ctx.call
    if not ctx.needs_dgrad and not any(ctx.needs_wgrad):
        return [None] * len(call.slots)
    return [
        quantize(part, quantizer, call.dtype, rowwise=ctx.needs_dgrad, columnwise=needs_wgrad)
        for part, quantizer, needs_wgrad in zip(
            _split(dy, call.splits),
            _backward_column(call, "gradient"),
            ctx.needs_wgrad,
            strict=True,
        )
    ]


def _parameter_gradients(
    ctx: Context, dy: TensorLike, gradients: Sequence[Any], xs: Sequence[Any]
) -> Gradients:
    with mode_of_this_thread(ctx.call.product_mode):
        return _weight_gradients(ctx, gradients, xs), _bias_gradients(ctx, dy)


def _weight_gradients(ctx: Context, gradients: Sequence[Any], xs: Sequence[Any]) -> list[Any]:
    call = ctx.call
    found: list[Any] = [None] * len(ctx.needs_wgrad)
    if not any(ctx.needs_wgrad):
        return found
    wanted = [i for i, needed in enumerate(ctx.needs_wgrad) if needed]
    watchers = _backward_column(call, "wgrad")
    outs = None if call.fused is None else [call.fused[i].main_grad for i in wanted]
    made = multiply(
        "wgrad",
        call.name,
        [gradients[i] for i in wanted],
        [xs[i] for i in wanted],
        call.dtype if outs is None else outs[0].dtype,
        [watchers[i] for i in wanted],
        outs=outs,
        accumulate=_accumulates(call),
    )
    for i, dw in zip(wanted, made, strict=True):
        found[i] = dw if call.fused is None else _stand_in(call.fused[i])
    return found


def _accumulates(call: Call) -> bool:
    if call.fused is None:
        return False
    return call.accumulates and not getattr(call.fused[0], "overwrite_main_grad", False)


def _stand_in(weight: torch.Tensor) -> torch.Tensor | None:
    """Returns zeros for a weight with a flag for its optimizer that main_grad has the gradient."""
    if not hasattr(weight, "grad_added_to_main_grad"):
        return None
    weight.grad_added_to_main_grad = True
    return torch.zeros(weight.shape, dtype=weight.dtype, device=weight.device)


def _bias_gradients(ctx: Context, dy: TensorLike) -> list[torch.Tensor | None]:
    """Returns the sums of the gradient before any feature or format changes it."""
    found: list[torch.Tensor | None] = [None] * len(ctx.bias_dtypes)
    if not any(ctx.needs_dbias):
        return found
    dy = _plain(dy, ctx.call.dtype)
    quantizers = _backward_column(ctx.call, "gradient")
    for i, part in enumerate(_split(dy, ctx.call.splits)):
        if not ctx.needs_dbias[i]:
            continue
        own = quantizers[i]
        if own is None or all(own.holds_values()):
            # As in torch.nn.Linear.
            total = part.reshape(-1, part.shape[-1]).sum(0)
        else:
            total = column_sums(part)
        found[i] = total.to(ctx.bias_dtypes[i])
    return found
