# SPDX-License-Identifier: Apache-2.0
"""DumpTensors: writes tensors to files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch

from narrowfloat.debug._block_rules import RULES
from narrowfloat.debug._grammar import ERROR
from narrowfloat.debug._host import api_method, feature, log
from narrowfloat.debug._schedule import Schedule, is_due
from narrowfloat.debug.features.api import Enabled, TEConfigAPIMapper
from narrowfloat.pytorch._types import Group, TensorLike
from narrowfloat.pytorch.quantized_tensor import Quantizer


def dump_path(root: str | Path, layer_name: str, tensor_name: str, iteration: int) -> Path:
    """Returns the file of a tensor below the log directory; characters of the names that are
    illegal in paths become underscores.
    """
    rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
    name = re.sub(r'[/\\:*?"<>| .]', "_", f"{layer_name}_{tensor_name}")
    directory = Path(root) / "tensor_dumps" / f"rank_{rank}" / f"iter_{iteration:06d}"
    return directory / f"{name}.pt"


@feature
class DumpTensors(TEConfigAPIMapper):
    """Writes each tensor to a file with torch.save.

    Keys: `tensors` or `tensors_struct`; `high_precision_tensor`, `quantized_tensor`: whether to
    write that form; `freq`, `start_step`, `end_step` or `start_end_list`. A file holds a dict with
    the keys high_precision and quantized and is
    `<log_dir>/tensor_dumps/rank_<rank>/iter_<iteration>/ <layer>_<tensor>.pt`. Read a file with a
    quantized tensor with weights_only=False, or after importing narrowfloat.pytorch.

        example:
          enabled: True
          layers: {layer_name_regex_pattern: .*fc1}
          transformer_engine:
            DumpTensors:
              enabled: True
              tensors: [activation]
              high_precision_tensor: True
              quantized_tensor: True
              freq: 100
    """

    @api_method
    def inspect_tensor_enabled(
        self, config: dict[str, Any], layer_name: str, tensor_name: str, iteration: int
    ) -> Enabled:
        """Returns (enabled, next iteration). Errors: ValueError for an invalid schedule."""
        return Schedule.of(config).at(iteration)

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
        """Writes the forms that the keys select; logs the missing ones.

        Errors: ValueError if the gemms read two different quantized tensors, or for wrong keys and
        values.
        """
        if not is_due(config, iteration):
            return
        RULES["DumpTensors"].check_narrowed(config)
        forms = [rowwise_quantized_tensor, columnwise_quantized_tensor]
        forms = [form for form in forms if form is not None]
        if len(forms) > 1 and forms[0] is not forms[1]:
            raise ValueError(
                f"{ERROR} DumpTensors expects rowwise_quantized_tensor and "
                "columnwise_quantized_tensor to be the same object when both are provided."
            )
        found = {"high_precision": tensor, "quantized": forms[0] if forms else None}
        wanted = [name for name in found if config.get(f"{name}_tensor", False)]
        if not wanted:
            self._say(
                "Neither high_precision_tensor nor quantized_tensor is enabled. Nothing to dump.",
                layer_name,
            )
        for name in wanted:
            if not isinstance(found[name], torch.Tensor):
                self._say(
                    f"{name}_tensor is True but {tensor_name} has none to save. Skipping.",
                    layer_name,
                )
                found[name] = None
        kept = {name: found[name] for name in wanted}
        dump = {name: t.detach().clone() for name, t in kept.items() if t is not None}
        if dump:
            self._write(dump, layer_name, tensor_name, iteration)

    def _write(
        self, dump: dict[str, Any], layer_name: str, tensor_name: str, iteration: int
    ) -> None:
        from nvdlfw_inspect.logging import get_logger

        path = dump_path(get_logger().root_log_dir, layer_name, tensor_name, iteration)
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            self._say(f"Overwriting existing dump file: {path}", layer_name)
        torch.save(dump, path)
        self._say(
            f"API=inspect_tensor: Dumped {tensor_name} at iteration {iteration} "
            f"(keys: {list(dump)})",
            layer_name,
        )

    def _say(self, message: str, layer_name: str) -> None:
        log(f"Feature={type(self).__name__}: {message}", layer_name)
