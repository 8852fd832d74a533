# SPDX-License-Identifier: Apache-2.0
"""Bare storages: the buffers of quantized tensors, without torch's operators."""

from narrowfloat.pytorch.tensor.storage.float8_blockwise_tensor_storage import (
    Float8BlockwiseQTensorStorage,
)
from narrowfloat.pytorch.tensor.storage.float8_tensor_storage import Float8TensorStorage
from narrowfloat.pytorch.tensor.storage.hybrid_tensor_storage import HybridQuantizedTensorStorage
from narrowfloat.pytorch.tensor.storage.identity_tensor_storage import IdentityTensorStorage
from narrowfloat.pytorch.tensor.storage.mxfp8_tensor_storage import MXFP8TensorStorage
from narrowfloat.pytorch.tensor.storage.nvfp4_tensor_storage import NVFP4TensorStorage

__all__ = [
    "Float8BlockwiseQTensorStorage",
    "Float8TensorStorage",
    "GroupedTensorStorage",
    "HybridQuantizedTensorStorage",
    "IdentityTensorStorage",
    "MXFP8TensorStorage",
    "NVFP4TensorStorage",
]


def __getattr__(name: str) -> type:
    # Imported late: groups use the other families, which import this package.
    if name == "GroupedTensorStorage":
        from narrowfloat.pytorch.tensor.storage import grouped_tensor_storage

        return grouped_tensor_storage.GroupedTensorStorage
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
