# SPDX-License-Identifier: Apache-2.0
"""Rows of the operator table for hybrid tensors, which run the operator on each child."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import torch

from narrowfloat.pytorch import _native
from narrowfloat.pytorch._dispatch import find_row, implements
from narrowfloat.pytorch._types import Operator, RowResult, RowResults
from narrowfloat.pytorch.quantized_tensor import QuantizedTensor
from narrowfloat.pytorch.tensor._cuts import matrix_range
from narrowfloat.pytorch.tensor._fsdp_passes import refuse_plain_shards, refuse_replicas_of_values
from narrowfloat.pytorch.tensor._operators import (
    _copy,
    aten,
    empty_piece,
    is_full_slice,
    is_identity_stride,
    normalize_slice,
    quantizer_on,
    refuse_without_quantizer,
    row_shard,
    split_lengths,
    view_or_values,
    zero_buffers,
)
from narrowfloat.pytorch.tensor._scheme_tensor import require_directions
from narrowfloat.pytorch.tensor.hybrid_tensor import HybridQuantizedTensor
from narrowfloat.pytorch.tensor.storage._dropped import take_back_children
from narrowfloat.pytorch.utils import devices_match


def map_quantized(
    tensor: HybridQuantizedTensor, operator: Callable[[Any], Any]
) -> dict[str, Any] | None:
    """Returns constructor arguments with the operator's result per child; None if one is plain."""
    if not all(isinstance(child, QuantizedTensor) for child in tensor._children()):
        return None
    try:
        children = tensor._map(operator)
    except NotImplementedError:  # the child's format does not support such a part
        return None
    present = [child for child in children.values() if child is not None]
    return children if all(isinstance(child, QuantizedTensor) for child in present) else None


def _shape_of(children: dict[str, Any]) -> torch.Size:
    return next(child.shape for child in children.values() if child is not None)


@implements(aten.clone.default, HybridQuantizedTensor)
def _clone(
    tensor: HybridQuantizedTensor, *, memory_format: torch.memory_format | None = None
) -> HybridQuantizedTensor:
    return tensor._rebuild(**tensor._cloned_buffers())


@implements(aten.view.default, HybridQuantizedTensor)
@implements(aten._unsafe_view.default, HybridQuantizedTensor)
def _view(tensor: HybridQuantizedTensor, size: list[int]) -> RowResult:
    """Returns a view. Errors: RuntimeError if a child's blocks do not allow it for a matrix."""
    shape = torch.empty(tensor.shape, device="meta").view(size).shape
    if shape == tensor.shape:
        return HybridQuantizedTensor.make_like(tensor)
    refuse_replicas_of_values(tensor)
    reason = tensor._why_no_view(shape)
    if reason is None:
        return view_or_values(tensor, shape)
    if tensor.dim() < 2:
        return NotImplemented
    raise RuntimeError(reason)


@implements(aten.view.dtype, HybridQuantizedTensor)
def _view_dtype(tensor: HybridQuantizedTensor, dtype: torch.dtype) -> None:
    raise TypeError("view: a HybridQuantizedTensor cannot be seen as another type")


@implements(aten.slice.Tensor, HybridQuantizedTensor)
def _slice(
    tensor: HybridQuantizedTensor,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> RowResult:
    if is_full_slice(tensor, dim, start, end, step):
        return HybridQuantizedTensor.make_like(tensor)
    begin, stop, step = normalize_slice(tensor.shape[dim], start, end, step)
    if stop <= begin:
        return empty_piece(tensor, dim)

    def part(child: Any) -> RowResult:  # noqa: ANN401  # of any family
        if child.shape == tensor.shape:
            return _row_of(aten.slice.Tensor, child, dim, start, end, step)
        return NotImplemented if step != 1 else _lines_of(tensor, child, dim, begin, stop - begin)

    return _mapped(tensor, part)


@implements(aten.select.int, HybridQuantizedTensor)
def _select(tensor: HybridQuantizedTensor, dim: int, index: int) -> RowResult:
    def part(child: Any) -> RowResult:  # noqa: ANN401  # of any family
        if child.shape == tensor.shape:
            return _row_of(aten.select.int, child, dim, index)
        return _selected_of(tensor, child, dim, index % tensor.shape[dim])

    return _mapped(tensor, part)


@implements(aten.unsqueeze.default, HybridQuantizedTensor)
def _unsqueeze(tensor: HybridQuantizedTensor, dim: int) -> RowResult:
    rank = tensor.dim()

    def view(child: Any) -> RowResult:  # noqa: ANN401  # of any family
        if child.shape == tensor.shape:
            return _row_of(aten.unsqueeze.default, child, dim)
        return NotImplemented if dim % (rank + 1) == rank else aten.alias.default(child)

    return _mapped(tensor, view)


def _row_of(operator: Operator, child: QuantizedTensor, *args: Any) -> Any:  # noqa: ANN401  # one or several
    """Returns the result of a child's row of the table; NotImplemented instead of values."""
    row = find_row(operator, type(child))
    return NotImplemented if row is None else row(child, *args)


def _mapped(tensor: HybridQuantizedTensor, operator: Callable[[Any], Any]) -> RowResult:
    children = map_quantized(tensor, operator)
    return NotImplemented if children is None else tensor._rebuild(_shape_of(children), **children)


# A child with another shape than its parent is a matrix: NVFP4's columnwise data belong to the
# flattened tensor, while its rowwise data may have three or more dimensions.


def _lines_of(
    tensor: HybridQuantizedTensor, child: QuantizedTensor, dim: int, start: int, length: int
) -> RowResult:
    """Returns the rows or columns of a matrix that correspond to a range of its parent's dimension.

    Returns NotImplemented if the range is empty, or its rows are not consecutive in the matrix.
    """
    found = matrix_range(tensor.shape, dim % tensor.dim(), start, length)
    if found is None or length <= 0:
        return NotImplemented
    along_rows, first, count = found
    return _row_of(aten.slice.Tensor, child, 0 if along_rows else 1, first, first + count)


def _selected_of(
    tensor: HybridQuantizedTensor, child: QuantizedTensor, dim: int, index: int
) -> RowResult:
    """Returns the rows of a matrix that select() returns; NotImplemented for the last dimension."""
    is_last = dim % tensor.dim() == tensor.dim() - 1
    return NotImplemented if is_last else _lines_of(tensor, child, dim, index, 1)


def _pieces(tensor: HybridQuantizedTensor, operator: Callable[[Any], Any]) -> RowResults:
    """Returns a hybrid tensor for each piece; NotImplemented if a child has no such pieces."""
    if not all(isinstance(child, QuantizedTensor) for child in tensor._children()):
        return NotImplemented
    parts = tensor._map(operator)
    present = [pieces for pieces in parts.values() if pieces is not None]
    if not present or any(pieces is NotImplemented for pieces in present):
        return NotImplemented
    pieces = []
    for index in range(len(present[0])):
        children = {name: None if p is None else p[index] for name, p in parts.items()}
        pieces.append(tensor._rebuild(_shape_of(children), **children))
    return pieces


def _all_or_none(pieces: list[RowResult]) -> Any:  # noqa: ANN401  # the pieces, or NotImplemented
    return NotImplemented if any(piece is NotImplemented for piece in pieces) else pieces


def _split_pieces(tensor: HybridQuantizedTensor, lengths: list[int], dim: int) -> RowResults:
    if 0 in lengths and any(lengths):
        full = _split_pieces(tensor, [n for n in lengths if n > 0], dim)
        if full is NotImplemented:
            return full
        rest = iter(full)
        return [next(rest) if n > 0 else empty_piece(tensor, dim) for n in lengths]

    def cut(child: Any) -> Any:  # noqa: ANN401  # of any family; the pieces, or NotImplemented
        if child.shape == tensor.shape:
            return _row_of(aten.split_with_sizes.default, child, lengths, dim)
        ranges = zip(accumulate(lengths, initial=0), lengths, strict=False)
        pieces = _all_or_none([_lines_of(tensor, child, dim, first, n) for first, n in ranges])
        if pieces is NotImplemented:
            refuse_plain_shards(tensor, f"its shards cut blocks of a {type(child).__name__}")
        return pieces

    return _pieces(tensor, cut)


@implements(aten.split.Tensor, HybridQuantizedTensor)
def _split(tensor: HybridQuantizedTensor, split_size: int, dim: int = 0) -> RowResults:
    """Returns pieces. Errors: NotImplementedError if pieces of rows cut blocks of a child."""
    pieces = _split_pieces(tensor, split_lengths(tensor, split_size, dim), dim)
    rank = tensor.dim()
    if pieces is not NotImplemented or dim % rank != 0 or tensor.numel() == 0:
        return pieces
    lines = max([child._block_boundary(rank > 1) for child in tensor._children()], default=1)
    if lines > 1:
        raise NotImplementedError(
            f"split: the local shape must be divisible by {lines} for every child to stay "
            f"quantized, got pieces of {split_size}"
        )
    return NotImplemented


@implements(aten.split_with_sizes.default, HybridQuantizedTensor)
def _split_with_sizes(
    tensor: HybridQuantizedTensor, split_sizes: list[int], dim: int = 0
) -> RowResults:
    return _split_pieces(tensor, split_lengths(tensor, split_sizes, dim), dim)


@implements(aten.unbind.int, HybridQuantizedTensor)
def _unbind(tensor: HybridQuantizedTensor, dim: int = 0) -> RowResults:
    def cut(child: Any) -> Any:  # noqa: ANN401  # of any family; the pieces, or NotImplemented
        if child.shape == tensor.shape:
            return _row_of(aten.unbind.int, child, dim)
        indices = range(tensor.shape[dim])
        return _all_or_none([_selected_of(tensor, child, dim, index) for index in indices])

    return _pieces(tensor, cut)


@implements(aten.as_strided.default, HybridQuantizedTensor)
def _as_strided(
    tensor: HybridQuantizedTensor,
    size: list[int],
    stride: list[int],
    storage_offset: int | None = None,
) -> RowResult:
    if is_identity_stride(tensor, size, stride, storage_offset):
        return HybridQuantizedTensor.make_like(tensor)
    rows = row_shard(tensor, size, stride, storage_offset or 0)

    def part(child: Any) -> RowResult:  # noqa: ANN401  # of any family
        if child.shape == tensor.shape:
            return _row_of(aten.as_strided.default, child, size, stride, storage_offset)
        return NotImplemented if rows is None else _lines_of(tensor, child, 0, rows[0], size[0])

    return _mapped(tensor, part)


def _made_like(
    tensor: HybridQuantizedTensor,
    size: Sequence[int],
    dtype: torch.dtype | None,
    device: torch.device | None,
    pin_memory: bool | None,
) -> HybridQuantizedTensor:
    if tensor._quantizer is None:
        refuse_without_quantizer(tensor)
    quantizer = tensor._quantizer.copy()
    quantizer.internal = False
    quantizer.set_usage(**tensor.get_usages())
    return quantizer.make_empty(
        size,
        dtype=tensor.dtype if dtype is None else dtype,
        device=tensor.device if device is None else device,
        pin_memory=bool(pin_memory),
    )


@implements(aten.new_empty.default, HybridQuantizedTensor)
def _new_empty(
    tensor: HybridQuantizedTensor,
    size: list[int],
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
) -> HybridQuantizedTensor:
    return _made_like(tensor, size, dtype, device, pin_memory)


@implements(aten.empty_like.default, HybridQuantizedTensor)
def _empty_like(
    tensor: HybridQuantizedTensor,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    memory_format: torch.memory_format | None = None,
) -> HybridQuantizedTensor:
    return _made_like(tensor, tensor.shape, dtype, device, pin_memory)


@implements(aten.zero_.default, HybridQuantizedTensor)
def _zero(tensor: HybridQuantizedTensor) -> HybridQuantizedTensor:
    require_directions(tensor)
    take_back_children(tensor)
    children: list[Any] = tensor._children()
    for child in children:
        zero_buffers(child)
    return tensor


@implements(aten.new_zeros.default, HybridQuantizedTensor)
def _new_zeros(
    tensor: HybridQuantizedTensor, size: list[int], **kwargs: Any
) -> HybridQuantizedTensor:
    if not tensor._children():
        raise RuntimeError("new_zeros: a hybrid tensor needs at least one present sub-storage")
    dtype = kwargs.get("dtype")
    plain = all(child.HOLDS_VALUES for child in tensor._children())
    if dtype is not None and dtype not in _native.FLOAT_DTYPES and not plain:
        raise TypeError(f"new_zeros only supports {_native.FLOAT_DTYPES}, got {dtype}")
    return _zero(_new_empty(tensor, size, **kwargs))


@implements(aten._to_copy.default, HybridQuantizedTensor)
def _to_copy(tensor: HybridQuantizedTensor, **kwargs: Any) -> RowResult:
    dtype = kwargs.pop("dtype", None)
    if dtype is not None and dtype != tensor.dtype:
        return NotImplemented
    children = map_quantized(tensor, lambda child: aten._to_copy.default(child, **kwargs))
    if children is None:
        return NotImplemented
    device = kwargs.get("device")
    if device is None or devices_match(device, tensor.device):
        return tensor._rebuild(device=tensor.device, **children)
    quantizer = quantizer_on(tensor._quantizer, device)
    return tensor._rebuild(device=device, quantizer=quantizer, **children)


@implements(aten.copy_.default, HybridQuantizedTensor)
def _copy_hybrid(dst: torch.Tensor, src: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    if not isinstance(dst, HybridQuantizedTensor) or not isinstance(src, HybridQuantizedTensor):
        return _copy(dst, src, non_blocking)
    require_directions(dst)
    take_back_children(dst)
    if dst.get_usages() != src.get_usages():
        raise NotImplementedError(
            "copy_ between hybrid tensors requires matching rowwise/columnwise usages, got "
            f"{dst.get_usages()} and {src.get_usages()}"
        )
    for mine, other in zip(dst._children(), src._children(), strict=True):
        aten.copy_.default(mine, other, non_blocking)
    return dst


@implements(aten.is_pinned.default, HybridQuantizedTensor)
def _is_pinned(tensor: HybridQuantizedTensor, device: torch.device | None = None) -> bool:
    buffers = [t for t in tensor.get_data_tensors() if t is not None] if tensor._children() else []
    return bool(buffers) and buffers[0].is_pinned()


@implements(aten.record_stream.default, HybridQuantizedTensor)
def _record_stream(tensor: HybridQuantizedTensor, stream: torch.Stream) -> None:
    for child in tensor._children():
        aten.record_stream.default(child, stream)
