# SPDX-License-Identifier: Apache-2.0
"""The older name of reference_utils."""

from narrowfloat.pytorch.custom_recipes.reference_utils import (
    Fp4Formats,
    cast_from_fp4x2,
    cast_to_fp4x2,
    high_precision_gemm_ref,
)

__all__ = ["Fp4Formats", "cast_from_fp4x2", "cast_to_fp4x2", "high_precision_gemm_ref"]
