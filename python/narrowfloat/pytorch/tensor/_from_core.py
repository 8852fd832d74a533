# SPDX-License-Identifier: Apache-2.0
"""Converts the core's quantized tensors to torch's, over the same memory."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from narrowfloat import _core
from narrowfloat.pytorch import _native
from narrowfloat.pytorch.constants import DType
from narrowfloat.pytorch.quantized_tensor import QuantizedTensor
from narrowfloat.pytorch.tensor import (
    Float8BlockQuantizer,
    Float8CurrentScalingQuantizer,
    MXFP8Quantizer,
    NVFP4Quantizer,
)
from narrowfloat.pytorch.tensor._scheme_quantizer import SchemeQuantizer

_ELEMENTS = (DType.kFloat8E4M3, DType.kFloat8E5M2)


def _quantizers(rowwise: bool, columnwise: bool) -> Iterator[SchemeQuantizer]:
    """Yields a quantizer for each spec that a tensor class supports without further options."""
    usage: dict[str, Any] = {"rowwise": rowwise, "columnwise": columnwise}
    for flag in (False, True):
        for element in _ELEMENTS:
            powers: dict[str, Any] = {"force_pow_2_scales": flag}
            yield Float8CurrentScalingQuantizer(element, "cpu", **usage, **powers)
            yield MXFP8Quantizer(element, **usage, with_2d_quantization=flag)
            for dimensions in (1, 2):
                yield Float8BlockQuantizer(element, **usage, **powers, block_scaling_dim=dimensions)
        yield NVFP4Quantizer(**usage, with_2d_quantization=flag)


@functools.cache
def quantizer_for(spec: str, rowwise: bool, columnwise: bool) -> SchemeQuantizer:
    """Returns a quantizer with this spec. Errors: NotImplementedError if no class supports it."""
    for quantizer in _quantizers(rowwise, columnwise):
        if quantizer._spec().text == spec:
            return quantizer
    raise NotImplementedError(f"no tensor class of narrowfloat.pytorch holds '{spec}'")


def tensor_over(core: _core.QuantizedTensor, dtype: torch.dtype) -> QuantizedTensor:
    """Returns a tensor over the buffers of `core`, of nominal type `dtype`.

    Errors: NotImplementedError if no class of tensors has its spec.
    """
    arrays = core.buffers
    quantizer = quantizer_for(core.spec, "rowwise_data" in arrays, "columnwise_data" in arrays)
    shape = torch.Size(core.shape)
    specs = quantizer._buffer_specs(shape)
    tensors = {}
    for role, name in zip(_native.ROLES, quantizer.STORAGE._role_names, strict=True):
        if name in specs and role in arrays:
            field, size = specs[name]
            memory = np.ascontiguousarray(arrays[role]).reshape(-1).view(np.uint8)
            tensors[name] = torch.from_numpy(memory).view(field).reshape(size)
    made: Any = quantizer._assemble(shape, dtype, tensors, torch.device("cpu"))
    return made
