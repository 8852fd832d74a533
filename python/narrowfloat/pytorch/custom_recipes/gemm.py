# SPDX-License-Identifier: Apache-2.0
"""Products of custom tensors, under the path that TransformerEngine has them at."""

from narrowfloat.pytorch.cpp_extensions.custom_gemm import GEMMType, MMParams, custom_gemm

__all__ = ["GEMMType", "MMParams", "custom_gemm"]
