# SPDX-License-Identifier: Apache-2.0
"""Amaxes that ranks share."""

from __future__ import annotations

from typing import Any

import torch


def reduce_max(amax: torch.Tensor, group: Any) -> None:
    """The largest over the ranks of `group`, or of the world, in place."""
    torch.distributed.all_reduce(amax, op=torch.distributed.ReduceOp.MAX, group=group)
