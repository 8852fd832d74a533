# SPDX-License-Identifier: Apache-2.0
"""Rows of the operator table for the families with block scales."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from narrowfloat.pytorch._dispatch import implements
from narrowfloat.pytorch._types import RowResult, RowResults
from narrowfloat.pytorch.tensor._cuts import cut
from narrowfloat.pytorch.tensor._fsdp_passes import refuse_plain_shards, refuse_replicas_of_values
from narrowfloat.pytorch.tensor._operators import (
    _empty_like,
    _new_empty,
    aten,
    empty_piece,
    is_full_slice,
    is_identity_stride,
    normalize_slice,
    row_shard,
    split_lengths,
    view_or_values,
)
from narrowfloat.pytorch.tensor.mxfp8_tensor import MXFP8Tensor
from narrowfloat.pytorch.tensor.nvfp4_tensor import NVFP4Tensor
from narrowfloat.pytorch.tensor.storage._scheme_storage import BlockStorage

if TYPE_CHECKING:
    from narrowfloat.pytorch.tensor._cuts import BlockTensor


def _resolved(tensor: torch.Tensor, size: list[int]) -> torch.Size:
    return torch.empty(tensor.shape, device="meta").view(size).shape


@implements(aten.view.default, MXFP8Tensor)
@implements(aten._unsafe_view.default, MXFP8Tensor)
def _view_mxfp8(tensor: MXFP8Tensor, size: list[int]) -> RowResult:
    shape = _resolved(tensor, size)
    if tensor.dim() > 1 and shape[-1:] != tensor.shape[-1:]:
        refuse_replicas_of_values(tensor)
        raise ValueError(
            f"view: an MXFP8Tensor must keep its last dimension, got {tuple(shape)} for "
            f"{tuple(tensor.shape)}"
        )
    return _view_of(tensor, shape)


@implements(aten.view.default, BlockStorage)
@implements(aten._unsafe_view.default, BlockStorage)
def _view(tensor: BlockTensor, size: list[int]) -> RowResult:
    return _view_of(tensor, _resolved(tensor, size))


@implements(aten.empty_like.default, NVFP4Tensor)
def _empty_like_nvfp4(tensor: NVFP4Tensor, **kwargs: Any) -> NVFP4Tensor:
    new = _empty_like(tensor, **kwargs)
    for amax in (new._amax_rowwise, new._amax_columnwise):
        if amax is not None:
            amax.zero_()
    return new


@implements(aten.new_zeros.default, BlockStorage)
def _new_zeros(tensor: BlockTensor, size: list[int], **kwargs: Any) -> RowResult:
    """Returns zeros in the same format; plain zeros for another dtype or an unsupported size."""
    takes = len(size) >= 2 and kwargs.get("dtype") in (None, tensor.dtype)
    try:
        if takes:
            tensor._get_quantizer()._check_shape(tuple(size))
    except ValueError:
        takes = False
    if not takes:
        refuse_plain_shards(tensor, f"a shard of shape {tuple(size)} has parts of blocks")
        return NotImplemented
    new = _new_empty(tensor, size, **kwargs)
    usages = tensor.get_usages()
    new._keep(usages["rowwise"], usages["columnwise"])
    return aten.zero_.default(new)


def _alias_or_values(piece: torch.Tensor | None) -> RowResult:
    return NotImplemented if piece is None else piece


@implements(aten.slice.Tensor, BlockStorage)
def _slice(
    tensor: BlockTensor,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> RowResult:
    if is_full_slice(tensor, dim, start, end, step):
        return type(tensor).make_like(tensor)
    begin, stop, step = normalize_slice(tensor.shape[dim], start, end, step)
    if stop <= begin:
        return empty_piece(tensor, dim)
    if step != 1:
        return NotImplemented
    return _alias_or_values(cut(tensor, dim, begin, stop - begin))


@implements(aten.select.int, BlockStorage)
def _select(tensor: BlockTensor, dim: int, index: int) -> RowResult:
    shape = tensor.shape
    dim, index = _in_range(dim, len(shape)), _in_range(index, shape[dim])
    if dim == len(shape) - 1:
        return NotImplemented
    piece = cut(tensor, dim, index, 1)
    return _view_of(piece, torch.Size((*shape[:dim], *shape[dim + 1 :])))


def _in_range(index: int, size: int) -> int:
    """Returns `index` counted from the front. Errors: IndexError, as in torch."""
    if not -size <= index < size:
        raise IndexError(f"select: index {index} is out of range for a dimension of size {size}")
    return index % size


def _view_of(tensor: MXFP8Tensor | BlockTensor | None, shape: torch.Size) -> RowResult:
    """Returns an alias of another shape; NotImplemented if blocks or strides do not allow it."""
    if tensor is None:
        return NotImplemented
    if tensor._why_no_view(shape) is not None:
        refuse_replicas_of_values(tensor)
        return NotImplemented
    return view_or_values(tensor, shape)


def _why_no_pieces(tensor: BlockTensor, size: int, dim: int) -> str:
    if tensor._has_swizzled_scales():
        return "its scales are GEMM-swizzled"
    lines = "columns" if dim % tensor.dim() == tensor.dim() - 1 else "rows"
    boundary = tensor._block_boundary(lines == "rows")
    if size % boundary == 0:
        return f"its amaxes cannot be cut along the {lines}"
    return f"{size} {lines} of a shard are not whole blocks of {boundary}"


def _pieces(tensor: BlockTensor, sizes: list[int], dim: int) -> RowResults:
    """Returns the pieces as aliases; NotImplemented unless all can be aliases."""
    if not sizes:
        return []
    pieces, start = [], 0
    for size in sizes:
        piece: torch.Tensor | None = cut(tensor, dim, start, size)
        if piece is None:
            refuse_plain_shards(tensor, _why_no_pieces(tensor, sizes[0], dim))
            if size != 0:
                return NotImplemented
            piece = empty_piece(tensor, dim)
        pieces.append(piece)
        start += size
    if sizes[-1] % tensor._block_boundary(dim % tensor.dim() != tensor.dim() - 1) != 0:
        # FSDP2 cuts a short shard out of a padded one, and no block ends at that bound.
        refuse_plain_shards(tensor, _why_no_pieces(tensor, sizes[-1], dim))
    return pieces


@implements(aten.split.Tensor, BlockStorage)
@implements(aten.split_with_sizes.default, BlockStorage)
def _split(tensor: BlockTensor, split: int | list[int], dim: int = 0) -> RowResults:
    return _pieces(tensor, split_lengths(tensor, split, dim), dim)


@implements(aten.unbind.int, BlockStorage)
def _unbind(tensor: BlockTensor, dim: int = 0) -> RowResults:
    pieces = []
    for index in range(tensor.shape[dim]):
        piece = _select(tensor, dim, index)
        if piece is NotImplemented:
            return NotImplemented
        pieces.append(piece)
    return pieces or NotImplemented


@implements(aten.unsqueeze.default, BlockStorage)
def _unsqueeze(tensor: BlockTensor, dim: int) -> RowResult:
    return _view_of(tensor, torch.empty(tensor.shape, device="meta").unsqueeze(dim).shape)


@implements(aten.as_strided.default, BlockStorage)
def _as_strided(
    tensor: BlockTensor, size: list[int], stride: list[int], storage_offset: int | None = None
) -> RowResult:
    if is_identity_stride(tensor, size, stride, storage_offset):
        return type(tensor).make_like(tensor)
    rows = row_shard(tensor, size, stride, storage_offset or 0)
    return NotImplemented if rows is None else _slice(tensor, 0, *rows)
