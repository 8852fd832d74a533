# SPDX-License-Identifier: Apache-2.0
"""Caches the layouts of new tensors by quantizer and shape."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from narrowfloat.pytorch._types import Quantized
from narrowfloat.pytorch.quantized_tensor import Quantizer
from narrowfloat.pytorch.tensor.storage._fields import TableStorage

_MOST = 64  # layouts per quantizer; a full cache is cleared

Key = tuple[torch.Size, torch.dtype, tuple[bool, bool], torch.device | None]  # None: the CPU


@lru_cache(maxsize=1024)
def _model(dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """Returns a tensor with the memory of one item, for empty_like()."""
    return torch.empty((), dtype=dtype, device="cpu").expand(shape)


def new_buffer(dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """Returns an uninitialised buffer on the CPU.

    empty_like() parses its arguments in half the time of empty().
    """
    return torch.empty_like(_model(dtype, shape), memory_format=torch.contiguous_format)


class Layout:
    """Makes tensors like a first one, on its device, with new uninitialised buffers."""

    __slots__ = ("buffers", "cls", "device", "dtype", "fields", "is_tensor", "on_cpu", "shape")

    def __init__(self, made: Quantized) -> None:
        self.cls = type(made)
        self.is_tensor = made._is_tensor
        self.shape, self.device, self.dtype = made.shape, made.device, made._dtype
        self.on_cpu = self.device.type == "cpu"
        buffers = {buffer.name for buffer in made.BUFFERS}
        kept = {name: made.__dict__[name] for name in made.__dict__ if name != "_quantizer"}
        self.fields = {name: None if name in buffers else kept[name] for name in kept}
        self.buffers = tuple(
            (name, kept[name].dtype, tuple(kept[name].shape))
            for name in kept
            if name in buffers and kept[name] is not None
        )

    def make(self, quantizer: Quantizer) -> Quantized:
        """Returns a tensor with a copy of `quantizer`."""
        if self.is_tensor:
            cls: Any = self.cls
            made = torch.Tensor._make_wrapper_subclass(
                cls, self.shape, dtype=self.dtype, device=self.device
            )
        else:
            made = object.__new__(self.cls)
        fields = made.__dict__
        fields.update(self.fields)
        for name, dtype, shape in self.buffers:
            if self.on_cpu:
                fields[name] = new_buffer(dtype, shape)
            else:
                fields[name] = torch.empty(shape, dtype=dtype, device=self.device)
        fields["_quantizer"] = quantizer.copy()
        return made


def keep_layout(layouts: dict[Key, Layout], key: Key, made: Quantized) -> None:
    """Caches the layout of a tensor, if others can be made like it without its constructor."""
    buffers = [buffer for buffer in made._tensors() if buffer is not None]
    plain = all(type(buffer) is torch.Tensor and buffer.is_contiguous() for buffer in buffers)
    if type(made).__new__ is not TableStorage.__new__ or not plain:
        return
    if len(layouts) >= _MOST:
        layouts.clear()
    layouts[key] = Layout(made)
