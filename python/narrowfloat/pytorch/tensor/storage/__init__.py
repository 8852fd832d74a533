# SPDX-License-Identifier: Apache-2.0
"""Bare storages: the buffers of quantized tensors, without torch's operators."""

from narrowfloat.pytorch.tensor.storage.float8_tensor_storage import Float8TensorStorage

__all__ = ["Float8TensorStorage"]
