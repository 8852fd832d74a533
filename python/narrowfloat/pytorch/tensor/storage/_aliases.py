# SPDX-License-Identifier: Apache-2.0
"""Tensors over the same codes, each with or without a transpose of its own.

After a write to one of them, the codes and transposes of all others must be updated. A tensor with
codes and a transpose is recorded as a pair, with weak references, in the memory of both buffers:
when an alias of it gets another transpose or none, and when its own transpose is made or dropped.
Tensors of a graph have no memory; their aliases share a list of pairs.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from narrowfloat.pytorch import _native
from narrowfloat.pytorch.tensor.storage._references import Reference

if TYPE_CHECKING:
    from narrowfloat.pytorch.tensor.storage.float8_tensor_storage import Float8TensorStorage

_ATTRIBUTE = "_float8_pairs"  # of memory: the pairs with a buffer there


class _GraphReference:
    """Holds a weak reference to a buffer of a graph. The methods are those of Reference."""

    def __init__(self, buffer: torch.Tensor) -> None:
        self.buffer = weakref.ref(buffer)

    def is_tensor(self, buffer: torch.Tensor | None) -> bool:
        return self.buffer() is buffer

    def is_to(self, other: _GraphReference) -> bool:
        return self.buffer() is other.buffer()

    def is_alive(self) -> bool:
        return self.buffer() is not None

    def touches(self, others: Iterable[_GraphReference]) -> bool:
        native: Any = torch._C
        own, buffers = self.buffer(), [other.buffer() for other in others]
        return own is not None and any(
            native._is_alias_of(own, buffer) for buffer in buffers if buffer is not None
        )


def _reference(buffer: torch.Tensor) -> Any:  # noqa: ANN401  # one of two classes
    return Reference(buffer) if _native.in_memory(buffer) else _GraphReference(buffer)


class Pair:
    """Weak references to codes and to a transpose of them."""

    def __init__(self, data: torch.Tensor, transpose: torch.Tensor) -> None:
        self._data, self._transpose = _reference(data), _reference(transpose)

    def is_of(self, data: torch.Tensor | None, transpose: torch.Tensor | None) -> bool:
        """Returns whether it was made of these buffers."""
        return self._data.is_tensor(data) and self._transpose.is_tensor(transpose)

    def is_alive(self) -> bool:
        """Returns whether both buffers exist."""
        return self._transpose.is_alive() and self._data.is_alive()

    def add_to(self, pairs: Sequence[Pair]) -> Sequence[Pair]:
        """Returns the pairs that exist, and this one once."""
        if any(p._data.is_to(self._data) and p._transpose.is_to(self._transpose) for p in pairs):
            return pairs
        return [*(p for p in pairs if p.is_alive()), self]

    def record(self) -> None:
        """Records this pair in the memory of both buffers. Requires: is_alive()."""
        for memory in (self._data.memory(), self._transpose.memory()):
            setattr(memory, _ATTRIBUTE, self.add_to(getattr(memory, _ATTRIBUTE, ())))

    def update(self, written: Sequence[Any]) -> Any:  # noqa: ANN401  # a reference
        """Copies codes between the buffers if only one of them overlaps the written ones.

        Returns a reference to the buffer that it updated, or None.
        """
        of_codes, of_transpose = self._data.touches(written), self._transpose.touches(written)
        if of_codes == of_transpose:
            return None
        data, transpose = self._data.buffer(), self._transpose.buffer()
        if data is None or transpose is None:
            return None
        if of_codes:
            transpose.copy_(_moved(data, -1, 0))
            return self._transpose
        data.copy_(_moved(transpose, 0, -1))
        return self._data


class Aliases:
    """The pairs of tensors of a graph that share codes."""

    def __init__(self) -> None:
        self.pairs: Sequence[Pair] = ()

    def add(self, storage: Float8TensorStorage) -> None:
        """Adds the pair of a storage."""
        data, transpose = storage._data, storage._transpose
        if data is not None and transpose is not None and not storage._transpose_invalid:
            self.pairs = Pair(data, transpose).add_to(self.pairs)

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        """Returns None, because a copy has codes of its own."""
        return None

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return Aliases, ()


def _moved(codes: torch.Tensor, source: int, target: int) -> torch.Tensor:
    return codes.movedim(source, target) if codes.dim() > 1 else codes


def _is_in_memory(storage: Float8TensorStorage) -> bool:
    buffer = storage._first_buffer()
    return buffer is not None and _native.in_memory(buffer)


def unrecorded(storage: Float8TensorStorage) -> Pair | None:
    """Returns the pair of a storage in memory; None without two buffers, or if it is recorded."""
    data, transpose = storage._data, storage._transpose
    if data is None or transpose is None or storage._transpose_invalid:
        return None
    if not _native.in_memory(data):
        return None
    pairs = getattr(data.untyped_storage(), _ATTRIBUTE, ())
    if any(pair.is_of(data, transpose) for pair in pairs):
        return None
    return Pair(data, transpose)


def register(storage: Float8TensorStorage) -> None:
    """Records the codes and the transpose of a storage, if it has both."""
    if storage._aliases is not None:
        storage._aliases.add(storage)
        return
    pair = unrecorded(storage)
    if pair is not None:
        pair.record()


def join(storage: Float8TensorStorage, alias: Float8TensorStorage) -> None:
    """Records that `alias` shares codes of `storage`, if it does not share all buffers."""
    if not _is_in_memory(storage):
        group = storage._aliases
        if group is None:
            group = storage._aliases = Aliases()
            group.add(storage)
        alias._aliases = group
        group.add(alias)
    elif not _shares_both(storage, alias):
        register(storage)
        register(alias)


def _shares_both(first: Float8TensorStorage, second: Float8TensorStorage) -> bool:
    """Returns whether codes and transpose of two storages are in the same memory."""
    if first._transpose_invalid or second._transpose_invalid:
        return first._transpose_invalid and second._transpose_invalid
    one, other = (first._data, first._transpose), (second._data, second._transpose)
    return all(
        a is b or (a is not None and b is not None and a.untyped_storage() is b.untyped_storage())
        for a, b in zip(one, other, strict=True)
    )


def is_followed(storage: Float8TensorStorage) -> bool:
    """Returns whether other pairs than that of a storage have a buffer in its memory."""
    if storage._aliases is not None:
        return True
    data, own = storage._data, None if storage._transpose_invalid else storage._transpose
    for buffer in (data, own):
        if buffer is not None and _native.in_memory(buffer):
            for pair in getattr(buffer.untyped_storage(), _ATTRIBUTE, ()):
                if not pair.is_of(data, own):
                    return True
    return False


def _pairs_at(tensor: Float8TensorStorage, buffers: Iterable[torch.Tensor]) -> list[Pair]:
    """Returns the pairs with a buffer in the memory of these, or those of a graph."""
    if tensor._aliases is not None:
        return list(tensor._aliases.pairs)
    memories = [buffer.untyped_storage() for buffer in buffers]
    return list({id(p): p for m in memories for p in getattr(m, _ATTRIBUTE, ())}.values())


def follow(tensor: Float8TensorStorage) -> None:
    """Copies the codes of `tensor`, which were written, to all buffers that pairs connect to it."""
    if not is_followed(tensor):
        return
    register(tensor)
    data, transpose = tensor._data, tensor._transpose if tensor._has_columnwise() else None
    buffers = [buffer for buffer in (data, transpose) if buffer is not None]
    pairs = _pairs_at(tensor, buffers)
    written = [_reference(buffer) for buffer in buffers]
    while True:
        # Updates all pairs of one step before it adds buffers, which may have several pairs.
        added = [reference for reference in (p.update(written) for p in pairs) if reference]
        if not added:
            return
        written += added
        pairs = _pairs_at(tensor, [reference.buffer() for reference in written])
