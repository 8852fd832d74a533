# SPDX-License-Identifier: Apache-2.0
"""Keeps aliases of a quantized tensor consistent when one of them lacks a direction.

Aliases share the codes of one direction. An alias that drops the other direction, or derives it,
records that direction's buffers for the memory of the shared codes. A later write through any alias
looks them up: it takes the direction back and writes both, or is refused. Records hold weak
references, so that no memory is kept alive; tensors of graphs, which have no memory, have none.
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

# Lists of recorded directions, by the memory of the shared codes.
_recorded: Any = WeakIdKeyDictionary()


class Direction:
    """Refers weakly to the buffers of one direction, by their fields' names.

    shared: the codes of the other direction; no reference to them is kept. shape: of the tensor.
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
        self._buffers = {field: _Reference(buffer, values) for field, buffer in buffers.items()}
        self._extent, self._span = extent(shared), span(shared)

    def _is_same(self, other: Direction) -> bool:
        """Returns whether two directions of the same shared codes have the same buffers."""
        if (self._extent, self.name, self.shape) != (other._extent, other.name, other.shape):
            return False
        mine, others = self._buffers, other._buffers
        return mine.keys() == others.keys() and all(mine[f].is_to(others[f]) for f in mine)

    def record(self, shared: torch.Tensor) -> None:
        """Records this direction for the memory of the shared codes.

        Does nothing if no other tensor has its buffers, or if it is recorded already.
        """
        if self.buffers() is None:
            return
        memory = shared.untyped_storage()
        known = _recorded.get(memory, ())
        if not any(self._is_same(other) for other in known):
            _recorded[memory] = [*(other for other in known if other.buffers() is not None), self]

    def buffers(self) -> dict[str, torch.Tensor] | None:
        """Returns the buffers; None if the memory of one of them is gone."""
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
        """Returns whether these codes of the other direction overlap the shared ones."""
        first, end = span(codes)
        return self._span[0] < end and first < self._span[1]

    def shares_all(self, codes: torch.Tensor) -> bool:
        """Returns whether these codes of the other direction are exactly the shared ones."""
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
    """Refers weakly to a buffer through its memory, which all views of it share.

    values: refers to the tensor too, because the memory may belong to the program, which keeps it
    after every quantized tensor has dropped it.
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


def _shared_codes(tensor: Quantized, direction: str, hybrid: bool) -> torch.Tensor | None:
    """Returns what aliases share of a direction, in memory, or None."""
    return _child_codes(tensor, direction) if hybrid else _codes(tensor, direction)


def _direction_of(tensor: Quantized, name: str) -> Direction | None:
    """Returns a direction of a tensor; None unless it has both."""
    shared, names = _codes(tensor, _OTHER[name]), tensor._direction_buffers(name)
    if not tensor._is_tensor or not names or shared is None or _codes(tensor, name) is None:
        return None
    return Direction(name, shared, tensor.shape, _named(tensor, names))


def _record(tensor: Quantized, direction: Direction | None, hybrid: bool = False) -> None:
    shared = None if direction is None else _shared_codes(tensor, _OTHER[direction.name], hybrid)
    if direction is not None and shared is not None:
        direction.record(shared)


def record_derived(tensor: Quantized) -> None:
    """Records the columnwise buffers that were derived from the rowwise ones."""
    _record(tensor, _direction_of(tensor, "columnwise"))


def drop(tensor: Quantized, name: str) -> None:
    """Sets the buffers of a direction to None, and records them if another tensor has them."""
    direction = _direction_of(tensor, name)
    for field in tensor._direction_buffers(name):
        setattr(tensor, field, None)
    _record(tensor, direction)


def drop_child(tensor: Quantized, name: str) -> None:
    """Does for the child of a hybrid tensor what drop() does for a direction."""
    shared, direction = _child_codes(tensor, _OTHER[name]), None
    child: Any = getattr(tensor, f"_{name}_storage")
    has_codes = isinstance(tensor, torch.Tensor) and _child_codes(tensor, name) is not None
    if has_codes and shared is not None:
        names = [buffer.name for buffer in child.BUFFERS]
        direction = Direction(name, shared, tensor.shape, _named(child, names), child)
    del child  # so that the record finds whether another tensor has it
    setattr(tensor, f"_{name}_storage", None)
    _record(tensor, direction, hybrid=True)


def take_back(tensor: Quantized, writes: bool = True) -> bool:
    """Takes back the directions that other tensors over the same codes have.

    Returns whether there were any. writes: the tensor is about to be written.
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
    """Does for a hybrid tensor that is about to be written what take_back() does for others."""
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

    Each has its name, its buffers, and the record; None in place of the record if the other tensor
    shares only a part of the codes, so that its buffers are not those of this tensor.
    """
    missing: list[Missing] = []
    for name, other in _OTHER.items() if _recorded.data else ():  # bool() of it takes longer
        own, shared = _shared_codes(tensor, name, hybrid), _shared_codes(tensor, other, hybrid)
        if shared is None:
            continue
        known: list[Direction] = _recorded.get(shared.untyped_storage(), [])
        # Tensors over exactly these codes come first, because only their buffers can be taken.
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
