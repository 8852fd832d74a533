# SPDX-License-Identifier: Apache-2.0
"""Trains a small network with quantized layers, sharded by FSDP2 over the ranks of torchrun.

    torchrun --nproc_per_node 2 examples/fsdp2_train.py --out /tmp/run

The same file runs on a cluster: start it on each node with torchrun's --nnodes and --rdzv_endpoint,
and give --out a folder that all nodes share. Rank 0 prints a line per step. Every --every steps the
ranks save a checkpoint; the same command resumes from the newest one, with the same bits as an
uninterrupted run.
"""

import argparse
import contextlib
import json
import os
import shutil
import sys
import time
from itertools import pairwise
from pathlib import Path

import narrowfloat.pytorch as nfp
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from narrowfloat.common import recipe
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import fully_shard

RECIPES = {
    "delayed": lambda: recipe.DelayedScaling(amax_history_len=4),
    "current": recipe.Float8CurrentScaling,
    "mxfp8": recipe.MXFP8BlockScaling,
    "blockwise": recipe.Float8BlockScaling,
    "nvfp4": recipe.NVFP4BlockScaling,
}
FEATURES, CLASSES = 128, 256


class Network(torch.nn.Module):
    """A network with quantized products and, with --quantized-weights, quantized weights."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        sizes = [FEATURES, *[width] * (depth - 1), CLASSES]
        self.layers = torch.nn.ModuleList(nfp.Linear(a, b) for a, b in pairwise(sizes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers[:-1]:
            x = F.relu(layer(x))
        return self.layers[-1](x)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of checkpoints and losses")
    parser.add_argument("--recipe", choices=RECIPES, default="mxfp8")
    parser.add_argument("--quantized-weights", action="store_true", help="keep no fp32 weights")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--every", type=int, default=10, help="steps between checkpoints")
    parser.add_argument("--batch", type=int, default=64, help="samples of each rank")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--depth", type=int, default=3)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def make_network(arguments: argparse.Namespace) -> Network:
    """Makes the same weights on every rank, and shards them."""
    torch.manual_seed(arguments.seed)
    quantized = contextlib.nullcontext()
    if arguments.quantized_weights:
        quantized = nfp.quantized_model_init(enabled=True, recipe=RECIPES[arguments.recipe]())
    with quantized:
        network = Network(arguments.width, arguments.depth)
    for layer in network.layers:
        fully_shard(layer)
    fully_shard(network)
    return network


def make_batch(arguments: argparse.Namespace, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Makes this rank's samples of a step: noise, classified by a fixed linear map."""
    teacher = torch.Generator().manual_seed(arguments.seed)
    answers = torch.randn(CLASSES, FEATURES, generator=teacher)
    place = (step * dist.get_world_size() + dist.get_rank()) * 1_000_003 + arguments.seed
    x = torch.randn(arguments.batch, FEATURES, generator=torch.Generator().manual_seed(place))
    return x, (x @ answers.t()).argmax(1)


def state_of(network: Network, optimizer: torch.optim.Optimizer) -> dict[str, object]:
    return {
        "network": get_model_state_dict(network),
        "optimizer": get_optimizer_state_dict(network, optimizer),
    }


def newest_checkpoint(out: Path) -> Path | None:
    """Returns the newest complete checkpoint."""
    found = sorted(path for path in out.glob("step_*") if path.suffix != ".partial")
    return found[-1] if found else None


def save(out: Path, step: int, network: Network, optimizer: torch.optim.Optimizer) -> None:
    """Saves under a temporary name first, so that an interrupted save keeps the last checkpoint."""
    path = out / f"step_{step:08}"
    partial = path.with_suffix(".partial")
    if dist.get_rank() == 0:
        shutil.rmtree(partial, ignore_errors=True)
    dist.barrier()
    dcp.save(state_of(network, optimizer), checkpoint_id=partial)
    dist.barrier()
    if dist.get_rank() == 0:
        os.replace(partial, path)
        for old in sorted(out.glob("step_*"))[:-2]:
            shutil.rmtree(old)
    dist.barrier()


def resume(path: Path, network: Network, optimizer: torch.optim.Optimizer) -> int:
    """Loads a checkpoint from any number of ranks. Returns the number of its steps."""
    state = state_of(network, optimizer)
    dcp.load(state, checkpoint_id=path)
    set_model_state_dict(network, state["network"])
    set_optimizer_state_dict(network, optimizer, state["optimizer"])
    return int(path.name.removeprefix("step_"))


def seed_step(arguments: argparse.Namespace, step: int) -> None:
    """Seeds random numbers by the step, so that a resumed run draws the same ones."""
    torch.manual_seed((arguments.seed + step) * dist.get_world_size() + dist.get_rank())


def train_step(
    network: Network,
    optimizer: torch.optim.Optimizer,
    batch: tuple[torch.Tensor, torch.Tensor],
    chosen: recipe.Recipe,
) -> float:
    """Returns the loss, averaged over the ranks."""
    x, wanted = batch
    # NVFP4's transform accepts only bfloat16.
    narrow = torch.autocast("cpu", torch.bfloat16, enabled=chosen.nvfp4())
    with narrow, nfp.autocast(enabled=True, recipe=chosen):
        loss = F.cross_entropy(network(x), wanted)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    mean = loss.detach() / dist.get_world_size()
    dist.all_reduce(mean)
    return mean.item()


def train(arguments: argparse.Namespace) -> None:
    arguments.out.mkdir(parents=True, exist_ok=True)
    network = make_network(arguments)
    optimizer = torch.optim.AdamW(network.parameters(), lr=arguments.rate, foreach=False)
    first, log = 0, arguments.out / "losses.jsonl"
    found = newest_checkpoint(arguments.out)
    dist.barrier()
    if found is not None:
        first = resume(found, network, optimizer)
    chosen = RECIPES[arguments.recipe]()
    if dist.get_rank() == 0:
        kept = log.read_text().splitlines()[:first] if log.exists() else []
        log.write_text("".join(f"{line}\n" for line in kept))
        print(f"{dist.get_world_size()} ranks, {arguments.recipe}, from step {first}", flush=True)
    for step in range(first, arguments.steps):
        begin = time.monotonic()
        seed_step(arguments, step)
        loss = train_step(network, optimizer, make_batch(arguments, step), chosen)
        if dist.get_rank() == 0:
            print(f"step {step}: loss {loss:.4f}, {time.monotonic() - begin:.2f} s", flush=True)
            with open(log, "a") as file:
                file.write(json.dumps({"step": step, "loss": loss}) + "\n")
        if (step + 1) % arguments.every == 0 or step + 1 == arguments.steps:
            save(arguments.out, step + 1, network, optimizer)


def main() -> None:
    arguments = parse_arguments()
    torch.set_num_threads(max(1, torch.get_num_threads() // int(os.environ["LOCAL_WORLD_SIZE"])))
    dist.init_process_group("gloo")
    train(arguments)
    dist.destroy_process_group()
    sys.stdout.flush()
    # Threads of gloo may still hold tensors; freeing them while Python shuts down ends the process
    # with an error.
    os._exit(0)


if __name__ == "__main__":
    if "LOCAL_WORLD_SIZE" not in os.environ:
        sys.exit("needs torchrun: torchrun --nproc_per_node 2 examples/fsdp2_train.py --out DIR")
    main()
