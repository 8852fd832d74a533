# SPDX-License-Identifier: Apache-2.0
"""Measures the cost of quantizing: bits, error, time."""

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

import narrowfloat as nf

ROUNDS = 25  # a time is the minimum of this number; the first rounds allocate
EXACT_BELOW = -10  # relative errors below 2^-10 count as exact: no format here has 10 bits


@dataclass(frozen=True)
class Errors:
    """The errors of dequantized weights, compared with the originals."""

    sqnr_db: float  # signal to quantization noise over all weights
    largest: float  # largest error over the largest weight of the same tensor


def errors(pairs: Iterable[tuple[np.ndarray, np.ndarray]]) -> Errors:
    """Returns the errors of pairs (original, dequantized)."""
    signal = noise = largest = 0.0
    for original, restored in pairs:
        difference = original.astype(np.float64) - restored
        signal += float(np.square(original, dtype=np.float64).sum())
        noise += float(np.square(difference).sum())
        largest = max(largest, float(np.abs(difference).max() / np.abs(original).max()))
    return Errors(math.inf if noise == 0 else 10 * math.log10(signal / noise), largest)


def error_histogram(pairs: Iterable[tuple[np.ndarray, np.ndarray]]) -> list[float]:
    """Returns the share of weights by relative error, in octaves from EXACT_BELOW to 1.

    Bin 0 counts errors below 2^EXACT_BELOW of the weight, including 0; bin i counts errors from
    2^(EXACT_BELOW + i - 1) on; the last bin counts errors from 1 on, such as weights that become
    zero.
    """
    counts = np.zeros(1 - EXACT_BELOW + 1, np.int64)
    for original, restored in pairs:
        wide = original.astype(np.float64)
        error = np.abs(restored - wide)
        share = np.divide(error, np.abs(wide), out=np.zeros_like(wide), where=wide != 0)
        octave = np.frexp(share)[1] - EXACT_BELOW  # 2^(octave - 1) <= share / 2^EXACT_BELOW
        octave[share < 2.0**EXACT_BELOW] = 0
        counts += np.bincount(np.clip(octave, 0, len(counts) - 1).ravel(), minlength=len(counts))
    return (counts / counts.sum()).tolist()


def bits_per_parameter(quantized: Iterable[nf.QuantizedTensor]) -> float:
    """Returns the bits of all buffers, with padding, over the number of weights."""
    tensors = list(quantized)
    stored = sum(buffer.nbytes for tensor in tensors for buffer in tensor.buffers.values())
    return 8 * stored / sum(math.prod(tensor.shape) for tensor in tensors)


def seconds(weights: Mapping[str, np.ndarray], scheme: str) -> tuple[float, float]:
    """Returns the seconds to quantize and to copy all weights, on one thread.

    Both write to allocated memory, and run in turns, so that other load on the machine slows both.
    """
    quantized = [(weight, nf.quantize(weight, scheme)) for weight in weights.values()]
    copies = [(weight, np.empty_like(weight)) for weight in weights.values()]

    def quantize() -> None:
        for weight, target in quantized:
            nf.quantize(weight, scheme, out=target, threads=1)

    def copy() -> None:
        for weight, target in copies:
            np.copyto(target, weight)

    times = [(timed(quantize), timed(copy)) for _ in range(ROUNDS)]
    return min(quantizing for quantizing, _ in times), min(copying for _, copying in times)


def timed(run: Callable[[], None]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
