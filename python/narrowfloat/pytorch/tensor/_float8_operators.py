# SPDX-License-Identifier: Apache-2.0
"""Rows of the operator table for per-tensor FP8: any part of the codes has the same scale."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import torch

from narrowfloat.pytorch._dispatch import implements
from narrowfloat.pytorch._types import RowResult
from narrowfloat.pytorch.tensor._operators import (
    _copy,
    _to_copy,
    aten,
    is_identity_stride,
    normalize_slice,
    row_shard,
    split_lengths,
    view_or_values,
)
from narrowfloat.pytorch.tensor._scheme_tensor import require_directions
from narrowfloat.pytorch.tensor.float8_tensor import Float8Tensor
from narrowfloat.pytorch.tensor.storage._scheme_storage import Cut
from narrowfloat.pytorch.tensor.storage._stale import require_fresh, take_scales
from narrowfloat.pytorch.tensor.storage.float8_tensor_storage import from_columnwise, to_columnwise

Codes = torch.Tensor | None


def transposed_dim(tensor: Float8Tensor, dim: int) -> int:
    """Returns the index of a logical dimension in the transpose."""
    rank = tensor.dim()
    dim %= rank
    if rank < 2:
        return dim
    return 0 if dim == rank - 1 else dim + 1


def with_codes(tensor: Float8Tensor, data: Codes, transpose: Codes) -> Float8Tensor:
    """Returns a tensor over other codes with the scale of `tensor`."""
    codes: Any = transpose if data is None else data
    shape = codes.shape if data is not None else from_columnwise(codes.shape)
    return Float8Tensor._like_codes(tensor, shape, data, transpose)


def part_of(tensor: Float8Tensor, data: Codes, transpose: Codes) -> Float8Tensor:
    """Returns a part of `tensor` over views of its codes."""
    part: Any = with_codes(tensor, data, transpose)
    if part.shape != tensor.shape or tensor._cut is not None:
        part._cut = tensor._cut or Cut.of(tensor)
    return tensor._mark_view(part)


def on_both(
    tensor: Float8Tensor, dim: int, cut: Callable[[torch.Tensor, int], torch.Tensor]
) -> Float8Tensor:
    """Returns `cut` applied along a logical dimension to the codes and to a valid transpose."""
    data = None if tensor._data is None else cut(tensor._data, dim)
    transpose = None
    if tensor._transpose is not None and tensor._has_columnwise():
        transpose = cut(tensor._transpose, transposed_dim(tensor, dim))
    return part_of(tensor, data, transpose)


@implements(aten.view.default, Float8Tensor)
@implements(aten._unsafe_view.default, Float8Tensor)
def _view(tensor: Float8Tensor, size: list[int]) -> RowResult:
    return view_or_values(tensor, torch.empty(tensor.shape, device="meta").view(size).shape)


@implements(aten.slice.Tensor, Float8Tensor)
def _slice(
    tensor: Float8Tensor,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Float8Tensor:
    begin, stop, step = normalize_slice(tensor.shape[dim], start, end, step)
    return on_both(
        tensor, dim, lambda codes, d: aten.slice.Tensor(codes, d, begin, max(begin, stop), step)
    )


@implements(aten.select.int, Float8Tensor)
def _select(tensor: Float8Tensor, dim: int, index: int) -> Float8Tensor:
    rank = tensor.dim()
    data = None if tensor._data is None else tensor._data.select(dim, index)
    transpose = None
    if tensor._transpose is not None and tensor._has_columnwise():
        transpose = tensor._transpose.select(transposed_dim(tensor, dim), index)
        if dim % rank == rank - 1 and rank > 2:
            transpose = transpose.movedim(-1, 0)  # the last dimension comes first in the transpose
        elif dim % rank != rank - 1 and transpose.dim() == 1:
            transpose = transpose.reshape(-1)
    return part_of(tensor, data, transpose)


@implements(aten.split.Tensor, Float8Tensor)
@implements(aten.split_with_sizes.default, Float8Tensor)
def _split(tensor: Float8Tensor, split: int | list[int], dim: int = 0) -> list[Float8Tensor]:
    lengths = split_lengths(tensor, split, dim)
    ranges = zip(accumulate(lengths, initial=0), lengths, strict=False)
    return [_slice(tensor, dim, start, start + length) for start, length in ranges]


@implements(aten.unbind.int, Float8Tensor)
def _unbind(tensor: Float8Tensor, dim: int = 0) -> list[Float8Tensor]:
    return [_select(tensor, dim, index) for index in range(tensor.shape[dim])]


@implements(aten.unsqueeze.default, Float8Tensor)
def _unsqueeze(tensor: Float8Tensor, dim: int) -> RowResult:
    if tensor._data is None:
        return NotImplemented
    return view_or_values(tensor, torch.empty(tensor.shape, device="meta").unsqueeze(dim).shape)


@implements(aten.as_strided.default, Float8Tensor)
def _as_strided(
    tensor: Float8Tensor, size: list[int], stride: list[int], storage_offset: int | None = None
) -> RowResult:
    if is_identity_stride(tensor, size, stride, storage_offset):
        return Float8Tensor.make_like(tensor)
    offset = storage_offset or 0
    if tensor._data is not None:
        # Offsets count from the wrapper's first element, which is the first code.
        codes = tensor._data
        if not codes.is_contiguous():
            return NotImplemented
        return part_of(
            tensor, codes.as_strided(size, stride, codes.storage_offset() + offset), None
        )
    rows = row_shard(tensor, size, stride, offset)
    if rows is None:
        return NotImplemented
    return _slice(tensor, 0, *rows)


@implements(aten.new_zeros.default, Float8Tensor)
def _new_zeros(
    tensor: Float8Tensor,
    size: list[int],
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
) -> Float8Tensor:
    target = tensor.device if device is None else torch.device(device)
    options: dict[str, Any] = {
        "dtype": torch.uint8,
        "device": target,
        "pin_memory": bool(pin_memory),
    }
    has_transpose = tensor._has_columnwise()
    has_data = tensor._data is not None or not has_transpose
    new = with_codes(
        tensor,
        torch.zeros(size, **options) if has_data else None,
        torch.zeros(to_columnwise(size), **options) if has_transpose else None,
    )
    new._scale_inv = tensor._scale_inv.detach().clone().to(target)
    if dtype is not None and dtype != new.dtype:
        return Float8Tensor.make_like(new, dtype=dtype)
    return new


@implements(aten.zero_.default, Float8Tensor)
def _zero(tensor: Float8Tensor) -> Float8Tensor:
    require_directions(tensor)
    # The scale does not change, because other tensors may share it.
    for codes in (tensor._data, tensor._transpose):
        if codes is not None:
            codes.zero_()
    tensor._after_write()
    return tensor


@implements(aten._to_copy.default, Float8Tensor)
def _to_copy_float8(tensor: Float8Tensor, **kwargs: Any) -> RowResult:
    dtype = kwargs.get("dtype")
    if dtype is not None and dtype != tensor.dtype:
        warnings.warn(
            f"Float8Tensor of nominal type {tensor.dtype} is dequantized to become {dtype}; FSDP2 "
            "needs parameters of one type",
            stacklevel=2,
        )
        return NotImplemented
    copied: Any = _to_copy(tensor, **kwargs)
    copied._transpose_invalid = tensor._transpose_invalid
    return copied


@implements(aten.copy_.default, Float8Tensor)
def _copy_float8(dst: torch.Tensor, src: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    if not isinstance(dst, Float8Tensor) or not isinstance(src, Float8Tensor):
        return _copy(dst, src, non_blocking)
    require_directions(dst)
    raw = dst._fp8_dtype == src._fp8_dtype and dst.shape == src.shape
    if not raw or (dst._data is None) != (src._data is None):
        return _copy(dst, src, non_blocking)
    if dst._data is None and not src._has_columnwise():
        return _copy(dst, src, non_blocking)
    require_fresh(src)
    take_scales(dst, src)
    if dst._data is not None:
        assert src._data is not None
        dst._data.copy_(src._data, non_blocking)
    if dst._has_columnwise():
        codes = src._transpose
        if not src._has_columnwise():
            codes = src._data
            if codes is not None and src.dim() > 1:
                codes = codes.movedim(-1, 0)
        assert dst._transpose is not None and codes is not None
        dst._transpose.copy_(codes, non_blocking)
    dst._after_write()
    return dst
