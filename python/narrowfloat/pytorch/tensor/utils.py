# SPDX-License-Identifier: Apache-2.0
"""Tensors over memory that somebody else laid out."""

from __future__ import annotations

import torch

from narrowfloat.pytorch.quantized_tensor import QuantizedTensorStorage
from narrowfloat.pytorch.tensor.float8_blockwise_tensor import Float8BlockwiseQTensor
from narrowfloat.pytorch.tensor.float8_tensor import Float8Tensor
from narrowfloat.pytorch.tensor.hybrid_tensor import HybridQuantizedTensor
from narrowfloat.pytorch.tensor.identity_tensor import IdentityTensor
from narrowfloat.pytorch.tensor.mxfp8_tensor import MXFP8Tensor
from narrowfloat.pytorch.tensor.nvfp4_tensor import NVFP4Tensor

# The field that moves to the new memory.
_RAW_FIELDS: dict[type, str] = {
    Float8Tensor: "_data",
    Float8BlockwiseQTensor: "_rowwise_data",
    NVFP4Tensor: "_rowwise_data",
    IdentityTensor: "_hp_data",
}


def replace_raw_data(tensor: QuantizedTensorStorage, new_raw_data: torch.Tensor) -> None:
    """Copies the codes of `tensor` into `new_raw_data`, which holds them from then on.

    Errors: NotImplementedError for MXFP8 and for a hybrid tensor without a row-wise child;
    ValueError for another type, or memory of another dtype.
    """
    if isinstance(tensor, HybridQuantizedTensor):
        if tensor._rowwise_storage is None:
            raise NotImplementedError("replace_raw_data: the hybrid tensor has no row-wise child")
        replace_raw_data(tensor._rowwise_storage, new_raw_data)
        return
    if isinstance(tensor, MXFP8Tensor):
        raise NotImplementedError("replace_raw_data: not available for MXFP8Tensor")
    field = next((name for cls, name in _RAW_FIELDS.items() if isinstance(tensor, cls)), None)
    if field is None:
        raise ValueError(f"replace_raw_data: not available for {type(tensor).__name__}")
    old = getattr(tensor, field)
    if old.dtype != new_raw_data.dtype:
        raise ValueError(
            f"replace_raw_data: the codes are {old.dtype}, the new memory {new_raw_data.dtype}"
        )
    new_raw_data.detach().copy_(old)
    setattr(tensor, field, new_raw_data)
