# SPDX-License-Identifier: Apache-2.0
"""Directions that one tensor over some codes lacks and another may have.

A write through either must reach both directions. What a tensor drops, and what it derives, is
noted beside the codes that stay, if another tensor over them may have it. Nothing is kept alive,
and nothing is noted of tensors without memory.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import torch
from torch.utils.weak import WeakIdKeyDictionary

from narrowfloat.pytorch import _native
from narrowfloat.pytorch._overlaps import extent, span
from narrowfloat.pytorch._read_only import ReadOnlyError
from narrowfloat.pytorch._types import Quantized

_OTHER = {"rowwise": "columnwise", "columnwise": "rowwise"}

# Lists of directions, by the memory of the codes beside them. Without any, a write costs nothing.
_noted: Any = WeakIdKeyDictionary()


class Direction:
    """Refers to the buffers of a direction, by their fields' names.

    codes: those of the other direction, which the tensors share. shape: of the tensor.
    child: of a hybrid tensor, the child that has the buffers.
    """

    def __init__(
        self,
        name: str,
        codes: torch.Tensor,
        shape: torch.Size,
        buffers: Mapping[str, torch.Tensor],
        child: Any = None,  # noqa: ANN401  # a tensor of any family, or None
    ) -> None:
        self.name = name
        self.codes = codes
        self.shape = shape
        self.make_child = None if child is None else _maker(child)
        values = child is not None and child.HOLDS_VALUES
        self._buffers = {field: _Reference(buffer, values) for field, buffer in buffers.items()}

    def note(self) -> None:
        """Notes this direction beside the codes, to which it keeps no reference."""
        codes = self.__dict__.pop("codes")
        if self.buffers() is None:
            return
        self._extent = extent(codes)
        memory = codes.untyped_storage()
        known = _noted.get(memory, ())
        if any(self._says_what(other) for other in known):
            return
        self._span = span(codes)
        _noted[memory] = [*(other for other in known if other.buffers() is not None), self]

    def _says_what(self, other: Direction) -> bool:
        """Returns whether a direction that is noted beside these codes has the same buffers."""
        if (self._extent, self.name, self.shape) != (other._extent, other.name, other.shape):
            return False
        mine, others = self._buffers, other._buffers
        return mine.keys() == others.keys() and all(mine[f].is_to(others[f]) for f in mine)

    def buffers(self) -> dict[str, torch.Tensor] | None:
        """Returns the buffers; None if the memory of one of them is gone."""
        found = {field: reference.buffer() for field, reference in self._buffers.items()}
        there = {field: buffer for field, buffer in found.items() if buffer is not None}
        return there if len(there) == len(found) else None

    def has(self, codes: torch.Tensor) -> bool:
        """Returns whether these codes are in the memory of the buffers."""
        memory = codes.untyped_storage()
        return any(reference.is_in(memory) for reference in self._buffers.values())

    def shares(self, codes: torch.Tensor) -> bool:
        """Returns whether these codes of the other direction overlap those that are shared."""
        first, end = span(codes)
        return self._span[0] < end and first < self._span[1]

    def is_beside(self, codes: torch.Tensor) -> bool:
        """Returns whether these codes of the other direction are the very ones."""
        return self._extent == extent(codes)


def _maker(tensor: Any) -> Callable[[dict[str, torch.Tensor]], Any]:  # noqa: ANN401  # of any family
    """Returns the function that makes a tensor of this kind over buffers by field."""
    cls, outer = type(tensor), {"shape": tensor.shape, "dtype": tensor.dtype}
    keywords = {buffer.name: buffer.keyword for buffer in cls.BUFFERS}
    kept = {k: v for k, v in tensor.get_metadata().items() if k not in keywords.values()}

    def make(buffers: dict[str, torch.Tensor]) -> Any:  # noqa: ANN401  # of the class
        return cls(**outer, **kept, **{keywords[name]: buffers.get(name) for name in keywords})

    return make


class _Reference:
    """Refers to a buffer through its memory, which all views of it share.

    values: the memory may be a program's, which the program keeps, so that the very tensor tells.
    """

    def __init__(self, buffer: torch.Tensor, values: bool) -> None:
        self._tensor = weakref.ref(buffer) if values else None
        self._memory = weakref.ref(buffer.untyped_storage())
        self._type = buffer.dtype, buffer.device
        self._geometry = buffer.storage_offset(), buffer.shape, buffer.stride()

    def is_in(self, memory: torch.UntypedStorage) -> bool:
        """Returns whether the buffer is in this memory."""
        return self._memory() is memory

    def is_to(self, other: _Reference) -> bool:
        """Returns whether both refer to one buffer."""
        return self._memory() is other._memory() and self._geometry == other._geometry

    def buffer(self) -> torch.Tensor | None:
        """Returns the buffer, as another tensor; None if its memory is gone."""
        memory = self._memory()
        if memory is None or (self._tensor is not None and self._tensor() is None):
            return None
        offset, shape, stride = self._geometry
        dtype, device = self._type
        last = offset + sum((n - 1) * step for n, step in zip(shape, stride, strict=True))
        if memory.nbytes() < (last + 1) * dtype.itemsize:  # freed
            return None
        return torch.empty(0, dtype=dtype, device=device).set_(memory, offset, shape, stride)


def _codes(tensor: Quantized, direction: str) -> torch.Tensor | None:
    """Returns the codes of a direction in memory, or None."""
    codes = tensor.__dict__[tensor.ROWWISE if direction == "rowwise" else tensor.COLUMNWISE]
    return codes if codes is not None and _native.in_memory(codes) else None


def _child_codes(tensor: Quantized, direction: str) -> torch.Tensor | None:
    """Returns the codes or the values of a hybrid tensor's child in memory, or None."""
    child = getattr(tensor, f"_{direction}_storage")
    # Bare storages have no aliases.
    found: list[torch.Tensor] = getattr(child, "_code_buffers", list)()
    return found[0] if found and _native.in_memory(found[0]) else None


def _named(tensor: Quantized, names: list[str]) -> dict[str, torch.Tensor]:
    fields = tensor.__dict__
    return {name: fields[name] for name in names if fields[name] is not None}


def _direction_of(tensor: Quantized, name: str) -> Direction | None:
    """Returns a direction of a tensor; None unless it has both."""
    codes, names = _codes(tensor, _OTHER[name]), tensor._direction_buffers(name)
    if not tensor._is_tensor or not names or codes is None or _codes(tensor, name) is None:
        return None
    return Direction(name, codes, tensor.shape, _named(tensor, names))


def note_derived(tensor: Quantized) -> None:
    """Notes the columnwise buffers that were made of the rowwise ones."""
    direction = _direction_of(tensor, "columnwise")
    if direction is not None:
        direction.note()


def drop(tensor: Quantized, name: str) -> None:
    """Sets the buffers of a direction to None, and notes them if another tensor has them."""
    direction = _direction_of(tensor, name)
    for field in tensor._direction_buffers(name):
        setattr(tensor, field, None)
    if direction is not None:
        direction.note()


def drop_child(tensor: Quantized, name: str) -> None:
    """Does for the child of a hybrid tensor what drop() does for a direction."""
    codes, direction = _child_codes(tensor, _OTHER[name]), None
    child: Any = getattr(tensor, f"_{name}_storage")
    is_tensor = isinstance(tensor, torch.Tensor) and _child_codes(tensor, name) is not None
    if is_tensor and codes is not None:
        names = [buffer.name for buffer in child.BUFFERS]
        direction = Direction(name, codes, tensor.shape, _named(child, names), child)
    del child
    setattr(tensor, f"_{name}_storage", None)
    if direction is not None:
        direction.note()


def regain(tensor: Quantized, writes: bool = True) -> bool:
    """Takes back the directions that other tensors over the same codes have.

    Returns whether there were any. writes: the tensor is about to be written.
    Errors: ReadOnlyError if a write would not reach a direction of another tensor.
    """
    if not _noted.data:  # its length takes longer
        return False
    regained = False
    for name, buffers, direction in _missing(tensor, _codes, hybrid=False):
        if _codes(tensor, name) is None and direction is not None:
            tensor.__dict__.update(_in_shape(tensor, direction.shape, buffers))
            regained = True
        elif writes:
            _refuse(tensor, name)
    return regained


def regain_children(tensor: Quantized) -> bool:
    """Does for a hybrid tensor that is about to be written what regain() does for others."""
    regained = False
    for name, buffers, direction in _missing(tensor, _child_codes, hybrid=True):
        if getattr(tensor, f"_{name}_storage") is not None or direction is None:
            _refuse(tensor, name)
        if direction.shape != tensor.shape or direction.make_child is None:
            _refuse(tensor, name)
        setattr(tensor, f"_{name}_storage", direction.make_child(buffers))
        regained = True
    return regained


Missing = tuple[str, dict[str, torch.Tensor], Direction | None]


def _missing(
    tensor: Quantized,
    codes_of: Callable[[Quantized, str], torch.Tensor | None],
    hybrid: bool,
) -> list[Missing]:
    """Returns the directions of other tensors that a write to this one would not reach.

    Each has its name, its buffers, and the direction itself if it is beside the same codes, None if
    it is beside a part of them or more.
    """
    missing: list[Missing] = []
    for name, other in _OTHER.items() if _noted else ():
        own, beside = codes_of(tensor, name), codes_of(tensor, other)
        if beside is None:
            continue
        known: list[Direction] = _noted.get(beside.untyped_storage(), [])
        # What is beside the same codes comes first: others may be parts of it.
        for noted in sorted(known, key=lambda each: not each.is_beside(beside)):
            if noted.name != name or hybrid != (noted.make_child is not None):
                continue
            if (own is not None and noted.has(own)) or not noted.shares(beside):
                continue
            buffers = noted.buffers()
            if buffers is None:
                continue
            missing.append((name, buffers, noted if noted.is_beside(beside) else None))
            own = next(iter(buffers.values())) if own is None else own
    return missing


def _in_shape(
    tensor: Quantized, shape: torch.Size, buffers: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Returns the buffers of a direction of a tensor of `shape` as `tensor` stores them."""
    if shape == tensor.shape:
        return buffers
    keywords = {buffer.keyword: buffers.get(buffer.name) for buffer in tensor.BUFFERS}
    view = tensor._rebuild(shape, **keywords)._make_view(tensor.shape)
    return {name: view.__dict__[name] for name in buffers}


def _refuse(tensor: Quantized, name: str) -> NoReturn:
    raise ReadOnlyError(
        f"{type(tensor).__name__} of shape {tuple(tensor.shape)}: another tensor over these codes "
        f"has {name} buffers that a write here would not reach; write that tensor"
    )
