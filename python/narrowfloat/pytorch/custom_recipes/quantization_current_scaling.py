# SPDX-License-Identifier: Apache-2.0
"""Gives the names of reference_current_scaling under its older module name."""

from narrowfloat.pytorch.custom_recipes.reference_current_scaling import (
    CurrentScalingQuantizerRef,
    CurrentScalingTensorRef,
    current_scaling_ref_factory,
    current_scaling_ref_quantizer_factory,
)

__all__ = [
    "CurrentScalingQuantizerRef",
    "CurrentScalingTensorRef",
    "current_scaling_ref_factory",
    "current_scaling_ref_quantizer_factory",
]
