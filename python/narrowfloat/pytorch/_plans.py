# SPDX-License-Identifier: Apache-2.0
"""Caches specs and plans of buffers for calls with the same arguments."""

from __future__ import annotations

import atexit
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from narrowfloat import _core

ROLES: tuple[str, ...] = tuple(_core.buffer_roles())


class PlannedBuffer(NamedTuple):
    """A buffer of a plan."""

    role: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    storage: str


@lru_cache(maxsize=1024)
def make_spec(
    scheme: str, rowwise: bool, columnwise: bool, options: tuple[tuple[str, Any], ...] = ()
) -> _core.QuantSpec:
    """Returns the spec of a scheme, directions and options; one object per set of arguments."""
    return _core.make_spec(scheme, rowwise, columnwise, **dict(options))


@lru_cache(maxsize=1024)
def parse_spec(text: str) -> _core.QuantSpec:
    """Returns the spec of a text form."""
    return _core.parse_spec(text)


def plan(spec: _core.QuantSpec, shape: tuple[int, ...]) -> tuple[PlannedBuffer, ...]:
    """Lists the buffers of a tensor of `shape`, in the order of ROLES. Sizes may be symbols."""
    try:
        return _plan(spec, shape)
    except TypeError:  # symbols cannot be hashed
        if not has_symbols(shape):
            raise
        return _plan_symbols(spec, shape)


@lru_cache(maxsize=4096)
def _plan(spec: _core.QuantSpec, shape: tuple[int, ...]) -> tuple[PlannedBuffer, ...]:
    return tuple(
        PlannedBuffer(role, getattr(torch, dtype), dims, storage)
        for role, dtype, dims, storage in spec.plan(shape)
    )


PlannedFields = tuple[tuple[str, torch.dtype, tuple[int, ...]], ...]


def name_fields(planned: tuple[PlannedBuffer, ...], names: tuple[str | None, ...]) -> PlannedFields:
    """Returns name, dtype and shape of the planned buffers that have a name.

    names: names of a class's buffer fields, in the order of ROLES.
    """
    try:
        return _name_fields(planned, names)
    except TypeError:  # symbols cannot be hashed
        if not any(has_symbols(buffer.shape) for buffer in planned):
            raise
        return _name_fields.__wrapped__(planned, names)


@lru_cache(maxsize=4096)
def _name_fields(
    planned: tuple[PlannedBuffer, ...], names: tuple[str | None, ...]
) -> PlannedFields:
    name_of = dict(zip(ROLES, names, strict=True))
    return tuple(
        (name, buffer.dtype, buffer.shape)
        for buffer in planned
        if (name := name_of[buffer.role]) is not None
    )


def roles_of_directions(
    scheme: str,
    options: tuple[tuple[str, Any], ...],
    directions: tuple[str, ...],
    shape: tuple[int, ...],
) -> tuple[tuple[str, int, tuple[int, ...]], ...]:
    """Returns role, index in ROLES and shape of the buffers of the given directions."""
    try:
        return _roles_of_directions(scheme, options, directions, shape)
    except TypeError:  # symbols cannot be hashed
        if not has_symbols(shape):
            raise
        return _roles_of_directions.__wrapped__(scheme, options, directions, shape)


@lru_cache(maxsize=1024)
def _roles_of_directions(
    scheme: str,
    options: tuple[tuple[str, Any], ...],
    directions: tuple[str, ...],
    shape: tuple[int, ...],
) -> tuple[tuple[str, int, tuple[int, ...]], ...]:
    wanted = {f"{d}_{part}" for d in directions for part in ("data", "scale_inv")}
    wanted |= {f"amax_{d}" for d in directions}
    spec = make_spec(scheme, "rowwise" in directions, "columnwise" in directions, options)
    return tuple(
        (planned.role, ROLES.index(planned.role), planned.shape)
        for planned in plan(spec, shape)
        if planned.role in wanted
    )


@atexit.register
def _forget() -> None:
    """Clears the caches: operators keep this module alive after the native one has ended."""
    for cached in (make_spec, parse_spec, _plan, _name_fields, _roles_of_directions):
        cached.cache_clear()


def _plan_symbols(spec: _core.QuantSpec, shape: tuple[Any, ...]) -> tuple[PlannedBuffer, ...]:
    return tuple(
        PlannedBuffer(
            role,
            getattr(torch, dtype),
            tuple(_evaluate(rule, shape) for rule in sizes),
            storage,
        )
        for role, dtype, sizes, storage in spec.plan_rules(len(shape))
    )


def _evaluate(rule: tuple[tuple[int, ...], int, int], shape: tuple[Any, ...]) -> int:
    """Computes one size of a buffer from the tensor's shape."""
    dimensions, divisor, multiple = rule
    size: Any = 1
    for dimension in dimensions:
        size = size * shape[dimension]
    for unit in (divisor, multiple):
        if unit != 1:
            size = (size + (unit - 1)) // unit
    return size if multiple == 1 else size * multiple


def has_symbols(shape: Iterable[Any]) -> bool:
    """Returns whether a size is a symbol of a compiler instead of a number."""
    return any(type(size) is not int for size in shape)


def numbers(shape: Iterable[Any]) -> tuple[int, ...]:
    """Returns the sizes as numbers; a graph being compiled is then specialized to them."""
    return tuple(int(size) for size in shape)


def flatten_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    """Returns rows and columns: all dimensions but the last, and the last; a scalar is 1 x 1."""
    rows = 1
    for size in shape[:-1]:
        rows *= size
    return rows, shape[-1] if len(shape) else 1
