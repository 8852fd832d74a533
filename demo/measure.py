# SPDX-License-Identifier: Apache-2.0
"""What quantizing costs: bits, error, time."""

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

import narrowfloat as nf

ROUNDS = 25  # a time is the best of so many; the first ones touch the pages


@dataclass(frozen=True)
class Errors:
    """How far dequantized weights are from the originals."""

    sqnr_db: float  # signal to quantization noise over all weights
    largest: float  # the largest error, as a share of the largest weight of the same tensor


def errors(pairs: Iterable[tuple[np.ndarray, np.ndarray]]) -> Errors:
    """Of pairs (original, dequantized)."""
    signal = noise = largest = 0.0
    for original, restored in pairs:
        difference = original.astype(np.float64) - restored
        signal += float(np.square(original, dtype=np.float64).sum())
        noise += float(np.square(difference).sum())
        largest = max(largest, float(np.abs(difference).max() / np.abs(original).max()))
    return Errors(math.inf if noise == 0 else 10 * math.log10(signal / noise), largest)


def bits_per_parameter(quantized: Iterable[nf.QuantizedTensor]) -> float:
    """Codes and scales with their padding, over the number of weights."""
    tensors = list(quantized)
    stored = sum(buffer.nbytes for tensor in tensors for buffer in tensor.buffers.values())
    return 8 * stored / sum(math.prod(tensor.shape) for tensor in tensors)


def seconds(weights: Mapping[str, np.ndarray], scheme: str) -> tuple[float, float]:
    """Quantizing all weights, and copying the same bytes; on one thread, into memory that is there.

    The two take turns, so that a machine busy with something else slows both.
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
