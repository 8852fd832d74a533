# SPDX-License-Identifier: Apache-2.0
"""LogNvfp4TensorStats: statistics of tensors quantized to NVFP4."""

from __future__ import annotations

from typing import Any

import torch

from narrowfloat.debug._block_rules import RULES
from narrowfloat.debug._host import api_method, feature
from narrowfloat.debug._schedule import is_due
from narrowfloat.debug._statistic_feature import NO_QUANTIZER, StatsFeature
from narrowfloat.debug._statistic_names import NVFP4_PREFIX
from narrowfloat.pytorch._types import Group, TensorLike
from narrowfloat.pytorch.quantized_tensor import Quantizer
from narrowfloat.pytorch.tensor import NVFP4Quantizer, NVFP4TensorStorage

_LABEL = NVFP4_PREFIX.removesuffix("_")


@feature
class LogNvfp4TensorStats(StatsFeature):
    """Logs statistics of NVFP4 tensors, over the microbatches and ranks of an iteration.

    Keys: `tensors` or `tensors_struct`; `stats`, a list of underflows% (values that became zero)
    and mse; `freq`, `start_step`, `end_step` or `start_end_list`. They are logged with the prefix
    nvfp4_. Other tensors than NVFP4 are not logged.

        example:
          enabled: True
          layers: {layer_types: [layernorm_linear]}
          transformer_engine:
            LogNvfp4TensorStats:
              enabled: True
              tensors: [activation, gradient]
              stats: [underflows%, mse]
              freq: 5
    """

    LABEL = _LABEL

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
        """Adds the quantized tensor; warns and logs nothing without an NVFP4 tensor.

        Errors: AssertionError if the two forms are not one object; ValueError for an unknown
        statistic, or without `tensor`.
        """
        if not is_due(config, iteration):
            return
        self._require_one_object(rowwise_quantized_tensor, columnwise_quantized_tensor)
        quantized = rowwise_quantized_tensor
        if quantizer is None:
            self._skip(layer_name, tensor_name, NO_QUANTIZER)
            return
        for found, wanted in ((quantizer, NVFP4Quantizer), (quantized, NVFP4TensorStorage)):
            if not isinstance(found, wanted):
                self._skip(
                    layer_name,
                    tensor_name,
                    f"incompatible precision (expected {wanted.__name__}, got "
                    f"{type(found).__name__})",
                )
                return
        RULES["LogNvfp4TensorStats"].check_narrowed(config)
        if tensor is None:
            raise ValueError(
                "LogNvfp4TensorStats needs the high precision tensor, and the layer keeps "
                f"{tensor_name} quantized only."
            )
        self._feed(
            config,
            layer_name,
            tensor_name,
            [f"{NVFP4_PREFIX}{stat}" for stat in config["stats"]],
            tensor,
            iteration,
            (tp_group, tp_size),
            {_LABEL: quantized},
        )
