# SPDX-License-Identifier: Apache-2.0
"""Scenarios of DTensor, tensor parallelism and DDP, which every rank runs."""

import functools
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from families import E4M3, assert_same_buffers, snapshot
from models import FAMILIES, random, whole_net
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from narrowfloat import pytorch as nfp


def mesh() -> DeviceMesh:
    return init_device_mesh("cpu", (dist.get_world_size(),))


def different(family: str, rows: int) -> nfp.QuantizedTensor:
    """Returns another tensor on each rank. Rank 0's is sent."""
    return FAMILIES[family]()(random(rows, 128, seed=20 + dist.get_rank())).detach()


def root(family: str, rows: int) -> nfp.QuantizedTensor:
    return FAMILIES[family]()(random(rows, 128, seed=20)).detach()


def broadcast(family: str) -> None:
    tensor = different(family, 128)
    dist.broadcast(tensor, 0)
    assert_same_buffers(snapshot(tensor), snapshot(root(family, 128)), "broadcast")


def replicate(family: str) -> None:
    tensor = distribute_tensor(different(family, 128), mesh(), [Replicate()])
    assert_same_buffers(snapshot(tensor._local_tensor), snapshot(root(family, 128)), "replica")


def shard(family: str) -> None:
    """Checks that shards are rows of rank 0's tensor, and this tensor when gathered again."""
    rows = 128 * dist.get_world_size()
    whole = root(family, rows)
    tensor = distribute_tensor(different(family, rows), mesh(), [Shard(0)])
    local = tensor._local_tensor
    assert type(local) is type(whole)
    wanted = whole.dequantize().chunk(dist.get_world_size())[dist.get_rank()]
    assert torch.equal(local.dequantize(), wanted)
    assert_same_buffers(snapshot(tensor.full_tensor()), snapshot(whole), "full_tensor")
    again = tensor.redistribute(placements=[Replicate()])
    assert_same_buffers(snapshot(again._local_tensor), snapshot(whole), "redistribute")


def cut_blocks() -> None:
    tensor = nfp.MXFP8Quantizer(E4M3)(random(32 * dist.get_world_size() + 32, 128, seed=1))
    with pytest.raises(NotImplementedError, match=r"cannot be sharded: .* blocks of 32"):
        distribute_tensor(tensor.detach(), mesh(), [Shard(0)])


def no_sums(family: str) -> None:
    tensor = different(family, 128)
    before = snapshot(tensor)
    with pytest.raises(NotImplementedError, match="is not supported in this collective"):
        dist.all_reduce(tensor)
    assert_same_buffers(snapshot(tensor), before, "unchanged")


def ddp(family: str) -> None:
    """Checks that replicas with rank 0's weights stay equal, and that DDP sends no values."""
    rows = 128
    net = whole_net(family, rows, seed=7 + dist.get_rank())
    wanted = whole_net(family, rows, seed=7)
    if family == "identity":
        replica = DistributedDataParallel(net)
    else:
        with pytest.raises(
            NotImplementedError,
            match=r"^DistributedDataParallel cannot broadcast the values of a \w+ of shape \(.*\): "
            r"call torch\.distributed\.broadcast\(parameter\.data, 0\) for each parameter, which "
            r"sends the codes, and pass init_sync=False$",
        ):
            DistributedDataParallel(net)
        for parameter in net.parameters():
            dist.broadcast(parameter.data, 0)
        replica = DistributedDataParallel(net, init_sync=False)
    for mine, other in zip(net.weights(), wanted.weights(), strict=True):
        assert_same_buffers(snapshot(mine.detach()), snapshot(other.detach()), "first weights")
    optimizers = [torch.optim.SGD(each.parameters(), lr=2.0**-9) for each in (net, wanted)]
    for step in range(2):
        x = random(8, 128, seed=step)
        for each in (replica, wanted):
            each(x).square().sum().backward()  # the same on all ranks, so that means are exact
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        for mine, other in zip(net.weights(), wanted.weights(), strict=True):
            assert_same_buffers(snapshot(mine.detach()), snapshot(other.detach()), f"step {step}")


class Plain(torch.nn.Module):
    """Two layers with quantized weights."""

    def __init__(self, family: str) -> None:
        super().__init__()
        self.first = torch.nn.Linear(128, 256, bias=False)
        self.second = torch.nn.Linear(256, 128, bias=False)
        for place, layer in enumerate((self.first, self.second)):
            values = random(*layer.weight.shape, seed=place)
            layer.weight = torch.nn.Parameter(FAMILIES[family]()(values).detach())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(F.relu(self.first(x)))


def tensor_parallel(family: str) -> None:
    """Compares column- and row-parallel layers with whole layers. The order of sums differs."""
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    whole, net = Plain(family), Plain(family)
    if family == "nvfp4_row_scaled":
        with pytest.raises(NotImplementedError, match=r"amaxes cannot be cut along the columns$"):
            parallelize_module(net, mesh(), {"second": RowwiseParallel()})
        return
    plan = {"first": ColwiseParallel(), "second": RowwiseParallel()}
    parallelize_module(net, mesh(), plan)
    for layer in (net.first, net.second):
        assert isinstance(layer.weight._local_tensor, nfp.QuantizedTensor)
    x = random(8, 128, seed=5)
    y, wanted = net(x), whole(x)
    hidden = F.relu(F.linear(x, whole.first.weight.dequantize()))
    sums = hidden.abs() @ whole.second.weight.dequantize().abs().t()
    # A product of 128 or 256 terms has at most one rounding per term and one for the sum of ranks,
    # in any order. The second layer also has the roundings of the first.
    assert torch.all((y - wanted).abs() <= 2 * (128 + 256 + 2) * 2.0**-24 * sums)


def scenarios(world: int) -> dict[str, Callable[[], None]]:
    found: dict[str, Callable[[], None]] = {"cut_blocks": cut_blocks}
    for family in FAMILIES:
        for scenario in (broadcast, replicate, shard, no_sums, ddp, tensor_parallel):
            found[f"{family}-{scenario.__name__}"] = functools.partial(scenario, family)
    return found
