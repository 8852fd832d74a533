# SPDX-License-Identifier: Apache-2.0
"""MXFP8: codes of both directions with E8M0 scales."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from narrowfloat import _core
from narrowfloat.pytorch._autograd import _DequantizeFunc
from narrowfloat.pytorch.constants import DType, element_of
from narrowfloat.pytorch.tensor.storage._fields import Setting
from narrowfloat.pytorch.tensor.storage._scheme_storage import BLOCK_BUFFERS, BlockStorage

_FromMXFP8Func = _DequantizeFunc


@lru_cache
def mxfp8_scheme(fp8_dtype: DType, tiles: bool) -> str:
    """Returns the name of the MXFP8 scheme with this element type."""
    return _core.mx_scheme(element_of(fp8_dtype), tiles)


class MXFP8TensorStorage(BlockStorage):
    """The buffers of an MXFP8 tensor. Each argument is a field, with the prefix _.

    rowwise_data, columnwise_data: uint8 codes, neither transposed; None without the direction.
    rowwise_scale_inv, columnwise_scale_inv: uint8 E8M0 codes, padded; None without the direction.
    fp8_dtype: E4M3 or E5M2, in any form that DType.cast() accepts.
    quantizer: an MXFP8Quantizer, which is copied, or None.
    with_gemm_swizzled_scales: whether the scales are swizzled.
    fake_dtype: the nominal type, which dequantize() returns; None is float32.
    """

    BUFFERS = BLOCK_BUFFERS
    SETTINGS = (
        Setting("_fp8_dtype", "fp8_dtype", "FP8 dtype", convert=DType.cast),
        Setting("_with_gemm_swizzled_scales", "with_gemm_swizzled_scales", "Scale layout", False),
    )
    _fp8_dtype: DType
    _with_gemm_swizzled_scales: bool

    def _scheme(self) -> str:
        # Scales of tiles are stored like those of 1x32 blocks, so both are read in the same way.
        return mxfp8_scheme(self._fp8_dtype, False)

    def _layout_options(self) -> tuple[tuple[str, Any], ...]:
        return (("swizzled", True),) if self._with_gemm_swizzled_scales else ()

    def _why_no_view(self, shape: torch.Size) -> str | None:
        own = self._logical_shape()
        if len(shape) > 0 and shape[-1] == own[-1]:
            return None
        return self._other_inner(own, shape)

    def _view_buffers(self, shape: torch.Size) -> dict[str, torch.Tensor | None]:
        self._require_view(shape)
        return {
            "rowwise_data": _viewed(self._rowwise_data, shape),
            "columnwise_data": _viewed(self._columnwise_data, shape),
        }


def _viewed(codes: torch.Tensor | None, shape: torch.Size) -> torch.Tensor | None:
    return None if codes is None else codes.view(shape)
