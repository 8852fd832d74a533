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
    """Decides once per iteration whether a layer asks its features.

    next_iteration: the earliest one worth asking in; None is never. on: whether this one is.
    """

    next_iteration: int | None = 0
    last_iteration: int | None = None
    on: bool = False

    def begin(self, iteration: int) -> bool:
        """Returns whether forward passes of this iteration ask; all its microbatches get one
        answer.
        """
        if iteration != self.last_iteration:
            self.last_iteration = iteration
            self.on = self.next_iteration is not None and iteration >= self.next_iteration
        return self.on

    def settle(self, active: bool, next_iteration: int | None) -> None:
        """Stores the answer of the features: whether one acts now, and when to ask again."""
        self.next_iteration = next_iteration
        self.on = active


class DebugLayer:
    """A layer's name, and when its features are worth asking.

    A layer that no feature selects asks in its first forward pass and never again. name: None is
    `Layer_<n>`. tp_group, tp_size: the tensor-parallel group that features may reduce over.
    is_new_layer: False for a copy of a layer, or one that is older than this module's import.
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
        """Returns the schedule of this session, another one for each of quantized and not.

        Features may have nothing to do while a layer is not quantized, and say "never" then.
        """
        if self._manager is None or self._manager() is not manager:
            first = 0 if has_features(manager) else None
            self._manager = weakref.ref(manager)
            self._schedules = (Schedule(first), Schedule(first))
        return self._schedules[quantized]

    def is_running(self) -> bool:
        """Returns whether a session runs, whose features may watch passes."""
        return running_host() is not None

    def watch(self, parents: Slots) -> Slots | None:
        """Returns six DebugQuantizers over the parents for this forward pass and its backward pass.

        None if the layer takes its normal path: no session, or no feature that acts on it now.
        """
        watched = self.watch_group([parents])
        return None if watched is None else watched[0]

    def watch_group(self, parents: Sequence[Slots]) -> list[Slots] | None:
        """Does what watch() does for a layer of several products; features see the tensors of each
        product.
        """
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
