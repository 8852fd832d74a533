# SPDX-License-Identifier: Apache-2.0
"""The field of a tensor for the group that its later quantizations reduce their amax over."""

from __future__ import annotations

from typing import Any

import torch

from narrowfloat.pytorch._types import Group

SHARD_GROUP = "_amax_reduction_group"  # aliases and views share it, copies do not


class _Held:
    """Wraps a process group that copies of a tensor share, because it belongs to the process."""

    def __init__(self, group: Group) -> None:
        self.group = group

    def __deepcopy__(self, memo: dict[int, Any]) -> _Held:
        return self

    def __reduce__(self) -> tuple[type, tuple[None]]:
        return _Held, (None,)


class ShardGroup:
    """The group over which later quantizations of a shard share one amax; or None."""

    def __get__(self, tensor: torch.Tensor | None, owner: type | None = None) -> Group:
        held = None if tensor is None else tensor.__dict__.get(SHARD_GROUP)
        return None if held is None else held.group

    def __set__(self, tensor: torch.Tensor, group: Group) -> None:
        tensor.__dict__[SHARD_GROUP] = None if group is None else _Held(group)
