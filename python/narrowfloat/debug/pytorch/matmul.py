# SPDX-License-Identifier: Apache-2.0
"""A linear layer in the fewest words that debugging needs: an example for layers of your own."""

from __future__ import annotations

from typing import Any

import torch

from narrowfloat.debug.pytorch.debug_quantization import DebugQuantizer
from narrowfloat.debug.pytorch.debug_tensor import DebugQuantizedTensor
from narrowfloat.debug.pytorch.layer import DebugLayer, Slots
from narrowfloat.debug.pytorch.products import multiply
from narrowfloat.pytorch.quantization import (
    FP8GlobalStateManager,
    QuantizerRole,
    RecipeState,
)
from narrowfloat.pytorch.quantized_tensor import (
    QuantizedTensorStorage,
    Quantizer,
    prepare_for_saving,
    restore_from_func_ctx,
)

FORWARD_ROLES = ("input", "weight")
BACKWARD_ROLES = ("grad_output",)


def quantize(
    tensor: torch.Tensor,
    quantizer: Quantizer | None,
    dtype: torch.dtype,
    *,
    rowwise: bool,
    columnwise: bool,
) -> Any:
    """An operand as gemms read it: watched, quantized, or as it is in `dtype`.

    rowwise, columnwise: which of its two gemms will run.
    """
    if quantizer is None:
        return tensor.to(dtype)
    quantizer.set_usage(rowwise=rowwise, columnwise=columnwise)
    if isinstance(quantizer, DebugQuantizer):
        return quantizer.quantize(tensor, dtype=dtype)
    # Not every format makes columnwise codes alone.
    quantizer.set_usage(rowwise=True)
    return quantizer.quantize(tensor)


class QuantizedMatmul(torch.autograd.Function):
    """y = x w^T + bias and its gradients, each operand and result through its slot."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        slots: Slots,
        weight_operand: Any,
        name: str,
    ) -> torch.Tensor:
        """x: (..., in). weight: (out, in). bias: (out,) or None. weight_operand: weight quantized
        already, or None. The result is (..., out) in the type of x."""
        ctx.needs_dgrad, ctx.needs_wgrad = ctx.needs_input_grad[:2]
        ctx.slots, ctx.name, ctx.dtype = slots, name, x.dtype
        ctx.weight_dtype = weight.dtype
        ctx.bias_dtype = None if bias is None else bias.dtype
        # The innermost part of delayed scaling's state is stepped once a backward pass.
        ctx.steps_amaxes = (
            FP8GlobalStateManager.is_fp8_enabled()
            and any(ctx.needs_input_grad)
            and FP8GlobalStateManager.is_first_fp8_module()
        )
        x_operand = quantize(
            x.contiguous(), slots.activation, x.dtype, rowwise=True, columnwise=ctx.needs_wgrad
        )
        w_operand = weight_operand
        if w_operand is None:
            w_operand = quantize_weight(weight, slots.weight, x.dtype, ctx.needs_dgrad)
        y = multiply("fprop", name, x_operand, w_operand, x.dtype, slots.output, bias=bias)
        if ctx.needs_wgrad and isinstance(x_operand, QuantizedTensorStorage):
            x_operand.update_usage(rowwise_usage=False, columnwise_usage=True)
        saved, ctx.tensor_objects = prepare_for_saving(
            x_operand if ctx.needs_wgrad else None, w_operand if ctx.needs_dgrad else None
        )
        ctx.save_for_backward(*saved)
        return y

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[Any, ...]:
        x_operand, w_operand = restore_from_func_ctx(ctx)
        slots, needs_bias = ctx.slots, ctx.bias_dtype is not None and ctx.needs_input_grad[2]
        dy = dy.contiguous()
        dx = dw = dbias = None
        if ctx.needs_dgrad or ctx.needs_wgrad:
            gradient = quantize(
                dy,
                slots.gradient,
                ctx.dtype,
                rowwise=ctx.needs_dgrad,
                columnwise=ctx.needs_wgrad,
            )
        if ctx.needs_dgrad:
            dx = multiply("dgrad", ctx.name, gradient, w_operand, ctx.dtype, slots.dgrad)
        if ctx.needs_wgrad:
            dw = multiply("wgrad", ctx.name, gradient, x_operand, ctx.weight_dtype, slots.wgrad)
        if needs_bias:
            # Of the gradient itself: no feature and no format touches it.
            dbias = dy.reshape(-1, dy.shape[-1]).sum(0, dtype=torch.float32).to(ctx.bias_dtype)
        if ctx.steps_amaxes:
            FP8GlobalStateManager.reduce_and_update_fp8_tensors(forward=False)
        return dx, dw, dbias, None, None, None


def quantize_weight(
    weight: torch.Tensor, quantizer: Quantizer | None, dtype: torch.dtype, needs_dgrad: bool
) -> Any:
    """The weight as gemms read it; a quantized parameter stays what it is.

    Errors: AssertionError if a feature wants to change a quantized parameter.
    """
    if isinstance(weight, QuantizedTensorStorage):
        if quantizer is None or getattr(quantizer, "parent_quantizer", quantizer) is None:
            weight = weight.dequantize()
        elif isinstance(quantizer, DebugQuantizer):
            return quantizer.wrap_quantized_tensor(weight)
        else:
            return weight
    return quantize(weight, quantizer, dtype, rowwise=True, columnwise=needs_dgrad)


class Matmul(torch.nn.Module):
    """A linear layer whose products run by the recipe of the running autocast.

    Parameters: weight (out_features, in_features), bias (out_features,) or None. name: as debug
    configurations select it. tp_group, tp_size: handed on to features.
    Made inside quantized_model_init, its weight is a quantized tensor.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        name: str | None = None,
        dtype: torch.dtype | None = None,
        tp_group: Any = None,
        tp_size: int = 1,
    ) -> None:
        super().__init__()
        self._debug = DebugLayer(name, tp_group, tp_size)
        linear = torch.nn.Linear(in_features, out_features, bias, dtype=dtype)
        self.bias = linear.bias
        self.fp8_meta: dict[str, RecipeState] = {}
        self.quantizers: dict[str, list[Quantizer]] = {}
        self._cached_weight: Any = None
        weight = linear.weight
        if FP8GlobalStateManager.with_fp8_parameters():
            quantizer = self._parents().weight
            weight = torch.nn.Parameter(quantizer.quantize(weight.detach()).detach())
        self.weight = weight

    @property
    def name(self) -> str:
        """The name that configurations select."""
        return self._debug.name

    @name.setter
    def name(self, value: str) -> None:
        self._debug.name = value

    def _parents(self) -> Slots:
        """The quantizers of the running autocast's recipe, made once a recipe."""
        recipe = FP8GlobalStateManager.get_fp8_recipe()
        if not self.fp8_meta or self.fp8_meta["scaling_fwd"].recipe is not recipe:
            self._follow(recipe)
        (activation, weight), (gradient,) = (
            self.quantizers["scaling_fwd"],
            self.quantizers["scaling_bwd"],
        )
        return Slots(activation=activation, weight=weight, gradient=gradient)

    def _follow(self, recipe: Any) -> None:
        for key, mode, types in (
            ("scaling_fwd", "forward", FORWARD_ROLES),
            ("scaling_bwd", "backward", BACKWARD_ROLES),
        ):
            roles = [QuantizerRole("linear", tensor_type, self.name) for tensor_type in types]
            state = RecipeState.create(recipe, mode=mode, num_quantizers=len(roles), roles=roles)
            before = self.fp8_meta.get(key)
            if before is not None:
                state.inherit_state_from(before)
            self.fp8_meta[key] = state
            self.quantizers[key] = state.make_quantizers()
            FP8GlobalStateManager.add_recipe_state(state, FP8GlobalStateManager.get_fp8_group())
        self._cached_weight = None

    def forward(self, x: torch.Tensor, is_first_microbatch: bool | None = None) -> torch.Tensor:
        """x: (..., in_features). The result is (..., out_features) in the type of x.

        is_first_microbatch: True quantizes the weight and keeps it, False takes what was kept,
        None quantizes it and keeps nothing.
        """
        quantized = FP8GlobalStateManager.is_fp8_enabled()
        parents = self._parents() if quantized else Slots()
        slots = self._debug.watch(parents) or parents
        if isinstance(x, QuantizedTensorStorage):
            x = x.dequantize()
        kept = self._weight_operand(slots.weight, x.dtype, is_first_microbatch)
        return QuantizedMatmul.apply(x, self.weight, self.bias, slots, kept, self.name)

    @torch.no_grad()
    def _weight_operand(
        self, quantizer: Quantizer | None, dtype: torch.dtype, is_first_microbatch: bool | None
    ) -> Any:
        """The weight that microbatches share, or None where each quantizes it."""
        if is_first_microbatch is None or quantizer is None:
            return None
        kept = self._cached_weight
        if kept is not None and not _is_kept_for(kept, quantizer):
            kept = None
        if kept is None:
            kept = quantize_weight(self.weight, quantizer, dtype, needs_dgrad=True)
        elif is_first_microbatch and kept is not self.weight:
            quantizer.set_usage(rowwise=True, columnwise=True)
            quantizer.update_quantized(self.weight, kept)
        self._cached_weight = kept
        return kept


def _is_kept_for(kept: Any, quantizer: Quantizer) -> bool:
    """Whether a kept weight is what this quantizer would make: watched or not, by equal plans."""
    if not isinstance(quantizer, DebugQuantizer):
        return not isinstance(kept, DebugQuantizedTensor)
    return isinstance(kept, DebugQuantizedTensor) and kept.quantizer.makes_as(quantizer)
