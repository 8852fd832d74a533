# SPDX-License-Identifier: Apache-2.0
"""Quantized tensors in PyTorch under TransformerEngine's names, byte for byte as it makes them."""

from narrowfloat.pytorch import _module_patch, _serialization
from narrowfloat.pytorch.constants import DType
from narrowfloat.pytorch.module import GroupedLinear, Linear, convert_model
from narrowfloat.pytorch.quantization import (
    autocast,
    fp8_autocast,
    fp8_model_init,
    is_fp8_available,
    is_fp8_block_scaling_available,
    is_mxfp8_available,
    is_nvfp4_available,
    quantized_model_init,
)
from narrowfloat.pytorch.quantized_tensor import (
    QuantizedTensor,
    QuantizedTensorStorage,
    Quantizer,
    prepare_for_saving,
    restore_from_func_ctx,
    restore_from_saved,
)
from narrowfloat.pytorch.tensor import (
    Float8BlockQuantizer,
    Float8BlockwiseQTensor,
    Float8BlockwiseQTensorStorage,
    Float8CurrentScalingQuantizer,
    Float8Quantizer,
    Float8Tensor,
    Float8TensorStorage,
    GroupedTensor,
    GroupedTensorStorage,
    HybridQuantizedTensor,
    HybridQuantizedTensorStorage,
    HybridQuantizer,
    IdentityQuantizer,
    IdentityTensor,
    IdentityTensorStorage,
    MXFP8Quantizer,
    MXFP8Tensor,
    MXFP8TensorStorage,
    NVFP4Quantizer,
    NVFP4Tensor,
    NVFP4TensorStorage,
)

_serialization.register_safe_globals()
_module_patch.install()

__all__ = [
    "DType",
    "Float8BlockQuantizer",
    "Float8BlockwiseQTensor",
    "Float8BlockwiseQTensorStorage",
    "Float8CurrentScalingQuantizer",
    "Float8Quantizer",
    "Float8Tensor",
    "Float8TensorStorage",
    "GroupedLinear",
    "GroupedTensor",
    "GroupedTensorStorage",
    "HybridQuantizedTensor",
    "HybridQuantizedTensorStorage",
    "HybridQuantizer",
    "IdentityQuantizer",
    "IdentityTensor",
    "IdentityTensorStorage",
    "Linear",
    "MXFP8Quantizer",
    "MXFP8Tensor",
    "MXFP8TensorStorage",
    "NVFP4Quantizer",
    "NVFP4Tensor",
    "NVFP4TensorStorage",
    "QuantizedTensor",
    "QuantizedTensorStorage",
    "Quantizer",
    "autocast",
    "convert_model",
    "fp8_autocast",
    "fp8_model_init",
    "is_fp8_available",
    "is_fp8_block_scaling_available",
    "is_mxfp8_available",
    "is_nvfp4_available",
    "prepare_for_saving",
    "quantized_model_init",
    "restore_from_func_ctx",
    "restore_from_saved",
]
