# SPDX-License-Identifier: Apache-2.0
"""Statistics of quantized tensors: what became of their values, and their scales."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from narrowfloat import _core
from narrowfloat.common.recipe import Format
from narrowfloat.debug._parts import NUMEL, Computation, Part, Sample, add, largest, least, only
from narrowfloat.debug._statistics import OVERFLOWS, Statistic
from narrowfloat.pytorch.constants import ELEMENTS

PERCENT = 100


@functools.cache
def _nonzero_in_byte(scheme: str) -> torch.Tensor:
    """How many codes of each byte are not zero, as the scheme's decoder has it."""
    count = np.iinfo(np.uint8).max + 1
    codes = _core.make_spec(scheme).codes_per_byte
    q = _core.quantize(np.ones((1, count * codes), np.float32), scheme)
    q.buffers["rowwise_data"].reshape(-1)[:] = np.arange(count)
    values = q.dequantize().reshape(count, codes)
    return torch.from_numpy((values != 0).sum(axis=1)).double()


def count_nonzero_codes(codes: torch.Tensor, scheme: str) -> int:
    """The codes that stand for a value other than zero, of either sign."""
    table = _nonzero_in_byte(scheme)
    counts = torch.bincount(codes.detach().reshape(-1).view(torch.uint8), minlength=len(table))
    return int(counts.cpu().double() @ table)


def _codes(quantized: Any, asked: Statistic) -> torch.Tensor:
    """The codes of a direction; with one scale for the whole tensor both hold the same."""
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
    """The stored scales but for zeros, which pad them."""
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
    """How a statistic of quantized forms is computed. Errors: KeyError for an unknown name."""

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
