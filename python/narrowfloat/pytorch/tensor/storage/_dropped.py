# SPDX-License-Identifier: Apache-2.0
"""Keeps aliases of a quantized tensor consistent when one of them lacks a direction.

Aliases share the codes of one direction. An alias that drops the other direction, or derives it,
records that direction's buffers under the memory of the shared codes. A later write through any
alias finds the record: it restores the direction and writes both, or raises. Records hold weak
references, so they keep no memory alive. Tensors of graphs have no memory and no records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import torch
from torch.utils.weak import WeakIdKeyDictionary

from narrowfloat.pytorch import _native
from narrowfloat.pytorch._overlaps import extent, span
from narrowfloat.pytorch._read_only import ReadOnlyError
from narrowfloat.pytorch._types import Quantized
from narrowfloat.pytorch.tensor.storage._references import Reference

_OTHER = {"rowwise": "columnwise", "columnwise": "rowwise"}

# Lists of recorded directions, by the memory of the shared codes.
_recorded: Any = WeakIdKeyDictionary()


class Direction:
    """Holds weak references to the buffers of one direction, by field names.

    shared: the codes of the other direction, which are not referenced. shape: of the tensor.
    child: of a hybrid tensor, the child that has the buffers.
    """

    def __init__(
        self,
        name: str,
        shared: torch.Tensor,
        shape: torch.Size,
        buffers: Mapping[str, torch.Tensor],
        child: Any = None,  # noqa: ANN401  # a tensor of any family, or None
    ) -> None:
        self.name = name
        self.shape = shape
        self.make_child = None if child is None else _maker(child)
        values = child is not None and child.HOLDS_VALUES
        self._buffers = {field: Reference(buffer, values) for field, buffer in buffers.items()}
        self._extent, self._span = extent(shared), span(shared)

    def _is_same(self, other: Direction) -> bool:
        """Returns whether two directions of the same shared codes have the same buffers."""
        if (self._extent, self.name, self.shape) != (other._extent, other.name, other.shape):
            return False
        mine, others = self._buffers, other._buffers
        return mine.keys() == others.keys() and all(mine[f].is_to(others[f]) for f in mine)

    def record(self, shared: torch.Tensor) -> None:
        """Records this direction for the memory of the shared codes.

        Does nothing if no other tensor has its buffers, or if it is already recorded.
        """
        if self.buffers() is None:
            return
        memory = shared.untyped_storage()
        known = _recorded.get(memory, ())
        if not any(self._is_same(other) for other in known):
            _recorded[memory] = [*(other for other in known if other.buffers() is not None), self]

    def buffers(self) -> dict[str, torch.Tensor] | None:
        """Returns the buffers; None if the memory of one of them was freed."""
        found: dict[str, torch.Tensor] = {}
        for field, reference in self._buffers.items():
            buffer = reference.buffer()
            if buffer is None:
                return None
            found[field] = buffer
        return found

    def has(self, codes: torch.Tensor) -> bool:
        """Returns whether these codes are in the memory of the buffers."""
        memory = codes.untyped_storage()
        return any(reference.is_in(memory) for reference in self._buffers.values())

    def overlaps(self, codes: torch.Tensor) -> bool:
        """Returns whether these codes of the other direction overlap the shared codes."""
        first, end = span(codes)
        return self._span[0] < end and first < self._span[1]

    def shares_all(self, codes: torch.Tensor) -> bool:
        """Returns whether these codes of the other direction are exactly the shared codes."""
        return self._extent == extent(codes)


def _maker(tensor: Any) -> Callable[[dict[str, torch.Tensor]], Any]:  # noqa: ANN401  # of any family
    """Returns a function that makes a tensor of this kind from buffers by field."""
    cls, outer = type(tensor), {"shape": tensor.shape, "dtype": tensor.dtype}
    keywords = {buffer.name: buffer.keyword for buffer in cls.BUFFERS}
    kept = {k: v for k, v in tensor.get_metadata().items() if k not in keywords.values()}
    make_cut = None if tensor._cut is None else tensor._cut.remember()

    def make(buffers: dict[str, torch.Tensor]) -> Any:  # noqa: ANN401  # of the class
        made = cls(**outer, **kept, **{keywords[name]: buffers.get(name) for name in keywords})
        made._cut = None if make_cut is None else make_cut()
        return made

    return make


def _codes(tensor: Quantized, direction: str) -> torch.Tensor | None:
    """Returns the codes of a direction if they are in memory, else None."""
    codes = tensor.__dict__[tensor.ROWWISE if direction == "rowwise" else tensor.COLUMNWISE]
    return codes if codes is not None and _native.in_memory(codes) else None


def _child_codes(tensor: Quantized, direction: str) -> torch.Tensor | None:
    """Returns the codes or values of a hybrid tensor's child if they are in memory, else None."""
    child = getattr(tensor, f"_{direction}_storage")
    # Bare storages have no aliases.
    found: list[torch.Tensor] = getattr(child, "_code_buffers", list)()
    return found[0] if found and _native.in_memory(found[0]) else None


def _named(tensor: Quantized, names: list[str]) -> dict[str, torch.Tensor]:
    fields = tensor.__dict__
    return {name: fields[name] for name in names if fields[name] is not None}


def _shared_codes(tensor: Quantized, direction: str, hybrid: bool) -> torch.Tensor | None:
    """Returns the codes or values of a direction that aliases share, if in memory, else None."""
    return _child_codes(tensor, direction) if hybrid else _codes(tensor, direction)


def _direction_of(tensor: Quantized, name: str) -> Direction | None:
    """Returns a direction of a tensor; None unless it has both directions."""
    shared, names = _codes(tensor, _OTHER[name]), tensor._direction_buffers(name)
    if not tensor._is_tensor or not names or shared is None or _codes(tensor, name) is None:
        return None
    return Direction(name, shared, tensor.shape, _named(tensor, names))


def _record(tensor: Quantized, direction: Direction | None, hybrid: bool = False) -> None:
    shared = None if direction is None else _shared_codes(tensor, _OTHER[direction.name], hybrid)
    if direction is not None and shared is not None:
        direction.record(shared)


def record_made(tensor: Quantized, name: str) -> None:
    """Records a direction of a tensor whose buffers are new: derived, or made for a write."""
    _record(tensor, _direction_of(tensor, name))


def drop(tensor: Quantized, name: str) -> None:
    """Sets the buffers of a direction to None, and records them if another tensor has them."""
    direction = _direction_of(tensor, name)
    for field in tensor._direction_buffers(name):
        setattr(tensor, field, None)
    _record(tensor, direction)


def drop_child(tensor: Quantized, name: str) -> None:
    """Does the same as drop() for the child of a hybrid tensor."""
    shared, direction = _child_codes(tensor, _OTHER[name]), None
    child: Any = getattr(tensor, f"_{name}_storage")
    has_codes = isinstance(tensor, torch.Tensor) and _child_codes(tensor, name) is not None
    if has_codes and shared is not None:
        names = [buffer.name for buffer in child.BUFFERS]
        direction = Direction(name, shared, tensor.shape, _named(child, names), child)
    del child  # so that the record finds whether another tensor has the child's buffers
    setattr(tensor, f"_{name}_storage", None)
    _record(tensor, direction, hybrid=True)


def take_back(tensor: Quantized, writes: bool = True) -> bool:
    """Restores the directions that other tensors over the same codes have.

    Returns whether it restored one. writes: the tensor will be written.
    Errors: ReadOnlyError if a write would not reach a direction of another tensor.
    """
    taken = False
    for name, buffers, direction in _missing(tensor, hybrid=False):
        if _codes(tensor, name) is None and direction is not None:
            tensor.__dict__.update(_in_shape(tensor, direction.shape, buffers))
            taken = True
        elif writes:
            _refuse(tensor, name)
    return taken


def take_back_children(tensor: Quantized) -> bool:
    """Does the same as take_back() for a hybrid tensor before a write."""
    taken = False
    for name, buffers, direction in _missing(tensor, hybrid=True):
        if getattr(tensor, f"_{name}_storage") is not None or direction is None:
            _refuse(tensor, name)
        if direction.shape != tensor.shape or direction.make_child is None:
            _refuse(tensor, name)
        setattr(tensor, f"_{name}_storage", direction.make_child(buffers))
        taken = True
    return taken


Missing = tuple[str, dict[str, torch.Tensor], Direction | None]


def _missing(tensor: Quantized, hybrid: bool) -> list[Missing]:
    """Returns the directions of other tensors that a write to this one would not reach.

    Each has its name, its buffers, and the record. The record is None if the other tensor shares
    only a part of the codes, because then its buffers do not match this tensor.
    """
    missing: list[Missing] = []
    for name, other in _OTHER.items() if _recorded.data else ():  # bool() of it is slower
        own, shared = _shared_codes(tensor, name, hybrid), _shared_codes(tensor, other, hybrid)
        if shared is None:
            continue
        known: list[Direction] = _recorded.get(shared.untyped_storage(), [])
        # Tensors over exactly these codes come first, because only their buffers can be restored.
        for record in sorted(known, key=lambda each: not each.shares_all(shared)):
            if record.name != name or hybrid != (record.make_child is not None):
                continue
            if (own is not None and record.has(own)) or not record.overlaps(shared):
                continue
            buffers = record.buffers()
            if buffers is None:
                continue
            missing.append((name, buffers, record if record.shares_all(shared) else None))
            own = next(iter(buffers.values())) if own is None else own
    return missing


def _in_shape(
    tensor: Quantized, shape: torch.Size, buffers: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Returns the buffers of a direction of a tensor of `shape`, in the shapes of `tensor`."""
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
