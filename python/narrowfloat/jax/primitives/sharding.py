# SPDX-License-Identifier: Apache-2.0
"""The sharding of a tensor that is split at a flatten axis and quantized."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import count
from typing import Any

import jax
from jax.experimental.custom_partitioning import ArrayMapping, CompoundFactor, SdyShardingRule
from jax.sharding import Mesh, PartitionSpec

Axes = tuple[str, ...]


def axes_of(operand: jax.ShapeDtypeStruct) -> list[Axes]:
    """Returns the mesh axes that each dimension of an operand is spread over."""
    spec: Any = getattr(operand.sharding, "spec", ())
    entries = [() if e is None else (e,) if isinstance(e, str) else tuple(e) for e in spec]
    return entries + [()] * (len(operand.shape) - len(entries))


def whole_blocks(
    axes: Sequence[Axes], shape: Sequence[int], multiples: Sequence[int], mesh: Mesh
) -> list[Axes]:
    """Returns the axes whose devices get whole blocks; other dimensions are gathered."""
    kept = []
    for names, extent, multiple in zip(axes, shape, multiples, strict=True):
        devices = math.prod(mesh.shape[name] for name in names)
        kept.append(names if extent % (devices * multiple) == 0 else ())
    return kept


def spec_of(axes: Sequence[Axes]) -> PartitionSpec:
    return PartitionSpec(*(names or None for names in axes))


def flat_axes(axes: Sequence[Axes]) -> Axes:
    """Returns all mesh axes of all dimensions."""
    return tuple(name for names in axes for name in names)


class Factors:
    """Names the factors of dimensions, for the sharding rules of Shardy."""

    def __init__(self, mesh: Mesh) -> None:
        self._numbers = count()
        self._axes = [size for size in mesh.shape.values() if size > 1]
        self.sizes: dict[str, int] = {}

    def new(self) -> str:
        return f"f{next(self._numbers)}"

    def unrelated(self, shape: Sequence[int]) -> tuple[str, ...]:
        """Returns new factors, which no other tensor shares."""
        return tuple(self.new() for _ in shape)

    def blocks(self, extent: int, block: int) -> tuple[str | CompoundFactor, str]:
        """Returns the factors of a dimension of blocks, and of their scales' dimension."""
        name = self.new()
        if block == 1:
            return name, name
        blocks = extent // block
        # If an axis does not divide the blocks, they would be spread over a part of the axis, which
        # no PartitionSpec can express. A single block cannot be spread.
        if blocks <= 1 or any(blocks % size for size in self._axes):
            return name, self.new()
        inner = self.new()
        self.sizes |= {name: blocks, inner: block}
        return CompoundFactor(name, inner), name

    def rule(self, operands: Sequence[tuple], results: Sequence[tuple]) -> SdyShardingRule:
        # The size of a factor that is a whole dimension of a tensor is known from that dimension.
        whole = {dim for tensor in (*operands, *results) for dim in tensor if isinstance(dim, str)}
        sizes: dict[str, Any] = {n: size for n, size in self.sizes.items() if n not in whole}
        return SdyShardingRule(
            tuple(ArrayMapping(*dims) for dims in operands),
            tuple(ArrayMapping(*dims) for dims in results),
            **sizes,
        )
