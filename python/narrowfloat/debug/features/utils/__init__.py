# SPDX-License-Identifier: Apache-2.0
"""Code that several features share: schedules, statistics and their buffers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from narrowfloat.debug._host import debug_api
from narrowfloat.debug._schedule import Schedule
from narrowfloat.debug.pytorch.debug_state import TEDebugState
from narrowfloat.pytorch._types import Group


def next_enabled_iter(
    start_step: int | None,
    end_step: int | None,
    start_end_list: str | Sequence[Sequence[int]] | None,
    freq: int,
    iteration: int,
) -> tuple[bool, int | None]:
    """Returns whether a feature acts in an iteration, and the next iteration in which it acts.

    The next iteration is None if the schedule has ended. Errors: as Schedule.make().
    """
    return Schedule.make(start_step, end_step, start_end_list, freq).at(iteration)


def get_reduction_params(
    tensor_name: str, tp_group: Group, tp_size: int = 1
) -> tuple[bool, Any, bool]:
    """Returns the reduction of statistics: (skip_reduction, group, reduce_within_microbatch).

    Weights are sharded over the tensor-parallel group and shared by microbatches; other tensors are
    split over the session's reduction group and over microbatches.
    """
    group = debug_api.get_tensor_reduction_group()
    if tensor_name != "weight":
        return False, group, True
    over_tp = TEDebugState.weight_tensor_tp_group_reduce and tp_size > 1 and tp_group is not None
    return (False, tp_group, False) if over_tp else (True, group, False)
