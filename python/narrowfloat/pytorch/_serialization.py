# SPDX-License-Identifier: Apache-2.0
"""What torch.load(weights_only=True) may call to rebuild quantized tensors."""

from __future__ import annotations

import torch

from narrowfloat.pytorch.constants import DType
from narrowfloat.pytorch.tensor import (
    float8_blockwise_tensor,
    float8_tensor,
    hybrid_tensor,
    identity_tensor,
    mxfp8_tensor,
    nvfp4_tensor,
    storage,
)


def register_safe_globals() -> None:
    """Lists the reconstructors, quantizers, storages and DType."""
    torch.serialization.add_safe_globals(
        [
            DType,
            float8_tensor._make_float8_tensor_in_reduce_ex,
            mxfp8_tensor._make_mxfp8_tensor_in_reduce_ex,
            float8_blockwise_tensor._make_float8_blockwise_tensor_in_reduce_ex,
            nvfp4_tensor._make_nvfp4_tensor_in_reduce_ex,
            identity_tensor._make_identity_tensor_in_reduce_ex,
            hybrid_tensor._make_hybrid_quantized_tensor_in_reduce_ex,
            float8_tensor.Float8Quantizer,
            float8_tensor.Float8CurrentScalingQuantizer,
            mxfp8_tensor.MXFP8Quantizer,
            float8_blockwise_tensor.Float8BlockQuantizer,
            nvfp4_tensor.NVFP4Quantizer,
            identity_tensor.IdentityQuantizer,
            hybrid_tensor.HybridQuantizer,
            float8_tensor.Float8Tensor,
            mxfp8_tensor.MXFP8Tensor,
            float8_blockwise_tensor.Float8BlockwiseQTensor,
            nvfp4_tensor.NVFP4Tensor,
            identity_tensor.IdentityTensor,
            hybrid_tensor.HybridQuantizedTensor,
            *(getattr(storage, name) for name in storage.__all__),
        ]
    )
