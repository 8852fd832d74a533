# SPDX-License-Identifier: Apache-2.0
"""Times a training step of a linear layer with each recipe and mode, and of torch.nn.Linear.

usage: python bench/linear_step.py [--threads N] [--repetitions N] [--profile]

A step is forward, gradient of the input and gradient of the weight. Contenders run in turns, and
the minimum of all turns counts. --profile prints the times of functions in the fast MXFP8 step.
"""

import argparse
import time
from collections.abc import Callable

import narrowfloat.pytorch as nfp
import torch
from narrowfloat.common.recipe import (
    Float8BlockScaling,
    Float8CurrentScaling,
    MXFP8BlockScaling,
    NVFP4BlockScaling,
)

TOKENS, INPUTS, OUTPUTS = 2048, 1024, 4096
RECIPES = (Float8CurrentScaling, MXFP8BlockScaling, Float8BlockScaling, NVFP4BlockScaling)


def steps() -> dict[str, Callable[[], None]]:
    """Returns the contenders by name."""
    torch.manual_seed(0)
    x = torch.randn(TOKENS, INPUTS, dtype=torch.bfloat16, requires_grad=True)
    dy = torch.randn(TOKENS, OUTPUTS, dtype=torch.bfloat16)
    plain = torch.nn.Linear(INPUTS, OUTPUTS, dtype=torch.bfloat16)
    ours = nfp.Linear(INPUTS, OUTPUTS, params_dtype=torch.bfloat16)

    def run(layer: torch.nn.Module) -> None:
        x.grad = layer.weight.grad = layer.bias.grad = None
        layer(x).backward(dy)

    def quantized(recipe: type, mode: str) -> None:
        with nfp.product_mode(mode), nfp.autocast(recipe=recipe()):
            run(ours)

    found: dict[str, Callable[[], None]] = {"torch.nn.Linear, bfloat16": lambda: run(plain)}
    for recipe in RECIPES:
        for mode in ("fast", "reproducible"):
            found[f"{recipe.__name__}, {mode}"] = lambda r=recipe, m=mode: quantized(r, m)
    return found


def main() -> None:
    """Prints a row for each contender."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    contenders = steps()
    seconds = dict.fromkeys(contenders, float("inf"))
    for _ in range(options.repetitions):
        for name, step in contenders.items():
            start = time.perf_counter()
            step()
            seconds[name] = min(seconds[name], time.perf_counter() - start)
    base = next(iter(seconds.values()))
    print(f"{TOKENS} tokens, {INPUTS} x {OUTPUTS}, {options.threads} threads")
    print("| step | ms | times torch.nn.Linear |\n| --- | --- | --- |")
    for name, best in seconds.items():
        print(f"| {name} | {best * 1e3:.1f} | {best / base:.2f} |")
    if options.profile:
        import cProfile

        step = contenders["MXFP8BlockScaling, fast"]
        cProfile.runctx("for _ in range(5): step()", {"step": step}, {}, sort="tottime")


if __name__ == "__main__":
    main()
