# SPDX-License-Identifier: Apache-2.0
"""Converts buffers for transport between ranks that share a tensor's rows: rows first, unpadded.
The planner defines the dimension and number of a buffer's rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import torch

from narrowfloat import _core
from narrowfloat.pytorch import _native
from narrowfloat.pytorch._types import Quantized


class RowAxis(NamedTuple):
    """The buffer dimension of rows, its entries per `step` indices, and the rows per entry."""

    axis: int
    entries: int
    step: int
    rows: int

    def count(self, length: int) -> int:
        """Returns the number of entries for `length` indices in the tensor's first dimension."""
        return -(-length * self.entries // self.step)


def _content(spec: _core.QuantSpec, role: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    if role.endswith("_scale_inv"):
        return tuple(spec.scale_content_shape(shape, role.startswith("columnwise")))
    return next(b.shape for b in _native.plan(spec, shape) if b.role == role)


def _step(spec: _core.QuantSpec) -> int:
    return max(spec.block_length, 1)


@lru_cache
def row_axis(spec: _core.QuantSpec | None, role: str, rest: tuple[int, ...]) -> RowAxis | None:
    """Returns the axis of rows in a role's buffer, for a tensor of shape `(n, *rest)`.

    Returns None for a buffer shared by all rows, such as the scale of the tensor. Without a spec
    the buffer holds the values.
    """
    if spec is None:
        return RowAxis(0, 1, 1, math.prod(rest[:-1]))
    step = _step(spec)
    one = _content(spec, role, (step, *rest))
    two = _content(spec, role, (2 * step, *rest))
    for axis, (few, many) in enumerate(zip(one, two, strict=True)):
        if few != many:
            return RowAxis(axis, few, step, step * math.prod(rest[:-1]) // few)
    return None


class Route(NamedTuple):
    """A buffer of a storage in transport: its field, role and rows."""

    name: str
    spec: _core.QuantSpec | None  # None: the buffer holds the values
    role: str
    rest: tuple[int, ...]
    rows: RowAxis

    def planned(self, length: int) -> tuple[int, ...]:
        """Returns the stored shape of the buffer, for `length` indices in the first dimension."""
        if self.spec is None:
            return (length, *self.rest)
        plan = _native.plan(self.spec, (length, *self.rest))
        return next(b.shape for b in plan if b.role == self.role)

    def sent(self, length: int) -> tuple[int, ...]:
        """Returns the sent shape of the buffer."""
        stored = list(self.planned(length))
        stored.pop(self.rows.axis)
        return (self.rows.count(length), *stored)

    def extract(self, buffer: torch.Tensor, length: int, padded: int) -> torch.Tensor:
        """Returns the buffer of `length` first indices in the sent form, padded to `padded`."""
        axis, count = self.rows.axis, self.rows.count(length)
        if buffer.dim() != len(self.planned(length)):
            raise NotImplementedError(
                f"gather: {self.name} of a tensor of {1 + len(self.rest)} dimensions is that of "
                "its matrix, so that shards cannot be joined; gather the matrix, then view it"
            )
        if buffer.shape[axis] != count:
            buffer = buffer.narrow(axis, 0, count)
        moved = buffer if axis == 0 else buffer.movedim(axis, 0)
        wanted = self.sent(padded)
        return padded_to(moved, wanted)

    def stored(self, buffer: torch.Tensor, length: int) -> torch.Tensor:
        """Returns a received buffer in the stored form, for `length` first indices."""
        axis, wanted = self.rows.axis, self.planned(length)
        moved = buffer if axis == 0 else buffer.movedim(0, axis).contiguous()
        return padded_to(moved, wanted)


def padded_to(buffer: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """Returns a dense buffer of `shape` that begins with `buffer`; `buffer` itself if it fits."""
    if buffer.shape == shape:
        return buffer if buffer.is_contiguous() else buffer.contiguous()
    whole = buffer.new_zeros(shape)
    content_of(whole, buffer.shape).copy_(buffer)
    return whole


def content_of(buffer: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """Returns the part of a buffer without padding, as a view."""
    for axis, size in enumerate(shape):
        buffer = buffer.narrow(axis, 0, size)
    return buffer


def fields_of(storage: Quantized, directions: Sequence[str]) -> tuple[str, ...]:
    """Returns the fields of these directions that have rows, in the order of sending."""
    return tuple(name for name, axis in _fields(storage, directions) if axis is not None)


def shared_fields(storage: Quantized) -> tuple[str, ...]:
    """Returns the present fields that all rows share."""
    return tuple(name for name in storage._shared_names() if getattr(storage, name) is not None)


def _named_roles(storage: Quantized) -> list[tuple[str, str]]:
    given = zip(_native.ROLES, storage._role_names, strict=True)
    return [(role, name) for role, name in given if name is not None]


def _fields(storage: Quantized, directions: Sequence[str]) -> list[tuple[str, RowAxis | None]]:
    names = dict(_named_roles(storage))
    spec = storage._transport_spec(directions)
    rest = tuple(storage._logical_shape()[1:])
    planned = names if spec is None else [b.role for b in _native.plan(spec, (_step(spec), *rest))]
    found = {
        names[role]: row_axis(spec, role, rest)
        for way in directions
        for role in planned
        if role in names and way in role
    }
    return list(found.items())


def routes(storage: Quantized, names: Sequence[str]) -> list[Route]:
    """Returns the routes of these fields."""
    roles = {name: role for role, name in reversed(_named_roles(storage))}
    ways = [way for way in ("rowwise", "columnwise") if any(way in roles[name] for name in names)]
    spec = storage._transport_spec(ways)
    rest = tuple(storage._logical_shape()[1:])
    found = []
    for name in names:
        rows = row_axis(spec, roles[name], rest)
        assert rows is not None, f"{name} has no rows"
        found.append(Route(name, spec, roles[name], rest, rows))
    return found


def require_whole_blocks(storage: Quantized, names: Sequence[str], length: int) -> None:
    """Raises RuntimeError unless `length` first indices are whole blocks of each field."""
    for route in routes(storage, names):
        count = length * math.prod(route.rest[:-1])
        if count % route.rows.rows != 0:
            raise RuntimeError(
                f"FSDP2 needs {type(storage).__name__} shards of whole blocks: the local flattened "
                f"M dimension {count} is not a multiple of {route.rows.rows}"
            )


def extract(
    storage: Quantized, names: Sequence[str], padded: int | None = None
) -> tuple[torch.Tensor, ...]:
    """Returns the fields in the sent form; `padded`: the number of rows to pad them to.

    Errors: RuntimeError for a missing field.
    """
    length = storage._logical_shape()[0]
    padded = length if padded is None else padded
    sent = []
    for route in routes(storage, names):
        buffer = getattr(storage, route.name)
        if buffer is None:
            raise RuntimeError(
                f"fsdp_pre_all_gather: {type(storage).__name__} needs {route.name}, got None"
            )
        sent.append(route.extract(buffer, length, padded))
    return tuple(sent)


def _length(way: Route, buffer: torch.Tensor, whole: int | None) -> int:
    return buffer.shape[0] * way.rows.step // way.rows.entries if whole is None else whole


def gathered_shape(
    storage: Quantized, names: Sequence[str], buffers: Sequence[torch.Tensor], whole: int | None
) -> torch.Size:
    """Returns the shape of the tensor made from gathered buffers."""
    first = routes(storage, names)[0]
    return torch.Size((_length(first, buffers[0], whole), *first.rest))


def restore(
    storage: Quantized,
    names: Sequence[str],
    buffers: Sequence[torch.Tensor],
    whole: int | None = None,
) -> dict[str, torch.Tensor]:
    """Returns the fields of the tensor made from gathered buffers.

    `whole`: the size of its first dimension, the rest is padding; None: all indices.
    Errors: RuntimeError if the shapes of the buffers do not agree.
    """
    ways = routes(storage, names)
    length = _length(ways[0], buffers[0], whole)
    fields = {}
    for route, buffer in zip(ways, buffers, strict=True):
        wanted = route.sent(length)
        if whole is not None and buffer.shape[0] > wanted[0]:
            buffer = buffer.narrow(0, 0, wanted[0])
        if tuple(buffer.shape) != wanted:
            what = "scale" if route.role.endswith("_scale_inv") else "data"
            raise RuntimeError(
                f"fsdp_assign_gathered: the gathered {what} geometry is {tuple(buffer.shape)}, a "
                f"tensor of shape {(length, *route.rest)} has {wanted}"
            )
        fields[route.name] = route.stored(buffer, length)
    return fields


class Bundle(NamedTuple):
    """Buffers packed into one or more tensors of one shape; `contents`: type and shape of each."""

    contents: tuple[tuple[torch.dtype, torch.Size], ...]

    @classmethod
    def pack(
        cls, buffers: Sequence[torch.Tensor], shape: tuple[int, ...] | None
    ) -> tuple[tuple[torch.Tensor, ...], Bundle]:
        """Packs into byte tensors of `shape`, as many as needed, or into one of any size."""
        contents = tuple((buffer.dtype, buffer.shape) for buffer in buffers)
        flat = torch.cat([b.contiguous().view(-1).view(torch.uint8) for b in buffers])
        if shape is None:
            return (flat,), cls(contents)
        short = -flat.numel() % math.prod(shape)
        flat = torch.cat([flat, flat.new_zeros(short)])
        return tuple(flat.view(-1, *shape).unbind()), cls(contents)

    def unpack(self, gathered: Sequence[torch.Tensor], world: int) -> list[torch.Tensor]:
        """Returns the buffers of all ranks, concatenated in the order of ranks."""
        ranks = torch.cat([piece.contiguous().view(world, -1) for piece in gathered], 1)
        buffers, begin = [], 0
        for dtype, shape in self.contents:
            end = begin + shape.numel() * dtype.itemsize
            part = ranks[:, begin:end].contiguous().view(-1).view(dtype)
            buffers.append(part.view(world * shape[0], *shape[1:]))
            begin = end
        return buffers
