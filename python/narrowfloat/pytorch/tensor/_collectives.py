# SPDX-License-Identifier: Apache-2.0
"""Rows of the operator table for collectives that move whole tensors: their buffers move."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from narrowfloat.pytorch._dispatch import implements
from narrowfloat.pytorch.quantized_tensor import QuantizedTensor
from narrowfloat.pytorch.tensor._fsdp import gather_shards, refuse_replicas_of_values
from narrowfloat.pytorch.tensor._operators import aten
from narrowfloat.pytorch.tensor._scheme_tensor import SchemeTensor
from narrowfloat.pytorch.tensor.hybrid_tensor import HybridQuantizedTensor

FAMILIES = (SchemeTensor, HybridQuantizedTensor)


def _parts(tensor: Any) -> list[Any]:
    return tensor._children() if hasattr(tensor, "_children") else [tensor]


def _buffers(tensor: Any) -> list[torch.Tensor]:
    """Returns the buffers that a collective fills or sends, all of them.

    Errors: RuntimeError for a part of another tensor, whose scale is not its own.
    """
    found = []
    for part in _parts(tensor):
        part._own_buffers()
        found.extend(buffer for buffer in part._tensors() if buffer is not None)
    for buffer in found:
        if not buffer.is_contiguous():
            raise RuntimeError(
                f"a collective needs contiguous buffers of a {type(tensor).__name__}"
            )
    return found


def _group(boxed: Any) -> Any:
    return torch.distributed.ProcessGroup.unbox(boxed)


def _written(tensor: Any) -> None:
    """Makes a transpose of the codes that have arrived: the sender's may have been stale."""
    for part in _parts(tensor):
        if part.__dict__.get("_transpose") is not None:
            part._transpose_invalid = False
            part._create_transpose()


if torch.distributed.is_available():
    import torch.distributed._functional_collectives  # defines some of the operators

    c10d, functional = torch.ops.c10d, torch.ops._c10d_functional

    @implements(c10d.broadcast_.default, *FAMILIES)
    def _broadcast(
        tensors: Sequence[torch.Tensor],
        process_group: Any,
        root_rank: int,
        root_tensor: int,
        async_op: bool = True,
        timeout: int = -1,
    ) -> tuple[Sequence[torch.Tensor], Any]:
        """Gives all ranks the root's codes, scales and amaxes. The ranks' formats must be equal."""
        options = torch.distributed.BroadcastOptions()
        options.rootRank, options.rootTensor = root_rank, root_tensor
        work = None
        for tensor in tensors:
            for buffer in _buffers(tensor):
                work = _group(process_group).broadcast([buffer], options)
                work.wait()
            _written(tensor)
        return tensors, work.boxed()

    @implements(c10d.scatter_.default, *FAMILIES)
    def _scatter(
        output_tensors: Sequence[torch.Tensor],
        input_tensors: Sequence[Sequence[torch.Tensor]],
        process_group: Any,
        root_rank: int,
        async_op: bool = True,
        timeout: int = -1,
    ) -> tuple[Sequence[torch.Tensor], Any]:
        """Gives each rank the buffers of its part."""
        options = torch.distributed.ScatterOptions()
        options.rootRank = root_rank
        work = None
        for place, output in enumerate(output_tensors):
            sent = [_buffers(piece) for piece in input_tensors[place]] if input_tensors else []
            for index, buffer in enumerate(_buffers(output)):
                pieces = [[piece[index] for piece in sent]] if sent else []
                work = _group(process_group).scatter([buffer], pieces, options)
                work.wait()
            _written(output)
        return output_tensors, work.boxed()

    @implements(functional.all_gather_into_tensor.default, *FAMILIES)
    def _all_gather(tensor: Any, group_size: int, group_name: Any) -> Any:
        """Returns the tensor whose rows the ranks hold, one rank's below the other's."""

        def gather(buffer: torch.Tensor) -> torch.Tensor:
            whole = functional.all_gather_into_tensor.default(buffer, group_size, group_name)
            return functional.wait_tensor.default(whole)

        return gather_shards(tensor, gather)

    @implements(functional.wait_tensor.default, *FAMILIES)
    @implements(functional._wrap_tensor_autograd.default, *FAMILIES)
    def _wait(tensor: Any) -> Any:
        return tensor


@implements(aten.cat.default, QuantizedTensor)
def _cat(tensors: Sequence[torch.Tensor], dim: int = 0) -> Any:
    """Values; DistributedDataParallel joins parameters so before it sends them."""
    for tensor in tensors:
        if isinstance(tensor, QuantizedTensor) and not tensor.HOLDS_VALUES:
            refuse_replicas_of_values(tensor)
    return NotImplemented


@implements(aten.constant_pad_nd.default, *FAMILIES)
def _constant_pad(tensor: Any, pad: Sequence[int], value: float = 0) -> Any:
    """Zeros below the last row, as ranks add them to short shards; else values."""
    rows = pad[-1] if len(pad) == 2 * tensor.dim() and not any(pad[:-1]) else 0
    if rows <= 0 or value != 0:
        return NotImplemented
    length = tensor.shape[0]
    padded = aten.new_zeros.default(tensor, [length + rows, *tensor.shape[1:]])
    if type(padded) is not type(tensor):
        return NotImplemented
    aten.slice.Tensor(padded, 0, 0, length).copy_(tensor)
    return padded
