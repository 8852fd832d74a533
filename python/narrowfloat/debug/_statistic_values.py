# SPDX-License-Identifier: Apache-2.0
"""Computes statistics from parts: values of one tensor that merge over microbatches and ranks."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch

from narrowfloat import _core
from narrowfloat.common.recipe import Format
from narrowfloat.debug._statistic_names import BLOCKWISE, OVERFLOWS, Statistic
from narrowfloat.pytorch.constants import ELEMENTS, MXFP8_BLOCK_SCALING_SIZE
from narrowfloat.pytorch.tensor.storage._scheme_storage import SchemeStorage


@dataclass
class Sample:
    """A tensor to add, and its quantized forms by recipe."""

    tensor: torch.Tensor | None
    quantized: Mapping[str, Any] = field(default_factory=dict)

    @property
    def fed(self) -> torch.Tensor:
        """The tensor. Requires: it is not None; callers check this for statistics that need it."""
        assert self.tensor is not None
        return self.tensor

    @functools.cached_property
    def values(self) -> torch.Tensor:
        """The tensor in float64, in which all sums but the mean are computed."""
        return self.fed.detach().double()

    @property
    def mean(self) -> torch.Tensor:
        """The result of Tensor.mean(), in float32 at least, to be compared with a logged mean."""
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
    """A value of one tensor. merge: its value for several, from the columns of all parts."""

    name: str
    measure: Callable[[Sample], Any]
    merge: Callable[[str, Columns], torch.Tensor]


def add(name: str, columns: Columns) -> torch.Tensor:
    """Merges counts and sums."""
    return columns[name].sum()


def least(name: str, columns: Columns) -> torch.Tensor:
    """Merges minima; keeps NaN."""
    return columns[name].min()


def largest(name: str, columns: Columns) -> torch.Tensor:
    """Merges maxima; keeps NaN."""
    return columns[name].max()


Parts = Mapping[str, float]


@dataclass(frozen=True)
class Computation:
    """A statistic: its parts, and the function that computes it from their values."""

    parts: tuple[Part, ...]
    finish: Callable[[Parts], float]


def only(part: Part) -> Computation:
    """Returns a statistic that is equal to one part."""
    return Computation((part,), lambda parts: parts[part.name])


NUMEL = Part("numel", lambda sample: sample.fed.numel(), add)


def measure(parts: Mapping[str, Part], sample: Sample) -> dict[str, float]:
    """Returns the parts of one tensor."""
    return {name: float(part.measure(sample)) for name, part in parts.items()}


def merge(parts: Mapping[str, Part], rows: list[dict[str, float]]) -> dict[str, float]:
    """Returns the parts of several tensors together. Errors: ValueError for no rows."""
    if len(rows) == 1:
        return rows[0]
    columns = {
        name: torch.tensor([row[name] for row in rows], dtype=torch.float64) for name in parts
    }
    return {name: float(part.merge(name, columns)) for name, part in parts.items()}


DEFAULT_BLOCK_SIZE = MXFP8_BLOCK_SCALING_SIZE


class BlockwiseDynamicRangeStat(NamedTuple):
    """The largest dynamic range of a block: block_size adjacent items, or a tile if dims is 2.

    max_over_orientations: includes the blocks of the transposed matrix.
    """

    block_size: int = DEFAULT_BLOCK_SIZE
    dims: int = 1
    max_over_orientations: bool = False

    def __str__(self) -> str:
        suffix = "_max_over_orientations" if self.max_over_orientations else ""
        return f"{BLOCKWISE}_block_size_{self.block_size}_dims_{self.dims}{suffix}"


def _add_deviations(name: str, columns: Columns) -> torch.Tensor:
    """Returns the squared deviations from the common mean: each tensor's own, plus the means'."""
    counts, sums = columns["numel"], columns["sum"]
    means = sums / counts
    return columns[name].sum() + (counts * (means - sums.sum() / counts.sum()) ** 2).sum()


def _weighted(name: str, columns: Columns) -> torch.Tensor:
    """Returns the common mean of several tensors."""
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
    """Returns log2(amax) - log2(nonzero amin); infinity for a tensor of zeros."""
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
    """Returns the largest log2(amax) - log2(nonzero amin) of a block; 0 for blocks of zeros.

    Shapes: tensor is seen as M x K with K the last dimension; the result is 0-D.
    Errors: AssertionError unless the blocks divide the dimensions that they extend along, or for
            dims other than 1 and 2.
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
    """Returns the computation of a statistic. Raises KeyError for an unknown one."""
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


PERCENT = 100


@functools.cache
def _nonzero_in_byte(scheme: str) -> torch.Tensor:
    """Returns the number of nonzero codes in each byte, by the scheme's decoder."""
    count = np.iinfo(np.uint8).max + 1
    codes = _core.make_spec(scheme).codes_per_byte
    q = _core.quantize(np.ones((1, count * codes), np.float32), scheme)
    q.buffers["rowwise_data"].reshape(-1)[:] = np.arange(count)
    values = q.dequantize().reshape(count, codes)
    return torch.from_numpy((values != 0).sum(axis=1)).double()


def count_nonzero_codes(codes: torch.Tensor, scheme: str) -> int:
    """Returns the number of codes with a nonzero value, of either sign."""
    table = _nonzero_in_byte(scheme)
    counts = torch.bincount(codes.detach().reshape(-1).view(torch.uint8), minlength=len(table))
    return int(counts.cpu().double() @ table)


def _codes(quantized: SchemeStorage, asked: Statistic) -> torch.Tensor:
    """Returns the codes of a direction; with one scale per tensor both hold the same codes."""
    rowwise, transposed = quantized.get_data_tensors()
    if getattr(quantized, "_scale_inv", None) is not None and not asked.columnwise:
        return transposed if rowwise is None else rowwise
    codes = transposed if asked.columnwise else rowwise
    if codes is None:
        raise ValueError(f"{type(quantized).__name__} has no {asked.direction} data")
    return codes


def _underflows(sample: Sample, asked: Statistic) -> int:
    quantized = sample.quantized[asked.recipe]
    codes = _codes(quantized, asked)
    return sample.nonzero - count_nonzero_codes(codes, quantized._scheme())


def _overflows(sample: Sample, asked: Statistic) -> int:
    quantized = sample.quantized[asked.recipe]
    largest = Format[ELEMENTS[quantized._fp8_dtype].upper()].value.max_fwd
    return int((sample.fed.detach().float().abs() > largest * quantized._scale_inv).sum())


def _square_error(sample: Sample, asked: Statistic) -> torch.Tensor:
    values = sample.quantized[asked.recipe].dequantize().detach().double()
    return ((sample.values - values) ** 2).sum()


def _scale_inv(sample: Sample, asked: Statistic) -> torch.Tensor:
    """Returns the stored scales without the zeros of the padding."""
    quantized = sample.quantized[asked.recipe]
    scales = getattr(quantized, "_scale_inv", None)
    if scales is None:
        scales = getattr(quantized, f"_{asked.direction}_scale_inv", None)
        if scales is None:
            raise ValueError(f"{type(quantized).__name__} has no {asked.direction} scales")
    scales = scales.detach().double()
    scales = scales[scales != 0]
    return scales if scales.numel() else scales.new_zeros(1)


def quantized_computation(asked: Statistic) -> Computation:
    """Returns the computation of a statistic of quantized forms.

    Raises KeyError for an unknown name.
    """

    def part(name: str, measure: Callable, merge: Callable) -> Part:
        label = f"{asked.recipe} {name} {asked.direction}"
        return Part(label, lambda sample: measure(sample, asked), merge)

    if asked.name == "scale_inv_min":
        return only(part("scale_inv_min", lambda *a: _scale_inv(*a).min(), least))
    if asked.name == "scale_inv_max":
        return only(part("scale_inv_max", lambda *a: _scale_inv(*a).max(), largest))
    measures = {"underflows%": _underflows, OVERFLOWS: _overflows, "mse": _square_error}
    total = part(asked.name, measures[asked.name], add)
    factor = PERCENT if asked.name.endswith("%") else 1
    return Computation((total, NUMEL), lambda parts: factor * parts[total.name] / parts[NUMEL.name])
