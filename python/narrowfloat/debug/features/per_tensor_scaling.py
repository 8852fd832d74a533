# SPDX-License-Identifier: Apache-2.0
"""PerTensorScaling: current scaling for selected tensors of layers with delayed scaling."""

from __future__ import annotations

from typing import Any

import torch

from narrowfloat.debug._block_rules import RULES
from narrowfloat.debug._grammar import ERROR
from narrowfloat.debug._host import api_method, feature, log
from narrowfloat.debug.features.api import Enabled, TEConfigAPIMapper
from narrowfloat.pytorch._native import FLOAT_DTYPES
from narrowfloat.pytorch.constants import DType
from narrowfloat.pytorch.quantized_tensor import Quantizer
from narrowfloat.pytorch.tensor.float8_tensor import (
    Float8CurrentScalingQuantizer,
    Float8Quantizer,
    Float8Tensor,
)


def per_tensor_cast(
    tensor: torch.Tensor, fp8_dtype: DType, out: Float8Tensor | None = None
) -> Float8Tensor | None:
    """Returns the tensor in FP8, scaled by its own amax; None if `out` is filled.

    Shapes: any; `out` has the shape of the tensor.
    Errors: AssertionError for a dtype other than float32, float16 and bfloat16, or an element type
            other than E4M3 and E5M2.
    """
    if tensor.dtype not in FLOAT_DTYPES:
        raise AssertionError(f"{ERROR} Unsupported tensor type for per tensor current scaling")
    if fp8_dtype not in (DType.kFloat8E4M3, DType.kFloat8E5M2):
        raise AssertionError(f"{ERROR} Only 2 FP8 types: E4M3 and E5M2 are supported in TE.")
    quantizer = Float8CurrentScalingQuantizer(fp8_dtype, device=tensor.device)
    if out is None:
        return quantizer(tensor.contiguous())
    quantizer.set_usage(**out.get_usages())
    quantizer.update_quantized(tensor.contiguous(), out)
    return None


@feature
class PerTensorScaling(TEConfigAPIMapper):
    """Scales tensors by their own amax, in layers with delayed scaling.

    Keys: `gemms` or `gemms_struct`, `tensors` or `tensors_struct` (activation, weight, gradient).
    Only for layers under the DelayedScaling recipe. The gemms stay quantized.

        example:
          enabled: True
          layers: {layer_types: [layernorm_q]}
          transformer_engine:
            PerTensorScaling:
              enabled: True
              gemms: [dgrad]
              tensors: [weight, gradient]
    """

    @api_method
    def modify_tensor_enabled(
        self, config: dict[str, Any], layer_name: str, tensor_name: str, gemm: str, iteration: int
    ) -> Enabled:
        """Returns True: every listed tensor is scaled in every iteration."""
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
        out: Float8Tensor | None = None,
        dtype: torch.dtype | None = None,
    ) -> Float8Tensor | None:
        """Returns the tensor in the element type of `default_quantizer`; None if `out` is filled.

        dtype: the nominal type of the result; None is the one of `tensor`.
        Errors: ValueError for an unexpected key; AssertionError for a quantizer other than
        delayed scaling's; as per_tensor_cast().
        """
        RULES["PerTensorScaling"].check_narrowed(config)
        if not isinstance(default_quantizer, Float8Quantizer):
            raise AssertionError(
                f"{ERROR} Feature={type(self).__name__}, API=process_tensor: Per-tensor current "
                "scaling can be used only within `DelayedScaling` recipe autocast. "
                f"{layer_name}"
            )
        log(
            f"Feature={type(self).__name__}, API=process_tensor: {gemm}, {tensor_name}",
            layer_name,
        )
        made = per_tensor_cast(tensor, default_quantizer.dtype, out=out)
        if made is None or dtype in (None, made.dtype):
            return made
        return made.make_like(made, dtype=dtype)
