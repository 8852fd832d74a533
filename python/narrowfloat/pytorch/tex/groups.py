# SPDX-License-Identifier: Apache-2.0
"""Entries for groups of tensors, which treat each tensor as one of its own."""

from collections.abc import Sequence

import torch

from narrowfloat.pytorch._grouped import (
    group_dequantize,
    group_quantize,
    group_requantize_inplace,
    grouped_swizzle_for_gemm,
    parts_of,
)
from narrowfloat.pytorch._native import column_sums
from narrowfloat.pytorch._reduction import reduce_max
from narrowfloat.pytorch.quantized_tensor import Quantizer
from narrowfloat.pytorch.tensor._hosted import hosted, native
from narrowfloat.pytorch.tensor.storage.grouped_tensor_storage import GroupedTensorStorage
from narrowfloat.pytorch.tex._absent import refused
from narrowfloat.pytorch.tex.casts import require_nvfp4

__all__ = [
    "bgrad_group_quantize",
    "copy_data_ptrs_to_device",
    "group_dequantize",
    "group_quantize",
    "group_requantize_inplace",
    "grouped_mlp_experimental",
    "grouped_swizzle_for_gemm",
    "nvfp4_group_quantize_with_amax",
    "splits_to_offsets",
    "splits_to_offsets_multi",
]


class grouped_mlp_experimental:
    """Namespace of functions for fused grouped layers, whose kernels are missing."""

    swizzle_scales_and_pack_ptrs_for_discrete_weights = staticmethod(
        refused("swizzle_scales_and_pack_ptrs_for_discrete_weights")
    )


def splits_to_offsets(first_dims: torch.Tensor, logical_last_dim: int) -> torch.Tensor:
    """Returns the offset of each group of rows in a matrix with that many columns, and the end.

    Shapes: first_dims int64 (n,); the result int64 (n + 1,), in elements.
    Errors: ValueError for another rank or dtype, or no columns.
    """
    if first_dims.dim() != 1 or first_dims.dtype != torch.int64:
        raise ValueError(
            "splits_to_offsets: first_dims must be a vector of int64, got "
            f"{tuple(first_dims.shape)} of {first_dims.dtype}"
        )
    if logical_last_dim <= 0:
        raise ValueError(
            f"splits_to_offsets: logical_last_dim must be positive, got {logical_last_dim}"
        )
    return _offsets(first_dims, logical_last_dim, True, torch.int64)


def splits_to_offsets_multi(
    split_sizes: torch.Tensor,
    device: torch.device,
    *,
    strides: Sequence[int],
    include_leading_zero: Sequence[bool],
    dtypes: Sequence[torch.dtype],
    bulk_allocate: bool = False,
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Returns the sizes as int64, and for each stride the cumulative sums of sizes times stride.

    include_leading_zero, dtypes: of each result. bulk_allocate: ignored; buffers are separate.
    Errors: ValueError unless the lists have one length.
    """
    if not len(strides) == len(include_leading_zero) == len(dtypes):
        raise ValueError(
            "splits_to_offsets_multi: strides, include_leading_zero and dtypes must have the same "
            f"length, got {len(strides)}, {len(include_leading_zero)} and {len(dtypes)}"
        )
    sizes = split_sizes.to(device=device, dtype=torch.int64)
    lists = zip(strides, include_leading_zero, dtypes, strict=True)
    return sizes, [_offsets(sizes, *each) for each in lists]


def _offsets(
    sizes: torch.Tensor, stride: int, leading_zero: bool, dtype: torch.dtype
) -> torch.Tensor:
    """Returns the cumulative sums of `sizes` times `stride`."""
    sums = sizes.new_zeros(len(sizes) + leading_zero)
    torch.cumsum(sizes * stride, 0, out=sums[int(leading_zero) :])
    return sums.to(dtype)


def copy_data_ptrs_to_device(tensors: Sequence[torch.Tensor], device: torch.device) -> torch.Tensor:
    """Returns the addresses of the tensors' memory, int64 (n,), on `device`."""
    return torch.tensor([t.data_ptr() for t in tensors], dtype=torch.int64, device=device)


def bgrad_group_quantize(
    tensor: torch.Tensor,
    quantizer: Quantizer,
    num_tensors: int,
    first_dims: torch.Tensor | None,
    last_dims: torch.Tensor | None = None,
    tensor_offsets: torch.Tensor | None = None,
    noop_flag: torch.Tensor | None = None,
) -> tuple[GroupedTensorStorage, torch.Tensor]:
    """Returns group_quantize() of groups of rows, and the column sums of each group.

    Shapes: the sums are (num_tensors, columns), in the dtype of `tensor`.
    Errors: ValueError if columns differ between groups.
    """
    if last_dims is not None:
        raise ValueError("bgrad_group_quantize: groups must have the same columns, got last_dims")
    grouped = group_quantize(
        tensor,
        quantizer,
        num_tensors,
        first_dims,
        tensor_offsets=tensor_offsets,
        noop_flag=noop_flag,
    )
    sums = [column_sums(part) for part in parts_of(native(grouped), tensor)]
    return grouped, torch.stack(sums).to(tensor.dtype)


@torch.no_grad()
def nvfp4_group_quantize_with_amax(
    tensor: torch.Tensor,
    quantizer: Quantizer,
    num_tensors: int,
    first_dims: torch.Tensor | None,
    last_dims: torch.Tensor | None = None,
    rowwise_amax: torch.Tensor | None = None,
    columnwise_amax: torch.Tensor | None = None,
    tensor_offsets: torch.Tensor | None = None,
) -> GroupedTensorStorage:
    """Returns group_quantize() with given amaxes, one per group, which the result stores.

    With amax reduction they are reduced in place first.
    Errors: ValueError for another quantizer, for columns that differ between groups, or for amaxes
    of another size or dtype.
    """
    entry, own = "nvfp4_group_quantize_with_amax", native(quantizer)
    require_nvfp4(entry, own, rowwise_amax=rowwise_amax, columnwise_amax=columnwise_amax)
    assert rowwise_amax is not None and columnwise_amax is not None
    counts = (rowwise_amax.numel(), columnwise_amax.numel())
    if last_dims is not None or counts != (num_tensors, num_tensors):
        raise ValueError(
            f"{entry}: needs the same columns in all groups and {num_tensors} amaxes, got "
            f"last_dims {last_dims} and {counts[0]} and {counts[1]} amaxes"
        )
    rows, cols = tensor.shape
    group = GroupedTensorStorage.make_grouped_tensor(
        num_tensors, first_dims, None, rows, cols, own, tensor.device, tensor.dtype
    )
    if tensor_offsets is not None:
        group.tensor_offsets = tensor_offsets
    for name, amax in (("amax", rowwise_amax), ("columnwise_amax", columnwise_amax)):
        if group.__dict__[name] is not None:
            group.__dict__[name] = amax.view(-1)
            if own.with_amax_reduction:
                reduce_max(amax, own.amax_reduction_group)
    parts, members = parts_of(group, tensor), group._split()
    for part, member in zip(parts, members, strict=True):
        if part.numel() > 0:
            own._fill_given(part, member, member._amax_rowwise, member._amax_columnwise)
    group._keep_members()
    return hosted(group)
