# SPDX-License-Identifier: Apache-2.0
"""What is supported here."""

from narrowfloat.jax.quantize.scaling_modes import ScalingMode


def is_scaling_mode_supported(mode: ScalingMode, gpu_id: int | None = None) -> tuple[bool, str]:
    """Whether the mode runs here, and why not: the CPU runs all. `gpu_id` changes nothing."""
    return True, ""


def get_supported_scaling_modes() -> list[ScalingMode]:
    """Every mode that scales."""
    return [mode for mode in ScalingMode if mode is not ScalingMode.NO_SCALING]
