# SPDX-License-Identifier: Apache-2.0
"""Rows of the operator table for distributed training, other than collectives."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from narrowfloat.pytorch._dispatch import implements
from narrowfloat.pytorch._types import RowResult
from narrowfloat.pytorch.quantized_tensor import QuantizedTensor
from narrowfloat.pytorch.tensor._fsdp_passes import refuse_replicas_of_values
from narrowfloat.pytorch.tensor._operators import aten


@implements(aten.cat.default, QuantizedTensor)
def _cat(tensors: Sequence[torch.Tensor], dim: int = 0) -> RowResult:
    """Returns the values. DistributedDataParallel concatenates parameters before it sends them."""
    for tensor in tensors:
        if isinstance(tensor, QuantizedTensor) and not tensor.HOLDS_VALUES:
            refuse_replicas_of_values(tensor)
    return NotImplemented


@implements(aten.constant_pad_nd.default, QuantizedTensor)
def _constant_pad(tensor: QuantizedTensor, pad: Sequence[int], value: float = 0) -> RowResult:
    """Appends rows of zeros, as for short shards; NotImplemented for other padding."""
    rows = pad[-1] if len(pad) == 2 * tensor.dim() and not any(pad[:-1]) else 0
    if rows <= 0 or value != 0:
        return NotImplemented
    length = tensor.shape[0]
    padded = aten.new_zeros.default(tensor, [length + rows, *tensor.shape[1:]])
    if type(padded) is not type(tensor):
        return NotImplemented
    aten.slice.Tensor(padded, 0, 0, length).copy_(tensor)
    return padded
