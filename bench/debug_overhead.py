# SPDX-License-Identifier: Apache-2.0
"""Measures the cost of debugging for a layer without features, and for one with features.

usage: python bench/debug_overhead.py [--side N] [--repetitions N] [--json FILE]

Forward and backward passes of narrowfloat.pytorch.Linear on a batch as wide as the layer, with
MXFP8: without a session, in sessions whose configurations select another layer or this one. They
run in turns of many passes, and the best turn counts. The ratio is for the layer that is not
selected: the cost in all other layers of a model.
"""

import argparse
import contextlib
import json
import math
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import nvdlfw_inspect.api as debug_api
import torch
from narrowfloat.common.recipe import MXFP8BlockScaling
from narrowfloat.debug import features
from narrowfloat.debug.pytorch.debug_state import TEDebugState
from narrowfloat.debug.pytorch.layer import Slots
from narrowfloat.pytorch import Linear, autocast

PASSES = 10  # per turn
ASKED = 2000  # calls per turn of a function that takes less than a microsecond
OPERANDS = ["activation", "weight", "gradient"]
LOG = {"LogTensorStats": {"enabled": True, "tensors": OPERANDS, "stats": ["max", "mean", "std"]}}
FAKE = {
    "FakeQuant": {
        "enabled": True,
        "gemms": ["fprop", "dgrad", "wgrad"],
        "tensors": OPERANDS,
        "quant_format": "MXFP8E4M3",
    }
}
BASE, UNSELECTED = "no session", "session, layer not selected"
# The layer that a session's features select, and the features; None means no session.
SESSIONS: dict[str, tuple[str, dict] | None] = {
    BASE: None,
    UNSELECTED: ("other", LOG),
    "LogTensorStats of three tensors": ("linear", LOG),
    "FakeQuant of six operands": ("linear", FAKE),
}


@contextlib.contextmanager
def session(choice: tuple[str, dict] | None) -> Iterator[None]:
    """Runs a session of nvdlfw_inspect, or none for None."""
    if choice is None:
        yield
        return
    layer, blocks = choice
    section = {"enabled": True, "layers": {"layer_types": [layer]}, "transformer_engine": blocks}
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(None):
        debug_api.initialize(
            {"bench": section}, feature_dirs=str(Path(features.__file__).parent), log_dir=folder
        )
        try:
            yield
        finally:
            debug_api.end_debug()


def seconds(call: Callable[[], object], count: int) -> float:
    """Returns the time of one call."""
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count


def measure(side: int, repetitions: int) -> dict[str, float]:
    """Returns the microseconds of one pass, by session, and of the sessions' own calls."""
    TEDebugState._reset()
    model = Linear(side, side, name="linear", dtype=torch.bfloat16)
    x = torch.randn(side, side, dtype=torch.bfloat16, requires_grad=True)
    recipe = MXFP8BlockScaling()

    def run() -> None:
        with autocast(recipe=recipe):
            y = model(x)
        y.backward(x)

    best: dict[str, float] = {}

    def keep(name: str, found: float) -> None:
        best[name] = min(best.get(name, math.inf), found * 1e6)

    for _ in range(repetitions):
        for name, choice in SESSIONS.items():
            with session(choice):
                run()
                debug_api.step()
                seconds(run, PASSES)  # replaces the contents of caches and heaps
                keep(name, seconds(run, PASSES))
                if name in (BASE, UNSELECTED):
                    parents = Slots()
                    watch = lambda parents=parents: model._watcher.watch(parents)  # noqa: E731
                    keep(f"the question alone, {name}", seconds(watch, ASKED))
                if name == UNSELECTED:
                    keep("the host's step()", seconds(debug_api.step, PASSES))
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--side", type=int, default=64)
    parser.add_argument("--repetitions", type=int, default=60)
    parser.add_argument("--json", type=Path, help="writes everything measured")
    options = parser.parse_args()

    torch.set_num_threads(1)
    found = measure(options.side, options.repetitions)
    print(f"microseconds, {options.side} x {options.side} bfloat16, torch", torch.__version__)
    for name, microseconds in found.items():
        print(f"{name:56} {microseconds:9.2f}")
    print(f"{'ratio of a layer that is not selected':56} {found[UNSELECTED] / found[BASE]:9.3f}")
    if options.json:
        options.json.write_text(json.dumps({"side": options.side, "us": found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
