# SPDX-License-Identifier: Apache-2.0
"""An older name of reference_nvfp4."""

from narrowfloat.pytorch.custom_recipes.quantization_nvfp4 import (
    NVFP4QuantizerRef,
    NVFP4TensorRef,
    nvfp4_ref_rht_2d_factory,
    nvfp4_ref_rht_2d_quantizer_factory,
)

__all__ = [
    "NVFP4QuantizerRef",
    "NVFP4TensorRef",
    "nvfp4_ref_rht_2d_factory",
    "nvfp4_ref_rht_2d_quantizer_factory",
]
