# SPDX-License-Identifier: Apache-2.0
"""The states of recipes that make their quantizers themselves."""

from collections.abc import Sequence
from typing import Any, ClassVar, cast

import torch

from narrowfloat.common.recipe import DelayedScaling, QParams, Recipe
from narrowfloat.pytorch._extra_state import DELAYED_BUFFERS
from narrowfloat.pytorch.quantization.delayed_update import update_amax_and_scale
from narrowfloat.pytorch.quantization.dtypes import (
    get_fp4_te_dtype,
    get_fp8_max,
    get_fp8_te_dtype,
)
from narrowfloat.pytorch.quantization.recipe_state import RecipeState
from narrowfloat.pytorch.quantization.roles import BACKWARD_TYPES, QuantizerRole
from narrowfloat.pytorch.quantized_tensor import Quantizer
from narrowfloat.pytorch.tensor.float8_blockwise_tensor import Float8BlockQuantizer
from narrowfloat.pytorch.tensor.float8_tensor import (
    Float8CurrentScalingQuantizer,
    Float8Quantizer,
)
from narrowfloat.pytorch.tensor.mxfp8_tensor import MXFP8Quantizer
from narrowfloat.pytorch.tensor.nvfp4_tensor import E4M3_BOUNDS, NVFP4Quantizer


class DelayedScalingRecipeState(RecipeState, keeps=lambda recipe: type(recipe).delayed()):
    """`scale` (n,) of ones and `amax_history` (L, n) of zeros, fp32; quantizers hold views."""

    PERSISTENT: ClassVar[tuple[str, ...]] = DELAYED_BUFFERS

    @property
    def delayed_state(self) -> "DelayedScalingRecipeState":  # type: ignore[override]  # of a field
        """The state itself."""
        return self

    def __init__(
        self,
        recipe: Recipe,
        *,
        mode: str,
        num_quantizers: int = 1,
        device: torch.device | str | None = None,
        roles: Sequence[QuantizerRole | None] | None = None,
    ) -> None:
        super().__init__(
            recipe, mode=mode, num_quantizers=num_quantizers, device=device, roles=roles
        )
        self.dtype = get_fp8_te_dtype(recipe, mode == "forward")
        options: dict[str, Any] = {"dtype": torch.float32, "device": self.device}
        self.scale = torch.ones(num_quantizers, **options)
        self.amax_history = torch.zeros(recipe.amax_history_len, num_quantizers, **options)

    def make_quantizers(self) -> list[Quantizer]:
        """Returns Float8Quantizers over `scale[i]` and the newest amax, `amax_history[0][i]`."""
        newest = self.amax_history[0]
        return [
            Float8Quantizer(self.scale[i : i + 1], newest[i : i + 1], self.dtype)
            for i in range(self.num_quantizers)
        ]

    def inherit_state_from(self, other: RecipeState) -> bool:
        """Runs the base's method if the codes are the same; scales depend on the largest code."""
        return self._has_codes_of(other) and super().inherit_state_from(other)

    def continue_from(self, other: RecipeState) -> None:
        """Runs the base's method; a history of another length keeps its scales and newest rows."""
        if self.inherit_state_from(other) or not self._has_codes_of(other):
            return
        if self.num_quantizers == other.num_quantizers:
            self.scale = other.scale
            copy_history(other.amax_history, self.amax_history)

    def _has_codes_of(self, other: RecipeState) -> bool:
        return type(other) is type(self) and other.dtype == self.dtype

    def update(self, reduced_amax: torch.Tensor | None = None) -> None:
        """Runs one step: shifts the newest amaxes into the history and computes the scales.

        reduced_amax: (n,), the newest amaxes over all processes.
        """
        fp8_max = get_fp8_max(self.recipe, self.mode == "forward")
        recipe = cast(DelayedScaling, self.recipe)
        update_amax_and_scale(self.amax_history, self.scale, fp8_max, recipe, reduced_amax)


@torch.no_grad()
def copy_history(source: torch.Tensor, target: torch.Tensor) -> None:
    """Copies the newest rows that fit; older rows of the target are zero, as in a new history."""
    rows = min(source.shape[0], target.shape[0])
    target[:rows].copy_(source[:rows])
    target[rows:].zero_()


class Float8CurrentScalingRecipeState(
    RecipeState, keeps=lambda recipe: type(recipe).float8_current_scaling()
):
    """No buffers. Inputs, weights and gradients of outputs have different parameters."""

    def make_quantizers(self) -> list[Quantizer]:
        """Returns Float8CurrentScalingQuantizers of the pass's dtype."""
        recipe = self.recipe
        by_type = {
            "input": recipe.fp8_quant_fwd_inp,
            "weight": recipe.fp8_quant_fwd_weight,
            "grad_output": recipe.fp8_quant_bwd_grad,
        }
        others = QParams(power_2_scale=recipe.use_power_2_scales)
        dtype = get_fp8_te_dtype(recipe, self.mode == "forward")
        quantizers: list[Quantizer] = []
        for i in range(self.num_quantizers):
            params = by_type.get(self._slot_tensor_type(i), others)
            quantizers.append(
                Float8CurrentScalingQuantizer(
                    dtype,
                    device=self.device,
                    force_pow_2_scales=params.power_2_scale,
                    amax_epsilon=params.amax_epsilon,
                )
            )
        return quantizers


class MXFP8BlockScalingRecipeState(RecipeState, keeps=lambda recipe: type(recipe).mxfp8()):
    """No buffers. Tiles for weights with the role of a linear layer's weight."""

    def make_quantizers(self) -> list[Quantizer]:
        """Returns MXFP8Quantizers of the pass's dtype."""
        forward = self.mode == "forward"
        dtype = get_fp8_te_dtype(self.recipe, forward)
        tiles = forward and self.recipe.fp8_quant_fwd_weight.mxfp8_2d_quantization
        return [
            MXFP8Quantizer(
                dtype, with_2d_quantization=tiles and self._slot_role(i).is_linear_weight()
            )
            for i in range(self.num_quantizers)
        ]


class _ByTensorType(RecipeState):
    """A state whose quantizers depend only on the tensor type."""

    def make_quantizers(self) -> list[Quantizer]:
        """Returns the recipe's quantizers. Errors: as the recipe defines them."""
        return [self._quantizer(self._slot_tensor_type(i)) for i in range(self.num_quantizers)]

    def _quantizer(self, tensor_type: str) -> Quantizer:
        raise NotImplementedError


class Float8BlockScalingRecipeState(
    _ByTensorType, keeps=lambda recipe: type(recipe).float8_block_scaling()
):
    """No buffers. Blocks and parameters by tensor type."""

    def _quantizer(self, tensor_type: str) -> Quantizer:
        """Returns Float8BlockQuantizer, both directions."""
        recipe, gradient = self.recipe, tensor_type in BACKWARD_TYPES
        if gradient:
            params, dim = recipe.fp8_quant_bwd_grad, recipe.grad_block_scaling_dim
        elif tensor_type == "weight":
            params, dim = recipe.fp8_quant_fwd_weight, recipe.w_block_scaling_dim
        else:
            params, dim = recipe.fp8_quant_fwd_inp, recipe.x_block_scaling_dim
        return Float8BlockQuantizer(
            get_fp8_te_dtype(recipe, not gradient),
            rowwise=True,
            columnwise=True,
            amax_epsilon=params.amax_epsilon,
            force_pow_2_scales=params.power_2_scale,
            block_scaling_dim=dim,
        )


class NVFP4BlockScalingRecipeState(_ByTensorType, keeps=lambda recipe: type(recipe).nvfp4()):
    """No buffers. Transform, rounding and tiles by tensor type."""

    def _quantizer(self, tensor_type: str) -> Quantizer:
        """Returns NVFP4Quantizer. Errors: ValueError for 4over6 with the transform or SR."""
        recipe, gradient = self.recipe, tensor_type in BACKWARD_TYPES
        weight = tensor_type == "weight"
        if gradient:
            params = recipe.fp4_quant_bwd_grad
        else:
            params = recipe.fp4_quant_fwd_weight if weight else recipe.fp4_quant_fwd_inp
        chooses = not gradient and _covers(recipe.nvfp4_4over6, weight)
        if chooses and (params.random_hadamard_transform or params.stochastic_rounding):
            raise ValueError(
                f"NVFP4BlockScaling: nvfp4_4over6 for {tensor_type} cannot go with the transform "
                "or stochastic rounding; set disable_rht and disable_stochastic_rounding"
            )
        smaller = chooses and _covers(recipe.nvfp4_4over6_e4m3_use_256, weight)
        largest, reduced = E4M3_BOUNDS
        return NVFP4Quantizer(
            get_fp4_te_dtype(recipe),
            with_rht=params.random_hadamard_transform,
            with_post_rht_amax=params.random_hadamard_transform,
            with_2d_quantization=params.fp4_2d_quantization,
            stochastic_rounding=params.stochastic_rounding,
            row_scaled_nvfp4=recipe.row_scaled_activation and not gradient and not weight,
            nvfp4_use_4over6=chooses,
            nvfp4_e4m3_max=reduced if smaller else largest,
            nvfp4_4over6_err_mode=recipe.nvfp4_4over6_err_mode,
        )


def _covers(scope: str, weight: bool) -> bool:
    return scope == "all" or scope == ("weights" if weight else "activations")
