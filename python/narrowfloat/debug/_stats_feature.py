# SPDX-License-Identifier: Apache-2.0
"""What the features that log statistics have in common."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Iterable, Mapping
from typing import Any

import torch

from narrowfloat.debug._buffers import STATS_BUFFERS
from narrowfloat.debug._host import api_method, log
from narrowfloat.debug._schedule import Schedule
from narrowfloat.debug.features.api import Enabled, TEConfigAPIMapper
from narrowfloat.debug.features.utils import get_reduction_params


class StatsFeature(TEConfigAPIMapper):
    """Feeds buffers in the iterations of its schedule. LABEL sets its buffers apart."""

    LABEL: str | None = None

    @api_method
    def inspect_tensor_enabled(
        self, config: dict[str, Any], layer_name: str, tensor_name: str, iteration: int
    ) -> Enabled:
        """By the schedule. Errors: ValueError for a schedule that is none."""
        schedule = Schedule.of(config)
        STATS_BUFFERS.note_schedule(layer_name, tensor_name, type(self).__name__, schedule)
        return schedule.at(iteration)

    def _options(self, config: Mapping[str, Any]) -> tuple[Hashable, ...]:
        intervals = config.get("start_end_list")
        if intervals is not None:
            intervals = tuple(tuple(int(step) for step in pair) for pair in intervals)
        options = (config.get("start_step"), config.get("end_step"), intervals)
        return options if self.LABEL is None else (*options, self.LABEL)

    def _feed(
        self,
        config: Mapping[str, Any],
        layer_name: str,
        tensor_name: str,
        stats: Iterable[Hashable],
        tensor: torch.Tensor | None,
        iteration: int,
        group: tuple[Any, int],
        quantized: Mapping[str, Any] | None = None,
    ) -> None:
        """Feeds a tensor to its buffer. group: the tensor-parallel one, and its size."""
        options = self._options(config)
        skip, reduction_group, within_microbatch = get_reduction_params(tensor_name, *group)
        STATS_BUFFERS.try_add_buffer(
            layer_name, tensor_name, stats, options, reduction_group, within_microbatch
        )
        STATS_BUFFERS.feed(layer_name, tensor_name, options, tensor, iteration, skip, quantized)
        log(
            f"Feature={type(self).__name__}, API=inspect_tensor: {tensor_name}",
            layer_name,
        )

    def _skip(self, layer_name: str, tensor_name: str, reason: str) -> None:
        warnings.warn(
            f"[{type(self).__name__}] Skipping stats collection for layer '{layer_name}', "
            f"tensor '{tensor_name}': {reason}.",
            stacklevel=3,
        )
