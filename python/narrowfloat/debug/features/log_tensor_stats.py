# SPDX-License-Identifier: Apache-2.0
"""LogTensorStats: statistics of tensors before they are quantized."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from narrowfloat.debug._block_rules import RULES
from narrowfloat.debug._grammar import ERROR, OPERANDS
from narrowfloat.debug._host import api_method, feature
from narrowfloat.debug._schedule import is_due
from narrowfloat.debug._statistic_feature import StatsFeature
from narrowfloat.debug._statistic_names import BLOCKWISE
from narrowfloat.debug._statistic_values import BlockwiseDynamicRangeStat
from narrowfloat.pytorch._types import Group, TensorLike
from narrowfloat.pytorch.quantized_tensor import QuantizedTensorStorage, Quantizer


def _key(stat: str | Mapping[str, Any], tensor_name: str) -> str | BlockwiseDynamicRangeStat:
    """Returns the statistic's key in the buffers.

    For operands of forward gemms it includes both orientations.
    """
    if not isinstance(stat, Mapping):
        return stat
    both_ways = tensor_name in OPERANDS["fprop"]
    return BlockwiseDynamicRangeStat(**stat[BLOCKWISE], max_over_orientations=both_ways)


@feature
class LogTensorStats(StatsFeature):
    """Logs statistics of high-precision tensors, over the microbatches and ranks of an iteration.

    Keys: `tensors` or `tensors_struct`; `stats`, a list of min, max, mean, std, l1_norm, l2_norm,
    cur_amax (the largest magnitude), dynamic_range (log2 of the largest over the smallest nonzero
    magnitude) and `max_blockwise_dynamic_range: {block_size: 32, dims: 1}` (the largest of a block,
    for activations and weights also of the transpose's); `freq`, `start_step`, `end_step` or
    `start_end_list`. Call debug_api.step() after every iteration.

        example:
          enabled: True
          layers: {layer_name_regex_pattern: .*fc1}
          transformer_engine:
            LogTensorStats:
              enabled: True
              tensors_struct:
                - {tensor: activation, stats: [mean], freq: 10, start_step: 5, end_step: 100}
                - {tensor: gradient, stats: [mean, max], start_end_list: [[0, 20], [80, 100]]}
    """

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
        """Adds the tensor; for a weight that is stored quantized, its dequantized values.

        Errors: AssertionError for an unknown statistic, and for a quantized or missing `tensor`;
        ValueError for other wrong keys and values.
        """
        if not is_due(config, iteration):
            return
        RULES["LogTensorStats"].check_narrowed(config)
        if tensor is None:
            forms = (rowwise_quantized_tensor, columnwise_quantized_tensor)
            kept = [form for form in forms if isinstance(form, QuantizedTensorStorage)]
            tensor = kept[0].dequantize() if kept else None
        if (
            tensor is None
            or isinstance(tensor, QuantizedTensorStorage)
            or tensor.dtype == torch.uint8
        ):
            raise AssertionError(
                f"{ERROR} Tensor {tensor_name} must be in high precision when using "
                "log_tensor_stats. Use log_fp8_tensor_stats for FP8 tensors."
            )
        stats = [_key(stat, tensor_name) for stat in config["stats"]]
        self._feed(config, layer_name, tensor_name, stats, tensor, iteration, (tp_group, tp_size))
