# SPDX-License-Identifier: Apache-2.0
"""Scenarios of checkpoints: two ranks save, one and three load into nets with other weights."""

import functools
import os
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from families import assert_same_buffers, snapshot
from models import FAMILIES, Net, random, sharded_net, whole_net
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.tensor import DTensor

from narrowfloat import pytorch as nfp

ROWS, STEPS = 768, 2  # whole tiles on two and on three ranks
SAVED = Path(os.environ.get("NF_TEST_SAVED", "."))


def optimizer_of(net: Net) -> torch.optim.Optimizer:
    return torch.optim.AdamW(net.parameters(), lr=2.0**-6, foreach=False)


def step(net: Net, optimizer: torch.optim.Optimizer, number: int) -> None:
    """Takes a step with random gradients, which do not depend on ranks and weights."""
    for place, parameter in enumerate(net.parameters()):
        grad = random(*parameter.shape, seed=100 * number + place)
        if isinstance(parameter, DTensor):
            rows = grad.chunk(dist.get_world_size())[dist.get_rank()]
            grad = DTensor.from_local(rows, parameter.device_mesh, parameter.placements)
        parameter.grad = grad
    optimizer.step()


def state_of(net: Net, optimizer: torch.optim.Optimizer) -> dict[str, object]:
    return {
        "model": get_model_state_dict(net),
        "optimizer": get_optimizer_state_dict(net, optimizer),
    }


def gather_once(net: Net) -> None:
    """Gathers once, so that shards have FSDP2's group, over which they reduce amaxes."""
    net.unshard()
    net.first.unshard()
    net.reshard()
    net.first.reshard()


@functools.cache
def saving_group() -> dist.ProcessGroup:
    """Returns the group of an asynchronous save. Steps at the same time use another group."""
    return dist.new_group()


def save(family: str) -> None:
    """Saves twice, the second time while the next step runs."""
    net = sharded_net(family, ROWS)
    gather_once(net)
    optimizer = optimizer_of(net)
    for number in range(STEPS):
        step(net, optimizer, number)
    dcp.save(state_of(net, optimizer), checkpoint_id=SAVED / family)
    saving = dcp.async_save(
        state_of(net, optimizer),
        checkpoint_id=SAVED / f"{family}-async",
        process_group=saving_group(),
    )
    step(net, optimizer, STEPS)
    saving.result(timeout=30)


@functools.cache
def expected(family: str, steps: int) -> Net:
    """Returns the network after `steps` steps on one process, without a checkpoint."""
    net = whole_net(family, ROWS)
    optimizer = optimizer_of(net)
    for number in range(steps):
        step(net, optimizer, number)
    return net


def rows_of(whole: nfp.QuantizedTensor) -> nfp.QuantizedTensor:
    return whole.detach().chunk(dist.get_world_size())[dist.get_rank()]


def require_bytes(net: Net, wanted: Net) -> None:
    for mine, other in zip(net.weights(), wanted.weights(), strict=True):
        local = mine._local_tensor if isinstance(mine, DTensor) else mine
        assert type(local) is type(other.detach())
        rows = rows_of(other) if isinstance(mine, DTensor) else other.detach()
        assert_same_buffers(snapshot(local.clone()), snapshot(rows.clone()), "loaded")


def load(family: str, saved: str) -> None:
    """Loads into a network of another seed; compares every byte, also after another step."""
    net = sharded_net(family, ROWS, seed=50)
    gather_once(net)
    optimizer = optimizer_of(net)
    state = state_of(net, optimizer)
    dcp.load(state, checkpoint_id=SAVED / saved)
    set_model_state_dict(net, state["model"])
    set_optimizer_state_dict(net, optimizer, state["optimizer"])
    require_bytes(net, expected(family, STEPS))
    step(net, optimizer, STEPS)
    require_bytes(net, expected(family, STEPS + 1))


def load_whole(family: str, saved: str) -> None:
    """Does the same as load() with a network that is not sharded."""
    net = whole_net(family, ROWS, seed=50)
    optimizer = optimizer_of(net)
    state = state_of(net, optimizer)
    dcp.load(state, checkpoint_id=SAVED / saved)
    set_model_state_dict(net, state["model"])
    set_optimizer_state_dict(net, optimizer, state["optimizer"])
    require_bytes(net, expected(family, STEPS))
    step(net, optimizer, STEPS)
    require_bytes(net, expected(family, STEPS + 1))


def full_state(family: str) -> None:
    """Loads a full state dictionary of a sharded network into another sharded network."""
    options = StateDictOptions(full_state_dict=True)
    net = sharded_net(family, ROWS)
    full = get_model_state_dict(net, options=options)
    wanted = whole_net(family, ROWS)
    for mine, other in zip(("first", "second"), wanted.weights(), strict=True):
        got = full[f"{mine}.inner.weight"]
        assert_same_buffers(snapshot(got), snapshot(other.detach()), "full state")
    other_net = sharded_net(family, ROWS, seed=50)
    set_model_state_dict(other_net, full, options=options)
    require_bytes(other_net, wanted)


def from_rank_0(family: str, sharded: bool) -> None:
    """Compares a load from rank 0 with a load of its values, into a sharded or whole network."""
    rank = dist.get_rank()
    whole = whole_net(family, ROWS)
    full = whole.state_dict()
    values = {name: t.dequantize() if "weight" in name else t for name, t in full.items()}

    def made() -> Net:
        net = sharded_net(family, ROWS, seed=50) if sharded else whole_net(family, ROWS, seed=50)
        if sharded:
            gather_once(net)
        return net

    net, other = made(), made()
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        set_model_state_dict(net, dict(full) if rank == 0 else {}, options=options)
    set_model_state_dict(other, values, options=StateDictOptions(full_state_dict=True))
    for mine, wanted in zip(net.parameters(), other.parameters(), strict=True):
        ours, theirs = (p._local_tensor if sharded else p.detach() for p in (mine, wanted))
        assert type(ours) is type(theirs)
        if mine is net.bias:
            assert torch.equal(ours, theirs)
        else:
            assert_same_buffers(snapshot(ours.clone()), snapshot(theirs.clone()), "broadcast")
    texts = [str(each.message) for each in caught if "broadcast_from_rank0" in str(each.message)]
    kind = type(whole.weights()[0].detach()).__name__
    assert texts == [
        f"broadcast_from_rank0 sends the values of a {kind} of shape {tuple(weight.shape)}, which "
        "quantized parameters quantize again; to keep the codes, load with "
        "torch.distributed.checkpoint or give the tensors to every rank"
        for weight in whole.weights()
        if rank == 0 and family != "identity"
    ]


def scenarios(world: int) -> dict[str, Callable[[], None]]:
    found: dict[str, Callable[[], None]] = {}
    if world == 2:
        found["mxfp8-from_rank_0_whole"] = functools.partial(from_rank_0, "mxfp8", False)
    for family in FAMILIES:
        if world == 2:
            found[f"{family}-save"] = functools.partial(save, family)
            found[f"{family}-full_state"] = functools.partial(full_state, family)
            found[f"{family}-from_rank_0"] = functools.partial(from_rank_0, family, True)
            continue
        for saved in (family, f"{family}-async"):
            found[f"{saved}-load"] = functools.partial(load, family, saved)
        if world == 1:
            found[f"{family}-load_whole"] = functools.partial(load_whole, family, f"{family}-async")
    return found
