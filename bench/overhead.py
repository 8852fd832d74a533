# SPDX-License-Identifier: Apache-2.0
"""Measures the cost of a call from Python on a small tensor, nearly without its elements.

usage: python bench/overhead.py [--side N] [--repetitions N] [--json FILE]

Every scheme with given and with new buffers, next to NumPy's copy and ml_dtypes' cast, which
allocates. They run in turns of many calls, and the best turn counts.
"""

import argparse
import json
import math
import time
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np

import narrowfloat as nf

CALLS = 500  # per turn


def make_calls(side: int) -> dict[str, Callable[[], object]]:
    """Returns the calls to measure, by name."""
    x = np.random.default_rng(1).standard_normal((side, side)).astype(ml_dtypes.bfloat16)
    same = np.empty_like(x)
    calls: dict[str, Callable[[], object]] = {
        "np.copyto": lambda: np.copyto(same, x),
        "ml_dtypes astype(float8_e4m3fn)": lambda: x.astype(ml_dtypes.float8_e4m3fn),
    }
    for scheme in nf.schemes():
        q = nf.quantize(x, scheme)
        calls[f"quantize {scheme}"] = lambda scheme=scheme, q=q: nf.quantize(x, scheme, out=q)
        calls[f"quantize {scheme}, new buffers"] = lambda scheme=scheme: nf.quantize(x, scheme)
        calls[f"dequantize {scheme}"] = lambda q=q: nf.dequantize(q, out=same)
        calls[f"dequantize {scheme}, new array"] = lambda q=q: nf.dequantize(q)
    return calls


def measure(calls: dict[str, Callable[[], object]], repetitions: int) -> dict[str, float]:
    """Returns the minimum microseconds of each call."""
    best = dict.fromkeys(calls, math.inf)
    for _ in range(repetitions):
        for name, call in calls.items():
            start = time.perf_counter()
            for _ in range(CALLS):
                call()
            best[name] = min(best[name], (time.perf_counter() - start) / CALLS * 1e6)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--side", type=int, default=32)
    parser.add_argument("--repetitions", type=int, default=25)
    parser.add_argument("--json", type=Path, help="writes everything measured")
    options = parser.parse_args()

    found = measure(make_calls(options.side), options.repetitions)
    print(f"microseconds of a call on {options.side}x{options.side} bfloat16\n")
    for name, microseconds in found.items():
        print(f"{name:<40} {microseconds:8.2f}")
    if options.json:
        options.json.write_text(json.dumps({"side": options.side, "us": found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
