# SPDX-License-Identifier: Apache-2.0
"""Loads and saves models of `narrowfloat quantize` by Hugging Face's transformers.

Importing this module registers the quantization method. from_pretrained() then loads each quantized
weight as a tensor of narrowfloat.pytorch with the codes of the file, and save_pretrained() writes
the codes back. Experts that are separate in the file but one parameter in transformers become an
ExpertStack; `experts_implementation="eager"` dequantizes only the experts that tokens use.
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
from transformers.core_model_loading import (
    Concatenate,
    MergeModulelist,
    WeightConverter,
    WeightRenaming,
    apply_converters,
    apply_renamings,
    dot_natural_key,
    rename_source_key,
    revert_weight_conversion,
)
from transformers.quantizers import (
    HfQuantizer,
    register_quantization_config,
    register_quantizer,
)
from transformers.utils.quantization_config import QuantizationConfigMixin

from narrowfloat import _core
from narrowfloat.pytorch.quantized_tensor import QuantizedTensor
from narrowfloat.pytorch.tensor._from_core import tensor_over
from narrowfloat.transformers._experts import ExpertStack

__all__ = ["METHOD", "ExpertStack", "NarrowfloatConfig", "NarrowfloatQuantizer"]

METHOD = "narrowfloat"
_CORE = _core.QuantizedTensor
_RECORD = "narrowfloat."  # prefix of the metadata keys of tensors' records


@register_quantization_config(METHOD)
class NarrowfloatConfig(QuantizationConfigMixin):
    """The `quantization_config` of such a model. spec: the specification it was quantized with."""

    def __init__(self, spec: str = "", quant_method: str = METHOD) -> None:
        self.quant_method = quant_method
        self.spec = spec


@dataclass
class _Weight:
    """A quantized weight of the model. core: the file's tensor; shares memory with `tensor`."""

    core: _core.QuantizedTensor
    tensor: QuantizedTensor | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Returns the shape of the parameter."""
        return tuple(self.core.shape)

    def make(self, dtype: torch.dtype) -> torch.Tensor:
        """Returns the parameter's value, with this nominal dtype."""
        self.tensor = tensor_over(self.core, dtype)
        return self.tensor

    def cores(self, name: str) -> dict[str, _core.QuantizedTensor]:
        """Returns the file's tensors by the names under which to save them."""
        return {name: self.core}

    def is_in(self, value: torch.Tensor) -> bool:
        """Returns whether a parameter is the created one, or has equal bytes, like a copy."""
        if self.tensor is None or type(value) is not type(self.tensor):
            return False
        return all(map(_is_same, self.tensor._role_buffers(), value._role_buffers()))


@dataclass
class _Experts:
    """Quantized experts of one parameter. sources: by source pattern, then by expert."""

    sources: list[list[tuple[str, _core.QuantizedTensor]]]
    tensor: ExpertStack | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Returns the shape of the parameter."""
        first = [source[0][1].shape for source in self.sources]
        return (len(self.sources[0]), sum(rows for rows, _ in first), first[0][1])

    def make(self, dtype: torch.dtype) -> torch.Tensor:
        """Returns the parameter's value, with this nominal dtype."""
        parts = [
            [tensor_over(core, dtype) for _, core in expert]
            for expert in zip(*self.sources, strict=True)
        ]
        self.tensor = ExpertStack(parts, dtype)
        return self.tensor

    def cores(self, name: str) -> dict[str, _core.QuantizedTensor]:
        """Returns the file's tensors by the names under which to save them."""
        return {part: core for source in self.sources for part, core in source}

    def is_in(self, value: torch.Tensor) -> bool:
        """Returns whether a parameter is the created one."""
        return self.tensor is not None and self.tensor.holds(value)


@register_quantizer(METHOD)
class NarrowfloatQuantizer(HfQuantizer):
    """Loads the quantized weights; transformers loads all others."""

    requires_calibration = True  # from_pretrained() itself quantizes nothing

    def __init__(self, quantization_config: NarrowfloatConfig, **kwargs: Any) -> None:
        super().__init__(quantization_config, **kwargs)
        self._weights: dict[str, _Weight | _Experts] = {}  # by name of the parameter

    def validate_environment(self, *args: Any, device_map: object = None, **kwargs: Any) -> None:
        """Errors: NotImplementedError for a device map with more than the CPU."""
        devices = device_map.values() if isinstance(device_map, dict) else [device_map]
        if any(str(device) not in ("None", "cpu") for device in devices):
            raise NotImplementedError(
                f"from_pretrained: device_map must be None or the CPU, got {device_map}"
            )

    def is_serializable(self) -> bool:
        """Returns whether save_pretrained() can write such a model."""
        return True

    @property
    def is_trainable(self) -> bool:
        """Returns whether the quantized weights can be trained."""
        return False

    def param_needs_quantization(
        self, model: PreTrainedModel, param_name: str, **kwargs: Any
    ) -> bool:
        """Returns whether a quantized weight replaces the parameter that transformers loads.

        For such a parameter, transformers finds no tensor, or one of another shape.
        """
        return param_name in self._weights

    def _process_model_before_weight_loading(
        self, model: PreTrainedModel, checkpoint_files: list[str] | None = None, **kwargs: Any
    ) -> None:
        """Lists the quantized weights of the model.

        Errors: ValueError if no tensor is quantized, if a weight's shape differs from the model's,
        or if no tensor class supports it; NotImplementedError for a weight that transformers would
        merge with others, or a scheme without a class.
        """
        quantized = _read_quantized(checkpoint_files or [])
        if not quantized:
            raise ValueError(f"from_pretrained: {checkpoint_files} must hold quantized tensors")
        expected = model.state_dict()
        self._weights = _weights_of(model, quantized, expected, self)
        for target, weight in self._weights.items():
            shape = tuple(expected[target].shape)
            if weight.shape != shape:
                raise ValueError(
                    f"from_pretrained: '{target}' must have shape {shape}, got {weight.shape}"
                )
            _check_class(target, weight)
        _expect_buffers_of(model, {*quantized, *self._weights})
        # Tying cuts a head's bias to the rows of its weight, but a placeholder has 0 rows.
        model._adjust_bias = lambda *_: None

    def _process_model_after_weight_loading(
        self, model: PreTrainedModel, **kwargs: Any
    ) -> PreTrainedModel:
        """Sets the quantized weights in the model, with the model's nominal dtype."""
        del model._adjust_bias
        for target, weight in self._weights.items():
            value = weight.make(model.dtype)
            module, attribute = _place(model, target)
            setattr(module, attribute, torch.nn.Parameter(value, requires_grad=False))
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
        stored: dict[str, _core.QuantizedTensor] = {}
        for name, value in model.state_dict().items():
            weight = self._weights.get(name)
            if weight is not None:
                if not weight.is_in(value):
                    raise NotImplementedError(
                        f"save_pretrained: '{name}' must be the quantized weight that was loaded, "
                        f"got {type(value).__name__}"
                    )
                stored |= weight.cores(name)
            elif not isinstance(value, QuantizedTensor):
                state[name] = value
            elif name not in model.all_tied_weights_keys:
                raise NotImplementedError(
                    f"save_pretrained: '{name}' must be quantized by the file that was loaded, got "
                    f"a {type(value).__name__} of the program"
                )
        buffers, metadata = _as_stored(stored)
        state |= buffers
        return state, _with_names_of_file(metadata, model, state)

    def _dequantize(
        self, model: PreTrainedModel, dtype: torch.dtype | str | None = None
    ) -> PreTrainedModel:
        if isinstance(dtype, str):  # config.dtype after save_pretrained()
            dtype = getattr(torch, dtype)
        for target in self._weights:
            module, attribute = _place(model, target)
            values = getattr(module, attribute).dequantize(dtype=dtype)
            setattr(module, attribute, torch.nn.Parameter(values))
        if self._weights.keys() & set(model.all_tied_weights_keys.values()):
            model.tie_weights()
        return model


def _read_quantized(files: list[str]) -> dict[str, _core.QuantizedTensor]:
    """Reads the quantized tensors of one file, or of the folder that contains the files."""
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
    """Returns the entries and the metadata of a file of this library with these tensors."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "quantized.safetensors"
        _core.save(path, tensors)
        with safe_open(path, "pt") as file:
            return {name: file.get_tensor(name).clone() for name in file.keys()}, file.metadata()


def _with_names_of_file(
    metadata: dict[str, str], model: PreTrainedModel, state: dict[str, torch.Tensor]
) -> dict[str, str]:
    """Returns the metadata, with records named like the buffers that transformers saves.

    state: all entries, since the name of an entry may depend on the others.
    """
    entries = {name: value.to("meta") for name, value in state.items()}
    saved = {id(value): name for name, value in revert_weight_conversion(model, entries).items()}
    roles, renamed = _core.buffer_roles(), {}
    for key, text in metadata.items():
        name = key.removeprefix(_RECORD)
        role = next((role for role in roles if f"{name}.{role}" in entries), None)
        if role is not None:
            name = saved[id(entries[f"{name}.{role}"])].removesuffix(f".{role}")
            key = f"{_RECORD}{name}"
        renamed[key] = text
    return renamed


def _weights_of(
    model: PreTrainedModel,
    quantized: dict[str, _core.QuantizedTensor],
    expected: dict[str, torch.Tensor],
    quantizer: NarrowfloatQuantizer,
) -> dict[str, _Weight | _Experts]:
    """Returns the quantized weights, single or stacked, by the name of their parameter.

    A tensor without a parameter in the model is omitted: transformers reports its buffers as
    unexpected. Errors: as _process_model_before_weight_loading.
    """
    conversions = get_model_conversion_mapping(model, None, quantizer)
    renamings = [item for item in conversions if isinstance(item, WeightRenaming)]
    merges = [item for item in conversions if isinstance(item, WeightConverter)]
    prefix = model.base_model_prefix
    weights: dict[str, _Weight | _Experts] = {}
    stacks: dict[str, dict[str, list[tuple[str, _core.QuantizedTensor]]]] = {}
    for name in sorted(quantized, key=dot_natural_key):
        target, pattern = rename_source_key(name, renamings, merges, prefix, expected)
        if pattern is None or (target not in expected and name in expected):
            target = target if target in expected else name
            if target in expected:
                weights[target] = _Weight(quantized[name])
        elif target in expected:
            renamed = apply_renamings(name, renamings)
            merged, _ = apply_converters(renamed, merges)
            if target == f"{prefix}.{merged}":
                renamed = f"{prefix}.{renamed}"
            elif merged == f"{prefix}.{target}":
                renamed = renamed.removeprefix(f"{prefix}.")
            sources = stacks.setdefault(target, {})
            sources.setdefault(pattern, []).append((renamed, quantized[name]))
    merge_of = {pattern: merge for merge in merges for pattern in merge.source_patterns}
    for target, sources in stacks.items():
        weights[target] = _experts_of(target, sources, merge_of[next(iter(sources))])
    return weights


def _experts_of(
    target: str,
    sources: dict[str, list[tuple[str, _core.QuantizedTensor]]],
    merge: WeightConverter,
) -> _Experts:
    """Returns the experts of a parameter, merged in transformers' order for plain experts."""
    steps = [(type(step), getattr(step, "dim", None)) for step in merge.operations]
    stacks = [(MergeModulelist, 0)]
    if steps not in (stacks, [*stacks, (Concatenate, 1)]):
        raise NotImplementedError(
            f"from_pretrained: '{target}' must be a tensor of the file or a stack of its experts, "
            f"but transformers makes it of {merge.source_patterns} by {merge.operations}; "
            "`narrowfloat dequantize` makes a float model"
        )
    lists = [sources.get(pattern, []) for pattern in merge.source_patterns]
    shapes = [{tuple(core.shape) for _, core in experts} for experts in lists]
    if len({len(experts) for experts in lists}) != 1 or any(len(shape) != 1 for shape in shapes):
        raise ValueError(
            f"from_pretrained: '{target}' needs all of its experts quantized, in one shape, got "
            + ", ".join(f"{len(experts)} of {pattern}" for pattern, experts in
                        zip(merge.source_patterns, lists, strict=True))
        )  # fmt: skip
    return _Experts(lists)


def _check_class(target: str, weight: _Weight | _Experts) -> None:
    """Checks, before loading, that the parameter can be created; adds its name to errors."""
    try:
        weight.make(torch.float32)
    except (NotImplementedError, ValueError) as error:
        raise type(error)(
            f"from_pretrained: '{target}' must fit a class of narrowfloat.pytorch, but "
            f"{str(error).removeprefix('quantize: ')}; `narrowfloat quantize --exclude` leaves it "
            "plain, `narrowfloat dequantize` makes a float model"
        ) from error


def _place(model: PreTrainedModel, name: str) -> tuple[torch.nn.Module, str]:
    path, _, attribute = name.rpartition(".")
    return model.get_submodule(path), attribute


def _expect_buffers_of(model: PreTrainedModel, names: set[str]) -> None:
    """Excludes these weights and their buffers from the report on missing tensors."""
    stems, roles = "|".join(map(re.escape, sorted(names))), "|".join(_core.buffer_roles())
    ignored = {
        "_keys_to_ignore_on_load_unexpected": rf"^({stems})(\.({roles}))?$",
        "_keys_to_ignore_on_load_missing": rf"^({stems})$",
    }
    for field, pattern in ignored.items():
        setattr(model, field, set(getattr(model, field) or ()) | {pattern})


def _is_same(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    if a.device != b.device or a.shape != b.shape:
        return False
    if a.data_ptr() == b.data_ptr():
        return True
    return torch.equal(*(item.contiguous().view(torch.uint8) for item in (a, b)))
