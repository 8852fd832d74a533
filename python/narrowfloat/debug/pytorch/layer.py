# SPDX-License-Identifier: Apache-2.0
"""DebugLayer, which debugs a layer of your own."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from narrowfloat.debug.pytorch._session import HostManager, has_features, running_host
from narrowfloat.debug.pytorch.debug_quantization import DebugQuantizer
from narrowfloat.debug.pytorch.debug_state import TEDebugState
from narrowfloat.debug.pytorch.utils import (
    any_feature_enabled,
    next_iter_when_debug_should_be_run,
)
from narrowfloat.pytorch._types import Group
from narrowfloat.pytorch.module.watching import Slots, set_watcher_factory

__all__ = ["DebugLayer", "Schedule", "Slots"]


@dataclass
class Schedule:
    """Decides once per iteration whether a layer queries its features.

    next_iteration: the earliest one with a query; None is never. on: whether the current one has.
    """

    next_iteration: int | None = 0
    last_iteration: int | None = None
    on: bool = False

    def begin(self, iteration: int) -> bool:
        """Returns whether this iteration queries features; the same for all its microbatches."""
        if iteration != self.last_iteration:
            self.last_iteration = iteration
            self.on = self.next_iteration is not None and iteration >= self.next_iteration
        return self.on

    def settle(self, active: bool, next_iteration: int | None) -> None:
        """Stores whether a feature acts in this iteration, and the iteration of the next query."""
        self.next_iteration = next_iteration
        self.on = active


class DebugLayer:
    """The name of a layer, and the schedule of the queries of its features.

    A layer that no feature selects queries them in its first forward pass only. name: None is
    `Layer_<n>`. tp_group, tp_size: the tensor-parallel group that features may reduce over.
    is_new_layer: False for a copy of a layer, and for a layer made before this module was imported.
    Errors: RuntimeError if an earlier new layer was made before the running session began.
    """

    def __init__(
        self,
        name: str | None = None,
        tp_group: Group = None,
        tp_size: int = 1,
        is_new_layer: bool = True,
    ) -> None:
        if is_new_layer:
            TEDebugState.initialize()
        self.name = f"Layer_{TEDebugState.get_layer_count()}" if name is None else name
        self.tp_group = tp_group
        self.tp_size = tp_size
        self._manager: weakref.ref[Any] | None = None
        self._schedules: tuple[Schedule, Schedule] = (Schedule(), Schedule())

    def _schedule(self, manager: HostManager, quantized: bool) -> Schedule:
        """Returns the layer's schedule in this session; quantized and other passes have one each.

        While a layer is not quantized, its features may return None as the next iteration.
        """
        if self._manager is None or self._manager() is not manager:
            first = 0 if has_features(manager) else None
            self._manager = weakref.ref(manager)
            self._schedules = (Schedule(first), Schedule(first))
        return self._schedules[quantized]

    def is_running(self) -> bool:
        """Returns whether a session runs, so that features may act on passes."""
        return running_host() is not None

    def watch(self, parents: Slots) -> Slots | None:
        """Returns six DebugQuantizers over the parents for this forward pass and its backward pass.

        Returns None without a session or a feature that acts now: the layer takes its normal path.
        """
        watched = self.watch_group([parents])
        return None if watched is None else watched[0]

    def watch_group(self, parents: Sequence[Slots]) -> list[Slots] | None:
        """Returns watch() for each product of a layer with several, for example a grouped layer."""
        host = running_host()
        if host is None:
            return None
        manager = host.DEBUG_MANAGER
        schedule = self._schedule(manager, parents[0].activation is not None)
        if not schedule.begin(manager._trainer_iteration_count):
            return None
        columns = [
            [
                DebugQuantizer(self.name, tensor, parent, self.tp_group, self.tp_size)
                for parent in column
            ]
            for tensor, column in zip(Slots._fields, zip(*parents, strict=True), strict=True)
        ]
        every = [quantizer for column in columns for quantizer in column]
        active = any_feature_enabled(every)
        schedule.settle(active, next_iter_when_debug_should_be_run(every))
        return [Slots(*group) for group in zip(*columns, strict=True)] if active else None


set_watcher_factory(DebugLayer)
