# SPDX-License-Identifier: Apache-2.0
"""Aliases among the quantized tensors that one operator writes.

Each alias must have the writes of the others, as plain tensors do.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch

from narrowfloat.pytorch import _native
from narrowfloat.pytorch._types import Operator

if TYPE_CHECKING:
    from narrowfloat.pytorch.quantized_tensor import QuantizedTensor

Key = tuple[Any, ...]


class Overlaps:
    """Finds tensors with the same codes among the `targets` that an operator writes.

    plain: the tensors without codes that it writes too.
    Errors: NotImplementedError if two of them share a part of their memory.
    """

    def __init__(
        self, func: Operator, targets: Sequence[QuantizedTensor], plain: Sequence[torch.Tensor]
    ) -> None:
        self._firsts: dict[Key, QuantizedTensor] = {}
        self._owners: dict[Key, Key] = {}  # the tensor of each buffer
        self._regions: dict[int, list[torch.Tensor]] = {}  # buffers by storage
        if len(targets) + len(plain) < 2:
            return
        for target in targets:
            self._add(func, target)
        for regions in self._regions.values():
            if len(regions) > 1 and _share_elements(regions):
                _refuse(func, targets)
        for tensor in filter(_native.in_memory, plain):
            regions = self._regions.get(tensor.untyped_storage().data_ptr(), [])
            if any(_share_elements([region, tensor]) for region in regions):
                _refuse(func, targets)

    def _add(self, func: Operator, target: QuantizedTensor) -> None:
        owner = _identity(target)
        if owner is None:
            return
        self._firsts.setdefault(owner, target)
        for buffer in _in_memory(target._code_buffers()):
            key = extent(buffer)
            if key not in self._owners:
                self._regions.setdefault(buffer.untyped_storage().data_ptr(), []).append(buffer)
            if self._owners.setdefault(key, owner) != owner:
                _refuse(func, [target])

    def first(self, tensor: QuantizedTensor) -> QuantizedTensor | None:
        """Returns the first target with the codes of `tensor`, or None."""
        owner = _identity(tensor) if self._firsts else None
        return None if owner is None else self._firsts.get(owner)


def _in_memory(buffers: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    return [buffer for buffer in buffers if _native.in_memory(buffer) and buffer.numel() > 0]


def extent(buffer: torch.Tensor) -> Key:
    """Returns a key that is equal for buffers over the same elements."""
    if buffer.is_contiguous():
        return buffer.data_ptr(), buffer.numel()
    return buffer.data_ptr(), buffer.shape, buffer.stride()


def _identity(tensor: QuantizedTensor) -> Key | None:
    """Returns a key that is equal for aliases with the same values; None without memory."""
    buffers = _in_memory(tensor._code_buffers())
    return (tensor.dtype, *extent(buffers[0])) if buffers else None


def span(buffer: torch.Tensor) -> tuple[int, int]:
    """Returns the range of a buffer's bytes in its storage: the first, and the end."""
    return span_of((buffer.storage_offset(), buffer.shape, buffer.stride()), buffer.itemsize)


def span_of(
    geometry: tuple[int | torch.SymInt, torch.Size, tuple[int, ...]], itemsize: int
) -> tuple[int, int]:
    """Returns span() of a buffer, from its offset, shape and strides in elements."""
    offset, shape, stride = geometry
    last = sum((n - 1) * step for n, step in zip(shape, stride, strict=True))
    first = int(offset) * itemsize
    return first, first + (int(last) + 1) * itemsize


def _share_elements(buffers: list[torch.Tensor]) -> bool:
    """Returns whether some of these views of one storage have elements in common."""
    spans = sorted(map(span, buffers))
    if all(before[1] <= after[0] for before, after in pairwise(spans)):
        return False
    size = buffers[0].itemsize
    if any(buffer.itemsize != size for buffer in buffers):
        return True
    # Columns of a matrix interleave: marks their elements to find common ones.
    begin = spans[0][0] // size
    taken = torch.zeros(max(end for _, end in spans) // size - begin, dtype=torch.bool)
    for buffer in buffers:
        own = taken.as_strided(buffer.shape, buffer.stride(), buffer.storage_offset() - begin)
        if own.any():
            return True
        own.fill_(True)
    return False


def _refuse(func: Operator, targets: Sequence[QuantizedTensor]) -> None:
    name = type(targets[0]).__name__
    raise NotImplementedError(
        f"{func}: writing tensors that share a part of their memory is not supported, got a {name} "
        f"of shape {tuple(targets[0].shape)} among them; write them one after another"
    )
