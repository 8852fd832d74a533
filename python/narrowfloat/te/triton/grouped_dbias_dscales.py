# SPDX-License-Identifier: Apache-2.0
"""Sums of gradients over the rows of each group."""

import itertools
from collections.abc import Iterator

import torch


def _groups(rows: torch.Tensor, offsets: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yields the rows of each group. Shapes: offsets is (groups + 1,)."""
    bounds = offsets.tolist()
    for begin, end in itertools.pairwise(bounds):
        yield rows[begin:end]


def _accumulator(
    verb: str, given: torch.Tensor | None, name: str, shape: tuple[int, ...]
) -> torch.Tensor:
    """Returns the tensor for the sums: the given one, or zeros."""
    if given is None:
        return torch.zeros(shape, dtype=torch.float32)
    if given.dtype != torch.float32:
        raise TypeError(f"{verb}: {name} must be float32, got {given.dtype}")
    return given


@torch.no_grad()
def compute_grouped_dbias(
    dy: torch.Tensor, offsets: torch.Tensor, num_groups: int, dbias: torch.Tensor | None = None
) -> torch.Tensor:
    """Adds the sum of each group's rows, in float32, to a row of `dbias` and returns it."""
    dbias = _accumulator("compute_grouped_dbias", dbias, "dbias", (num_groups, dy.shape[1]))
    for total, rows in zip(dbias, _groups(dy, offsets), strict=True):
        total += rows.float().sum(0)
    return dbias


@torch.no_grad()
def compute_grouped_dbias_dscales(
    dy: torch.Tensor,
    scales: torch.Tensor,
    bias: torch.Tensor,
    offsets: torch.Tensor,
    dbias: torch.Tensor | None = None,
    dscales: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Adds the gradients of a bias per group and of a scale per row, where y = x + scale * bias."""
    verb = "compute_grouped_dbias_dscales"
    dscales = _accumulator(verb, dscales, "dscales", (dy.shape[0],))
    dbias = _accumulator(verb, dbias, "dbias", (bias.shape[0], dy.shape[1]))
    dbias = compute_grouped_dbias(dy.float() * scales[:, None], offsets, bias.shape[0], dbias)
    parts = zip(_groups(dscales, offsets), _groups(dy, offsets), bias, strict=True)
    for total, rows, bias_of_group in parts:
        total += rows.float() @ bias_of_group.float()
    return dbias, dscales
