# SPDX-License-Identifier: Apache-2.0
"""Roles, recipe states, autocast and the global state."""

from narrowfloat.pytorch.quantization.autocast import (
    autocast,
    check_fp8_block_scaling_support,
    check_fp8_support,
    check_mxfp8_support,
    check_nvfp4_support,
    check_recipe_support,
    fp8_autocast,
    fp8_model_init,
    is_fp8_available,
    is_fp8_block_scaling_available,
    is_mxfp8_available,
    is_nvfp4_available,
    quantized_model_init,
)
from narrowfloat.pytorch.quantization.custom_state import CustomRecipeState
from narrowfloat.pytorch.quantization.delayed_update import (
    split_and_copy,
    update_amax_and_scale,
    update_scale,
)
from narrowfloat.pytorch.quantization.dtypes import (
    get_align_size_for_quantization,
    get_fp4_te_dtype,
    get_fp8_max,
    get_fp8_te_dtype,
    get_fp8_torch_dtype,
)
from narrowfloat.pytorch.quantization.global_state import (
    FP8GlobalStateManager,
    get_default_fp8_recipe,
    get_default_recipe,
)
from narrowfloat.pytorch.quantization.recipe_state import RecipeState
from narrowfloat.pytorch.quantization.recipe_states import (
    DelayedScalingRecipeState,
    Float8BlockScalingRecipeState,
    Float8CurrentScalingRecipeState,
    MXFP8BlockScalingRecipeState,
    NVFP4BlockScalingRecipeState,
)
from narrowfloat.pytorch.quantization.roles import (
    DelayedScalingRequest,
    QuantizerRequest,
    QuantizerRole,
)

# TransformerEngine's names.
_amax_and_scale_update = update_amax_and_scale
_default_sf_compute = update_scale

__all__ = [
    "CustomRecipeState",
    "DelayedScalingRecipeState",
    "DelayedScalingRequest",
    "FP8GlobalStateManager",
    "Float8BlockScalingRecipeState",
    "Float8CurrentScalingRecipeState",
    "MXFP8BlockScalingRecipeState",
    "NVFP4BlockScalingRecipeState",
    "QuantizerRequest",
    "QuantizerRole",
    "RecipeState",
    "autocast",
    "check_fp8_block_scaling_support",
    "check_fp8_support",
    "check_mxfp8_support",
    "check_nvfp4_support",
    "check_recipe_support",
    "fp8_autocast",
    "fp8_model_init",
    "get_align_size_for_quantization",
    "get_default_fp8_recipe",
    "get_default_recipe",
    "get_fp4_te_dtype",
    "get_fp8_max",
    "get_fp8_te_dtype",
    "get_fp8_torch_dtype",
    "is_fp8_available",
    "is_fp8_block_scaling_available",
    "is_mxfp8_available",
    "is_nvfp4_available",
    "quantized_model_init",
    "split_and_copy",
    "update_amax_and_scale",
]
