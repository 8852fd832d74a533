# SPDX-License-Identifier: Apache-2.0
"""Gathers values that are quantized before they are sent."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from narrowfloat.pytorch._reduction import reduce_max
from narrowfloat.pytorch._types import Group, Quantized
from narrowfloat.pytorch.quantized_tensor import Quantizer
from narrowfloat.pytorch.tensor._fsdp import gather_shards
from narrowfloat.pytorch.tensor.storage import _transport as transport


def joiner(group: Group, runs: int = 1) -> Callable[[torch.Tensor], torch.Tensor]:
    """Returns a function that gathers a buffer along its first dimension.

    runs: number of equal parts of rows in each buffer; all ranks' part i comes before part i + 1.
    """
    world = dist.get_world_size(group)

    def join(buffer: torch.Tensor) -> torch.Tensor:
        buffer = buffer.contiguous()
        whole = buffer.new_empty((world * buffer.shape[0], *buffer.shape[1:]))
        dist.all_gather_into_tensor(whole, buffer, group=group)
        if runs == 1 or buffer.shape[0] == 1:  # one row: a shared field, in the order of ranks
            return whole
        parts = whole.view(world, runs, buffer.shape[0] // runs, *buffer.shape[1:])
        return parts.transpose(0, 1).reshape(whole.shape)

    return join


def _travels(shard: Quantized, runs: int) -> bool:
    """Returns whether the parts of a shard's rows are whole blocks, in buffers that can be sent."""
    length = shard.shape[0] // runs
    usages = shard.get_usages()
    fields = shard._transport_fields(usages["rowwise"], usages["columnwise"])
    try:
        transport.require_whole_blocks(shard, fields, length)
    except RuntimeError:
        return False
    routes = transport.routes(shard, fields)
    fits = all(getattr(shard, r.name).dim() == len(r.planned(length)) for r in routes)
    return fits and shard._why_no_transport() is None


def _quantize_shard(x: torch.Tensor, quantizer: Quantizer, group: Group) -> Quantized:
    """Returns the shard with the codes and scales that its rows have in the whole tensor."""
    own = quantizer.copy()  # shares the scale and the amax of delayed scaling
    own.internal = False
    if hasattr(own, "with_amax_reduction"):
        own.with_amax_reduction, own.amax_reduction_group = True, group
    shard = own.quantize(x)
    if own.SCALE_IS_GIVEN:
        reduce_max(own.amax, group)  # otherwise ranks would compute different scales
    return shard


def gather_quantized(
    x: torch.Tensor, group: Group, quantizer: Quantizer, runs: int = 1
) -> Quantized:
    """Gathers rows; the bytes are the same as if `quantizer` quantized the gathered values.

    x: the same number of rows on every rank. runs: as in joiner(). Sends codes and scales. Sends
    values, and every rank quantizes them, if the parts of a rank are not whole blocks, for
    quantizers of several tensors or with a scale per row, and for columnwise NVFP4 of more than two
    dimensions.
    """
    join = joiner(group, runs)
    if quantizer.quantizes_shards(x):
        shard = _quantize_shard(x, quantizer, group)
        if _travels(shard, runs):
            return gather_shards(shard, join)
    return quantizer.quantize(join(x))
