# SPDX-License-Identifier: Apache-2.0
"""DisableQuantizationLayer: runs all gemms of a layer in high precision."""

from __future__ import annotations

from typing import Any

from narrowfloat.debug._block_rules import RULES
from narrowfloat.debug._host import api_method, feature, log
from narrowfloat.debug.features.api import Enabled


@feature
class DisableQuantizationLayer:
    """Runs all gemms of a quantized layer in high precision, whatever its recipe. No keys.

    example:
      enabled: True
      layers: {layer_types: [fc1]}
      transformer_engine:
        DisableQuantizationLayer:
          enabled: True
    """

    def parse_config_and_api(self, config: dict[str, Any], **kwargs: Any) -> tuple[bool, None]:
        """Returns whether the block is enabled, for every gemm of its layers, and None, so that the
        host passes the block unchanged.
        """
        return config["enabled"], None

    @api_method
    def fp8_gemm_enabled(
        self, config: dict[str, Any], layer_name: str, gemm: str, iteration: int
    ) -> Enabled:
        """Returns False. Raises ValueError for an unexpected key."""
        RULES["DisableQuantizationLayer"].check_narrowed(config)
        log("Quantization Disabled", layer_name)
        return False, iteration + 1
