# SPDX-License-Identifier: Apache-2.0
"""Cuts: tensors over a part of another tensor's buffers, along whole blocks."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch

from narrowfloat import _core
from narrowfloat.pytorch import _native
from narrowfloat.pytorch.tensor.storage._scheme_storage import BlockStorage, Cut

if TYPE_CHECKING:
    from narrowfloat.pytorch.tensor._scheme_tensor import SchemeTensor

    class BlockTensor(BlockStorage, SchemeTensor):  # type: ignore[override]  # device
        """A tensor of a family with block scales."""


_DIRECTIONS = ("rowwise", "columnwise")


@lru_cache
def _scale_axis(spec: _core.QuantSpec, columnwise: bool, along_rows: bool) -> int:
    """Returns the axis of a direction's scales that grows with the rows, or with the columns."""
    block = spec.block_length
    longer = (2 * block, block) if along_rows else (block, 2 * block)
    content = spec.scale_content_shape((block, block), columnwise)
    grown = spec.scale_content_shape(longer, columnwise)
    return next(axis for axis in (0, 1) if content[axis] != grown[axis])


def matrix_range(
    shape: torch.Size, dim: int, start: int, length: int
) -> tuple[bool, int, int] | None:
    """Returns whether a cut is along the rows of the flattened tensor, and its range there.

    Returns None if the rows are not consecutive. Requires: dim >= 0.
    """
    if dim == len(shape) - 1:
        return False, start, length
    if math.prod(shape[:dim]) != 1:
        return None
    unit = math.prod(shape[dim + 1 : -1])
    return True, start * unit, length * unit


def cut(tensor: BlockTensor, dim: int, start: int, length: int) -> BlockTensor | None:
    """Returns an alias of `length` items along `dim`; None unless it consists of whole blocks.

    Requires: 0 <= start, start + length <= the dimension's size.
    """
    shape = tensor.shape
    dim %= max(len(shape), 1)
    if not shape or length == 0 or tensor.numel() == 0 or tensor._has_swizzled_scales():
        return None
    found = matrix_range(shape, dim, start, length)
    if found is None:
        return None
    along_rows, first, count = found
    total = _native.flatten_shape(tuple(shape))[0 if along_rows else 1]
    boundary = tensor._block_boundary(along_rows)
    if first % boundary != 0 or (first + count != total and count % boundary != 0):
        return None
    size = torch.Size((*shape[:dim], length, *shape[dim + 1 :]))
    fields: dict[str, Any] = {}
    for direction in _DIRECTIONS:
        if tensor.get_usages()[direction]:
            columnwise = direction == "columnwise"
            fields[f"{direction}_data"] = _cut_codes(tensor, columnwise, dim, start, length, found)
            fields[f"{direction}_scale_inv"] = _cut_scales(tensor, columnwise, size, found)
    if not tensor._cut_amaxes(fields, along_rows, first, count):
        return None
    piece = tensor._rebuild(size, **fields)
    piece._cut = tensor._cut or Cut.of(tensor)
    return piece


def _cut_codes(
    tensor: BlockStorage,
    columnwise: bool,
    dim: int,
    start: int,
    length: int,
    found: tuple[bool, int, int],
) -> torch.Tensor:
    spec, codes = (
        tensor._spec(),
        tensor.__dict__[tensor.COLUMNWISE if columnwise else tensor.ROWWISE],
    )
    packed, last = spec.codes_per_byte, len(tensor.shape) - 1
    if not columnwise or not spec.columnwise_transposed:
        unit = packed if dim == last else 1
        return codes.narrow(dim, start // unit, length // unit)
    if dim == last:
        return codes.narrow(0, start, length)
    if codes.dim() == last + 1 and packed == 1:
        return codes.narrow(dim + 1, start, length)
    _, first, count = found  # the transpose of the flattened tensor
    return codes.narrow(1, first // packed, count // packed)


def _cut_scales(
    tensor: BlockStorage, columnwise: bool, size: torch.Size, found: tuple[bool, int, int]
) -> torch.Tensor:
    """Returns the scales of a cut without their padding along the axis of the cut."""
    along_rows, first, _ = found
    spec = tensor._spec()
    scales = tensor.__dict__["_columnwise_scale_inv" if columnwise else "_rowwise_scale_inv"]
    axis = _scale_axis(spec, columnwise, along_rows)
    rows, columns = _native.flatten_shape(tuple(tensor.shape))
    before = (first, columns) if along_rows else (rows, first)
    offset = 0 if first == 0 else spec.scale_content_shape(before, columnwise)[axis]
    return scales.narrow(axis, offset, spec.scale_content_shape(tuple(size), columnwise)[axis])
