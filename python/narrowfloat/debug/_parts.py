# SPDX-License-Identifier: Apache-2.0
"""Numbers of tensors that add up over microbatches and ranks, of which statistics are made."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass
class Sample:
    """A tensor that is fed, and the quantized forms of it by recipe."""

    tensor: torch.Tensor | None
    quantized: Mapping[str, Any] = field(default_factory=dict)

    @property
    def fed(self) -> torch.Tensor:
        """The tensor, for statistics that need it: they are refused before where there is none."""
        assert self.tensor is not None
        return self.tensor

    @functools.cached_property
    def values(self) -> torch.Tensor:
        """The tensor in float64, in which everything but the mean is summed up."""
        return self.fed.detach().double()

    @property
    def mean(self) -> torch.Tensor:
        """As Tensor.mean() has it, in float32 at least: a logged mean is compared with that."""
        tensor = self.fed.detach()
        return tensor.mean(dtype=torch.promote_types(tensor.dtype, torch.float32))

    @functools.cached_property
    def magnitudes(self) -> torch.Tensor:
        return self.values.abs()

    @functools.cached_property
    def nonzero(self) -> int:
        return int(torch.count_nonzero(self.fed))


Columns = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Part:
    """A number of one tensor. merge: of several tensors', from it and the other parts' columns."""

    name: str
    measure: Callable[[Sample], Any]
    merge: Callable[[str, Columns], torch.Tensor]


def add(name: str, columns: Columns) -> torch.Tensor:
    """Merges counts and sums."""
    return columns[name].sum()


def least(name: str, columns: Columns) -> torch.Tensor:
    """Merges minima; NaN stays."""
    return columns[name].min()


def largest(name: str, columns: Columns) -> torch.Tensor:
    """Merges maxima; NaN stays."""
    return columns[name].max()


Parts = Mapping[str, float]


@dataclass(frozen=True)
class Computation:
    """A statistic: its parts, and its value from theirs."""

    parts: tuple[Part, ...]
    finish: Callable[[Parts], float]


def only(part: Part) -> Computation:
    """A statistic that is one part."""
    return Computation((part,), lambda parts: parts[part.name])


NUMEL = Part("numel", lambda sample: sample.fed.numel(), add)


def measure(parts: Mapping[str, Part], sample: Sample) -> dict[str, float]:
    """The parts of one tensor."""
    return {name: float(part.measure(sample)) for name, part in parts.items()}


def merge(parts: Mapping[str, Part], rows: list[dict[str, float]]) -> dict[str, float]:
    """The parts of several tensors together. Errors: ValueError for none."""
    if len(rows) == 1:
        return rows[0]
    columns = {
        name: torch.tensor([row[name] for row in rows], dtype=torch.float64) for name in parts
    }
    return {name: float(part.merge(name, columns)) for name, part in parts.items()}
