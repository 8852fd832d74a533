# SPDX-License-Identifier: Apache-2.0
"""The maximum of amaxes over ranks."""

from __future__ import annotations

import torch

from narrowfloat.pytorch._types import Group


def reduce_max(amax: torch.Tensor, group: Group) -> None:
    """Replaces `amax` by its maximum over the ranks of `group`, or of the world."""
    torch.distributed.all_reduce(amax, op=torch.distributed.ReduceOp.MAX, group=group)
