# SPDX-License-Identifier: Apache-2.0
"""Measures the cost of quantizing through XLA and by the verb, with equal threads.

usage: python bench/jax_overhead.py [--rows N] [--cols N] [--repetitions N] [--json FILE]

They run in turns, and the best turn counts.
verb:    into given buffers, as in a program that quantizes at every step
XLA:     a compiled program that reuses its last results' buffers by donation
new:     the verb into new buffers, with page faults
XLA new: the compiled program without donation: XLA allocates memory for large results
"""

import argparse
import json
import math
import os
import time
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import narrowfloat.jax as nfj
import numpy as np
from narrowfloat.jax.quantize import QuantizeLayout, QuantizerFactory, ScalingMode

import narrowfloat as nf

MODES = {
    "fp8_e4m3, scale given": (ScalingMode.DELAYED_TENSOR_SCALING, "fp8_e4m3", {"scale": 1.0}),
    "fp8_e4m3, current": (ScalingMode.CURRENT_TENSOR_SCALING, "fp8_e4m3", {}),
    "mxfp8_e4m3": (ScalingMode.MXFP8_1D_SCALING, "mxfp8_e4m3", {}),
    "nvfp4": (ScalingMode.NVFP4_1D_SCALING, "nvfp4", {}),
}
LAYOUTS = {"rowwise": QuantizeLayout.ROWWISE, "both": QuantizeLayout.ROWWISE_COLWISE}


def make_calls(x: jax.Array, name: str, layout: str, threads: int) -> dict[str, Callable[[], None]]:
    """Returns calls of the verb and of XLA's handler on the same input."""
    mode, scheme, options = MODES[name]
    dtype = mode.get_compatible_q_dtypes()[0]
    host = np.asarray(x)
    both = layout == "both"
    options = {**options, "threads": threads}
    out = nf.quantize(host, scheme, True, both, **options)

    def handler(a: jax.Array, last: object) -> object:
        return QuantizerFactory.create(1, mode, dtype, LAYOUTS[layout]).quantize(a)

    fresh = jax.jit(handler)
    donating = jax.jit(handler, donate_argnums=1, keep_unused=True)
    results = [fresh(x, None)]

    def step() -> None:
        results.append(jax.block_until_ready(donating(x, results.pop())))

    return {
        "verb": lambda: nf.quantize(host, scheme, True, both, out=out, **options),
        "XLA": step,
        "new": lambda: nf.quantize(host, scheme, True, both, **options),
        "XLA new": lambda: jax.block_until_ready(fresh(x, None)),
    }


def measure(calls: dict[str, Callable[[], None]], repetitions: int) -> dict[str, float]:
    """Returns the minimum milliseconds of each call."""
    best = dict.fromkeys(calls, math.inf)
    for repetition in range(repetitions + 2):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            if repetition >= 2:
                best[name] = min(best[name], (time.perf_counter() - start) * 1e3)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=8192)
    parser.add_argument("--cols", type=int, default=4096)
    parser.add_argument("--repetitions", type=int, default=20)
    parser.add_argument("--json", type=Path, help="writes everything measured")
    options = parser.parse_args()

    assert nfj.ffi_library().is_file()
    threads = len(os.sched_getaffinity(0))
    x = jax.random.normal(jax.random.key(0), (options.rows, options.cols), jnp.bfloat16)
    print(f"milliseconds of a call on {options.rows}x{options.cols} bfloat16, {threads} threads\n")
    print(f"{'':<31}{'verb':>8}{'XLA':>8}{'ratio':>8}{'new':>10}{'XLA new':>8}{'ratio':>8}")
    found = {}
    for name in MODES:
        for layout in LAYOUTS:
            times = measure(make_calls(x, name, layout, threads), options.repetitions)
            verb, xla, new, xla_new = times.values()
            print(
                f"{name + ', ' + layout:<31}{verb:8.2f}{xla:8.2f}{xla / verb:8.3f}"
                f"{new:10.2f}{xla_new:8.2f}{xla_new / new:8.3f}",
                flush=True,
            )
            found[f"{name}, {layout}"] = times
    if options.json:
        record = {"rows": options.rows, "cols": options.cols, "threads": threads, "ms": found}
        options.json.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
