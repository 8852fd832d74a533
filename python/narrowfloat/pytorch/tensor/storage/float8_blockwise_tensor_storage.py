# SPDX-License-Identifier: Apache-2.0
"""FP8 with an fp32 scale per block: 1x128 blocks along each direction, or square tiles."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from narrowfloat import _core
from narrowfloat.pytorch._autograd import _DequantizeFunc
from narrowfloat.pytorch.constants import DType, element_of
from narrowfloat.pytorch.tensor.storage import _transport as transport
from narrowfloat.pytorch.tensor.storage._fields import Setting
from narrowfloat.pytorch.tensor.storage._scheme_storage import BLOCK_BUFFERS, BlockStorage
from narrowfloat.pytorch.tensor.storage.float8_tensor_storage import (
    from_columnwise,
    to_columnwise,
)

_FromFloat8BlockwiseFunc = _DequantizeFunc


@lru_cache
def float8_block_scheme(fp8_dtype: DType, tiles: bool) -> str:
    """Returns the name of the block-scaled FP8 scheme with this element type."""
    return _core.fp8_block_scheme(element_of(fp8_dtype), tiles)


class Float8BlockwiseQTensorStorage(BlockStorage):
    """The buffers of a block-scaled FP8 tensor. Each argument is a field, with the prefix _.

    rowwise_data: uint8 codes; None without the direction.
    columnwise_data: uint8 codes of the transpose, the last dimension first, or None.
    rowwise_scale_inv, columnwise_scale_inv: float32, padded; None without the direction.
    fp8_dtype: E4M3 or E5M2, in any form that DType.cast() accepts.
    quantizer: a Float8BlockQuantizer, which is copied, or None.
    is_2D_scaled: whether blocks are 128x128 tiles; else they are 1x128.
    fake_dtype: the nominal type, which dequantize() returns; None is float32.
    """

    BUFFERS = BLOCK_BUFFERS
    SETTINGS = (
        Setting("_fp8_dtype", "fp8_dtype", "FP8 dtype", convert=DType.cast),
        Setting("_is_2D_scaled", "is_2D_scaled", "Scale layout", True),
    )
    _fp8_dtype: DType
    _is_2D_scaled: bool

    def _scheme(self) -> str:
        return float8_block_scheme(self._fp8_dtype, self._is_2D_scaled)

    def _logical_shape(self) -> torch.Size:
        if self._rowwise_data is None and self._columnwise_data is not None:
            return from_columnwise(self._columnwise_data.shape)
        return super()._logical_shape()

    def update_usage(
        self, rowwise_usage: bool | None = None, columnwise_usage: bool | None = None
    ) -> None:
        """Raises AssertionError if a direction cannot be derived, or none would remain."""
        rowwise = self._has_rowwise() if rowwise_usage is None else rowwise_usage
        columnwise = self._has_columnwise() if columnwise_usage is None else columnwise_usage
        assert rowwise or columnwise, (
            "update_usage: at least one direction of a block-scaled tensor must stay"
        )
        if rowwise:
            self._require_direction("rowwise")
        derives = columnwise and not self._has_columnwise()
        if derives:
            assert rowwise and self._is_2D_scaled, (
                "update_usage: the columnwise codes were dropped, and only tiles that keep their "
                "rowwise codes can make them again"
            )
            self._create_columnwise()
        elif columnwise:
            self._require_direction("columnwise")
        self._keep(rowwise, columnwise)

    def _require_direction(self, direction: str) -> None:
        for part in ("data", "scale_inv"):
            assert self.__dict__[f"_{direction}_{part}"] is not None, (
                f"update_usage: {direction} usage needs _{direction}_{part}, which is missing"
            )

    def _create_columnwise(self) -> None:
        """Derives the columnwise codes and scales of tiles from the rowwise ones."""
        assert self._is_2D_scaled, "Only tiles have columnwise codes that follow from rowwise ones"
        self._derive_columnwise()

    def _transpose_columnwise_data(self) -> None:
        """Transposes the columnwise codes, and replaces the old buffer."""
        if self._columnwise_data is None:
            return
        codes = self._columnwise_data
        self._columnwise_data = codes.reshape(codes.shape[0], -1).t().contiguous()

    def _why_no_view(self, shape: torch.Size) -> str | None:
        own = self._logical_shape()
        kept = 2 if self._is_2D_scaled else 1
        if len(own) >= kept and tuple(shape[-kept:]) == tuple(own[-kept:]):
            return None
        if self._is_2D_scaled and len(own) == 2 and tuple(shape) == tuple(own):
            return None
        what = "its last two dimensions" if kept == 2 else "its inner dimension"
        return (
            f"{self.__class__.__name__} cannot reshape {what}, from {tuple(own)} to {tuple(shape)}"
        )

    def _view_buffers(self, shape: torch.Size) -> dict[str, torch.Tensor | None]:
        if shape != self._logical_shape():
            self._require_view(shape)
        rowwise, columnwise = self._rowwise_data, self._columnwise_data
        return {
            "rowwise_data": None if rowwise is None else rowwise.view(shape),
            "columnwise_data": None
            if columnwise is None
            else columnwise.view(to_columnwise(shape)),
        }

    def _derives_columnwise(self) -> bool:
        return self._is_2D_scaled

    def fsdp_extract_buffers(self) -> tuple[tuple[torch.Tensor, ...], dict[str, Any]]:
        """Returns the buffers. Errors: RuntimeError unless rows are whole blocks both ways."""
        transport.require_whole_blocks(self, self.fsdp_buffer_fields(), self._logical_shape()[0])
        return super().fsdp_extract_buffers()
