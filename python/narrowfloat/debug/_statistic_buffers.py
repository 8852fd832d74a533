# SPDX-License-Identifier: Apache-2.0
"""Buffers of statistics, which merge values over microbatches and ranks until they are logged."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Any

import torch

from narrowfloat.debug._host import debug_api
from narrowfloat.debug._schedule import Schedule
from narrowfloat.debug._statistic_values import Part, Sample, computation, measure, merge
from narrowfloat.debug.pytorch.debug_state import TEDebugState
from narrowfloat.pytorch._types import Group

Row = dict[str, float]


class _Buffer:
    """The values that were added for one tensor of one layer since the last log."""

    def __init__(
        self,
        layer_name: str,
        tensor_name: str,
        stats: Iterable[Hashable],
        group: Group,
        reduce_within_microbatch: bool,
    ) -> None:
        self.layer_name = layer_name
        self.tensor_name = tensor_name
        self.group = group
        self.reduce_within_microbatch = reduce_within_microbatch
        self.computations = {stat: computation(stat) for stat in stats}
        self.parts: dict[str, Part] = {
            part.name: part for c in self.computations.values() for part in c.parts
        }
        self.row: Row | None = None
        self.iteration: int | None = None
        self.skip_reduction = False

    def feed(self, sample: Sample, iteration: int) -> None:
        """Adds a tensor; for a weight, which microbatches share, keeps the first one."""
        self.iteration = iteration
        if self.row is not None and not self.reduce_within_microbatch:
            return
        row = measure(self.parts, sample)
        self.row = row if self.row is None else merge(self.parts, [self.row, row])

    def log(self, rows: list[Row]) -> dict[tuple, torch.Tensor]:
        """Writes the statistics of these rows, and clears the buffer."""
        from nvdlfw_inspect.logging import MetricLogger

        parts = merge(self.parts, rows)
        logged = {}
        for stat, how in self.computations.items():
            value = how.finish(parts)
            MetricLogger.log_scalar(
                f"{self.layer_name}_{self.tensor_name}_{stat}", value, self.iteration
            )
            key = (self.layer_name, self.tensor_name, stat, self.iteration)
            logged[key] = torch.tensor(value, dtype=torch.float32)
        self.row = None
        return logged


Key = tuple[str, str, Hashable]


class StatsBuffers:
    """The buffers of all tensors, by layer, tensor and options.

    Ranks exchange rows at the end of iterations in a layer's schedule. Every rank that stores the
    schedule exchanges in these iterations, even if its own layer did not run.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Removes all buffers and schedules."""
        self.buffers: dict[Key, _Buffer] = {}
        self._schedules: dict[tuple[str, str, str], Schedule] = {}
        self.at_least_one_layer_fed = False

    def note_schedule(
        self, layer_name: str, tensor_name: str, feature: str, schedule: Schedule
    ) -> None:
        """Stores the iterations in which a tensor is added."""
        self._schedules[layer_name, tensor_name, feature] = schedule

    def try_add_buffer(
        self,
        layer_name: str,
        tensor_name: str,
        stats: Iterable[Hashable],
        options: Hashable,
        reduction_group: Group,
        reduce_within_microbatch: bool,
    ) -> None:
        """Makes the buffer of a tensor, unless it exists.

        options: distinguishes features that log the same tensor. reduction_group: the ranks to
        merge; None is all. reduce_within_microbatch: whether tensors added before the next log are
        merged too.
        """
        key = (layer_name, tensor_name, options)
        if key in self.buffers:
            return
        self.buffers[key] = _Buffer(
            layer_name, tensor_name, stats, reduction_group, reduce_within_microbatch
        )

    def feed(
        self,
        layer_name: str,
        tensor_name: str,
        options: Hashable,
        tensor: torch.Tensor | None,
        iteration: int,
        skip_reduction: bool,
        aux_dict: Mapping[str, Any] | None = None,
    ) -> None:
        """Adds a tensor to its buffer; ignores an empty one.

        aux_dict: the tensor's quantized forms by recipe, "" for the layer's recipe.
        skip_reduction: logs the values of this rank alone.
        """
        quantized = aux_dict or {}
        self.at_least_one_layer_fed = True
        buffer = self.buffers[layer_name, tensor_name, options]
        buffer.skip_reduction = skip_reduction
        seen = tensor if tensor is not None else next(iter(quantized.values()))
        if torch.Size(seen.size()).numel() > 0:
            buffer.feed(Sample(tensor, quantized), iteration)

    def log_stats(self) -> dict[tuple, torch.Tensor]:
        """Logs the values added since the last call, merged over the ranks of each buffer's group.

        Returns {(layer, tensor, statistic, iteration): value}, values float32 and 0-D, of tensors
        that this rank added. Returns {} at once if none was added and no schedule was due.
        """
        if not self.at_least_one_layer_fed and not self._is_due():
            return {}
        logged: dict[tuple, torch.Tensor] = {}
        shared: dict[Group, dict[Key, Row]] = {debug_api.get_tensor_reduction_group(): {}}
        for key, buffer in self.buffers.items():
            if not buffer.skip_reduction:
                rows = shared.setdefault(buffer.group, {})
                if buffer.row is not None:
                    rows[key] = buffer.row
            elif buffer.row is not None:  # other ranks may lack this buffer, so no exchange
                logged.update(buffer.log([buffer.row]))
        for group, rows in shared.items():
            ranks = _exchange(rows, group)
            for key in rows:
                logged.update(self.buffers[key].log([rank[key] for rank in ranks if key in rank]))
        self.at_least_one_layer_fed = False
        return logged

    def _is_due(self) -> bool:
        """Returns whether the schedule of any layer contains the iteration that ends.

        Requires: the host has already incremented its iteration.
        """
        if not self._schedules or not torch.distributed.is_initialized():
            return False
        ending = TEDebugState.get_iteration() - 1
        return any(schedule.at(ending)[0] for schedule in self._schedules.values())


def _exchange(rows: dict[Key, Row], group: Group) -> list[dict[Key, Row]]:
    """Returns the rows of all ranks of a group, in the order of ranks."""
    distributed = torch.distributed
    if not distributed.is_initialized() or distributed.get_world_size(group) == 1:
        return [rows]
    ranks: list[Any] = [None] * distributed.get_world_size(group)
    distributed.all_gather_object(ranks, rows, group=group)
    return ranks


STATS_BUFFERS = StatsBuffers()
TEDebugState._at_reset.append(STATS_BUFFERS.reset)
