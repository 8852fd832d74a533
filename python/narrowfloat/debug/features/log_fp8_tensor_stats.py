# SPDX-License-Identifier: Apache-2.0
"""LogFp8TensorStats: statistics of quantized tensors, also under other recipes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from narrowfloat.debug._block_rules import RULES
from narrowfloat.debug._host import api_method, feature
from narrowfloat.debug._schedule import is_due
from narrowfloat.debug._statistic_feature import NO_QUANTIZER, StatsFeature
from narrowfloat.debug._statistic_names import CURRENT, DELAYED, Statistic, check_fp8_statistic
from narrowfloat.pytorch._types import Group, TensorLike
from narrowfloat.pytorch.constants import DType
from narrowfloat.pytorch.quantized_tensor import QuantizedTensorStorage, Quantizer
from narrowfloat.pytorch.tensor import (
    Float8BlockQuantizer,
    Float8CurrentScalingQuantizer,
    Float8Quantizer,
    MXFP8Quantizer,
)

# The quantizer class of each recipe.
QUANTIZERS: dict[str, type[Quantizer]] = {
    DELAYED: Float8Quantizer,
    CURRENT: Float8CurrentScalingQuantizer,
    "mxfp8": MXFP8Quantizer,
    "fp8_block_scaling": Float8BlockQuantizer,
}

_PER_TENSOR = (Float8Quantizer, Float8CurrentScalingQuantizer)


def recipe_of(quantizer: Quantizer) -> str:
    """Returns the recipe name of a quantizer in statistics; "" if it has no name."""
    return next((name for name, cls in QUANTIZERS.items() if isinstance(quantizer, cls)), "")


def _quantized_by(recipe: str, current: Quantizer, tensor: torch.Tensor) -> TensorLike:
    """Returns the tensor quantized by another recipe.

    The elements are those of the current quantizer, but always E4M3 if that is MXFP8, as in
    TransformerEngine.
    """
    elements = current.dtype if isinstance(current, (*_PER_TENSOR, Float8BlockQuantizer)) else None
    cls: Callable[..., Quantizer] = QUANTIZERS[recipe]
    quantizer = cls(fp8_dtype=elements or DType.kFloat8E4M3, rowwise=True, columnwise=True)
    with torch.no_grad():
        return quantizer(tensor)


def _with_directions(
    quantized: TensorLike,
    quantizer: Quantizer,
    tensor: torch.Tensor | None,
    asked: Sequence[Statistic],
) -> TensorLike:
    """Returns the tensor, or a new one if it lacks a direction that the statistics need."""
    if isinstance(quantizer, _PER_TENSOR):
        return quantized  # both directions hold the same codes
    assert isinstance(quantized, QuantizedTensorStorage)
    usages = quantized.get_usages()
    if all(usages[stat.direction] for stat in asked) or tensor is None:
        return quantized
    both = quantizer.copy()
    both.set_usage(rowwise=True, columnwise=True)
    with torch.no_grad():
        return both(tensor)


@feature
class LogFp8TensorStats(StatsFeature):
    """Logs statistics of quantized tensors, over the microbatches and ranks of an iteration.

    Keys: `tensors` or `tensors_struct`; `stats`, a list of names `[<recipe>_]<name>[_columnwise]`;
    `freq`, `start_step`, `end_step` or `start_end_list`. Names: underflows% (values that became
    zero), overflows% (values that saturated; delayed scaling only), scale_inv_min, scale_inv_max
    (for MX the stored exponents), mse. Recipes: fp8_delayed_scaling, fp8_current_scaling, mxfp8,
    fp8_block_scaling; the default is the layer's recipe. Another recipe quantizes the tensor once
    more. _columnwise: of the columnwise codes, for recipes with blocks; but mse_columnwise: of the
    values of dequantize().

        example:
          enabled: True
          layers: {layer_types: [layernorm_linear]}
          transformer_engine:
            LogFp8TensorStats:
              enabled: True
              tensors_struct:
                - {tensor: activation, stats: [underflows%, mxfp8_mse], freq: 5}
                - {tensor: gradient, stats: [underflows%], end_step: 80}
    """

    LABEL = "fp8"

    @api_method
    def inspect_tensor(
        self,
        config: dict[str, Any],
        layer_name: str,
        tensor_name: str,
        iteration: int,
        tp_group: Group,
        tensor: torch.Tensor | None,
        rowwise_quantized_tensor: TensorLike | None = None,
        columnwise_quantized_tensor: TensorLike | None = None,
        quantizer: Quantizer | None = None,
        tp_size: int = 1,
    ) -> None:
        """Adds the quantized tensor; without one, warns and logs nothing.

        Errors: AssertionError if the two forms are not one object; ValueError for a statistic that
        is unknown, or that needs another quantizer or `tensor`.
        """
        if not is_due(config, iteration):
            return
        self._require_one_object(rowwise_quantized_tensor, columnwise_quantized_tensor)
        quantized = rowwise_quantized_tensor
        if quantizer is None:
            self._skip(layer_name, tensor_name, NO_QUANTIZER)
            return
        if not isinstance(quantized, QuantizedTensorStorage):
            self._skip(layer_name, tensor_name, f"{type(quantized).__name__} is not quantized")
            return
        RULES["LogFp8TensorStats"].check_narrowed(config)
        training = recipe_of(quantizer)
        asked = [check_fp8_statistic(stat, training) for stat in config["stats"]]
        if tensor is None:
            _require_scales_only(config["stats"], asked, training)
        forms = {}
        for recipe in dict.fromkeys(stat.recipe for stat in asked):
            if recipe == training:
                same = [stat for stat in asked if stat.recipe == training]
                forms[""] = _with_directions(quantized, quantizer, tensor, same)
                forms[recipe] = forms[""]
            elif tensor is not None:  # without it there are no other recipes
                forms[recipe] = _quantized_by(recipe, quantizer, tensor)
        self._feed(
            config,
            layer_name,
            tensor_name,
            config["stats"],
            tensor,
            iteration,
            (tp_group, tp_size),
            forms,
        )


def _require_scales_only(names: Sequence[str], asked: Sequence[Statistic], training: str) -> None:
    for name, stat in zip(names, asked, strict=True):
        if not stat.name.startswith("scale_inv") or stat.recipe != training:
            raise ValueError(
                f"Stat {name} needs the high precision tensor, and the layer keeps this one "
                "quantized only. Then there are scale_inv_min and scale_inv_max of its recipe."
            )
