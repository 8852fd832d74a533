# SPDX-License-Identifier: Apache-2.0
"""Converts weights to other projects' conventions, one tensor at a time, for trainers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from narrowfloat import _core
from narrowfloat.pytorch._arrays import operand
from narrowfloat.pytorch.quantized_tensor import QuantizedTensor, Quantizer

ChooseQuantizer = Callable[[str, torch.Tensor], Quantizer | None]


def export(
    state_dict: Mapping[str, torch.Tensor],
    convention: str,
    quantizer: Quantizer | ChooseQuantizer | None = None,
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields a model's weights as tensors of a convention, under its names.

    state_dict: quantized tensors keep their codes; plain tensors are unchanged unless `quantizer`
    quantizes them: a quantizer for every matrix, or a function of name and tensor that returns one
    or None. Each weight is made when the iterator reaches it.
    convention: one that `narrowfloat convert --to` writes. Its tensors are on the CPU.
    Errors: ValueError for an unknown convention; NotImplementedError for a read-only convention,
    and for a weight that it cannot store with the same codes: blocks of 1x128, more than two
    dimensions, columnwise data only.
    """
    _core.check_convention(convention)
    return _exported(state_dict, convention, quantizer)


def _exported(
    state_dict: Mapping[str, torch.Tensor],
    convention: str,
    quantizer: Quantizer | ChooseQuantizer | None,
) -> Iterator[tuple[str, torch.Tensor]]:
    for name, value in state_dict.items():
        tensor = value
        if not isinstance(value, QuantizedTensor):
            tensor = _quantized(name, value, quantizer)
        if isinstance(tensor, QuantizedTensor):
            yield from _written(name, tensor, convention)
        else:
            yield name, tensor.detach()


def _quantized(
    name: str, value: torch.Tensor, quantizer: Quantizer | ChooseQuantizer | None
) -> torch.Tensor:
    if not isinstance(quantizer, Quantizer):
        quantizer = None if quantizer is None else quantizer(name, value)
    elif value.dim() != 2:
        quantizer = None
    made: Any = value if quantizer is None else quantizer(value.detach())
    return made


def _written(
    name: str, tensor: QuantizedTensor, convention: str
) -> Iterator[tuple[str, torch.Tensor]]:
    if tensor.dim() != 2:
        raise NotImplementedError(
            f"export: '{name}' must have two dimensions, got shape {tuple(tensor.shape)}"
        )
    storage: Any = tensor
    if not storage.get_usages()["rowwise"]:
        raise NotImplementedError(
            f"export: '{name}' must have rowwise data, got {type(tensor).__name__} of columns alone"
        )
    weight = operand(storage, ("rowwise",))
    if weight.device.type == "cuda":
        on_host = {role: buffer.cpu() for role, buffer in weight.buffers.items()}
        weight = weight._replace(buffers=on_host)
    core = weight.core()
    if dict(weight.options).get("swizzled"):
        core = _core.unswizzle(core)
    for entry, dtype, shape, data in _core.write_in_convention(name, core, convention):
        yield entry, torch.from_numpy(data).view(getattr(torch, dtype)).reshape(shape)
