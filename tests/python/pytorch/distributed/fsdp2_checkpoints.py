# SPDX-License-Identifier: Apache-2.0
"""Scenarios of FSDP2 with activation checkpointing, which every rank runs."""

import functools
from collections.abc import Callable

import torch
import torch.distributed as dist
from families import E4M3
from fsdp2 import require_same_gradients
from models import random
from narrowfloat.common import recipe
from torch.distributed._composable import checkpoint as set_checkpoint
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint

from narrowfloat import pytorch as nfp

SIZE = 256
STEPS = 2
RECIPES: dict[str, Callable[[], recipe.Recipe]] = {
    "mxfp8": recipe.MXFP8BlockScaling,
    "float8_current": recipe.Float8CurrentScaling,
    "float8_delayed": recipe.DelayedScaling,
    "blockwise": recipe.Float8BlockScaling,
}


class Block(torch.nn.Module):
    """A layer in a separate module. The parameters of all blocks have the same names."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nfp.Linear(SIZE, SIZE, params_dtype=torch.bfloat16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(self.layer(x))


def blocks(name: str) -> list[Block]:
    torch.manual_seed(3)
    with nfp.quantized_model_init(recipe=RECIPES[name]()):
        return [Block(), Block()]


def shard(net: torch.nn.Sequential) -> torch.nn.Sequential:
    for block in net:
        fully_shard(block, reshard_after_forward=True)
    return fully_shard(net, reshard_after_forward=True)


def step(
    net: torch.nn.Module,
    chosen: recipe.Recipe,
    x: torch.Tensor,
    share: float,
    reentrant: bool | None,
) -> torch.Tensor:
    """Runs both passes and returns the output. Gradients are of `share` times the loss.

    reentrant: the kind of checkpoint around the network; None for no checkpoint.
    """
    x = x.clone().requires_grad_()
    with nfp.autocast(recipe=chosen):
        y = net(x) if reentrant is None else checkpoint(net, x, use_reentrant=reentrant)
    (y.float().square().sum() * share).backward()
    return y.detach()


def require_average(net: torch.nn.Module, whole: torch.nn.Module) -> None:
    """Asserts that gradients are those of the whole network, divided by the number of ranks."""
    for parameter in whole.parameters():
        parameter.grad.div_(dist.get_world_size())
    require_same_gradients(net, whole)


def train(name: str, style: str, rewrap: bool = False) -> None:
    """Checks that outputs and gradients are those of the whole network without checkpoints.

    Gradients are of only rank 0's loss, so that sums over ranks are exact. rewrap: starts to use
    checkpoints after the first step.
    """
    whole = torch.nn.Sequential(*blocks(name))
    made = blocks(name)
    if style == "wrapper":
        made = [checkpoint_wrapper(block) for block in made]
    net = shard(torch.nn.Sequential(*made))
    if style == "composable":
        for block in net:
            set_checkpoint(block)
    reentrant = {"around": False, "reentrant": True}.get(style)
    chosen, of_whole = RECIPES[name](), RECIPES[name]()
    share = 1.0 if dist.get_rank() == 0 else 0.0
    for count in range(STEPS):
        x = random(32, SIZE, seed=count).bfloat16()
        mine = step(net, chosen, x, share, None if rewrap and count == 0 else reentrant)
        other = step(whole, of_whole, x, 1.0, None)
        assert torch.equal(mine, other), f"output in step {count}"
        require_average(net, whole)
        for each in (net, whole):
            each.zero_grad()


def owned_by_another_module(reentrant: bool) -> None:
    """Checks a plain module that multiplies by a quantized weight and uses a checkpoint itself."""

    class Product(torch.nn.Module):
        def __init__(self, checkpointed: bool) -> None:
            super().__init__()
            self.checkpointed = checkpointed
            self.weight = torch.nn.Parameter(nfp.MXFP8Quantizer(E4M3)(random(SIZE, SIZE, seed=1)))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if not self.checkpointed:
                return self.multiply(x)
            return checkpoint(self.multiply, x, use_reentrant=reentrant)

        def multiply(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.gelu(torch.nn.functional.linear(x, self.weight))

    whole, net = Product(False), fully_shard(Product(True), reshard_after_forward=True)
    share = 1.0 if dist.get_rank() == 0 else 0.0
    for count in range(STEPS):
        x = random(32, SIZE, seed=count)
        outputs = []
        for each, part in ((net, share), (whole, 1.0)):
            inp = x.clone().requires_grad_()
            y = each(inp)
            (y.square().sum() * part).backward()
            outputs.append(y)
        assert torch.equal(*outputs)
        require_average(net, whole)
        for each in (net, whole):
            each.zero_grad()


def directions_of_backward() -> None:
    """Checks that backward gathers both directions of a weight only for checkpointed layers."""
    net = shard(torch.nn.Sequential(*blocks("mxfp8")))
    seen: list[tuple[bool, bool]] = []
    weight = net[0].layer.weight.to_local()
    gathering = type(weight)._gather_usages

    def noted(shard: nfp.QuantizedTensor, module: torch.nn.Module) -> tuple[bool, bool]:
        usages = gathering(shard, module)
        seen.append(usages)
        return usages

    type(weight)._gather_usages = noted
    try:
        for wrapped in (None, False):
            seen.clear()
            x = random(32, SIZE, seed=1).bfloat16()
            step(net, recipe.MXFP8BlockScaling(), x, 1.0, wrapped)
            forward, backward = (True, False), (True, True) if wrapped is False else (False, True)
            assert seen[:2] == [forward] * 2, seen
            assert set(seen[2:]) <= {forward, backward} and backward in seen, seen
    finally:
        type(weight)._gather_usages = gathering


Scenario = Callable[[], None]


def scenarios(world: int) -> dict[str, Scenario]:
    found: dict[str, Scenario] = {}
    for name in RECIPES:
        for style in ("wrapper", "composable", "around", "reentrant"):
            found[f"{name}-{style}"] = functools.partial(train, name, style)
    found["mxfp8-later"] = functools.partial(train, "mxfp8", "around", rewrap=True)
    for reentrant in (False, True):
        found[f"owned-{reentrant}"] = functools.partial(owned_by_another_module, reentrant)
    found["directions_of_backward"] = directions_of_backward
    return found
