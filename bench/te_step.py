# SPDX-License-Identifier: Apache-2.0
"""Times steps of TransformerEngine's Linear on the CPU, and of torch.nn.Linear in bfloat16.

usage: python bench/te_step.py [--threads N] [--repetitions N]

A step is forward and backward. Contenders run in turns, and the minimum of all turns counts. The
small layer shows the cost of Python in a step, the large one the cost of the product.
"""

import argparse
import time
from collections.abc import Callable

import narrowfloat.te  # noqa: F401  before TransformerEngine
import torch

import transformer_engine.pytorch as te  # isort: skip
from narrowfloat.pytorch import product_mode  # isort: skip
from transformer_engine.common import recipe  # isort: skip

BF16 = torch.bfloat16
RECIPES = (
    recipe.DelayedScaling,
    recipe.Float8CurrentScaling,
    recipe.MXFP8BlockScaling,
    recipe.Float8BlockScaling,
    recipe.NVFP4BlockScaling,
)


def steps(tokens: int, width: int) -> dict[str, Callable[[], None]]:
    """Returns the contenders by name."""
    x = torch.randn(tokens, width, dtype=BF16, requires_grad=True)
    dy = torch.randn(tokens, width, dtype=BF16)

    def step(layer: torch.nn.Module, chosen: recipe.Recipe | None = None) -> None:
        x.grad = layer.weight.grad = layer.bias.grad = None
        with product_mode("fast"):
            with te.autocast(enabled=chosen is not None, recipe=chosen):
                y = layer(x)
            y.backward(dy)

    torch_layer = torch.nn.Linear(width, width, dtype=BF16)
    plain = te.Linear(width, width, params_dtype=BF16)
    found: dict[str, Callable[[], None]] = {
        "torch.nn.Linear, bf16": lambda: step(torch_layer),
        "te.Linear, bf16": lambda: step(plain),
    }
    for make in RECIPES:
        layer, chosen = te.Linear(width, width, params_dtype=BF16), make()
        found[f"te.Linear, {make.__name__}, fast"] = lambda m=layer, c=chosen: step(m, c)
    return found


def measure(contenders: dict[str, Callable[[], None]], repetitions: int) -> dict[str, float]:
    """Returns the minimum seconds of a step, by contender."""
    turns: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(repetitions + 3):
        for name, step in contenders.items():
            begin = time.perf_counter()
            step()
            if turn >= 3:  # the first turns allocate
                turns[name].append(time.perf_counter() - begin)
    return {name: min(seconds) for name, seconds in turns.items()}


def main() -> None:
    """Prints a row for each contender and size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repetitions", type=int, default=101)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for tokens, width in ((64, 64), (512, 1024)):
        print(f"{tokens} tokens, {width} x {width}, {options.threads} threads")
        seconds = measure(steps(tokens, width), options.repetitions)
        for name, value in seconds.items():
            beside = [value / seconds[other] for other in list(seconds)[:2]]
            print(f"  {name:<38} {value * 1e3:8.3f} ms {beside[0]:6.2f} {beside[1]:6.2f}")
    print("the last columns: over torch.nn.Linear, over te.Linear in bf16")


if __name__ == "__main__":
    main()
