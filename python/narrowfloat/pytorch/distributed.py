# SPDX-License-Identifier: Apache-2.0
"""Tensor parallelism: gathers quantized activations; a style for parallelize_module."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel
from torch.distributed.tensor.placement_types import Placement

from narrowfloat.pytorch._types import Group
from narrowfloat.pytorch.quantized_tensor import QuantizedTensor, Quantizer
from narrowfloat.pytorch.tensor._fsdp import gather_shards
from narrowfloat.pytorch.tensor._gather import gather_quantized, joiner

__all__ = ["QuantizedColwiseParallel", "gather_along_first_dim"]


def gather_along_first_dim(
    inp: torch.Tensor,
    process_group: Group,
    async_op: bool = False,
    quantizer: Quantizer | None = None,
) -> tuple[Any, Any]:
    """Gathers the tensors of all ranks along the first dimension; returns the result and a work.

    Requires: tensors of one shape on all ranks. With a quantizer the bytes are the same as if it
    quantized the gathered values: amaxes are reduced first, then codes and scales are sent. If a
    rank's rows are not whole blocks, and for the quantizers listed in gather_quantized(), values
    are sent and every rank quantizes them. Only plain values are sent asynchronously; otherwise the
    work is None.
    Errors: RuntimeError, on every rank, for quantized tensors that cannot be joined.
    """
    if torch.distributed.get_world_size(process_group) == 1:
        if quantizer is None or isinstance(inp, QuantizedTensor):
            return inp, None
        return quantizer(inp), None
    if isinstance(inp, QuantizedTensor):
        return gather_shards(inp, joiner(process_group)), None
    if quantizer is None:
        world = torch.distributed.get_world_size(process_group)
        out = inp.new_empty((world * inp.shape[0], *inp.shape[1:]))
        return out, torch.distributed.all_gather_into_tensor(
            out, inp.contiguous(), group=process_group, async_op=async_op
        )
    return gather_quantized(inp, process_group, quantizer), None


class QuantizedColwiseParallel(ColwiseParallel):
    """Shards a Linear by columns of its output, and gathers its input in codes and scales.

    The input is sharded along a dimension of tokens, input_layouts; Shard(0) if it is None. The
    result has the same bits as with ColwiseParallel, which gathers values. Inside `autocast` the
    layer quantizes its part of the input, and sends codes and scales. It sends values without a
    recipe, with backward_override, under debug features, and if parts end within a block. The
    gradient of the input is reduced and scattered in the type of the input.
    """

    def __init__(
        self,
        *,
        input_layouts: Placement | None = None,
        output_layouts: Placement | None = None,
        use_local_output: bool = True,
    ) -> None:
        super().__init__(
            input_layouts=Shard(0) if input_layouts is None else input_layouts,
            output_layouts=output_layouts,
            use_local_output=use_local_output,
        )
        own: Any = self.input_layouts  # of a type that the base lacks; the layer gathers
        self.desired_input_layouts = own
