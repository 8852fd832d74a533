# SPDX-License-Identifier: Apache-2.0
"""FakeQuant: runs gemms in high precision on quantized and dequantized operands."""

from __future__ import annotations

from typing import Any

import torch

from narrowfloat.debug._block_rules import RULES
from narrowfloat.debug._fake_quantize import fake_quantize
from narrowfloat.debug._host import api_method, feature, log
from narrowfloat.debug.features.api import Enabled, TEConfigAPIMapper
from narrowfloat.pytorch.quantized_tensor import Quantizer

__all__ = ["FakeQuant", "fake_quantize"]


@feature
class FakeQuant(TEConfigAPIMapper):
    """Quantizes and dequantizes tensors, and runs their gemms in high precision.

    Keys: `gemms` or `gemms_struct`, `tensors` or `tensors_struct`, and `quant_format`: FP8E4M3,
    FP8E5M2, MXFP8E4M3, MXFP8E5M2 or the name of a scheme of narrowfloat. Per-tensor formats are
    scaled by the tensor's own amax. Operands of a listed gemm that are not listed are not changed.

        example:
          enabled: True
          layers: {layer_types: [fc1]}
          transformer_engine:
            FakeQuant:
              enabled: True
              quant_format: FP8E5M2
              gemms_struct:
                - {gemm: fprop, tensors: [activation, weight]}
                - {gemm: dgrad, tensors: [gradient]}
    """

    @api_method
    def fp8_gemm_enabled(
        self, config: dict[str, Any], layer_name: str, gemm: str, iteration: int
    ) -> Enabled:
        """Returns False: every listed gemm runs in high precision, now and later."""
        return False, None

    @api_method
    def modify_tensor_enabled(
        self, config: dict[str, Any], layer_name: str, tensor_name: str, gemm: str, iteration: int
    ) -> Enabled:
        """Returns True: every listed tensor is modified in every iteration."""
        return True, iteration + 1

    @api_method
    def modify_tensor(
        self,
        config: dict[str, Any],
        layer_name: str,
        gemm: str,
        tensor_name: str,
        tensor: torch.Tensor,
        iteration: int,
        default_quantizer: Quantizer | None,
        out: torch.Tensor | None = None,
        dtype: torch.dtype | None = None,
    ) -> torch.Tensor | None:
        """Returns the fake-quantized tensor, in `dtype` if given; None if `out` is filled.

        Errors: ValueError for an unexpected key and a missing or unknown `quant_format`; as
        fake_quantize().
        """
        RULES["FakeQuant"].check_narrowed(config)
        log(
            f"Feature={type(self).__name__}, API=process_tensor: {gemm}, {tensor_name}",
            layer_name,
        )
        values = fake_quantize(tensor, config["quant_format"], out=out)
        return values if values is None or dtype is None else values.to(dtype)
