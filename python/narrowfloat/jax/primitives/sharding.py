# SPDX-License-Identifier: Apache-2.0
"""How a tensor split at a flatten axis lies on devices while it is quantized."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import jax
from jax.experimental.custom_partitioning import CompoundFactor, SdyShardingRule
from jax.sharding import Mesh, PartitionSpec

Axes = tuple[str, ...]


def axes_of(operand: jax.ShapeDtypeStruct) -> list[Axes]:
    """Mesh axes that each dimension of an operand is spread over."""
    spec: Any = getattr(operand.sharding, "spec", ())
    entries = [() if e is None else (e,) if isinstance(e, str) else tuple(e) for e in spec]
    return entries + [()] * (len(operand.shape) - len(entries))


def whole_blocks(
    axes: Sequence[Axes], shape: Sequence[int], multiples: Sequence[int], mesh: Mesh
) -> list[Axes]:
    """Those of `axes` that leave each device whole blocks; other dimensions are gathered."""
    kept = []
    for names, extent, multiple in zip(axes, shape, multiples, strict=True):
        devices = math.prod(mesh.shape[name] for name in names)
        kept.append(names if extent % (devices * multiple) == 0 else ())
    return kept


def spec_of(axes: Sequence[Axes]) -> PartitionSpec:
    return PartitionSpec(*(names or None for names in axes))


def flat_axes(axes: Sequence[Axes]) -> Axes:
    """All mesh axes of all dimensions."""
    return tuple(name for names in axes for name in names)


@dataclass
class Factors:
    """Names of the factors that dimensions consist of, for a rule of correspondence."""

    def __post_init__(self) -> None:
        self._numbers = count()
        self.sizes: dict[str, int] = {}

    def new(self) -> str:
        return f"f{next(self._numbers)}"

    def unrelated(self, shape: Sequence[int]) -> tuple[str, ...]:
        """Factors that no other tensor has."""
        return tuple(self.new() for _ in shape)

    def blocks(self, extent: int, block: int) -> tuple[str | CompoundFactor, str]:
        """A dimension of blocks, and the dimension of their scales."""
        name = self.new()
        if block == 1:
            return name, name
        if extent == block:  # one scale, which cannot be spread
            return name, self.new()
        inner = self.new()
        self.sizes |= {name: extent // block, inner: block}
        return CompoundFactor(name, inner), name

    def rule(self, operands: Sequence[tuple], results: Sequence[tuple]) -> SdyShardingRule:
        return SdyShardingRule(tuple(operands), tuple(results), **self.sizes)
