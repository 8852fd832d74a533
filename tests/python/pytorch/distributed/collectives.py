# SPDX-License-Identifier: Apache-2.0
"""Scenarios of collectives of quantized tensors, and of parameters that DDP makes equal."""

import re
from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
from families import ALL, HYBRIDS, assert_same_buffers, sample, snapshot

from narrowfloat import pytorch as nfp

ROW = 128


def made(kind: str, seed: int, rows: int = ROW) -> nfp.QuantizedTensor:
    return ALL[kind]()(sample(rows, 256, seed=seed) * (1 + seed)).detach()


def moves(kind: str) -> None:
    """Checks that received tensors have the sender's bytes."""
    rank, world = dist.get_rank(), dist.get_world_size()
    tensor = made(kind, rank)
    dist.broadcast(tensor, 0)
    assert_same_buffers(tensor, made(kind, 0), "broadcast")
    dist.broadcast(tensor.zero_() if rank == 0 else tensor, 0, async_op=True).wait()
    assert not tensor.dequantize().any()
    everyone = [made(kind, 7) for _ in range(world)]
    dist.all_gather(everyone, made(kind, rank))
    for index, got in enumerate(everyone):
        assert_same_buffers(got, made(kind, index), "all_gather")
    mine = made(kind, 7)
    dist.scatter(mine, [made(kind, i) for i in range(world)] if rank == 0 else None, 0)
    assert_same_buffers(mine, made(kind, rank), "scatter")
    if rank == 0:
        dist.send(made(kind, 3), 1)
    elif rank == 1:
        dist.recv(mine, 0)
        assert_same_buffers(mine, made(kind, 3), "recv")
    again = fc.broadcast(made(kind, rank), 0, dist.group.WORLD)
    assert_same_buffers(again, made(kind, 0), "functional broadcast")


def reaches_aliases(kind: str) -> None:
    """Checks that a received tensor is also in the direction that only an alias has."""
    whole = made(kind, dist.get_rank())
    alias = whole.detach()
    alias.update_usage(columnwise_usage=False)
    dist.broadcast(alias, 0)
    sent = made(kind, 0)
    assert_same_buffers(whole.rowwise_sub_storage, sent.rowwise_sub_storage, "rows")
    if dist.get_rank() > 0:
        columns = ALL[kind]().columnwise_quantizer(sent.dequantize())
        assert_same_buffers(whole.columnwise_sub_storage, columns, "columns")


def joins(kind: str) -> None:
    """Gathers the rows of all ranks into one tensor. Scales that rows share must be equal."""
    rank, world = dist.get_rank(), dist.get_world_size()
    own = made(kind, 0)
    wanted = torch.cat([own.dequantize()] * world)
    whole = made(kind, 9, ROW * world)
    dist.all_gather_into_tensor(whole, own)
    assert torch.equal(whole.dequantize(), wanted)
    if kind != "hybrid_nvfp4_mxfp8":  # not supported for NVFP4 children
        functional = fc.all_gather_tensor(own, 0, dist.group.WORLD)
        assert type(functional) is type(own) and torch.equal(functional.dequantize(), wanted)
    before, shared = snapshot(whole), kind.startswith(("float8_current", "nvfp4", "hybrid_nvfp4"))
    if shared and kind != "nvfp4_row_scaled":
        message = _raises(ValueError, lambda: dist.all_gather_into_tensor(whole, made(kind, rank)))
        assert re.fullmatch(
            r"c10d\._allgather_base_\.default: parts of a \w+ share \w+, but it differs between "
            r"ranks; gather a list of tensors",
            message,
        ), message
        assert_same_buffers(whole, before, "scales that differ")


def _raises(error: type[Exception], call: Callable[[], object]) -> str:
    try:
        call()
    except error as raised:
        return str(raised)
    raise AssertionError(f"no {error.__name__}")


def refusals() -> None:
    rank = dist.get_rank()
    for kind in ALL:
        tensor = made(kind, 1)
        before = snapshot(tensor)
        for reduce in (
            lambda t: dist.all_reduce(t),
            lambda t: dist.reduce(t, 0),
            lambda t: dist.reduce_scatter_tensor(t.clone(), t),
            lambda t: fc.all_reduce(t, "sum", dist.group.WORLD),
        ):
            message = _raises(NotImplementedError, partial(reduce, tensor))
            assert "codes under different scales do not add up" in message
            assert_same_buffers(tensor, before, "a refused sum")
        move = partial(dist.all_to_all_single, tensor.clone(), tensor)
        assert "would part codes from their scales" in _raises(NotImplementedError, move)
    tensor = made("mxfp8", 1, 64 if rank else 128)
    before = snapshot(tensor)
    message = _raises(ValueError, lambda: dist.broadcast(tensor, 0))
    assert re.fullmatch(
        r".*: all ranks must have tensors of one layout, but ranks \[.*\] of the group differ from "
        r".*",
        message,
    )
    assert_same_buffers(tensor, before, "another shape")
    tensor = made("mxfp8", 1)
    values = tensor[0]  # read-only values
    message = _raises(RuntimeError, lambda: dist.all_reduce(values))
    assert message.endswith("; clone() them to communicate them")
    tensor.update_usage(columnwise_usage=rank == 0)
    _raises(ValueError, lambda: dist.broadcast(tensor, 0))
    tensor = made("mxfp8" if rank else "nvfp4", 1)
    _raises(ValueError, lambda: dist.broadcast(tensor, 0))
    _raises(ValueError, lambda: dist.all_gather([torch.ones(2)] * 2, made("mxfp8", 1)))
    plain = torch.zeros(ROW * dist.get_world_size(), 256)
    message = _raises(ValueError, lambda: dist.all_gather_into_tensor(plain, made("mxfp8", 1)))
    assert message == (
        "c10d._allgather_base_.default: input and output must be of one class, got MXFP8Tensor and "
        "Tensor"
    ), message
    assert not plain.any()
    whole = made("mxfp8", 9, 3 * ROW)
    before = snapshot(whole)
    message = _raises(ValueError, lambda: dist.all_gather_into_tensor(whole, made("mxfp8", 1)))
    assert message == (
        f"c10d._allgather_base_.default: the output must have {dist.get_world_size()} parts of "
        f"shape {tuple(made('mxfp8', 1).shape)}, cut at boundaries of its blocks, got shape "
        f"{tuple(whole.shape)}"
    ), message
    assert_same_buffers(whole, before, "another number of parts")
    _raises(RuntimeError, lambda: dist.broadcast(made("mxfp8", 1).t(), 0))


class Weights(torch.nn.Module):
    def __init__(self, kind: str, count: int) -> None:
        super().__init__()
        self.weights = torch.nn.ParameterList(
            torch.nn.Parameter(made(kind, dist.get_rank() + i)) for i in range(count)
        )


def ddp(kind: str) -> None:
    """Checks that DDP makes weights equal on all ranks, or raises before training."""
    for count in (1, 2):
        module = Weights(kind, count)
        try:
            torch.nn.parallel.DistributedDataParallel(module)
        except NotImplementedError as error:
            assert "cannot broadcast the values of" in str(error), error
            assert not (kind == "float8_current" and count == 1), "a view of all codes is possible"
            continue
        for weight in module.weights:
            assert weight._transpose_invalid is False if hasattr(weight, "_transpose") else True
            for buffer in snapshot(weight.detach()).values():
                everyone = [torch.empty_like(buffer) for _ in range(dist.get_world_size())]
                dist.all_gather(everyone, buffer)
                assert all(torch.equal(other, buffer) for other in everyone)


def scenarios(world: int) -> dict[str, Callable[[], None]]:
    found: dict[str, Callable[[], None]] = {}
    for kind in ALL:
        for scenario in (moves, joins, ddp):
            found[f"{scenario.__name__} {kind}"] = partial(scenario, kind)
    for kind in HYBRIDS:
        found[f"{reaches_aliases.__name__} {kind}"] = partial(reaches_aliases, kind)
    found["refusals"] = refusals
    return found
