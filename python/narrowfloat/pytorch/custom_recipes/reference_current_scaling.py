# SPDX-License-Identifier: Apache-2.0
"""Per-tensor FP8 with current scaling, in plain torch operations.

Copy this recipe to write your own: a tensor class with codes and scales, a quantizer that makes and
multiplies such tensors, and a factory that returns the quantizer of a role. Any class with these
methods works in CustomRecipe; with `custom = True` its `qgemm` computes the products.

On finite input the bytes are equal to Float8CurrentScalingQuantizer's, except if a scale overflows:
here it becomes the largest number of the input's dtype. An item that is not finite changes all
codes here, because the amax is NaN or infinite; in the kernels it affects only its own code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from narrowfloat.pytorch._types import Group
from narrowfloat.pytorch.custom_recipes.gemm import GEMMType, MMParams
from narrowfloat.pytorch.custom_recipes.reference_tensor import (
    Buffer,
    ReferenceQuantizer,
    ReferenceTensor,
)
from narrowfloat.pytorch.custom_recipes.reference_utils import (
    finish_product,
    product_in_order,
    reduce_amax,
    role_of,
)
from narrowfloat.pytorch.quantization.roles import QuantizerRole


def current_scaling_ref_factory(role: QuantizerRole | None) -> CurrentScalingQuantizerRef:
    """Returns a quantizer of E5M2 for gradients of outputs, of E4M3 for all other tensors."""
    gradient = role is not None and role.tensor_type == "grad_output"
    return CurrentScalingQuantizerRef(torch.float8_e5m2 if gradient else torch.float8_e4m3fn)


def current_scaling_ref_quantizer_factory(
    role: QuantizerRole | str | None,
) -> CurrentScalingQuantizerRef:
    """Returns current_scaling_ref_factory() of a role, given as an object or as an older word. The
    words "input" and "weight" mean E4M3, "output" and "grad_output" E5M2; "linear_input" and so on
    mean the same. Errors: ValueError for another word.
    """
    resolved = role_of(role)
    if isinstance(role, str) and resolved.tensor_type == "output":
        return CurrentScalingQuantizerRef(torch.float8_e5m2)
    return current_scaling_ref_factory(resolved)


@dataclass(eq=False)
class CurrentScalingTensorRef(ReferenceTensor):
    """Codes in torch's FP8 dtypes, rowwise (`data`) and transposed (`data_t`).

    Shapes: data (M, K), data_t (K, M). `scale` and `scale_t` are the factors of decoded codes, fp32
    of one element, one tensor for both directions.
    """

    data: Buffer = None
    scale: Buffer = None
    data_t: Buffer = None
    scale_t: Buffer = None
    dtype: Any = None
    device: torch.device | None = None
    quant_dtype: Any = None
    original_shape: Any = None
    _quantizer: Any = None

    def update_usage(
        self, rowwise_usage: bool | None = None, columnwise_usage: bool | None = None
    ) -> None:
        """Drops a direction, or makes the transposed one. Errors: RuntimeError if impossible."""
        has_data, has_data_t = self.data is not None, self.data_t is not None
        rowwise = has_data if rowwise_usage is None else rowwise_usage
        columnwise = has_data_t if columnwise_usage is None else columnwise_usage
        if rowwise and not has_data:
            raise RuntimeError("update_usage: rowwise data cannot be made of columnwise data")
        if columnwise and not has_data_t:
            if not has_data:
                raise RuntimeError("update_usage: columnwise data needs rowwise data")
            self._create_transpose()
        if not rowwise:
            self.data = None
        if not columnwise:
            self.data_t = None

    def _create_transpose(self) -> None:
        self.data_t = self.data.t().contiguous()
        self.scale_t = self.scale

    def dequantize(self, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Returns plain values in the original shape; `dtype` defaults to the nominal type.

        Errors: RuntimeError if both directions are absent.
        """
        if self.data is None and self.data_t is None:
            raise RuntimeError("dequantize: the tensor holds no data")
        codes = self.data.float() if self.data is not None else self.data_t.float().t()
        scale = self.scale if self.scale is not None else self.scale_t
        values = (codes * scale).to(dtype or self.dtype)
        return values if self.original_shape is None else values.reshape(self.original_shape)


class CurrentScalingQuantizerRef(ReferenceQuantizer[CurrentScalingTensorRef]):
    """Makes CurrentScalingTensorRef.

    dtype: torch.float8_e4m3fn or torch.float8_e5m2. pow_2_scales: rounds scales down to powers of
    two. eps: the smallest amax that a scale is computed from. with_amax_reduction: uses the largest
    amax of all processes of amax_reduction_group.
    """

    TENSOR = CurrentScalingTensorRef
    supports_allgather_fp8 = True

    def __init__(
        self,
        dtype: torch.dtype,
        rowwise: bool = True,
        columnwise: bool = True,
        pow_2_scales: bool = False,
        eps: float = 0.0,
        with_amax_reduction: bool = False,
        amax_reduction_group: Group = None,
    ) -> None:
        super().__init__(rowwise=rowwise, columnwise=columnwise)
        self.dtype = dtype
        self.pow_2_scales = pow_2_scales
        self.eps = eps
        self.with_amax_reduction = with_amax_reduction
        self.amax_reduction_group = amax_reduction_group

    def _buffers(self, x: torch.Tensor) -> dict[str, torch.Tensor | None]:
        scale, scale_inv = self.scale_of(x)
        largest = torch.finfo(self.dtype).max
        # Without the clamp, infinity would become infinity in E5M2 instead of the largest code.
        codes = (x.float() * scale).clamp(-largest, largest).to(self.dtype)
        return {
            "data": codes if self.rowwise_usage else None,
            "scale": scale_inv if self.rowwise_usage else None,
            "data_t": codes.t().contiguous() if self.columnwise_usage else None,
            "scale_t": scale_inv if self.columnwise_usage else None,
        }

    def scale_of(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the scale of the elements, and its reciprocal.

        Shapes: fp32, one element each.
        """
        # amax() of an empty tensor raises; an amax of 0 leads to scale 1.
        amax = x.abs().amax().float() if x.numel() else x.new_zeros((), dtype=torch.float32)
        amax = amax.reshape(1)
        if self.with_amax_reduction:
            amax = reduce_amax(amax, self.amax_reduction_group)
        clamped = amax.clamp(min=self.eps)
        # torch computes a number over a tensor as reciprocal times number, which may differ in the
        # last bit.
        largest = torch.full_like(clamped, torch.finfo(self.dtype).max)
        scale = torch.div(largest, clamped)
        scale = torch.where(scale.isinf(), torch.finfo(x.dtype).max, scale)
        if self.pow_2_scales:
            power = torch.ldexp(torch.ones_like(scale), torch.frexp(scale).exponent - 1)
            scale = torch.where(clamped.isinf(), 0.0, power)
        scale = torch.where(clamped == 0, 1.0, scale)
        return scale, torch.reciprocal(scale)

    def make_empty(  # type: ignore[override]  # the shape must have a length
        self,
        shape: Sequence[int],
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
        **_: object,
    ) -> CurrentScalingTensorRef:
        """Returns a tensor that update_quantized() fills. Raises AssertionError unless 2-D."""
        assert len(shape) == 2, f"make_empty: the shape must have 2 dimensions, got {tuple(shape)}"
        rows, cols = shape
        device = torch.device(device or "cpu")
        empty: dict[str, Any] = {"dtype": self.dtype, "device": device}
        scale = torch.empty(1, dtype=torch.float32, device=device)
        return CurrentScalingTensorRef(
            data=torch.empty(rows, cols, **empty) if self.rowwise_usage else None,
            scale=scale if self.rowwise_usage else None,
            data_t=torch.empty(cols, rows, **empty) if self.columnwise_usage else None,
            scale_t=scale if self.columnwise_usage else None,
            dtype=dtype,
            device=device,
            quant_dtype=self.dtype,
            original_shape=(rows, cols),
            _quantizer=self,
        )

    def qgemm(
        self,
        qx: torch.Tensor,
        qw: torch.Tensor,
        m_params: MMParams | None = None,
        out_dtype: torch.dtype | None = None,
        sx: torch.Tensor | None = None,
        sw: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        out: torch.Tensor | None = None,
        accumulate: bool = False,
        gemm_type: GEMMType | None = GEMMType.FPROP,
        qresult_x: CurrentScalingTensorRef | None = None,
        qresult_w: CurrentScalingTensorRef | None = None,
    ) -> torch.Tensor:
        """Returns qx times qw transposed: dequantize both, multiply, bias, accumulate, output
        dtype.

        Shapes: codes (M, K) and (N, K), scales of one element; the result is (M, N). For dgrad and
        wgrad the caller passes the transposed codes. From a CurrentScalingTensorRef the rowwise
        codes and scales are used. The scales are applied after the sum: products of codes are
        exact, so this is the most accurate order.
        Errors: AssertionError if inner sizes differ, or unless `out` is given exactly if
        `accumulate` is set.
        """
        if isinstance(qx, CurrentScalingTensorRef):
            out_dtype, qx, sx = out_dtype or qx.dtype, qx.data, qx.scale
        if isinstance(qw, CurrentScalingTensorRef):
            qw, sw = qw.data, qw.scale
        assert qx.shape[-1] == qw.shape[-1], (
            f"qgemm: inner sizes differ, {tuple(qx.shape)} and {tuple(qw.shape)}"
        )
        assert sx is not None and sw is not None, "qgemm: codes need their scales sx and sw"
        y = product_in_order(qx, qw).double() * (sx.double() * sw.double())
        return finish_product(y.float(), out_dtype or torch.float32, bias, out, accumulate)

    def transpose_qresult(self, qresult: CurrentScalingTensorRef) -> CurrentScalingTensorRef:
        """Returns the tensor of the transposed matrix, with the directions exchanged."""
        return CurrentScalingTensorRef(
            data=qresult.data_t,
            scale=qresult.scale_t,
            data_t=qresult.data,
            scale_t=qresult.scale,
            dtype=qresult.dtype,
            device=qresult.device,
            quant_dtype=qresult.quant_dtype,
            original_shape=None,
            _quantizer=qresult._quantizer,
        )
