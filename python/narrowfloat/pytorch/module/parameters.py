# SPDX-License-Identifier: Apache-2.0
"""Initialises a layer's parameters, and stores the initial values with quantized ones."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import MethodType, SimpleNamespace
from typing import Any, NamedTuple

import torch

from narrowfloat.pytorch.module.sharded import is_dtensor, local, part_of, placed_as
from narrowfloat.pytorch.quantized_tensor import QuantizedTensorStorage

Init = Callable[[torch.Tensor], Any]


class ParameterInit(NamedTuple):
    """Initialises a layer's parameters.

    init_method: of weights; biases are then zero. None: both as in torch.nn.Linear.
    get_rng_state_tracker, rng_tracker_name: the values are drawn within the tracker's fork().
    """

    init_method: Init | None = None
    get_rng_state_tracker: Callable[[], Any] | None = None
    rng_tracker_name: str | None = None

    @torch.no_grad()
    def fill(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        """Sets the values of a weight and its bias."""
        with self._random_state():
            if self.init_method is None:
                layer: Any = SimpleNamespace(weight=weight, bias=bias)
                torch.nn.Linear.reset_parameters(layer)
                return
            self.init_method(weight)
        if bias is not None:
            bias.zero_()

    def _random_state(self) -> AbstractContextManager[Any]:
        if self.get_rng_state_tracker is None:
            return nullcontext()
        tracker = self.get_rng_state_tracker()
        return tracker.fork(self.rng_tracker_name) if self.rng_tracker_name else tracker.fork()


def memory_of_whole(parameter: torch.Tensor) -> torch.Tensor:
    """Returns the tensor for the initial values of all ranks; a plain parameter itself."""
    sharded = is_dtensor(parameter)
    if not (sharded or parameter.is_meta or isinstance(parameter, QuantizedTensorStorage)):
        return parameter
    device = "cpu" if sharded or parameter.is_meta else parameter.device
    return torch.empty(parameter.shape, dtype=parameter.dtype, device=device)


@torch.no_grad()
def set_parameter(module: torch.nn.Module, name: str, whole: torch.Tensor) -> None:
    """Sets a parameter to a tensor, or to this rank's part of it if the parameter is sharded.

    A new parameter replaces one without memory, and a plain one if `whole` is quantized.
    """
    parameter = getattr(module, name)
    if whole is parameter:
        return
    part, own = part_of(parameter, whole), local(parameter)
    has_kind = isinstance(own, QuantizedTensorStorage) or not isinstance(
        part, QuantizedTensorStorage
    )
    if has_kind and not own.is_meta:
        own.copy_(part)
    else:
        made = placed_as(parameter, part.detach())
        made = torch.nn.Parameter(made, requires_grad=parameter.requires_grad)
        setattr(module, name, made)


def keep_initial_values(parameter: torch.Tensor, values: torch.Tensor) -> None:
    """Adds two methods to a quantized parameter, which return and drop its initial values."""
    holder: Any = parameter
    holder._high_precision_init_val = values
    holder.get_high_precision_init_val = MethodType(_initial_values, parameter)
    holder.clear_high_precision_init_val = MethodType(_drop_initial_values, parameter)


def _initial_values(parameter: torch.Tensor) -> torch.Tensor | None:
    return getattr(parameter, "_high_precision_init_val", None)


def _drop_initial_values(parameter: torch.Tensor) -> None:
    if hasattr(parameter, "_high_precision_init_val"):
        del parameter._high_precision_init_val
