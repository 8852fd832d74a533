# SPDX-License-Identifier: Apache-2.0
"""What a layer of your own needs to be debugged: DebugLayer, asked once a forward pass."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any, NamedTuple

from narrowfloat.debug.pytorch._session import has_features, running_host
from narrowfloat.debug.pytorch.debug_quantization import DebugQuantizer
from narrowfloat.debug.pytorch.debug_state import TEDebugState
from narrowfloat.debug.pytorch.utils import (
    any_feature_enabled,
    next_iter_when_debug_should_be_run,
)
from narrowfloat.pytorch.quantized_tensor import Quantizer


class Slots(NamedTuple):
    """The quantizers of a layer's six tensors; None is high precision.

    The order is the one in which features are asked.
    """

    activation: Quantizer | None = None
    weight: Quantizer | None = None
    output: Quantizer | None = None
    dgrad: Quantizer | None = None
    wgrad: Quantizer | None = None
    gradient: Quantizer | None = None


@dataclass
class Schedule:
    """When a layer's features want to be asked again: decided once in an iteration.

    next_iteration: the earliest one worth asking in; None is never. on: whether this one is.
    """

    next_iteration: int | None = 0
    last_iteration: int | None = None
    on: bool = False

    def begin(self, iteration: int) -> bool:
        """Whether forward passes of this iteration ask; all its microbatches get one answer."""
        if iteration != self.last_iteration:
            self.last_iteration = iteration
            self.on = self.next_iteration is not None and iteration >= self.next_iteration
        return self.on

    def settle(self, active: bool, next_iteration: int | None) -> None:
        """What asking found: whether a feature acts now, and when to ask again."""
        self.next_iteration = next_iteration
        self.on = active


class DebugLayer:
    """A layer's name, and when its features are worth asking.

    A layer that no feature selects asks in its first forward pass and never again. name: None is
    `Layer_<n>`. tp_group, tp_size: the tensor-parallel group that features may reduce over.
    Errors: RuntimeError if an earlier layer was made before the running session began.
    """

    def __init__(self, name: str | None = None, tp_group: Any = None, tp_size: int = 1) -> None:
        TEDebugState.initialize()
        self.name = f"Layer_{TEDebugState.get_layer_count()}" if name is None else name
        self.tp_group = tp_group
        self.tp_size = tp_size
        self._manager: weakref.ref[Any] | None = None
        self._schedules: tuple[Schedule, Schedule] = (Schedule(), Schedule())

    def _schedule(self, manager: Any, quantized: bool) -> Schedule:
        """The schedule of this session, another one for each of quantized and not.

        Features may have nothing to do while a layer is not quantized, and say "never" then.
        """
        if self._manager is None or self._manager() is not manager:
            first = 0 if has_features(manager) else None
            self._manager = weakref.ref(manager)
            self._schedules = (Schedule(first), Schedule(first))
        return self._schedules[quantized]

    def watch(self, parents: Slots) -> Slots | None:
        """Six DebugQuantizers over the parents for this forward pass and its backward pass.

        None if the layer takes its normal path: no session, or no feature that acts on it now.
        """
        host = running_host()
        if host is None:
            return None
        manager = host.DEBUG_MANAGER
        schedule = self._schedule(manager, parents.activation is not None)
        if not schedule.begin(manager._trainer_iteration_count):
            return None
        slots = Slots(
            *(
                DebugQuantizer(self.name, tensor, parent, self.tp_group, self.tp_size)
                for tensor, parent in parents._asdict().items()
            )
        )
        active = any_feature_enabled(slots)
        schedule.settle(active, next_iter_when_debug_should_be_run(slots))
        return slots if active else None
