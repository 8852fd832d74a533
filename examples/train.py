# SPDX-License-Identifier: Apache-2.0
"""Trains a small character-level transformer in fp32, bf16 and with every recipe.

Prints progress to stderr and a table to stdout, and draws the loss curves (PNG and SVG). Saves a
checkpoint of each run every few steps; the same command resumes an interrupted run, with the same
bits as an uninterrupted one. The bits depend on the seed, not on the number of threads.
"""

import argparse
import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import narrowfloat.pytorch as nfp
import torch
import torch.nn.functional as F
from char_transformer import CharTransformer, Text
from loss_curves import draw
from narrowfloat.common import recipe

LENGTH = 64  # characters of context


@dataclass(frozen=True)
class Run:
    """The arithmetic of the blocks' linear layers. Parameters are fp32 in every run.

    dtype: type of the products' operands, set by torch.autocast. make_recipe: their quantization.
    """

    dtype: torch.dtype
    make_recipe: Callable[[], recipe.Recipe] | None = None


RUNS: dict[str, Run] = {
    "fp32": Run(torch.float32),
    "bf16": Run(torch.bfloat16),
    "fp8 delayed": Run(torch.bfloat16, lambda: recipe.DelayedScaling(amax_history_len=16)),
    "fp8 current": Run(torch.bfloat16, recipe.Float8CurrentScaling),
    "mxfp8": Run(torch.bfloat16, recipe.MXFP8BlockScaling),
    "fp8 blockwise": Run(torch.bfloat16, recipe.Float8BlockScaling),
    "nvfp4": Run(torch.bfloat16, recipe.NVFP4BlockScaling),
    "nvfp4 plain": Run(
        torch.bfloat16,
        lambda: recipe.NVFP4BlockScaling(disable_rht=True, disable_stochastic_rounding=True),
    ),
}


@dataclass(frozen=True)
class Settings:
    """Options that, with the run's name and the text, determine the bits of a run."""

    seed: int
    batch: int
    rate: float


class Training:
    """The state of one run: model, optimizer and all other contents of a checkpoint."""

    def __init__(self, name: str, settings: Settings, text: Text) -> None:
        self.name, self.settings, self.text = name, settings, text
        self.run = RUNS[name]
        torch.manual_seed(settings.seed)  # for parameters and stochastic rounding
        self.generator = torch.Generator().manual_seed(settings.seed)  # selects each step's text
        self.recipe = None if self.run.make_recipe is None else self.run.make_recipe()
        self.model = CharTransformer(len(text.alphabet), length=LENGTH)
        if self.recipe is not None:  # embeddings, norms and the head stay in high precision
            nfp.convert_model(self.model, lambda name, _: name.startswith("blocks."))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=settings.rate)
        self.losses: list[float] = []
        self.seconds = 0.0

    def _loss(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        with contextlib.ExitStack() as stack:
            if self.run.dtype != torch.float32:
                stack.enter_context(torch.autocast("cpu", self.run.dtype))
            if self.recipe is not None:
                stack.enter_context(nfp.autocast(recipe=self.recipe))
            logits = self.model(inputs)
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())

    def step(self) -> None:
        """Performs one training step and records its loss."""
        begin = time.perf_counter()
        self.optimizer.zero_grad()
        loss = self._loss(*self.text.batch(self.settings.batch, LENGTH, self.generator))
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())
        self.seconds += time.perf_counter() - begin

    @torch.no_grad()
    def validation_loss(self) -> float:
        """Computes the loss on validation text."""
        return self._loss(*self.text.validation_batch(self.settings.batch, LENGTH)).item()

    def state(self) -> dict[str, Any]:
        """Returns all state that the next step depends on, for torch.save()."""
        return {
            "run": self.name,
            "settings": asdict(self.settings),
            "alphabet": "".join(self.text.alphabet),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "generators": [torch.get_rng_state(), self.generator.get_state()],
            "losses": self.losses,
            "seconds": self.seconds,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Restores a state(). Errors: ValueError if it belongs to another run."""
        for key, mine in self.state().items():
            if key in ("run", "settings", "alphabet") and state[key] != mine:
                raise ValueError(f"the checkpoint must have {key} {mine!r}, got {state[key]!r}")
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["generators"][0])
        self.generator.set_state(state["generators"][1])
        self.losses, self.seconds = list(state["losses"]), state["seconds"]


def save(training: Training, path: Path) -> None:
    """Writes a checkpoint; an interrupted write leaves the previous one in place."""
    partial = path.with_suffix(".partial")
    torch.save(training.state(), partial)
    os.replace(partial, path)


def report(training: Training, steps: int) -> None:
    """Prints the progress of a run: in place on a terminal, in lines elsewhere."""
    count = len(training.losses)
    rate = training.seconds / max(count, 1)
    line = (
        f"{training.name:<14} step {count:>4}/{steps}  loss {training.losses[-1]:.4f}  "
        f"{rate * 1e3:.0f} ms a step, {rate * (steps - count):.0f} s left"
    )
    last = count == steps
    if sys.stderr.isatty():
        print(f"\r{line:<78}", end="\n" if last else "", file=sys.stderr, flush=True)
    elif last or count % 50 == 0:
        print(line, file=sys.stderr, flush=True)


def train(training: Training, path: Path, steps: int, every: int) -> None:
    """Trains until `steps` are done, from the checkpoint at `path` if it exists."""
    if path.exists():
        training.load(torch.load(path, weights_only=True))
    try:
        while len(training.losses) < steps:
            training.step()
            count = len(training.losses)
            report(training, steps)
            if count % every == 0 or count == steps:
                save(training, path)
    except KeyboardInterrupt:
        print(
            f"\ninterrupted: {path} holds the last checkpoint; the same command goes on from there",
            file=sys.stderr,
        )
        raise SystemExit(130) from None


def table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yields the lines of the results, each with the difference from the run in bf16."""
    other = next((row["validation"] for row in rows if row["run"] == "bf16"), None)
    yield f"{'run':<14}  {'training':>8}  {'validation':>10}  {'from bf16':>9}  {'ms a step':>9}"
    for row in rows:
        difference = "" if other is None else f"{row['validation'] - other:+.4f}"
        yield (
            f"{row['run']:<14}  {row['training']:>8.4f}  {row['validation']:>10.4f}  "
            f"{difference:>9}  {row['milliseconds']:>9.0f}"
        )


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", nargs="+", choices=list(RUNS), default=list(RUNS))
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--batch", type=int, default=16, help="pieces of text per step")
    parser.add_argument("--rate", type=float, default=2e-3, help="learning rate of AdamW")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, help="of PyTorch and narrowfloat")
    parser.add_argument("--every", type=int, default=50, help="steps between checkpoints")
    parser.add_argument("--out", type=Path, default=Path("build/train"), help="folder of results")
    parser.add_argument("--json", action="store_true", help="print one JSON object, not a table")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)
    arguments.out.mkdir(parents=True, exist_ok=True)
    settings = Settings(arguments.seed, arguments.batch, arguments.rate)
    text, rows, curves = Text(), [], {}
    for name in arguments.runs:
        training = Training(name, settings, text)
        checkpoint = arguments.out / f"{name.replace(' ', '-')}.pt"
        train(training, checkpoint, arguments.steps, arguments.every)
        curves[name] = training.losses
        rows.append(
            {
                "run": name,
                "training": sum(training.losses[-20:]) / len(training.losses[-20:]),
                "validation": training.validation_loss(),
                "milliseconds": training.seconds / len(training.losses) * 1e3,
                "losses": training.losses,
            }
        )
    pictures = [str(path) for path in draw(curves, arguments.out / "loss")]
    if arguments.json:
        print(json.dumps({"runs": rows, "pictures": pictures}))
        return
    print("\n".join(table(rows)))
    print(f"\nlosses in nats per character; curves: {', '.join(pictures)}")


if __name__ == "__main__":
    main()
