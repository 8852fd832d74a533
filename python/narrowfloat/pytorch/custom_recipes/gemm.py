# SPDX-License-Identifier: Apache-2.0
"""Products of custom tensors, under TransformerEngine's module name."""

from narrowfloat.pytorch.cpp_extensions.custom_gemm import GEMMType, MMParams, custom_gemm

__all__ = ["GEMMType", "MMParams", "custom_gemm"]
