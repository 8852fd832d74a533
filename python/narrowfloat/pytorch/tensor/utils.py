# SPDX-License-Identifier: Apache-2.0
"""Weights in memory that the caller manages, and weights with sharded master copies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from narrowfloat.pytorch._types import Group
from narrowfloat.pytorch.quantized_tensor import QuantizedTensorStorage, Quantizer
from narrowfloat.pytorch.tensor._master_weights import quantize_pieces
from narrowfloat.pytorch.tensor._weight import as_weight


def replace_raw_data(tensor: QuantizedTensorStorage, new_raw_data: torch.Tensor) -> None:
    """Copies the codes of `tensor` to `new_raw_data`, which becomes their buffer.

    Errors: NotImplementedError for MXFP8 and for a hybrid tensor without a rowwise child;
    ValueError for another type, or memory of another dtype.
    """
    owner = as_weight("replace_raw_data", tensor)._raw_owner()
    field: Any = owner.RAW_FIELD
    old = getattr(owner, field)
    if old.dtype != new_raw_data.dtype:
        raise ValueError(
            f"replace_raw_data: new_raw_data must be {old.dtype}, got {new_raw_data.dtype}"
        )
    new_raw_data.detach().copy_(old)
    setattr(owner, field, new_raw_data)


def quantize_master_weights(
    model_weights: Sequence[Any],
    master_weights: Sequence[torch.Tensor | None],
    start_offsets: Sequence[int | None],
    group: Group,
    fsdp_shard_model_weights: Sequence[Any] | None = None,
    manual_post_all_gather_processing: bool = False,
) -> None:
    """Quantizes this rank's flat pieces of master weights into quantized weights.

    The scales are valid for the whole weights: amaxes are reduced over `group`, and every rank must
    call this, also one without a piece (None). Codes are written to the piece's place in the
    weight, or to the rank's entry of `fsdp_shard_model_weights`. Buffers derived from the rowwise
    codes are dropped or marked stale, unless manual_post_all_gather_processing: the caller then
    runs post_all_gather_processing() after the codes are gathered.
    Errors: ValueError, NotImplementedError before anything changes, for an offset outside of the
    weight, a weight of another type, or a hybrid one with children that do not support pieces.
    """
    for weight in model_weights:
        if hasattr(weight, "clear_high_precision_init_val"):
            weight.clear_high_precision_init_val()
    shards = fsdp_shard_model_weights or [None] * len(model_weights)
    quantize_pieces(model_weights, master_weights, start_offsets, group, shards)
    if not manual_post_all_gather_processing:
        for weight in model_weights:
            weight._drop_derived()


def cast_master_weights_to_fp8(*args: Any, **kwargs: Any) -> None:
    """Runs quantize_master_weights() under its older name."""
    quantize_master_weights(*args, **kwargs)


def clear_columnwise_cache(tensor: QuantizedTensorStorage) -> None:
    """Drops the columnwise buffers of `tensor`, or marks its transpose as stale.

    Frees buffers derived after an all-gather: FSDP2 frees only the buffers that it made.
    """
    for field in ("_columnwise_data", "_columnwise_scale_inv", "_transpose"):
        if hasattr(tensor, field):
            setattr(tensor, field, None)
    if hasattr(tensor, "_transpose_invalid"):
        tensor._transpose_invalid = True


def is_custom(x: Quantizer | QuantizedTensorStorage | None = None) -> bool:
    """Returns whether the quantizer of `x` computes its products; False for None and plain tensors.

    Errors: AssertionError unless `x` is None, a tensor, a quantizer or a storage.
    """
    if x is None or isinstance(x, torch.Tensor):
        return False
    assert isinstance(x, Quantizer | QuantizedTensorStorage), (
        f"is_custom: needs a Quantizer or a QuantizedTensorStorage, got {type(x).__name__}"
    )
    return bool(getattr(x, "custom", False))


def post_all_gather_processing(model_weights: Sequence[Any]) -> None:
    """Derives buffers from gathered rowwise codes; may be called twice.

    Errors: ValueError for a weight of another type.
    """
    for weight in model_weights:
        as_weight("post_all_gather_processing", weight)._restore_derived()
