# SPDX-License-Identifier: Apache-2.0
"""How the parameters of a layer get their first values, and keep them beside their codes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import MethodType, SimpleNamespace
from typing import Any, NamedTuple

import torch

Init = Callable[[torch.Tensor], Any]


class ParameterInit(NamedTuple):
    """What sets a layer's first values.

    init_method: of weights; biases are then zero. None: both as torch.nn.Linear has them.
    get_rng_state_tracker, rng_tracker_name: whose fork() is entered around it.
    """

    init_method: Init | None = None
    get_rng_state_tracker: Callable[[], Any] | None = None
    rng_tracker_name: str | None = None

    @torch.no_grad()
    def fill(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        """Sets the values of a weight and its bias."""
        with self._random_state():
            if self.init_method is None:
                torch.nn.Linear.reset_parameters(SimpleNamespace(weight=weight, bias=bias))
                return
            self.init_method(weight)
        if bias is not None:
            bias.zero_()

    def _random_state(self) -> AbstractContextManager[Any]:
        if self.get_rng_state_tracker is None:
            return nullcontext()
        tracker = self.get_rng_state_tracker()
        return tracker.fork(self.rng_tracker_name) if self.rng_tracker_name else tracker.fork()


def keep_initial_values(parameter: torch.Tensor, values: torch.Tensor) -> None:
    """Gives a quantized parameter the two methods that hand out and drop its first values."""
    parameter._high_precision_init_val = values
    parameter.get_high_precision_init_val = MethodType(_initial_values, parameter)
    parameter.clear_high_precision_init_val = MethodType(_drop_initial_values, parameter)


def _initial_values(parameter: torch.Tensor) -> torch.Tensor | None:
    return getattr(parameter, "_high_precision_init_val", None)


def _drop_initial_values(parameter: torch.Tensor) -> None:
    if hasattr(parameter, "_high_precision_init_val"):
        del parameter._high_precision_init_val
