# SPDX-License-Identifier: Apache-2.0
"""Rounds and quantizes the float32 results of norms and activations where a GPU's kernels do."""

from typing import Any

import torch

from narrowfloat.pytorch.tensor._hosted import native
from narrowfloat.pytorch.tensor.mxfp8_tensor import MXFP8Quantizer
from narrowfloat.pytorch.tex.casts import create_empty_quantized_tensor, quantize

__all__: list[str] = []


def _keeps_float32(quantizer: Any) -> bool:
    """Returns whether a kernel writes codes of float32 values: if their scale is given."""
    return quantizer is not None and native(quantizer).SCALE_IS_GIVEN


def working_dtype(quantizer: Any, dtype: torch.dtype) -> torch.dtype:
    """Returns the dtype in which deliver() needs a result: float32 or the nominal dtype."""
    return torch.float32 if _keeps_float32(quantizer) else dtype


def sums_float32(quantizer: Any) -> bool:
    """Returns whether a bias gradient is the sum of values that are not rounded yet."""
    return _keeps_float32(quantizer) or isinstance(native(quantizer), MXFP8Quantizer)


def deliver(value: torch.Tensor, dtype: torch.dtype, quantizer: Any, out: Any = None) -> Any:
    """Returns `value` in `dtype`, or quantized with that nominal dtype; fills `out` if given.

    A given scale applies to float32 values. All other quantizers read values rounded to `dtype`.
    """
    if quantizer is None:
        return value.to(dtype) if out is None else out.copy_(value.view(out.shape))
    if not _keeps_float32(quantizer):
        return quantize(value.to(dtype), quantizer, out)
    if out is None:
        out = create_empty_quantized_tensor(quantizer, value.shape, dtype, value.device)
    return quantize(value, quantizer, out)
