# SPDX-License-Identifier: Apache-2.0
"""Finds the matrix that needs more precision than E5M2: by layer, by gemm, by tensor.

usage: python -m demo.debug_hunt [--plot FILE] [--tensorboard FOLDER]

Three configurations under demo/debug/ list suspects. Each run trains the same small network for
more steps, with half of the suspects in E5M2; the search continues in the half that raises the
loss. docs/debug.md explains it step by step.
"""

import argparse
import contextlib
import copy
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nvdlfw_inspect.api as debug_api
import torch
import yaml
from narrowfloat.debug import features

from demo.debug_network import STEPS, Network, Task, loss_of, pretrained

CONFIGS = Path(__file__).with_name("debug")
FURTHER_STEPS, RATE = 30, 1e-4
# A run is broken if its loss is above this multiple of the loss in high precision.
BROKEN = 2.0
# The path of keys to the list of suspects in each configuration.
FEATURE = ("transformer_engine", "FakeQuant")
HUNT = {
    "1_layers.yaml": ("layers", "layers", "layer_types"),
    "2_gemms.yaml": ("gemms", *FEATURE, "gemms"),
    "3_tensors.yaml": ("tensors", *FEATURE, "tensors"),
}


def read(name: str) -> dict[str, Any]:
    """Returns a configuration of demo/debug/."""
    return yaml.safe_load((CONFIGS / name).read_text())


@contextlib.contextmanager
def session(config: dict[str, Any], folder: str, writer: object = None) -> Iterator[None]:
    """Runs a session with logs in `folder`; `writer` gets its statistics too."""
    try:
        debug_api.initialize(
            config,
            feature_dirs=str(Path(features.__file__).parent),
            log_dir=folder,
            tb_writer=writer,
            default_logging_enabled=True,
        )
        yield
    finally:
        debug_api.end_debug()


def train(model: Network, config: dict[str, Any] | None, writer: object = None) -> list[float]:
    """Trains a copy of `model` for FURTHER_STEPS steps. Returns the losses."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        if config is not None:
            stack.enter_context(session(config, folder, writer))
        return _train(copy.deepcopy(model), in_session=config is not None)


def _train(model: Network, in_session: bool) -> list[float]:
    task, losses = Task(), []
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    for step in range(STEPS, STEPS + FURTHER_STEPS):
        loss = loss_of(model, task.batch(step))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if in_session:
            debug_api.step()
    return losses


def final(losses: list[float]) -> float:
    """Returns the mean of the last third."""
    last = losses[-FURTHER_STEPS // 3 :]
    return sum(last) / len(last)


class Hunt:
    """Trains the model with suspects in E5M2, and prints each loss."""

    def __init__(self, model: Network) -> None:
        self.model = model
        self.good = final(train(model, None))
        print(f"{'high precision':36} {self.good:.4f}")

    def breaks(self, config: dict[str, Any], keys: tuple[str, ...], suspects: list[str]) -> bool:
        """Returns whether the loss breaks with these suspects as the list at `keys`."""
        config = copy.deepcopy(config)
        block = config
        for key in keys[:-1]:
            block = block[key]
        block[keys[-1]] = suspects
        loss = final(train(self.model, config))
        broken = loss > BROKEN * self.good
        print(f"  {', '.join(suspects):34} {loss:.4f}{'  breaks' if broken else ''}")
        return broken

    def find(self, name: str) -> str:
        """Returns the single suspect of a configuration that breaks the loss.

        Errors: RuntimeError if all suspects together do not break it, or neither half does.
        """
        config, keys = read(name), HUNT[name]
        suspects: Any = config
        for key in keys:
            suspects = suspects[key]
        print(f"\n{name}: FP8E5M2 in")
        if not self.breaks(config, keys, suspects):
            raise RuntimeError(f"{name}: nothing breaks")
        while len(suspects) > 1:
            middle = len(suspects) // 2
            halves = (suspects[:middle], suspects[middle:])
            for half in halves:
                if self.breaks(config, keys, half):
                    suspects = half
                    break
            else:
                raise RuntimeError(f"{name}: only together they break: {', '.join(suspects)}")
        print(f"it is {suspects[0]}")
        return suspects[0]


def statistics(model: Network, writer: object = None) -> dict[str, list[tuple[int, float]]]:
    """Returns the steps and values that demo/debug/statistics.yaml logs, by name."""
    found: dict[str, list[tuple[int, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        with session(read("statistics.yaml"), folder, writer):
            _train(copy.deepcopy(model), in_session=True)
        (log,) = Path(folder, "nvdlfw_inspect_statistics_logs").iterdir()
        line = r"(\S+)\s+iteration=(\d+)\s+value=(\S+)"
        for name, step, value in re.findall(line, log.read_text()):
            found.setdefault(name, []).append((int(step), float(value)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--plot", type=Path, metavar="FILE", help="writes curves, as PNG or SVG")
    parser.add_argument(
        "--tensorboard", type=Path, metavar="FOLDER", help="writes statistics for TensorBoard"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    hunt = Hunt(pretrained())
    for name in HUNT:
        hunt.find(name)
    cured = train(hunt.model, read("cure.yaml"))
    print(f"\n{'cure.yaml: all but that':36} {final(cured):.4f}")
    if options.tensorboard is not None:
        from torch.utils.tensorboard import SummaryWriter

        with SummaryWriter(options.tensorboard) as writer:
            statistics(hunt.model, writer)
    if options.plot is not None:
        from demo.debug_plot import plot

        curves = {
            "high precision": train(hunt.model, None),
            "E5M2 everywhere": train(hunt.model, read("1_layers.yaml")),
            "E5M2 but in one operand": cured,
        }
        plot(curves, statistics(hunt.model), options.plot)


if __name__ == "__main__":
    main()
