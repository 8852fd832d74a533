# SPDX-License-Identifier: Apache-2.0
"""Gathers the entries that treat the tensors of a group, each as if it were alone."""

import torch

from narrowfloat.pytorch._grouped import (
    group_dequantize,
    group_quantize,
    group_requantize_inplace,
    grouped_swizzle_for_gemm,
    parts_of,
)
from narrowfloat.pytorch.quantized_tensor import Quantizer
from narrowfloat.pytorch.tensor.storage.grouped_tensor_storage import GroupedTensorStorage

__all__ = [
    "bgrad_group_quantize",
    "group_dequantize",
    "group_quantize",
    "group_requantize_inplace",
    "grouped_swizzle_for_gemm",
]


def bgrad_group_quantize(
    tensor: torch.Tensor,
    quantizer: Quantizer,
    num_tensors: int,
    first_dims: torch.Tensor | None,
    noop_flag: torch.Tensor | None = None,
) -> tuple[GroupedTensorStorage, torch.Tensor]:
    """group_quantize() of groups of rows, and the sum of each group over its rows.

    Shapes: the sums are (num_tensors, columns), in the dtype of `tensor`.
    """
    grouped = group_quantize(tensor, quantizer, num_tensors, first_dims, noop_flag=noop_flag)
    sums = [part.float().sum(0) for part in parts_of(grouped, tensor)]
    return grouped, torch.stack(sums).to(tensor.dtype)
