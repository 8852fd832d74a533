# SPDX-License-Identifier: Apache-2.0
"""Models that `narrowfloat quantize` wrote, loaded and saved by Hugging Face's transformers.

Importing this module registers the quantization method. from_pretrained() then makes each
quantized weight a tensor of narrowfloat.pytorch with the codes of the file, and save_pretrained()
writes them back.
"""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key
from transformers.quantizers import (
    HfQuantizer,
    register_quantization_config,
    register_quantizer,
)
from transformers.utils.quantization_config import QuantizationConfigMixin

from narrowfloat import _core
from narrowfloat.pytorch.quantized_tensor import QuantizedTensor
from narrowfloat.pytorch.tensor._from_core import tensor_over

METHOD = "narrowfloat"
_CORE = _core.QuantizedTensor


@register_quantization_config(METHOD)
class NarrowfloatConfig(QuantizationConfigMixin):
    """The `quantization_config` of such a folder. spec: of the command that wrote it."""

    def __init__(self, spec: str = "", quant_method: str = METHOD) -> None:
        self.quant_method = quant_method
        self.spec = spec


@dataclass
class _Weight:
    """A quantized weight of the model. core: the file's tensor, over the memory of `tensor`."""

    core: _core.QuantizedTensor
    tensor: QuantizedTensor | None = None


@register_quantizer(METHOD)
class NarrowfloatQuantizer(HfQuantizer):
    """Reads the quantized weights itself, and leaves all others to transformers."""

    requires_calibration = True  # from_pretrained() quantizes nothing: the command line does

    def __init__(self, quantization_config: NarrowfloatConfig, **kwargs: Any) -> None:
        super().__init__(quantization_config, **kwargs)
        self._weights: dict[str, _Weight] = {}  # by name of the parameter

    def validate_environment(self, *args: Any, device_map: object = None, **kwargs: Any) -> None:
        """Errors: NotImplementedError for a device map with more than the CPU."""
        devices = device_map.values() if isinstance(device_map, dict) else [device_map]
        if any(str(device) not in ("None", "cpu") for device in devices):
            raise NotImplementedError(
                f"from_pretrained: device_map must be None or the CPU, got {device_map}"
            )

    def is_serializable(self) -> bool:
        """Returns whether save_pretrained() writes such a model."""
        return True

    @property
    def is_trainable(self) -> bool:
        """Returns whether the quantized weights take gradients."""
        return False

    def param_needs_quantization(
        self, model: PreTrainedModel, param_name: str, **kwargs: Any
    ) -> bool:
        """Returns whether a quantized weight takes the place of what transformers loads.

        transformers has found none for it, or a tensor of another shape.
        """
        return param_name in self._weights

    def _process_model_before_weight_loading(
        self, model: PreTrainedModel, checkpoint_files: list[str] | None = None, **kwargs: Any
    ) -> None:
        """Lists the quantized weights of the model.

        Errors: ValueError if no tensor is quantized or a shape differs from the model's;
        NotImplementedError for a weight that transformers would merge with others.
        """
        quantized = _read_quantized(checkpoint_files or [])
        if not quantized:
            raise ValueError(f"from_pretrained: {checkpoint_files} must hold quantized tensors")
        expected = model.state_dict()
        conversions = get_model_conversion_mapping(model, None, self)
        names = set(quantized)
        for name, core in quantized.items():
            target = _target(name, conversions, model, expected)
            if target not in expected:
                continue  # transformers reports its buffers as unexpected
            shape = tuple(expected[target].shape)
            if core.shape != shape:
                raise ValueError(
                    f"from_pretrained: '{name}' must have shape {shape}, got {core.shape}"
                )
            self._weights[target] = _Weight(core)
            names.add(target)
        _expect_buffers_of(model, names)

    def _process_model_after_weight_loading(
        self, model: PreTrainedModel, **kwargs: Any
    ) -> PreTrainedModel:
        """Puts the quantized weights in place, with the nominal dtype of the model."""
        for target, weight in self._weights.items():
            weight.tensor = tensor_over(weight.core, model.dtype)
            module, attribute = _place(model, target)
            setattr(module, attribute, torch.nn.Parameter(weight.tensor, requires_grad=False))
        if self._weights.keys() & set(model.all_tied_weights_keys.values()):
            model.tie_weights()
        return model

    def get_state_dict_and_metadata(
        self, model: PreTrainedModel
    ) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
        """Returns the buffers of quantized weights, and the records that describe them.

        Errors: NotImplementedError for a weight that was replaced since it was loaded.
        """
        state: dict[str, torch.Tensor] = {}
        stored = {}
        for name, value in model.state_dict().items():
            weight = self._weights.get(name)
            if weight is not None:
                _check_is_loaded(name, weight, value)
                stored[name] = weight.core
            elif not isinstance(value, QuantizedTensor):
                state[name] = value
            elif name not in model.all_tied_weights_keys:
                raise NotImplementedError(
                    f"save_pretrained: '{name}' must be quantized by the file that was loaded"
                )
        buffers, metadata = _as_stored(stored)
        return state | buffers, metadata

    def _dequantize(
        self, model: PreTrainedModel, dtype: torch.dtype | None = None
    ) -> PreTrainedModel:
        for target in self._weights:
            module, attribute = _place(model, target)
            values = getattr(module, attribute).dequantize(dtype=dtype)
            setattr(module, attribute, torch.nn.Parameter(values))
        if self._weights.keys() & set(model.all_tied_weights_keys.values()):
            model.tie_weights()
        return model


def _read_quantized(files: list[str]) -> dict[str, _core.QuantizedTensor]:
    """Reads the quantized tensors of one file, or of the folder whose index lists the files."""
    entries = set()
    for file in files:
        with safe_open(file, "pt") as opened:
            entries.update(opened.keys())
    checkpoint = _core.Checkpoint(files[0] if len(files) == 1 else str(Path(files[0]).parent))
    roles = _core.buffer_roles()
    found = {
        name: checkpoint.read(name)
        for name in checkpoint.names()
        if any(f"{name}.{role}" in entries for role in roles)
    }
    return {name: value for name, value in found.items() if isinstance(value, _CORE)}


def _as_stored(
    tensors: dict[str, _core.QuantizedTensor],
) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Returns the entries and the metadata that tensors are in a file of this library."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "quantized.safetensors"
        _core.save(path, tensors)
        with safe_open(path, "pt") as file:
            return {name: file.get_tensor(name).clone() for name in file.keys()}, file.metadata()


def _target(
    name: str, conversions: list[Any], model: PreTrainedModel, expected: dict[str, torch.Tensor]
) -> str:
    """Returns the name of the parameter that a tensor of the checkpoint becomes."""
    renamings = [item for item in conversions if isinstance(item, WeightRenaming)]
    merges = [item for item in conversions if isinstance(item, WeightConverter)]
    target, merge = rename_source_key(name, renamings, merges, model.base_model_prefix, expected)
    if merge is None or (target not in expected and name in expected):
        return target if target in expected else name
    raise NotImplementedError(
        f"from_pretrained: '{name}' must become a parameter of its own, but transformers merges it "
        f"into '{target}'; `narrowfloat dequantize` makes a float model"
    )


def _place(model: PreTrainedModel, name: str) -> tuple[torch.nn.Module, str]:
    path, _, attribute = name.rpartition(".")
    return model.get_submodule(path), attribute


def _expect_buffers_of(model: PreTrainedModel, names: set[str]) -> None:
    """Keeps these weights and their buffers out of the report on missing and unexpected tensors."""
    stems, roles = "|".join(map(re.escape, sorted(names))), "|".join(_core.buffer_roles())
    ignored = {
        "_keys_to_ignore_on_load_unexpected": rf"^({stems})(\.({roles}))?$",
        "_keys_to_ignore_on_load_missing": rf"^({stems})$",
    }
    for field, pattern in ignored.items():
        setattr(model, field, set(getattr(model, field) or ()) | {pattern})


def _check_is_loaded(name: str, weight: _Weight, value: torch.Tensor) -> None:
    own = () if weight.tensor is None else weight.tensor._role_buffers()
    now = value._role_buffers() if isinstance(value, QuantizedTensor) else ()
    if [_address(buffer) for buffer in own] != [_address(buffer) for buffer in now] or not own:
        raise NotImplementedError(
            f"save_pretrained: '{name}' must be the quantized weight that was loaded, "
            f"got {type(value).__name__}"
        )


def _address(buffer: torch.Tensor | None) -> int | None:
    return None if buffer is None else buffer.data_ptr()
