# SPDX-License-Identifier: Apache-2.0
"""Weak references to buffers through their memory."""

from __future__ import annotations

import weakref
from collections.abc import Iterable

import torch

from narrowfloat.pytorch._overlaps import span_of


class Reference:
    """Holds a weak reference to a buffer through its memory, which all of its views share.

    values: is dead without the tensor too, because the memory may belong to the program, and exist
    after every quantized tensor has dropped it.
    """

    def __init__(self, buffer: torch.Tensor, values: bool = False) -> None:
        self._values = values
        self._tensor = weakref.ref(buffer)
        self.memory = weakref.ref(buffer.untyped_storage())
        self._type = buffer.dtype, buffer.device
        self._geometry = buffer.storage_offset(), buffer.shape, buffer.stride()
        self._bytes: tuple[int, int] | None = None

    def _span(self) -> tuple[int, int]:
        """Returns the range of the buffer's bytes in its memory: the first, and the end."""
        if self._bytes is None:  # computed when it is needed, because few references need it
            self._bytes = span_of(self._geometry, self._type[0].itemsize)
        return self._bytes

    def is_tensor(self, buffer: torch.Tensor | None) -> bool:
        """Returns whether it was made of this tensor, which may be in other memory now."""
        return self._tensor() is buffer

    def is_in(self, memory: torch.UntypedStorage) -> bool:
        """Returns whether the buffer is in this memory."""
        return self.memory() is memory

    def is_to(self, other: Reference) -> bool:
        """Returns whether both reference one buffer."""
        return self.memory() is other.memory() and self._geometry == other._geometry

    def touches(self, others: Iterable[Reference]) -> bool:
        """Returns whether the buffer overlaps one of the other ones."""
        memory, (first, end) = self.memory(), self._span()
        same = (other._span() for other in others if other.memory() is memory)
        return any(begin < end and first < stop for begin, stop in same)

    def is_alive(self) -> bool:
        """Returns whether the memory of the buffer exists."""
        memory = self.memory()
        if memory is None or (self._values and self._tensor() is None):
            return False
        return memory.nbytes() >= self._span()[1]

    def buffer(self) -> torch.Tensor | None:
        """Returns the buffer, as a new tensor if only views of it exist; None if it is dead."""
        memory, tensor = self.memory(), self._tensor()
        if memory is None or not self.is_alive():
            return None
        if tensor is not None and tensor.untyped_storage() is memory:
            geometry = tensor.storage_offset(), tensor.shape, tensor.stride()
            if geometry == self._geometry and tensor.dtype is self._type[0]:
                return tensor
        dtype, device = self._type
        return torch.empty(0, dtype=dtype, device=device).set_(memory, *self._geometry)
