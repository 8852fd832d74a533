# SPDX-License-Identifier: Apache-2.0
"""An older name of reference_current_scaling."""

from narrowfloat.pytorch.custom_recipes.quantization_current_scaling import (
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
