# SPDX-License-Identifier: Apache-2.0
"""The oldest name of quantizer_factories."""

from narrowfloat.pytorch.custom_recipes.quantization_factory_base import (
    current_scaling_quantizer_factory,
    delayed_scaling_quantizer_factory,
    float8_block_scaling_quantizer_factory,
    high_precision_quantizer_factory,
    mxfp8_quantizer_factory,
    nvfp4_quantizer_factory,
)

__all__ = [
    "current_scaling_quantizer_factory",
    "delayed_scaling_quantizer_factory",
    "float8_block_scaling_quantizer_factory",
    "high_precision_quantizer_factory",
    "mxfp8_quantizer_factory",
    "nvfp4_quantizer_factory",
]
