# SPDX-License-Identifier: Apache-2.0
"""Rounds and quantizes the float32 results of norms and activations where a GPU's kernels do."""

from typing import Any

import torch

from narrowfloat.pytorch.tex.casts import quantize

__all__: list[str] = []

# Kernels that quantize by a given scale write codes of the float32 value.
_KEEP_FLOAT32 = frozenset({"Float8Quantizer"})
# These sum a bias gradient before they round.
_SUM_FLOAT32 = _KEEP_FLOAT32 | {"MXFP8Quantizer"}


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the values of a tensor, outside of autograd: decoded if it is quantized."""
    if type(tensor) is not torch.Tensor and hasattr(tensor, "_quantizer"):
        return tensor.dequantize().detach()
    return tensor.detach()


def working_dtype(quantizer: Any, dtype: torch.dtype) -> torch.dtype:
    """Returns the dtype in which deliver() needs a result: float32 or the nominal dtype."""
    return torch.float32 if type(quantizer).__name__ in _KEEP_FLOAT32 else dtype


def sums_float32(quantizer: Any) -> bool:
    """Returns whether a bias gradient is the sum of values that are not rounded yet."""
    return type(quantizer).__name__ in _SUM_FLOAT32


def deliver(value: torch.Tensor, dtype: torch.dtype, quantizer: Any, out: Any = None) -> Any:
    """Returns `value` in `dtype`, or quantized with that nominal dtype; fills `out` if given.

    A given scale applies to float32 values. All other quantizers read values rounded to `dtype`.
    """
    if quantizer is None:
        return value.to(dtype) if out is None else out.copy_(value.view(out.shape))
    if type(quantizer).__name__ not in _KEEP_FLOAT32:
        return quantize(value.to(dtype), quantizer, out)
    if out is None:
        out = quantizer.make_empty(value.shape, dtype=dtype, device=value.device)
    return quantize(value, quantizer, out)
