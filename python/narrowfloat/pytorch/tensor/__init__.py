# SPDX-License-Identifier: Apache-2.0
"""Quantized tensors and their quantizers."""

import torch

from narrowfloat.pytorch.quantized_tensor import (
    QuantizedTensor,
    QuantizedTensorStorage,
    Quantizer,
    prepare_for_saving,
    restore_from_func_ctx,
    restore_from_saved,
)

# These imports fill the operator table.
from narrowfloat.pytorch.tensor import (
    _block_operators,
    _float8_operators,
    _hybrid_operators,
    _identity_operators,
    _operators,
    _shard_operators,
)
from narrowfloat.pytorch.tensor.float8_blockwise_tensor import (
    Float8BlockQuantizer,
    Float8BlockwiseQTensor,
)
from narrowfloat.pytorch.tensor.float8_tensor import (
    Float8CurrentScalingQuantizer,
    Float8Quantizer,
    Float8Tensor,
)
from narrowfloat.pytorch.tensor.grouped_tensor import GroupedTensor
from narrowfloat.pytorch.tensor.hybrid_tensor import HybridQuantizedTensor, HybridQuantizer
from narrowfloat.pytorch.tensor.identity_tensor import IdentityQuantizer, IdentityTensor
from narrowfloat.pytorch.tensor.mxfp8_tensor import MXFP8Quantizer, MXFP8Tensor
from narrowfloat.pytorch.tensor.nvfp4_tensor import NVFP4Quantizer, NVFP4Tensor
from narrowfloat.pytorch.tensor.storage import (
    Float8BlockwiseQTensorStorage,
    Float8TensorStorage,
    HybridQuantizedTensorStorage,
    IdentityTensorStorage,
    MXFP8TensorStorage,
    NVFP4TensorStorage,
)
from narrowfloat.pytorch.tensor.storage.grouped_tensor_storage import GroupedTensorStorage
from narrowfloat.pytorch.tensor.utils import cast_master_weights_to_fp8, replace_raw_data

if torch.distributed.is_available():
    from narrowfloat.pytorch.tensor import _collectives  # noqa: F401

__all__ = [
    "Float8BlockQuantizer",
    "Float8BlockwiseQTensor",
    "Float8BlockwiseQTensorStorage",
    "Float8CurrentScalingQuantizer",
    "Float8Quantizer",
    "Float8Tensor",
    "Float8TensorStorage",
    "GroupedTensor",
    "GroupedTensorStorage",
    "HybridQuantizedTensor",
    "HybridQuantizedTensorStorage",
    "HybridQuantizer",
    "IdentityQuantizer",
    "IdentityTensor",
    "IdentityTensorStorage",
    "MXFP8Quantizer",
    "MXFP8Tensor",
    "MXFP8TensorStorage",
    "NVFP4Quantizer",
    "NVFP4Tensor",
    "NVFP4TensorStorage",
    "QuantizedTensor",
    "QuantizedTensorStorage",
    "Quantizer",
    "_block_operators",
    "_float8_operators",
    "_hybrid_operators",
    "_identity_operators",
    "_operators",
    "_shard_operators",
    "cast_master_weights_to_fp8",
    "get_all_tensor_types",
    "prepare_for_saving",
    "replace_raw_data",
    "restore_from_func_ctx",
    "restore_from_saved",
]


def get_all_tensor_types() -> list[type]:
    """Returns torch's tensor classes and all quantized ones, each with its storage after it."""
    return [
        torch.Tensor,
        torch.nn.Parameter,
        Float8Tensor,
        Float8TensorStorage,
        MXFP8Tensor,
        MXFP8TensorStorage,
        Float8BlockwiseQTensor,
        Float8BlockwiseQTensorStorage,
        NVFP4Tensor,
        NVFP4TensorStorage,
        GroupedTensor,
        GroupedTensorStorage,
        HybridQuantizedTensor,
        HybridQuantizedTensorStorage,
        IdentityTensor,
        IdentityTensorStorage,
    ]
