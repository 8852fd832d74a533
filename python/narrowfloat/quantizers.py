# SPDX-License-Identifier: Apache-2.0
"""Quantizers with TransformerEngine's names and arguments, on NumPy arrays.

They hold a configuration, and raise where TransformerEngine raises; the verbs do the work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import DTypeLike

from narrowfloat import _core
from narrowfloat._core import QuantizedTensor
from narrowfloat._options import Number, SpecOptions
from narrowfloat.common.dtypes import element_dtype

# An element format in any form that common.dtypes reads.
ElementLike: TypeAlias = object


class Quantizer:
    """Creates quantized tensors of one scheme, with directions and options.

    scheme: one of narrowfloat.schemes().
    rowwise, columnwise: the directions of new tensors; set_usage() changes them.
    """

    def __init__(self, scheme: str, *, rowwise: bool, columnwise: bool) -> None:
        self.scheme = scheme
        self.rowwise_usage = rowwise
        self.columnwise_usage = columnwise

    def quantize(self, x: object) -> QuantizedTensor:
        """Returns a new QuantizedTensor of `x`. Errors: as narrowfloat.quantize."""
        return self._run(x, None, None)

    __call__ = quantize

    def update_quantized(
        self, src: object, dst: QuantizedTensor, noop_flag: Number | None = None
    ) -> QuantizedTensor:
        """Quantizes `src` into `dst` and returns `dst`; with noop_flag 1, `dst` is unchanged.

        Errors: ValueError unless `dst` has the shape of `src` and this quantizer's directions.
        """
        return self._run(src, dst, noop_flag)

    def set_usage(self, *, rowwise: bool | None = None, columnwise: bool | None = None) -> None:
        """Sets the directions of new tensors; None leaves a direction unchanged."""
        if rowwise is not None:
            self.rowwise_usage = rowwise
        if columnwise is not None:
            self.columnwise_usage = columnwise

    def make_empty(
        self, shape: int | Sequence[int], dtype: DTypeLike = np.float32
    ) -> QuantizedTensor:
        """Returns a QuantizedTensor of zeros for update_quantized() to fill; `dtype` is nominal."""
        self._check(shape)
        return _core.empty(
            shape, self.scheme, self.rowwise_usage, self.columnwise_usage, dtype, **self._layout()
        )

    def _run(self, x: object, out: QuantizedTensor | None, noop: Number | None) -> QuantizedTensor:
        self._check(getattr(x, "shape", None))
        return _core.quantize(
            x,
            self.scheme,
            self.rowwise_usage,
            self.columnwise_usage,
            out,
            noop=noop,
            **self._options(),
        )

    def _check(self, shape: int | Sequence[int] | None) -> None:
        """Raises for shapes that TransformerEngine rejects; for None, x is not an array."""

    def _options(self) -> SpecOptions:
        return self._layout()

    def _layout(self) -> SpecOptions:
        """Returns the options that determine the layout of buffers."""
        return {}


class _PerTensorQuantizer(Quantizer):
    def _check(self, shape: int | Sequence[int] | None) -> None:
        if self.columnwise_usage and not self.rowwise_usage:
            raise NotImplementedError(
                "quantize: Columnwise-only per-tensor FP8 quantization is not implemented by "
                f"TransformerEngine's {type(self).__name__}; narrowfloat.quantize does it"
            )


class Float8Quantizer(_PerTensorQuantizer):
    """Per-tensor FP8 with a given scale (delayed scaling).

    scale: the caller's float32 array of one element; each call reads it.
    amax: the caller's float32 array of one element; each call sets it to the maximum of itself and
        the input's amax.
    fp8_dtype: E4M3 or E5M2, in any form: "e4m3", ml_dtypes.float8_e4m3fn, ...
    rowwise, columnwise: the directions of new tensors; set_usage() changes them.
    """

    def __init__(
        self,
        scale: np.ndarray,
        amax: np.ndarray,
        fp8_dtype: ElementLike,
        *,
        rowwise: bool = True,
        columnwise: bool = True,
    ) -> None:
        super().__init__(
            _core.per_tensor_scheme(element_dtype(fp8_dtype)),
            rowwise=rowwise,
            columnwise=columnwise,
        )
        self.scale = scale
        self.amax = amax

    def _options(self) -> SpecOptions:
        if self.scale is None:  # `quantize` would use current scaling
            raise TypeError("quantize: scale must be a float32 array of one element, got None")
        return {"scale": self.scale}

    def _run(self, x: object, out: QuantizedTensor | None, noop: Number | None) -> QuantizedTensor:
        if not (isinstance(self.amax, np.ndarray) and self.amax.dtype == np.float32):
            got = getattr(self.amax, "dtype", type(self.amax).__name__)
            raise TypeError(f"quantize: amax must be a float32 array of one element, got {got}")
        if self.amax.size != 1 or not self.amax.flags.writeable:
            raise ValueError(
                f"quantize: amax must be a writable float32 array of one element, got "
                f"size={self.amax.size}, writeable={self.amax.flags.writeable}"
            )
        result = super()._run(x, out, noop)
        if noop is None or float(np.asarray(noop).reshape(())) != 1:
            measured = result.buffers["amax_rowwise"][0]
            if measured > self.amax.flat[0]:
                self.amax.flat[0] = measured
        return result


class Float8CurrentScalingQuantizer(_PerTensorQuantizer):
    """Per-tensor FP8 with a scale computed from the amax of each input.

    fp8_dtype: E4M3 or E5M2, in any form: "e4m3", ml_dtypes.float8_e4m3fn, ...
    rowwise, columnwise: the directions of new tensors; set_usage() changes them.
    force_pow_2_scales: rounds the scale down to a power of two.
    amax_epsilon: the lower bound of the amax in the scale's formula.
    """

    def __init__(
        self,
        fp8_dtype: ElementLike,
        *,
        rowwise: bool = True,
        columnwise: bool = True,
        force_pow_2_scales: bool = False,
        amax_epsilon: float = 0.0,
    ) -> None:
        super().__init__(
            _core.per_tensor_scheme(element_dtype(fp8_dtype)),
            rowwise=rowwise,
            columnwise=columnwise,
        )
        self.force_pow_2_scales = force_pow_2_scales
        self.amax_epsilon = amax_epsilon

    def _options(self) -> SpecOptions:
        return {
            "force_pow_2_scales": self.force_pow_2_scales,
            "amax_epsilon": self.amax_epsilon,
        }


class MXFP8Quantizer(Quantizer):
    """MXFP8 in blocks along each direction, or in tiles (`with_2d_quantization`).

    Rows and columns must be multiples of the block, as in TransformerEngine; narrowfloat.quantize
    accepts any shape. Set the attribute `optimize_for_gemm` for swizzled scales.

    fp8_dtype: E4M3 or E5M2, in any form: "e4m3", ml_dtypes.float8_e4m3fn, ...
    rowwise, columnwise: the directions of new tensors; set_usage() changes them.
    with_2d_quantization: square tiles share a scale, and both directions hold the same codes. It
        determines `scheme`, and cannot be changed.
    """

    def __init__(
        self,
        fp8_dtype: ElementLike,
        *,
        rowwise: bool = True,
        columnwise: bool = True,
        with_2d_quantization: bool = False,
    ) -> None:
        super().__init__(
            _core.mx_scheme(element_dtype(fp8_dtype), with_2d_quantization),
            rowwise=rowwise,
            columnwise=columnwise,
        )
        self._tiles = with_2d_quantization
        self.optimize_for_gemm = False

    @property
    def with_2d_quantization(self) -> bool:
        return self._tiles

    def _check(self, shape: int | Sequence[int] | None) -> None:
        if shape is not None:
            _core.check_whole_blocks("MXFP8Quantizer", self.scheme, shape)

    def _layout(self) -> SpecOptions:
        return {"swizzled": self.optimize_for_gemm}


class Float8BlockQuantizer(Quantizer):
    """FP8 with an fp32 scale per block: square tiles (`block_scaling_dim` 2) or 1D blocks (1).

    Accepts any shape, as in TransformerEngine; a short last block is quantized as if zero-padded.

    fp8_dtype: E4M3 or E5M2, in any form: "e4m3", ml_dtypes.float8_e4m3fn, ...
    rowwise, columnwise: the directions of new tensors; set_usage() changes them.
    amax_epsilon: the lower bound of the amax in the scale's formula.
    force_pow_2_scales: rounds each scale down to a power of two.
    block_scaling_dim: 2 for square tiles, 1 for blocks along rows and columns. It determines
        `scheme`, and cannot be changed.

    Errors: RuntimeError for another block_scaling_dim, as in TransformerEngine.
    """

    def __init__(
        self,
        fp8_dtype: ElementLike,
        *,
        rowwise: bool,
        columnwise: bool,
        amax_epsilon: float = 0.0,
        force_pow_2_scales: bool = True,
        block_scaling_dim: int = 2,
    ) -> None:
        if block_scaling_dim not in (1, 2):
            raise RuntimeError(
                f"Float8BlockQuantizer: block_scaling_dim must be 1 or 2, got {block_scaling_dim}"
            )
        super().__init__(
            _core.fp8_block_scheme(element_dtype(fp8_dtype), block_scaling_dim == 2),
            rowwise=rowwise,
            columnwise=columnwise,
        )
        self.amax_epsilon = amax_epsilon
        self.force_pow_2_scales = force_pow_2_scales
        self._block_scaling_dim = block_scaling_dim

    @property
    def block_scaling_dim(self) -> int:
        return self._block_scaling_dim

    def _options(self) -> SpecOptions:
        return {
            "force_pow_2_scales": self.force_pow_2_scales,
            "amax_epsilon": self.amax_epsilon,
        }


class NVFP4Quantizer(Quantizer):
    """NVFP4 in blocks along each direction, or in tiles (`with_2d_quantization`).

    Rows and columns must be multiples of the block, as in TransformerEngine; narrowfloat.quantize
    accepts any even length. Set the attribute `optimize_for_gemm` for swizzled scales.

    fp4_dtype: E2M1, in any form.
    rowwise, columnwise: the directions of new tensors; set_usage() changes them.
    with_rht: applies the random Hadamard transform to the columnwise operand; needs
        with_post_rht_amax.
    with_post_rht_amax: the columnwise amax is computed after the transform.
    with_2d_quantization: square tiles share a scale. It determines `scheme`, and cannot be changed.
    stochastic_rounding: rounds up or down at random, with the exact value as mean.
    row_scaled_nvfp4: an amax per row and per column; needs rowwise usage.
    nvfp4_use_4over6: maps the amax of each block to 4 or 6, whichever gives the smaller error.
    nvfp4_e4m3_max: with 4over6, the largest block scale: 448 or 256.
    nvfp4_4over6_err_mode: "MAE" or "MSE", the error that 4over6 compares.
    with_random_sign_mask: the transform negates some of its inputs, by a fixed mask.
    seed, offset: of the random bits; TransformerEngine gets them from a generator.
    """

    def __init__(
        self,
        fp4_dtype: ElementLike = "e2m1",
        rowwise: bool = True,
        columnwise: bool = True,
        *,
        with_rht: bool = False,
        with_post_rht_amax: bool = False,
        with_2d_quantization: bool = False,
        stochastic_rounding: bool = False,
        row_scaled_nvfp4: bool = False,
        nvfp4_use_4over6: bool = False,
        nvfp4_e4m3_max: float = _core.E4M3_MAX,
        nvfp4_4over6_err_mode: str = "MAE",
        with_random_sign_mask: bool = True,
        seed: int = 0,
        offset: int = 0,
    ) -> None:
        scheme = _core.nvfp4_scheme(element_dtype(fp4_dtype), with_2d_quantization)
        super().__init__(scheme, rowwise=rowwise, columnwise=columnwise)
        self.with_rht = with_rht
        self.with_post_rht_amax = with_post_rht_amax
        self._tiles = with_2d_quantization
        self.stochastic_rounding = stochastic_rounding
        self.row_scaled_nvfp4 = row_scaled_nvfp4
        self.nvfp4_use_4over6 = nvfp4_use_4over6
        self.nvfp4_e4m3_max = nvfp4_e4m3_max
        self.nvfp4_4over6_err_mode = nvfp4_4over6_err_mode.upper()
        self.with_random_sign_mask = with_random_sign_mask
        self.seed = seed
        self.offset = offset
        self.optimize_for_gemm = False

    @property
    def with_2d_quantization(self) -> bool:
        return self._tiles

    def _check(self, shape: int | Sequence[int] | None) -> None:
        if self.with_rht and self.columnwise_usage and not self.with_post_rht_amax:
            raise ValueError("quantize: NVFP4Quantizer's with_rht needs with_post_rht_amax")
        if self.row_scaled_nvfp4 and not self.rowwise_usage:
            raise ValueError("quantize: NVFP4Quantizer's row_scaled_nvfp4 needs rowwise usage")
        if shape is not None:
            _core.check_whole_blocks("NVFP4Quantizer", self.scheme, shape)

    def _options(self) -> SpecOptions:
        options = self._layout()
        if self.with_rht:
            options["rht"] = True
            if not self.with_random_sign_mask:
                options["rht_sign_mask"] = 0
        if self.stochastic_rounding:
            options |= {"stochastic_rounding": True, "seed": self.seed, "offset": self.offset}
        if self.nvfp4_use_4over6:
            options["four_over_six"] = self.nvfp4_4over6_err_mode.lower()
            options["e4m3_max"] = self.nvfp4_e4m3_max
        return options

    def _layout(self) -> SpecOptions:
        layout: SpecOptions = {"swizzled": self.optimize_for_gemm}
        if self.row_scaled_nvfp4:
            layout["row_scaled"] = True
        return layout
