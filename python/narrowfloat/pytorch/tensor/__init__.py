# SPDX-License-Identifier: Apache-2.0
"""Quantized tensors and their quantizers."""

from narrowfloat.pytorch.quantized_tensor import (
    QuantizedTensor,
    QuantizedTensorStorage,
    Quantizer,
    prepare_for_saving,
    restore_from_func_ctx,
    restore_from_saved,
)
from narrowfloat.pytorch.tensor import _float8_operators, _operators  # rows of the operator table
from narrowfloat.pytorch.tensor.float8_tensor import (
    Float8CurrentScalingQuantizer,
    Float8Quantizer,
    Float8Tensor,
)
from narrowfloat.pytorch.tensor.storage import Float8TensorStorage

__all__ = [
    "Float8CurrentScalingQuantizer",
    "Float8Quantizer",
    "Float8Tensor",
    "Float8TensorStorage",
    "QuantizedTensor",
    "QuantizedTensorStorage",
    "Quantizer",
    "_float8_operators",
    "_operators",
    "prepare_for_saving",
    "restore_from_func_ctx",
    "restore_from_saved",
]
