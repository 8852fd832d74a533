# SPDX-License-Identifier: Apache-2.0
"""Raises for arguments of TransformerEngine's layers that are not supported."""

from __future__ import annotations

from typing import Any

import torch

from narrowfloat.pytorch._types import Group


def choose_dtype(
    layer: str, dtype: torch.dtype | None, params_dtype: torch.dtype | None
) -> torch.dtype | None:
    """Returns the parameters' type, given by one of two arguments.

    Errors: ValueError if both are set and differ.
    """
    if dtype is not None and params_dtype is not None and dtype != params_dtype:
        raise ValueError(
            f"{layer}: dtype and params_dtype must be the same, got {dtype} and {params_dtype}"
        )
    return params_dtype if dtype is None else dtype


def refuse(layer: str, reason: str, **options: Any) -> None:
    """Raises NotImplementedError for the first option that is set, with its name and value."""
    for name, value in options.items():
        if value not in (None, False):
            raise NotImplementedError(f"{layer}: {name} {reason}, got {name}={value!r}")


def refuse_parallelism(
    layer: str, parallel_mode: str | None, sequence_parallel: bool, tp_group: Group, tp_size: int
) -> int:
    """Returns the size of the tensor-parallel group.

    Errors: ValueError for an unknown mode; NotImplementedError for a group of several ranks.
    """
    if parallel_mode not in (None, "column", "row"):
        raise ValueError(
            f"{layer}: parallel_mode must be None, 'column' or 'row', got {parallel_mode!r}"
        )
    if tp_group is not None:
        tp_size = torch.distributed.get_world_size(group=tp_group)
    if tp_size > 1:
        reason = f"with tp_size={tp_size} is not supported; shard the layer with DTensor"
        refuse(layer, reason, parallel_mode=parallel_mode, sequence_parallel=sequence_parallel)
    return tp_size
