# SPDX-License-Identifier: Apache-2.0
"""Fake quantization: tensors with the values that remain after a narrow format."""

from __future__ import annotations

from typing import Any

import torch

from narrowfloat import _core
from narrowfloat.debug._formats import FORMATS, supported_formats
from narrowfloat.debug._grammar import ERROR
from narrowfloat.pytorch._arrays import array_of
from narrowfloat.pytorch._native import FLOAT_DTYPES, threads
from narrowfloat.pytorch._types import Context
from narrowfloat.pytorch.quantized_tensor import QuantizedTensorStorage


class _StraightThrough(torch.autograd.Function):
    """Quantizes and dequantizes; passes the gradient through unchanged."""

    @staticmethod
    def forward(ctx: Context, x: torch.Tensor, fp8_format: str) -> torch.Tensor:
        values = torch.empty(x.shape, dtype=x.dtype)
        source, out = array_of(x.contiguous()), array_of(values)
        scheme, options = _choose(x, fp8_format)
        _core.fake_quantize(source, scheme, out=out, threads=threads(), **options)
        return values

    @staticmethod
    def backward(ctx: Context, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad, None


def _choose(tensor: torch.Tensor, fp8_format: str) -> tuple[str, dict[str, Any]]:
    """Returns the scheme and its options for this tensor."""
    if fp8_format not in FORMATS:
        return fp8_format, {}
    scheme, in_blocks = FORMATS[fp8_format]
    if in_blocks:
        _core.check_whole_blocks(fp8_format, scheme, tuple(tensor.shape))
        return scheme, {}
    # In TransformerEngine the amax is NaN if a value is NaN, and the scale is then 1. The kernels'
    # amax ignores NaN.
    bounds = torch.stack(torch.aminmax(tensor))
    return scheme, {} if bool(torch.isfinite(bounds).all()) else {"scale": 1.0}


def fake_quantize(
    tensor: torch.Tensor, fp8_format: str, out: torch.Tensor | None = None
) -> torch.Tensor | None:
    """Returns the values of `tensor` after quantizing and dequantizing it.

    Shapes:     any; the result has the shape and dtype of `tensor`. An empty tensor is returned,
                a quantized one is dequantized.
    fp8_format: FP8E4M3 or FP8E5M2, scaled by the largest magnitude of the whole tensor; MXFP8E4M3
                or MXFP8E5M2 in blocks along the last dimension; or the name of any scheme.
    out:        receives a copy of the result, converted and broadcast as by copy_; returns None
                then.
    Gradient:   the gradient of the result, unchanged.
    Errors:     AssertionError for a dtype other than float32, float16 and bfloat16 and for an
                unknown format; ValueError for a shape that the format does not support;
                NotImplementedError unless the tensor is on the CPU.
    Source:     TransformerEngine's debug feature FakeQuant: scale 1 if any value is not finite.
    """
    if tensor.dtype not in FLOAT_DTYPES:
        raise AssertionError(
            f"{ERROR} Unsupported tensor type {tensor.dtype}. It must be float32, float16 or "
            "bfloat16."
        )
    if fp8_format not in supported_formats():
        raise AssertionError(
            f"{ERROR} Unsupported format {fp8_format!r}. It must be one of {', '.join(FORMATS)} "
            f"or a scheme: {', '.join(_core.schemes())}."
        )
    if isinstance(tensor, QuantizedTensorStorage):
        tensor = tensor.dequantize()
    values = tensor
    if tensor.numel() > 0:
        values = _StraightThrough.apply(tensor, fp8_format)
    if out is None:
        return values
    out.copy_(values)
    return None
