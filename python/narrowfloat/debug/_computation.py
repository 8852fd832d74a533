# SPDX-License-Identifier: Apache-2.0
"""Statistics of high-precision tensors, and how any statistic is computed."""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import torch

from narrowfloat.debug._parts import (
    NUMEL,
    Columns,
    Computation,
    Part,
    Parts,
    Sample,
    add,
    largest,
    least,
    only,
)
from narrowfloat.debug._quantized_computation import quantized_computation
from narrowfloat.debug._statistics import BLOCKWISE, Statistic
from narrowfloat.pytorch.constants import MXFP8_BLOCK_SCALING_SIZE

DEFAULT_BLOCK_SIZE = MXFP8_BLOCK_SCALING_SIZE


class BlockwiseDynamicRangeStat(NamedTuple):
    """The largest dynamic range of a block: a run of block_size items, or with dims 2 a tile.

    max_over_orientations: of the transposed matrix's blocks too.
    """

    block_size: int = DEFAULT_BLOCK_SIZE
    dims: int = 1
    max_over_orientations: bool = False

    def __str__(self) -> str:
        suffix = "_max_over_orientations" if self.max_over_orientations else ""
        return f"{BLOCKWISE}_block_size_{self.block_size}_dims_{self.dims}{suffix}"


def _add_deviations(name: str, columns: Columns) -> torch.Tensor:
    """Squared deviations from the common mean: each tensor's own, and those of the means."""
    counts, sums = columns["numel"], columns["sum"]
    means = sums / counts
    return columns[name].sum() + (counts * (means - sums.sum() / counts.sum()) ** 2).sum()


def _weighted(name: str, columns: Columns) -> torch.Tensor:
    """The common mean of several tensors."""
    counts = columns["numel"]
    return (counts * columns[name]).sum() / counts.sum()


def _squared_deviations(values: torch.Tensor) -> torch.Tensor:
    return ((values - values.mean()) ** 2).sum()


def _least_nonzero(sample: Sample) -> torch.Tensor:
    return sample.magnitudes.masked_fill(sample.magnitudes == 0, math.inf).min()


MEAN = Part("mean", lambda sample: sample.mean, _weighted)
SUM = Part("sum", lambda sample: sample.values.sum(), add)
DEVIATIONS = Part("deviations", lambda sample: _squared_deviations(sample.values), _add_deviations)
LEAST = Part("min", lambda sample: sample.values.min(), least)
LARGEST = Part("max", lambda sample: sample.values.max(), largest)
MAGNITUDES = Part("l1_norm", lambda sample: sample.magnitudes.sum(), add)
SQUARES = Part("l2_norm_square", lambda sample: (sample.values**2).sum(), add)
AMAX = Part("cur_amax", lambda sample: sample.magnitudes.max(), largest)
AMIN = Part("nonzero_amin", _least_nonzero, least)


def _dynamic_range(parts: Parts) -> float:
    """Infinite for a tensor of zeros."""
    top, bottom = parts[AMAX.name], parts[AMIN.name]
    return math.inf if top == 0 else math.log2(top) - math.log2(bottom)


def _std(parts: Parts) -> float:
    return math.sqrt(parts["deviations"] / (parts["numel"] - 1)) if parts["numel"] > 1 else math.nan


TENSOR_STATISTICS: dict[str, Computation] = {
    "min": only(LEAST),
    "max": only(LARGEST),
    "mean": Computation((MEAN, NUMEL), lambda parts: parts["mean"]),
    "std": Computation((SUM, NUMEL, DEVIATIONS), _std),
    "l1_norm": only(MAGNITUDES),
    "l2_norm": Computation((SQUARES,), lambda parts: math.sqrt(parts["l2_norm_square"])),
    "cur_amax": only(AMAX),
    "dynamic_range": Computation((AMAX, AMIN), _dynamic_range),
}


def compute_max_blockwise_dynamic_range(
    tensor: torch.Tensor, stat_config: BlockwiseDynamicRangeStat
) -> torch.Tensor:
    """The largest log2(amax) - log2(nonzero amin) of a block; 0 for blocks of zeros.

    Shapes: tensor is seen as M x K with K the last dimension; the result is 0-D.
    Errors: AssertionError unless the blocks divide the dimensions that they run along, or for dims
            other than 1 and 2.
    """
    block_size, dims, both = stat_config
    if dims not in (1, 2):
        raise AssertionError(f"dims must be 1 or 2, got {dims}")
    matrix = tensor.detach().reshape(-1, tensor.shape[-1] if tensor.dim() else 1)
    turned = [matrix, matrix.t()] if both else [matrix]
    return torch.stack([_largest_range(m, block_size, dims) for m in turned]).max()


def _largest_range(matrix: torch.Tensor, block_size: int, dims: int) -> torch.Tensor:
    rows, cols = matrix.shape
    height = block_size if dims == 2 else 1
    if rows % height or cols % block_size:
        raise AssertionError(
            f"Blocks of {height} x {block_size} do not divide a tensor of {rows} x {cols}: its "
            f"numel ({rows * cols}) is not divisible by block_size ({block_size}) in whole blocks."
        )
    blocks = matrix.double().abs().reshape(rows // height, height, cols // block_size, block_size)
    amax = blocks.amax(dim=(1, 3))
    amin = blocks.masked_fill(blocks == 0, math.inf).amin(dim=(1, 3))
    ranges = torch.where(amax == 0, 0.0, torch.log2(amax) - torch.log2(amin))
    return ranges.max()


@functools.cache
def computation(stat: str | BlockwiseDynamicRangeStat) -> Computation:
    """How a statistic is computed. Errors: KeyError for one that there is none of."""
    if isinstance(stat, BlockwiseDynamicRangeStat):
        return only(
            Part(
                str(stat),
                lambda sample: compute_max_blockwise_dynamic_range(sample.fed, stat),
                largest,
            )
        )
    if stat in TENSOR_STATISTICS:
        return TENSOR_STATISTICS[stat]
    return quantized_computation(Statistic.parse(stat))
