# SPDX-License-Identifier: Apache-2.0
"""Rows of the operator table for collectives that send tensors, one buffer after another.

Reductions have no row, because codes with different scales cannot be added.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed._functional_collectives  # registers the operators of rows in this module
from torch.utils._pytree import tree_flatten, tree_map

from narrowfloat.pytorch._dispatch import implements
from narrowfloat.pytorch._types import Operator
from narrowfloat.pytorch.quantized_tensor import QuantizedTensor
from narrowfloat.pytorch.tensor._fsdp import gather_shards
from narrowfloat.pytorch.tensor.hybrid_tensor import HybridQuantizedTensor
from narrowfloat.pytorch.tensor.storage._dropped import take_back_children
from narrowfloat.pytorch.tensor.storage._stale import require_fresh, take_scales

# An argument of a collective: a tensor, lists of tensors, or lists of lists.
Tensors = torch.Tensor | Sequence[Any]

c10d = torch.ops.c10d
functional = torch.ops._c10d_functional


def _buffers(tensor: QuantizedTensor) -> list[torch.Tensor]:
    """Returns the buffers to send: dense, in the order of the family.

    A stale transpose is not sent.
    """
    found = []
    for leaf in tensor._leaves():
        require_fresh(leaf)
        for buffer in leaf.BUFFERS:
            value = leaf._standalone_buffer(buffer.name)
            stale = buffer.name == leaf.COLUMNWISE and not leaf._has_columnwise()
            if value is not None and not stale:
                part = leaf._cut is not None  # it shares the scales of the whole
                found.append(value.clone() if part else value.contiguous())
    return found


def _layout(tensor: QuantizedTensor) -> str:
    """Returns a text of formats, directions and shapes, which must be equal on all ranks."""
    parts = [f"{type(tensor).__name__}{tuple(tensor.shape)}"]
    for leaf in tensor._leaves():
        settings = [f"{s.keyword}={getattr(leaf, s.name)!r}" for s in leaf.SETTINGS]
        usages = [way for way, there in leaf.get_usages().items() if there]
        parts.append(f"{type(leaf).__name__}({', '.join(settings + usages)})")
    return " of ".join(parts)


def _take(tensor: QuantizedTensor, buffers: list[torch.Tensor]) -> None:
    """Writes the buffers that _buffers() returned.

    A direction that was not sent and that an alias has is quantized from the sent values.
    """
    left = list(buffers)
    received: dict[int, Any] = {}
    leaves: list[Any] = tensor._leaves()
    for leaf in leaves:
        fields: dict[str, torch.Tensor | None] = {}
        for buffer in leaf.BUFFERS:
            there = leaf.__dict__[buffer.name] is not None
            stale = buffer.name == leaf.COLUMNWISE and not leaf._has_columnwise()
            fields[buffer.keyword] = left.pop(0) if there and not stale else None
        received[id(leaf)] = leaf._rebuild(**fields)
    if isinstance(tensor, HybridQuantizedTensor) and take_back_children(tensor):
        values = received[id(leaves[0])]._plain()
        for leaf in tensor._leaves():
            if id(leaf) not in received:
                leaf._requantize(values)
    for leaf in leaves:
        torch.ops.aten.copy_.default(leaf, received[id(leaf)])


def _require_alike(
    operator: Operator, tensors: list[Any], group: torch.ScriptObject | None = None
) -> None:
    """Raises ValueError unless all tensors, on all ranks of `group`, have one layout."""
    plain = [t for t in tensors if not isinstance(t, QuantizedTensor)]
    layouts = sorted({_layout(t) for t in tensors if isinstance(t, QuantizedTensor)})
    if plain or len(layouts) != 1:
        found = layouts + ["plain tensors"] * bool(plain)
        raise ValueError(f"{operator}: all tensors must have one layout, got {' and '.join(found)}")
    if group is None:
        return
    ranks = torch.distributed.ProcessGroup.unbox(group)
    # NCCL sends memory of GPUs only.
    device = next((buffer.device for buffer in tensors[0]._live_buffers()), None)
    mine = torch.tensor([zlib.crc32(layouts[0].encode())], dtype=torch.int64, device=device)
    others = [torch.empty_like(mine) for _ in range(ranks.size())]
    ranks.allgather([others], [mine]).wait()
    differing = [rank for rank, other in enumerate(others) if not torch.equal(other, mine)]
    if differing:
        raise ValueError(
            f"{operator}: all ranks must have tensors of one layout, but ranks {differing} of the "
            f"group differ from {layouts[0]}"
        )


def _by_buffer(
    operator: Operator, args: tuple[Any, ...], written: Tensors, group: torch.ScriptObject | None
) -> torch.ScriptObject:
    """Runs a collective for each buffer of the tensors in turn; returns a completed work.

    Every rank waits for each buffer in turn, so the order is the same on all ranks. wait() is
    called once per work: gloo's point-to-point works wait for another message at a second call.
    """
    tensors: list[Any] = [t for t in tree_flatten(args)[0] if isinstance(t, torch.Tensor)]
    _require_alike(operator, tensors, group)
    buffers = {id(tensor): _buffers(tensor) for tensor in tensors}
    for index in range(len(buffers[id(tensors[0])])):

        def part(value: object, index: int = index) -> object:
            return buffers[id(value)][index] if isinstance(value, torch.Tensor) else value

        result = operator(*tree_map(part, args))
        work = result[-1] if isinstance(result, (tuple, list)) else result
        torch.distributed.Work.unbox(work).wait()
    for tensor in tree_flatten(written)[0]:
        _take(tensor, buffers[id(tensor)])
    done: torch.futures.Future = torch.futures.Future()
    done.set_result(written)
    return torch._C._distributed_c10d._create_work_from_future(done).boxed()


@implements(c10d.broadcast_.default, QuantizedTensor)
def _broadcast(
    tensors: list[Any], group: torch.ScriptObject, *rest: Any
) -> tuple[list[Any], torch.ScriptObject]:
    return tensors, _by_buffer(c10d.broadcast_.default, (tensors, group, *rest), tensors, group)


def _moving(operator: Operator) -> None:
    @implements(operator, QuantizedTensor)
    def move(
        outputs: Tensors, inputs: Tensors, group: torch.ScriptObject, *rest: Any
    ) -> torch.ScriptObject | tuple[Tensors, torch.ScriptObject]:
        work = _by_buffer(operator, (outputs, inputs, group, *rest), outputs, group)
        return (outputs, work) if len(operator._schema.returns) > 1 else work


for _operator in (
    c10d.scatter_.default,
    c10d.allgather_.default,
    c10d.allgather_coalesced_.default,
    c10d.gather_.default,
    c10d.alltoall_.default,
):
    _moving(_operator)


@implements(c10d.send.default, QuantizedTensor)
def _send(tensors: list[Any], group: torch.ScriptObject, *rest: Any) -> torch.ScriptObject:
    return _by_buffer(c10d.send.default, (tensors, group, *rest), [], None)


@implements(c10d.recv_.default, QuantizedTensor)
def _recv(tensors: list[Any], group: torch.ScriptObject, *rest: Any) -> torch.ScriptObject:
    return _by_buffer(c10d.recv_.default, (tensors, group, *rest), tensors, None)


def _assemble(operator: Operator, out: QuantizedTensor, pieces: list[QuantizedTensor]) -> None:
    """Writes pieces to consecutive rows of `out`.

    Errors: ValueError, before anything is written, for different scales or partial blocks.
    """
    places = out.split(pieces[0].shape[0])
    if len(places) != len(pieces) or not isinstance(places[0], QuantizedTensor):
        raise ValueError(
            f"{operator}: the output must have {len(pieces)} parts of shape "
            f"{tuple(pieces[0].shape)}, cut at boundaries of its blocks, got shape "
            f"{tuple(out.shape)}"
        )
    for whole, *parts in zip(out._leaves(), *(p._leaves() for p in pieces), strict=True):
        for name in whole._shared_names():
            scales = [part.__dict__[name] for part in parts]
            if any(s is not None and not torch.equal(s, scales[0]) for s in scales):
                raise ValueError(
                    f"{operator}: parts of a {type(whole).__name__} share {name}, but it differs "
                    "between ranks; gather a list of tensors"
                )
        take_scales(whole, parts[0])
    for place, piece in zip(places, pieces, strict=True):
        torch.ops.aten.copy_.default(place, piece)


def _gather_into(
    operator: Operator, output: QuantizedTensor, own: QuantizedTensor, group: torch.ScriptObject
) -> torch.ScriptObject:
    size = torch.distributed.ProcessGroup.unbox(group).size()
    pieces: list[Any] = [torch.empty_like(own) for _ in range(size)]
    arguments = ([pieces], [own], group, False, -1)
    work = _by_buffer(c10d.allgather_.default, arguments, pieces, group)
    _assemble(operator, output, pieces)
    return work


@implements(c10d._allgather_base_.default, QuantizedTensor)
def _allgather_base(
    output: QuantizedTensor, own: QuantizedTensor, group: torch.ScriptObject, *rest: Any
) -> tuple[QuantizedTensor, torch.ScriptObject]:
    _require_same_format(c10d._allgather_base_.default, output, own)
    return output, _gather_into(c10d._allgather_base_.default, output, own, group)


@implements(c10d.allgather_into_tensor_coalesced_.default, QuantizedTensor)
def _allgather_coalesced(
    outputs: list[Any], inputs: list[Any], group: torch.ScriptObject, *rest: Any
) -> torch.ScriptObject:
    operator = c10d.allgather_into_tensor_coalesced_.default
    for output, own in zip(outputs, inputs, strict=True):
        _require_same_format(operator, output, own)
    works = [_gather_into(operator, o, i, group) for o, i in zip(outputs, inputs, strict=True)]
    return works[-1]


def _require_same_format(operator: Operator, output: torch.Tensor, own: torch.Tensor) -> None:
    """Raises ValueError unless both are of one class."""
    if type(output) is not type(own):
        raise ValueError(
            f"{operator}: input and output must be of one class, got {type(own).__name__} and "
            f"{type(output).__name__}"
        )


# Functional collectives, which DTensor uses: they take a group by name, and return no work.


def _group_of(name: str) -> torch.ScriptObject:
    resolve: Any = torch.distributed.distributed_c10d._resolve_process_group
    return resolve(name).boxed()


@implements(functional.broadcast.default, QuantizedTensor)
def _functional_broadcast(tensor: QuantizedTensor, root: int, name: str) -> QuantizedTensor:
    return _broadcast_in_place(tensor.clone(), root, name)


@implements(functional.broadcast_.default, QuantizedTensor)
def _broadcast_in_place(tensor: QuantizedTensor, root: int, name: str) -> QuantizedTensor:
    _broadcast([tensor], _group_of(name), root, 0, False, -1)
    return tensor


@implements(functional.all_gather_into_tensor.default, QuantizedTensor)
def _all_gather(tensor: QuantizedTensor, group_size: int, group_name: str) -> QuantizedTensor:
    """Returns the tensor whose rows the ranks hold, concatenated in the order of ranks."""

    def gather(buffer: torch.Tensor) -> torch.Tensor:
        whole = functional.all_gather_into_tensor.default(buffer, group_size, group_name)
        return functional.wait_tensor.default(whole)

    whole: Any = gather_shards(tensor, gather)
    return whole


@implements(functional.all_gather_into_tensor_coalesced.default, QuantizedTensor)
def _all_gather_coalesced(tensors: list[Any], group_size: int, group_name: str) -> list[Any]:
    return [_all_gather(tensor, group_size, group_name) for tensor in tensors]


@implements(functional.wait_tensor.default, QuantizedTensor)
@implements(functional._wrap_tensor_autograd.default, QuantizedTensor)
def _wait(tensor: QuantizedTensor) -> QuantizedTensor:
    return tensor
