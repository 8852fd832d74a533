# SPDX-License-Identifier: Apache-2.0
"""Quantizers with TransformerEngine's names and arguments, on NumPy arrays.

They hold a configuration and refuse what TransformerEngine refuses; the verbs do the work.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import DTypeLike

from narrowfloat import _core
from narrowfloat._core import QuantizedTensor


class Quantizer:
    """A scheme, the directions wanted (`rowwise_usage`, `columnwise_usage`), and options."""

    def __init__(self, scheme: str, *, rowwise: bool, columnwise: bool) -> None:
        self.scheme = scheme
        self.rowwise_usage = rowwise
        self.columnwise_usage = columnwise

    def quantize(self, x: object) -> QuantizedTensor:
        """A new QuantizedTensor of `x`. Errors: as narrowfloat.quantize."""
        return self._run(x, None, None)

    __call__ = quantize

    def update_quantized(
        self, src: object, dst: QuantizedTensor, noop_flag: object = None
    ) -> QuantizedTensor:
        """Quantizes `src` into `dst` and returns it; with noop_flag == 1 nothing is written.

        Errors: ValueError unless `dst` has the shape of `src` and this quantizer's directions.
        """
        return self._run(src, dst, noop_flag)

    def set_usage(self, *, rowwise: bool | None = None, columnwise: bool | None = None) -> None:
        """Changes the directions wanted; None keeps one as it is."""
        if rowwise is not None:
            self.rowwise_usage = rowwise
        if columnwise is not None:
            self.columnwise_usage = columnwise

    def make_empty(
        self, shape: int | Sequence[int], dtype: DTypeLike = np.float32
    ) -> QuantizedTensor:
        """A QuantizedTensor of zeros for update_quantized() to fill; `dtype` is nominal."""
        self._check(shape)
        return _core.empty(
            shape, self.scheme, self.rowwise_usage, self.columnwise_usage, dtype, **self._layout()
        )

    def _run(self, x: object, out: QuantizedTensor | None, noop: object) -> QuantizedTensor:
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
        """Refuses what TransformerEngine refuses and the verbs take; None: no array at all."""

    def _options(self) -> dict[str, object]:
        return self._layout()

    def _layout(self) -> dict[str, object]:
        """The options that say how buffers lie."""
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

    `scale` and `amax` are float32 arrays of one element that the caller keeps: each call reads
    `scale` and raises `amax` to the largest magnitude seen. `fp8_dtype` is an ml_dtypes FP8 type,
    "e4m3" or "e5m2".
    """

    def __init__(
        self,
        scale: np.ndarray,
        amax: np.ndarray,
        fp8_dtype: DTypeLike,
        *,
        rowwise: bool = True,
        columnwise: bool = True,
    ) -> None:
        super().__init__(_core.per_tensor_scheme(fp8_dtype), rowwise=rowwise, columnwise=columnwise)
        self.scale = scale
        self.amax = amax

    def _options(self) -> dict[str, object]:
        return {"scale": self.scale}

    def _run(self, x: object, out: QuantizedTensor | None, noop: object) -> QuantizedTensor:
        if not (isinstance(self.amax, np.ndarray) and self.amax.dtype == np.float32):
            raise TypeError("quantize: amax must be a float32 array of one element")
        if self.amax.size != 1 or not self.amax.flags.writeable:
            raise ValueError("quantize: amax must be a writable float32 array of one element")
        result = super()._run(x, out, noop)
        if noop is None or float(np.asarray(noop).reshape(())) != 1:
            measured = result.buffers["amax_rowwise"][0]
            if measured > self.amax.flat[0]:
                self.amax.flat[0] = measured
        return result


class Float8CurrentScalingQuantizer(_PerTensorQuantizer):
    """Per-tensor FP8 whose scale comes from the largest magnitude of each input."""

    def __init__(
        self,
        fp8_dtype: DTypeLike,
        *,
        rowwise: bool = True,
        columnwise: bool = True,
        force_pow_2_scales: bool = False,
        amax_epsilon: float = 0.0,
    ) -> None:
        super().__init__(_core.per_tensor_scheme(fp8_dtype), rowwise=rowwise, columnwise=columnwise)
        self.force_pow_2_scales = force_pow_2_scales
        self.amax_epsilon = amax_epsilon

    def _options(self) -> dict[str, object]:
        return {
            "force_pow_2_scales": self.force_pow_2_scales,
            "amax_epsilon": self.amax_epsilon,
        }


class MXFP8Quantizer(Quantizer):
    """MXFP8 in blocks along each direction, or in tiles (`with_2d_quantization`).

    Rows and columns must be multiples of the block, as in TransformerEngine; narrowfloat.quantize
    takes any shape. `optimize_for_gemm` makes the scales swizzled.
    """

    def __init__(
        self,
        fp8_dtype: DTypeLike,
        *,
        rowwise: bool = True,
        columnwise: bool = True,
        with_2d_quantization: bool = False,
    ) -> None:
        super().__init__(
            _core.mx_scheme(fp8_dtype, with_2d_quantization), rowwise=rowwise, columnwise=columnwise
        )
        self.with_2d_quantization = with_2d_quantization
        self.optimize_for_gemm = False

    def _check(self, shape: int | Sequence[int] | None) -> None:
        if shape is not None:
            _core.check_whole_blocks("MXFP8Quantizer", self.scheme, shape)

    def _layout(self) -> dict[str, object]:
        return {"swizzled": self.optimize_for_gemm}


class Float8BlockQuantizer(Quantizer):
    """FP8 with an fp32 scale per block: square tiles (`block_scaling_dim` 2) or runs (1).

    Rows and columns must be multiples of the block, as in TransformerEngine; narrowfloat.quantize
    takes any shape.
    """

    def __init__(
        self,
        fp8_dtype: DTypeLike,
        *,
        rowwise: bool,
        columnwise: bool,
        amax_epsilon: float = 0.0,
        force_pow_2_scales: bool = True,
        block_scaling_dim: int = 2,
    ) -> None:
        if block_scaling_dim not in (1, 2):
            raise RuntimeError(
                f"Float8BlockQuantizer: block_scaling_dim is 1 or 2, got {block_scaling_dim}"
            )
        super().__init__(
            _core.fp8_block_scheme(fp8_dtype, block_scaling_dim == 2),
            rowwise=rowwise,
            columnwise=columnwise,
        )
        self.amax_epsilon = amax_epsilon
        self.force_pow_2_scales = force_pow_2_scales
        self.block_scaling_dim = block_scaling_dim

    def _check(self, shape: int | Sequence[int] | None) -> None:
        if shape is not None:
            _core.check_whole_blocks("Float8BlockQuantizer", self.scheme, shape)

    def _options(self) -> dict[str, object]:
        return {
            "force_pow_2_scales": self.force_pow_2_scales,
            "amax_epsilon": self.amax_epsilon,
        }
