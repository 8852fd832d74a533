# SPDX-License-Identifier: Apache-2.0
"""Describes the tensor and module of a quantizer; requests that a factory may return."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from narrowfloat.common.recipe import DelayedScaling, Format
from narrowfloat.pytorch.quantized_tensor import QuantizerRequest

# The tensor types of slots without a role, by index; layers with more slots repeat the list.
FORWARD_TYPES = ("input", "weight", "output")
BACKWARD_TYPES = ("grad_output", "grad_input")
LINEAR_TYPES = frozenset(FORWARD_TYPES + BACKWARD_TYPES)
LINEAR_MODULES = frozenset(("linear", "grouped_linear"))


@dataclass(frozen=True)
class QuantizerRole:
    """The tensor of a quantizer; a layer sets the fields.

    module_type: "linear", "grouped_linear", "dpa", ... tensor_type: of linear layers input, weight,
    output, grad_output, grad_input; of attention qkv, s, do, dp. name: of the module.
    """

    module_type: str = ""
    tensor_type: str = ""
    name: str = ""

    def is_linear_weight(self) -> bool:
        """Returns whether this is the weight of a linear layer, grouped or not."""
        return self.module_type in LINEAR_MODULES and self.tensor_type == "weight"


@dataclass(frozen=True)
class DelayedScalingRequest(QuantizerRequest):
    """Requests a quantizer with delayed scaling.

    fp8_format, margin, amax_history_len, amax_compute_algo, scaling_factor_compute_algo,
    reduce_amax: as in DelayedScaling.
    """

    fp8_format: Format = DelayedScaling.fp8_format
    margin: int = DelayedScaling.margin
    amax_history_len: int = DelayedScaling.amax_history_len
    amax_compute_algo: str | Callable[[Any], Any] = DelayedScaling.amax_compute_algo
    scaling_factor_compute_algo: Callable[..., Any] | None = (
        DelayedScaling.scaling_factor_compute_algo
    )
    reduce_amax: bool = DelayedScaling.reduce_amax
