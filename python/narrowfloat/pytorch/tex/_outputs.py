# SPDX-License-Identifier: Apache-2.0
"""Rounds and quantizes the float32 results of norms and activations as a GPU's kernels do."""

from __future__ import annotations

from typing import Any

import torch

from narrowfloat.pytorch import _native
from narrowfloat.pytorch._types import TensorLike
from narrowfloat.pytorch.quantized_tensor import Quantizer
from narrowfloat.pytorch.tensor._hosted import hosted, native
from narrowfloat.pytorch.tensor.float8_tensor import Float8CurrentScalingQuantizer
from narrowfloat.pytorch.tensor.mxfp8_tensor import MXFP8Quantizer
from narrowfloat.pytorch.tensor.nvfp4_tensor import NVFP4Quantizer
from narrowfloat.pytorch.tex.casts import create_empty_quantized_tensor, quantize

__all__: list[str] = []


def _keeps_float32(quantizer: Quantizer | None) -> bool:
    """Returns whether a kernel quantizes float32 values directly: if their scale is given."""
    return quantizer is not None and native(quantizer).SCALE_IS_GIVEN


def _measures_float32(quantizer: Quantizer | None) -> bool:
    """Returns whether an activation's kernel computes the amax from unrounded values."""
    own = native(quantizer)
    if isinstance(own, NVFP4Quantizer):
        transforms = own.with_rht and own.with_post_rht_amax
        return not own.row_scaled_nvfp4 and not transforms
    return isinstance(own, Float8CurrentScalingQuantizer)


def working_dtype(quantizer: Quantizer | None, dtype: torch.dtype) -> torch.dtype:
    """Returns the dtype in which an activation is computed: float32 or the nominal dtype."""
    exact = _keeps_float32(quantizer) or _measures_float32(quantizer)
    return torch.float32 if exact else dtype


def sums_float32(quantizer: Quantizer | None) -> bool:
    """Returns whether a bias gradient is the sum of unrounded values."""
    return _keeps_float32(quantizer) or isinstance(native(quantizer), MXFP8Quantizer)


def deliver_activation(
    value: torch.Tensor, dtype: torch.dtype, quantizer: Quantizer | None
) -> TensorLike:
    """Returns deliver(), with the amax that an activation's kernel computes.

    With current scaling and NVFP4 the amax is of the float32 values, and the codes are of rounded
    ones. Requires: `value` has the dtype of working_dtype().
    """
    plain = dtype == torch.float32 or value.numel() == 0 or not _native.runs_natively(value)
    if plain or not _measures_float32(quantizer):
        return deliver(value, dtype, quantizer)
    amax = torch.empty(1, dtype=torch.float32, device=value.device)
    _native.verbs.amax(value.contiguous(), amax, _native.threads())
    own: Any = native(quantizer)
    rounded = value.to(dtype)
    made = own._new_for(rounded)
    own._fill_measured(rounded, made, amax)
    return hosted(made)


def deliver(
    value: torch.Tensor,
    dtype: torch.dtype,
    quantizer: Quantizer | None,
    out: TensorLike | None = None,
) -> TensorLike:
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
