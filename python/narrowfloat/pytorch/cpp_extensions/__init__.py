# SPDX-License-Identifier: Apache-2.0
"""Products of tensors, quantized or not."""

# This import fills the operator table with the rows of products.
from narrowfloat.pytorch.cpp_extensions import operator_products  # noqa: F401
from narrowfloat.pytorch.cpp_extensions.gemm import (
    general_gemm,
    general_grouped_gemm,
    general_grouped_gemm_for_grouped_tensor,
)

__all__ = ["general_gemm", "general_grouped_gemm", "general_grouped_gemm_for_grouped_tensor"]
