# SPDX-License-Identifier: Apache-2.0
"""Lists the supported scaling modes, under the names of TransformerEngine's module."""

from collections.abc import Callable, Mapping
from typing import Any

from narrowfloat.jax.quantize.quantizer import AmaxComputeAlgo
from narrowfloat.jax.quantize.recipe_config import (
    QuantizeConfig,
    TensorSource,
    _format2dtypes,
    autocast,
    fp8_autocast,
    get_global_quantize_recipe,
    get_quantization_recipe,
    get_quantize_config_with_recipe,
    get_supported_quantization_recipes,
    is_quantize_recipe_supported,
)
from narrowfloat.jax.quantize.scale_padding import (
    apply_padding_to_scale_inv,
    remove_padding_from_scale_inv,
)
from narrowfloat.jax.quantize.scaling_modes import ScalingMode

NVTE_FP8_COLLECTION_NAME = "fp8_metas"


def is_scaling_mode_supported(mode: ScalingMode, gpu_id: int | None = None) -> tuple[bool, str]:
    """Returns whether the mode is supported, and the reason if not: all are. Ignores `gpu_id`."""
    return True, ""


def get_supported_scaling_modes() -> list[ScalingMode]:
    """Returns every mode but NO_SCALING."""
    return [mode for mode in ScalingMode if mode is not ScalingMode.NO_SCALING]


def is_fp8_available(
    scaling_mode: ScalingMode = ScalingMode.DELAYED_TENSOR_SCALING, gpu_id: int | None = None
) -> tuple[bool, str]:
    """Returns is_scaling_mode_supported(), under its older name."""
    return is_scaling_mode_supported(scaling_mode, gpu_id)


def update_collections(new: Mapping[str, Any], original: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns `original` updated with the entries of `new`, in the type of `original`."""
    make: Callable[..., Mapping[str, Any]] = type(original)
    return make({**original, **new})


__all__ = [
    "NVTE_FP8_COLLECTION_NAME",
    "AmaxComputeAlgo",
    "QuantizeConfig",
    "TensorSource",
    "_format2dtypes",
    "apply_padding_to_scale_inv",
    "autocast",
    "fp8_autocast",
    "get_global_quantize_recipe",
    "get_quantization_recipe",
    "get_quantize_config_with_recipe",
    "get_supported_quantization_recipes",
    "get_supported_scaling_modes",
    "is_fp8_available",
    "is_quantize_recipe_supported",
    "is_scaling_mode_supported",
    "remove_padding_from_scale_inv",
    "update_collections",
]
