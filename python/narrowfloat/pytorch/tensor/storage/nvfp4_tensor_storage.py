# SPDX-License-Identifier: Apache-2.0
"""NVFP4: packed codes of both directions, with E4M3 scales and an amax each."""

from __future__ import annotations

import warnings
from functools import lru_cache
from typing import Any

import torch

from narrowfloat import _core
from narrowfloat.pytorch._autograd import _DequantizeFunc
from narrowfloat.pytorch._native import flatten_shape
from narrowfloat.pytorch.constants import DType, element_of
from narrowfloat.pytorch.tensor.storage._dropped import take_back
from narrowfloat.pytorch.tensor.storage._fields import Buffer, Setting
from narrowfloat.pytorch.tensor.storage._scheme_storage import BLOCK_BUFFERS, BlockStorage

_FromNVFP4Func = _DequantizeFunc

E4M3_BOUND = int(_core.E4M3_MAX)  # of the block scales, without 4over6


@lru_cache
def nvfp4_scheme(fp4_dtype: DType, tiles: bool) -> str:
    """Returns the name of the NVFP4 scheme with this element type."""
    return _core.nvfp4_scheme(element_of(fp4_dtype), tiles)


@lru_cache
def codes_per_byte() -> int:
    """Returns the number of codes in a byte."""
    return _core.make_spec(nvfp4_scheme(DType.kFloat4E2M1, False)).codes_per_byte


def _flatten_wrapper(outer: dict[str, Any]) -> None:
    """Flattens the wrapper's shape if there is only columnwise data, which are of that shape."""
    shape = outer.get("shape")
    if shape is not None and len(shape) != 2:
        outer["shape"] = torch.Size(flatten_shape(tuple(shape)))
        outer.pop("stride", None)


class NVFP4TensorStorage(BlockStorage):
    """The buffers of an NVFP4 tensor. Each argument is a field, with the prefix _.

    rowwise_data: packed codes, uint8 `[*lead, K / 2]`; None without the direction.
    columnwise_data: packed codes of the flattened transpose, uint8 `[K, M / 2]`, or None.
    rowwise_scale_inv, columnwise_scale_inv: uint8 E4M3 codes, padded; None without the direction.
    amax_rowwise, amax_columnwise: float32 of one element, or one per row with row_scaled_nvfp4.
    fp4_dtype: E2M1, in any form that DType.cast() accepts.
    quantizer: an NVFP4Quantizer, which is copied, or None.
    with_gemm_swizzled_scales: whether the scales are swizzled.
    row_scaled_nvfp4: whether each row has its own amax.
    nvfp4_use_4over6: whether each block chose between two scales.
    nvfp4_e4m3_max: the largest block scale, 448 or 256.
    fake_dtype: the nominal type, which dequantize() returns; None is float32.
    """

    BUFFERS = (
        *BLOCK_BUFFERS,
        Buffer("_amax_rowwise", "amax_rowwise", ("amax_rowwise",)),
        Buffer("_amax_columnwise", "amax_columnwise", ("amax_columnwise",)),
    )
    SETTINGS = (
        Setting("_fp4_dtype", "fp4_dtype", "FP4 dtype", DType.kFloat4E2M1, DType.cast),
        Setting("_with_gemm_swizzled_scales", "with_gemm_swizzled_scales", "Scale layout", False),
        Setting("_row_scaled_nvfp4", "row_scaled_nvfp4", "Row-scaled mode", False, None, True),
        Setting("_nvfp4_use_4over6", "nvfp4_use_4over6", "4over6 mode", False, None, True),
        Setting("_nvfp4_e4m3_max", "nvfp4_e4m3_max", "E4M3 bound", E4M3_BOUND, None, True),
    )
    _fp4_dtype: DType
    _with_gemm_swizzled_scales: bool
    _row_scaled_nvfp4: bool
    _nvfp4_use_4over6: bool
    _nvfp4_e4m3_max: int
    _amax_rowwise: torch.Tensor | None
    _amax_columnwise: torch.Tensor | None

    @classmethod
    def _settle(cls, fields: dict[str, Any], outer: dict[str, Any]) -> None:
        super()._settle(fields, outer)
        if fields["_rowwise_data"] is None and fields["_columnwise_data"] is not None:
            _flatten_wrapper(outer)
        if not fields["_nvfp4_use_4over6"]:
            fields["_nvfp4_e4m3_max"] = E4M3_BOUND

    def _scheme(self) -> str:
        # Scales of tiles are stored for each line, like those of 1x16 blocks.
        return nvfp4_scheme(self._fp4_dtype, False)

    def _layout_options(self) -> tuple[tuple[str, Any], ...]:
        options: list[tuple[str, Any]] = []
        if self._with_gemm_swizzled_scales:
            options.append(("swizzled", True))
        if self._row_scaled_nvfp4:
            options.append(("row_scaled", True))
        if self._nvfp4_e4m3_max != E4M3_BOUND:
            options.append(("e4m3_max", float(self._nvfp4_e4m3_max)))
        return tuple(options)

    def _logical_shape(self) -> torch.Size:
        if self._rowwise_data is not None:
            packed = self._rowwise_data.shape
            if len(packed) == 2:  # the usual case, in half the time
                return torch.Size((packed[0], packed[1] * codes_per_byte()))
            return torch.Size((*packed[:-1], packed[-1] * codes_per_byte()))
        if self._columnwise_data is not None:
            shape = self._columnwise_data.shape
            return torch.Size((*shape[1:-1], shape[-1] * codes_per_byte(), shape[0]))
        raise RuntimeError(f"{self.__class__.__name__} has no data!")

    def size(self, dim: int | None = None) -> Any:  # noqa: ANN401  # sizes of all dimensions, or of one
        if self._rowwise_data is None and self._columnwise_data is not None:
            warnings.warn(
                "The shape of an NVFP4 tensor that has only columnwise data is that of the "
                "flattened one",
                stacklevel=2,
            )
        shape = self.shape if self._is_tensor else self._logical_shape()
        return shape if dim is None else shape[dim]

    def get_data_tensors(  # type: ignore[override]  # TransformerEngine's takes no choice here
        self,
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Returns the codes of both directions."""
        return self._rowwise_data, self._columnwise_data

    def _require_readable(self) -> None:
        if self._rowwise_data is None:
            raise NotImplementedError(
                "Dequantizing columnwise NVFP4 data is not implemented: the transform that it may "
                "have gone through is not undone"
            )

    def update_usage(
        self, rowwise_usage: bool | None = None, columnwise_usage: bool | None = None
    ) -> None:
        """Updates directions. Errors: RuntimeError with the name of a missing buffer."""
        if rowwise_usage and columnwise_usage and self._columnwise_data is None:
            self._require_buffers("rowwise")
            self._create_columnwise()
            return
        super().update_usage(rowwise_usage, columnwise_usage)

    def _derives_columnwise(self) -> bool:
        quantizer = self._quantizer
        return getattr(quantizer, "with_2d_quantization", False) and not quantizer.with_rht

    def fsdp_buffer_fields(self) -> tuple[str, ...]:
        # The interface of hybrid tensors does not send the amaxes.
        raise NotImplementedError(
            f"{self.__class__.__name__} class does not implement fsdp_buffer_fields function"
        )

    def _create_columnwise(self) -> None:
        """Derives the columnwise buffers of tiles from the rowwise ones.

        Errors: RuntimeError for 1x16 blocks.
        """
        if not self._derives_columnwise():
            raise RuntimeError(
                "update_usage: columnwise NVFP4 data can be made of rowwise data only under 2-D "
                "quantization without the transform"
            )
        if self._rowwise_data is None:
            raise RuntimeError("update_usage: making columnwise NVFP4 data needs rowwise data")
        if take_back(self, writes=False):
            return
        amax: Any = self._amax_rowwise
        if self._amax_columnwise is None:
            self._amax_columnwise = amax.clone()
        else:
            self._amax_columnwise.copy_(amax)
        self._derive_columnwise(nvfp4_scheme(self._fp4_dtype, True))

    def _columnwise_plan_shape(self) -> torch.Size:
        return torch.Size(flatten_shape(tuple(self._logical_shape())))

    def _shared_names(self) -> tuple[str, ...]:
        return () if self._row_scaled_nvfp4 else ("_amax_rowwise", "_amax_columnwise")

    def _cut_amaxes(self, fields: dict[str, Any], along_rows: bool, first: int, count: int) -> bool:
        if not self._row_scaled_nvfp4:
            return True
        if not along_rows or self._has_columnwise():  # the amax of a column covers all rows
            return False
        amaxes: Any = self._amax_rowwise
        fields["amax_rowwise"] = amaxes.narrow(0, first, count)
        return True

    def _why_no_view(self, shape: torch.Size) -> str | None:
        own = self._logical_shape() if self._first_buffer() is not None else self.shape
        if len(shape) > 0 and shape[-1] == own[-1]:
            return None
        return self._other_inner(own, shape)

    def _view_buffers(self, shape: torch.Size) -> dict[str, torch.Tensor | None]:
        self._require_view(shape)
        packed = torch.Size((*shape[:-1], shape[-1] // codes_per_byte()))
        rowwise = self._rowwise_data
        return {"rowwise_data": None if rowwise is None else rowwise.view(packed)}
