# SPDX-License-Identifier: Apache-2.0
"""DisableFP8Layer: the older name of DisableQuantizationLayer."""

from __future__ import annotations

import warnings

from narrowfloat.debug._host import feature
from narrowfloat.debug.features.disable_quantization_layer import DisableQuantizationLayer


@feature
class DisableFP8Layer(DisableQuantizationLayer):
    """An alias of DisableQuantizationLayer, which has the name that covers all formats."""

    def __init__(self) -> None:
        super().__init__()
        warnings.warn(
            "DisableFP8Layer is deprecated, use DisableQuantizationLayer instead.",
            DeprecationWarning,
            stacklevel=2,
        )
