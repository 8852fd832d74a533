# SPDX-License-Identifier: Apache-2.0
"""DisableQuantizationGEMM: runs selected gemms in high precision."""

from __future__ import annotations

from typing import Any

from narrowfloat.debug._block_rules import RULES
from narrowfloat.debug._host import api_method, feature
from narrowfloat.debug.features.api import Enabled, TEConfigAPIMapper


@feature
class DisableQuantizationGEMM(TEConfigAPIMapper):
    """Runs gemms in high precision in a quantized layer, whatever its recipe.

    Keys: `gemms` or `gemms_struct`.

        example:
          enabled: True
          layers: {layer_types: [fc1]}
          transformer_engine:
            DisableQuantizationGEMM:
              enabled: True
              gemms: [dgrad, wgrad]
    """

    @api_method
    def fp8_gemm_enabled(
        self, config: dict[str, Any], layer_name: str, gemm: str, iteration: int
    ) -> Enabled:
        """Returns False. Raises ValueError for a key other than `gemm`."""
        RULES["DisableQuantizationGEMM"].check_narrowed(config)
        return False, iteration + 1
