# SPDX-License-Identifier: Apache-2.0
"""DisableFP8GEMM: the older name of DisableQuantizationGEMM."""

from __future__ import annotations

import warnings

from narrowfloat.debug._host import feature
from narrowfloat.debug.features.disable_quantization_gemm import DisableQuantizationGEMM


@feature
class DisableFP8GEMM(DisableQuantizationGEMM):
    """An alias of DisableQuantizationGEMM, which has the name that covers all formats."""

    def __init__(self) -> None:
        super().__init__()
        warnings.warn(
            "DisableFP8GEMM is deprecated, use DisableQuantizationGEMM instead.",
            DeprecationWarning,
            stacklevel=2,
        )
