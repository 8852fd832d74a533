# SPDX-License-Identifier: Apache-2.0
"""The base class of the features that log statistics."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Iterable, Mapping
from typing import Any

import torch

from narrowfloat.debug._host import api_method, log
from narrowfloat.debug._schedule import Schedule
from narrowfloat.debug._statistic_buffers import STATS_BUFFERS
from narrowfloat.debug.features.api import Enabled, TEConfigAPIMapper
from narrowfloat.debug.features.utils import get_reduction_params
from narrowfloat.pytorch._types import TensorLike

# The reason why a layer is skipped.
NO_QUANTIZER = "layer runs in high precision (no quantizer)"


class StatsFeature(TEConfigAPIMapper):
    """Adds tensors to buffers in the iterations of its schedule. LABEL identifies its buffers."""

    LABEL: str | None = None

    @api_method
    def inspect_tensor_enabled(
        self, config: dict[str, Any], layer_name: str, tensor_name: str, iteration: int
    ) -> Enabled:
        """Returns (enabled, next iteration). Errors: ValueError for an invalid schedule."""
        schedule = Schedule.of(config)
        STATS_BUFFERS.note_schedule(layer_name, tensor_name, type(self).__name__, schedule)
        return schedule.at(iteration)

    def _require_one_object(
        self, rowwise: TensorLike | None, columnwise: TensorLike | None
    ) -> None:
        if rowwise is not columnwise:
            raise AssertionError(
                f"{type(self).__name__}: rowwise and columnwise quantized tensors must be one "
                "object"
            )

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
        """Adds a tensor to its buffer. group: the tensor-parallel group and its size."""
        options = (Schedule.of(config), self.LABEL)
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
