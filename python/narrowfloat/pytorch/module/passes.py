# SPDX-License-Identifier: Apache-2.0
"""Runs a forward pass of a quantized layer: its quantizers and the differentiable product."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from narrowfloat.common.recipe import Recipe
from narrowfloat.pytorch._autograd import is_in_backward, running_transform
from narrowfloat.pytorch._checkpoint_modes import hidden_from_checkpoints
from narrowfloat.pytorch._product_mode import get_product_mode
from narrowfloat.pytorch._types import Group
from narrowfloat.pytorch.module.base import QuantizedLayer
from narrowfloat.pytorch.module.function import Call, LinearFunction
from narrowfloat.pytorch.module.in_graph import (
    GraphPass,
    LayerNode,
    is_in_checkpoint,
    is_plain,
    plan_in_graph,
    run_outside,
    run_untraced,
)
from narrowfloat.pytorch.module.scales import scales_of, with_scales
from narrowfloat.pytorch.module.sharded import is_dtensor
from narrowfloat.pytorch.module.watching import Slots, is_watching
from narrowfloat.pytorch.quantization import FP8GlobalStateManager
from narrowfloat.pytorch.quantization.recompute import (
    FirstPass,
    first_pass_of,
    may_run_again,
    remember,
    running_places,
)
from narrowfloat.pytorch.quantized_tensor import QuantizedTensorStorage
from narrowfloat.pytorch.tensor._fsdp import is_gathered
from narrowfloat.pytorch.tensor._fsdp_passes import note_forward


class RunningLayer(QuantizedLayer):
    """A quantized layer with the common part of forward() of Linear and GroupedLinear."""

    # The layer's own pass. Arguments: the first pass or the node's plan, then those of forward().
    _forward: Callable[..., Any]

    def forward(self, *args: Any) -> object:
        """Runs _forward(); a pass repeated by torch.utils.checkpoint has the first one's state."""
        if not isinstance(args[0], torch.Tensor):
            raise TypeError(
                f"{type(self).__name__}: the input must be a torch.Tensor, got "
                f"{type(args[0]).__name__}"
            )
        if torch.compiler.is_dynamo_compiling():
            return self._trace(*args)
        if "torch._dynamo" in sys.modules:
            return run_untraced(self._run, *args)
        return self._run(*args)

    def _run(self, *args: Any) -> object:
        """Implements forward() outside of graphs."""
        if any(is_gathered(weight) for weight in self._weights()):
            note_forward(self, may_run_again())
        again = None
        if is_in_backward() and not FP8GlobalStateManager.is_plain_again():
            again = first_pass_of(self)
        if again is None:
            return self._run_pass(None, *args)
        before = FP8GlobalStateManager.get_autocast_state()
        FP8GlobalStateManager.set_autocast_state(again.autocast)
        try:
            return self._run_pass(again, *args)
        finally:
            FP8GlobalStateManager.set_autocast_state(before)

    def _run_pass(self, again: FirstPass | None, *args: Any) -> object:
        """Runs _forward(); a pass that quantizes hides its operators from selective checkpoints."""
        manager = FP8GlobalStateManager
        if not (manager.is_fp8_enabled() or manager.is_fp8_calibration()):
            return self._forward(again, *args)
        with hidden_from_checkpoints():
            return self._forward(again, *args)

    def _trace(self, *args: Any) -> object:
        """Implements forward() within a graph, if possible. The tracer traces this function."""
        if is_in_checkpoint(self, FP8GlobalStateManager.is_fp8_enabled()):
            return run_outside(self, *args)
        if is_plain(self):
            return self._forward(None, *args)
        planned = plan_in_graph(self, *self._quantizing_options(*args))
        return run_outside(self, *args) if planned is None else self._forward(planned, *args)

    def _quantizing_options(self, *args: Any) -> tuple[bool | None, bool, bool]:
        """Returns is_first_microbatch, fp8_output, fp8_grad from the arguments of forward()."""
        raise NotImplementedError

    def _slots(
        self,
        again: FirstPass | GraphPass | None,
        x: torch.Tensor,
        splits: Sequence[int],
        fp8_output: bool = False,
        fp8_grad: bool = False,
    ) -> list[Slots] | None:
        """Returns the quantizers of this pass, or None for the pass of a plain layer.

        Collects amaxes if the autocast calibrates.
        """
        quantized = FP8GlobalStateManager.is_fp8_enabled()
        if isinstance(again, GraphPass):
            return []  # the node has them
        calibrates = not quantized and FP8GlobalStateManager.is_fp8_calibration()
        if quantized or calibrates:
            self._refuse_transforms()
        if calibrates:
            self._calibrate(x, splits)
        parents = self._no_slots()
        if quantized:
            parents = self._parents(*self._recipe_and_group(), fp8_output, fp8_grad)
        if again is not None:
            parents = with_scales(parents, again.scales)
        watched = self._watched(parents)
        if watched is not None:
            return watched
        special = self.fuse_wgrad_accumulation or self.delay_wgrad_compute
        return parents if quantized or special else None

    def _refuse_transforms(self) -> None:
        """Raises NotImplementedError inside a transform of torch.func.

        State made in a transform is wrapped, and later passes cannot use it.
        """
        transform = running_transform()
        if transform is not None:
            raise NotImplementedError(
                f"{type(self).__name__} {self.name}: passes that quantize or calibrate must run "
                f"outside of torch.func's transforms, got {transform}"
            )

    @staticmethod
    def _recipe_and_group() -> tuple[Any, Group]:
        return FP8GlobalStateManager.get_fp8_recipe(), FP8GlobalStateManager.get_fp8_group()

    def _no_slots(self) -> list[Slots]:
        return [Slots()] * len(self.weight_names)

    @torch.no_grad()
    def _calibrate(self, x: torch.Tensor, splits: Sequence[int]) -> None:
        parts = [x] if len(splits) == 1 else x.split(list(splits))
        parents = self._parents(*self._recipe_and_group())
        for part, weight, slots in zip(parts, self._weights(), parents, strict=True):
            activation: Any = slots.activation
            if part.numel():
                activation.calibrate(part)
            if not isinstance(weight, QuantizedTensorStorage):
                own: Any = slots.weight
                own.calibrate(weight)

    def _multiply(
        self,
        again: FirstPass | GraphPass | None,
        x: torch.Tensor,
        splits: Sequence[int],
        slots: Sequence[Slots],
        biases: Sequence[torch.Tensor | None],
        is_first_microbatch: bool | None,
    ) -> torch.Tensor:
        """Returns x w^T + bias with these quantizers, one set per weight."""
        dtype = self._dtype_of_pass(x)
        quantized = FP8GlobalStateManager.is_fp8_enabled()
        if isinstance(again, GraphPass):
            return self._multiply_in_graph(again, x, splits, biases)
        parameters = [getattr(self, name) for name in self.weight_names]
        weights = [w.to_local() if is_dtensor(w) else w for w in parameters]
        call = Call(
            name=self.name,
            dtype=dtype,
            slots=slots,
            kept=self._kept(slots, dtype, is_first_microbatch),
            splits=splits,
            grad_enabled=torch.is_grad_enabled(),
        )
        if quantized:
            recipe = FP8GlobalStateManager.get_fp8_recipe()
            self._check_recipe_of_weights(recipe)
            call.backward_override = recipe.backward_override
            call.saves_input = self._saves_input(recipe, slots)
            tensors = [x, *weights, *biases]
            first: Any = again
            if self._steps_amaxes(first, recipe, slots, tensors):
                call.ends_step = FP8GlobalStateManager.step_backward
        if self.fuse_wgrad_accumulation:
            call.fused, call.accumulates = weights, is_first_microbatch is not True
        if self.delay_wgrad_compute:
            call.put_wgrad = self._delayed_gradients.append
        is_watched = is_watching(slots[0].activation)
        if isinstance(x, QuantizedTensorStorage):
            held: Any = x
            x = held.dequantize(dtype=dtype) if is_watched or not quantized else held
        else:
            x = x.to(dtype).contiguous()
        return LinearFunction.apply(x, call, *weights, *biases)[0]

    def _multiply_in_graph(
        self,
        planned: GraphPass,
        x: torch.Tensor,
        splits: Sequence[int],
        biases: Sequence[torch.Tensor | None],
    ) -> torch.Tensor:
        """Implements _multiply() with one node. The tracer traces into this function."""
        parameters = (*[getattr(self, name) for name in self.weight_names], *biases)
        steps = False
        if planned.states:
            recipe = FP8GlobalStateManager.get_fp8_recipe()
            steps = self._steps_amaxes(None, recipe, (), (x, *parameters))
        dtype = self._dtype_of_pass(x)
        node = LayerNode(planned.number, get_product_mode())
        return node(x, tuple(splits), dtype, parameters, planned.states, steps)

    def _steps_amaxes(
        self,
        again: FirstPass | None,
        recipe: Recipe,
        slots: Sequence[Slots],
        tensors: Sequence[Any],
    ) -> bool:
        """Returns whether the backward pass of this pass ends with a step of delayed scaling.

        The first layer of an autocast runs it, because its backward pass is the last; a layer after
        an inner autocast may run one more (is_first_fp8_module). Stores the state of a pass that
        torch.utils.checkpoint will run again.
        """
        places = running_places()
        will_run_again = any(not place.is_again for place in places)
        if again is not None:
            is_first = again.is_first_module and again.has_graph
        else:
            is_first = (
                recipe.backward_override is None
                and (torch.is_grad_enabled() or will_run_again)
                and any(tensor is not None and tensor.requires_grad for tensor in tensors)
                and FP8GlobalStateManager.is_first_fp8_module()
            )
        if will_run_again:
            autocast = FP8GlobalStateManager.get_autocast_state()
            remember(places, FirstPass(id(self), autocast, scales_of(slots), is_first))
        return is_first

    def _dtype_of_pass(self, x: torch.Tensor) -> torch.dtype:
        device = x.device.type
        if torch.is_autocast_enabled(device):
            return torch.get_autocast_dtype(device)
        for name, parameter in self.named_parameters(recurse=False):
            if parameter.dtype != x.dtype:
                raise TypeError(
                    f"{type(self).__name__}: the input and {name} must have the same dtype outside "
                    f"torch.autocast, got {x.dtype} and {parameter.dtype}"
                )
        return x.dtype

    def _saves_input(self, recipe: Recipe, slots: Sequence[Slots]) -> bool:
        """Returns whether backward quantizes the input again.

        Programs set save_original_input without knowing the recipe. So there is a warning, not an
        error, for a custom recipe's quantizers that do not support it.
        Errors: ValueError for the recipe of delayed scaling: its scale changes before backward.
        """
        quantizer = getattr(slots[0].activation, "parent_quantizer", slots[0].activation)
        if not self.save_original_input or recipe.backward_override is not None:
            return False
        moves_on = getattr(quantizer, "SCALE_IS_GIVEN", False)
        if moves_on and not recipe.custom():
            raise ValueError(
                f"{type(self).__name__}: save_original_input needs a recipe without delayed "
                f"scaling, got {type(recipe).__name__}"
            )
        if quantizer is not None and (moves_on or not quantizer.keeps_columns_of_later()):
            warnings.warn(
                f"{type(self).__name__}: save_original_input has no effect, {quantizer} would not "
                "make the same codes again",
                stacklevel=4,
            )
            return False
        return True

    @staticmethod
    def _returned_bias(bias: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
        return None if bias is None else bias.to(dtype)
