# SPDX-License-Identifier: Apache-2.0
"""All products, under TransformerEngine's module name."""

from narrowfloat.pytorch.cpp_extensions.grouped_gemm import (
    general_grouped_gemm,
    general_grouped_gemm_for_grouped_tensor,
)
from narrowfloat.pytorch.cpp_extensions.operands import unwrap_tensor
from narrowfloat.pytorch.cpp_extensions.single_gemm import general_gemm, validate_gemm_scale

_unwrap_tensor = unwrap_tensor  # TransformerEngine's name

__all__ = [
    "general_gemm",
    "general_grouped_gemm",
    "general_grouped_gemm_for_grouped_tensor",
    "validate_gemm_scale",
]
