# SPDX-License-Identifier: Apache-2.0
"""FP8 with one fp32 scale per block, in plain torch operations.

On finite input the bytes are equal to Float8BlockQuantizer's. An item that is not finite changes
the scale of its block here; in the kernels it affects only its own code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from narrowfloat.pytorch.custom_recipes.gemm import GEMMType, MMParams
from narrowfloat.pytorch.custom_recipes.reference_tensor import (
    Buffer,
    ReferenceQuantizer,
    ReferenceTensor,
)
from narrowfloat.pytorch.custom_recipes.reference_utils import product_in_order, role_of
from narrowfloat.pytorch.quantization.roles import QuantizerRole

BLOCK = 128


def float8_block_scaling_ref_factory(
    role: QuantizerRole | str | None,
) -> Float8BlockQuantizerRef:
    """Returns a quantizer of E4M3: tiles for weights of linear layers, else 1x128 blocks."""
    tiles = role_of(role).is_linear_weight()
    return Float8BlockQuantizerRef(torch.float8_e4m3fn, block_scaling_dim=2 if tiles else 1)


@dataclass(eq=False)
class Float8BlockTensorRef(ReferenceTensor):
    """Codes in torch's FP8 dtypes, rowwise and transposed, with one scale per line and block.

    Shapes: data (M, K), scale fp32 (M, K/128) or, for tiles, (M/128, K/128), rounded up; data_t and
    scale_t are the same for the transposed matrix. A decoded code times its scale is the value.
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
        """Drops a direction. Errors: RuntimeError if an absent direction is required."""
        if (rowwise_usage and self.data is None) or (columnwise_usage and self.data_t is None):
            raise RuntimeError("update_usage: a direction that was not quantized cannot be added")
        if rowwise_usage is False:
            self.data = self.scale = None
        if columnwise_usage is False:
            self.data_t = self.scale_t = None

    def dequantize(self, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Returns plain values in the original shape; `dtype` defaults to the nominal type.

        Errors: RuntimeError if both directions are absent.
        """
        if self.data is None and self.data_t is None:
            raise RuntimeError("dequantize: the tensor holds no data")
        if self.data is not None:
            values = self.data.float() * spread(self.scale, self.data.shape)
        else:
            values = (self.data_t.float() * spread(self.scale_t, self.data_t.shape)).t()
        return values.to(dtype or self.dtype).reshape(self.original_shape)


def spread(scale: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """Returns the scale of each item of a matrix of that shape."""
    if scale.shape[0] != shape[0]:
        scale = scale.repeat_interleave(BLOCK, dim=0)[: shape[0]]
    return scale.repeat_interleave(BLOCK, dim=1)[:, : shape[1]]


class Float8BlockQuantizerRef(ReferenceQuantizer[Float8BlockTensorRef]):
    """Makes Float8BlockTensorRef.

    dtype: torch.float8_e4m3fn or torch.float8_e5m2. block_scaling_dim: 1 for blocks of 1x128, or 2
    for tiles of 128x128. pow_2_scales: rounds scales down to powers of two. eps: the smallest amax
    that a scale is computed from. Errors: ValueError for another block_scaling_dim.
    """

    TENSOR = Float8BlockTensorRef

    def __init__(
        self,
        dtype: torch.dtype,
        rowwise: bool = True,
        columnwise: bool = True,
        pow_2_scales: bool = True,
        eps: float = 0.0,
        block_scaling_dim: int = 2,
    ) -> None:
        super().__init__(rowwise=rowwise, columnwise=columnwise)
        if block_scaling_dim not in (1, 2):
            raise ValueError(
                "Float8BlockQuantizerRef: block_scaling_dim must be 1 or 2, got "
                f"{block_scaling_dim}"
            )
        self.dtype = dtype
        self.pow_2_scales = pow_2_scales
        self.eps = eps
        self.block_scaling_dim = block_scaling_dim

    def _buffers(self, x: torch.Tensor) -> dict[str, torch.Tensor | None]:
        x = x.reshape(-1, x.shape[-1] if x.ndim else 1)
        buffers = dict.fromkeys(Float8BlockTensorRef.SAVED)
        if self.rowwise_usage:
            buffers["data"], buffers["scale"] = self._directed(x)
        if self.columnwise_usage:
            buffers["data_t"], buffers["scale_t"] = self._directed(x.t())
        return buffers

    def _directed(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the codes and scale_inv of a matrix with blocks along its rows."""
        height = BLOCK if self.block_scaling_dim == 2 else 1
        padded = torch.nn.functional.pad(
            x.float(), (0, -x.shape[1] % BLOCK, 0, -x.shape[0] % height)
        )
        rows, cols = padded.shape
        blocks = padded.reshape(rows // height, height, cols // BLOCK, BLOCK)
        scale = self.scale_of(blocks.abs().amax(dim=(1, 3)), x.dtype)
        largest = torch.finfo(self.dtype).max
        codes = (x.float() * spread(scale, x.shape)).clamp(-largest, largest).to(self.dtype)
        return codes.contiguous(), torch.reciprocal(scale)

    def scale_of(self, amax: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Returns the scale of blocks with these amaxes."""
        clamped = amax.clamp(min=self.eps)
        scale = torch.div(torch.full_like(clamped, torch.finfo(self.dtype).max), clamped)
        scale = torch.where(scale.isinf(), torch.finfo(dtype).max, scale)
        if self.pow_2_scales:
            power = torch.ldexp(torch.ones_like(scale), torch.frexp(scale).exponent - 1)
            scale = torch.where(clamped.isinf(), 0.0, power)
        return torch.where(clamped == 0, 1.0, scale)

    def make_empty(  # type: ignore[override]  # the shape must have a length
        self,
        shape: Sequence[int],
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
        **_: object,
    ) -> Float8BlockTensorRef:
        """Returns a tensor that update_quantized() fills."""
        return self.quantize_impl(torch.zeros(tuple(shape), dtype=dtype, device=device))

    def qgemm(
        self,
        qx: torch.Tensor,
        qw: torch.Tensor,
        m_params: MMParams | None,
        out_dtype: torch.dtype,
        sx: torch.Tensor,
        sw: torch.Tensor,
        bias: torch.Tensor | None = None,
        out: torch.Tensor | None = None,
        accumulate: bool = False,
        gemm_type: GEMMType | None = GEMMType.FPROP,
        qresult_x: Float8BlockTensorRef | None = None,
        qresult_w: Float8BlockTensorRef | None = None,
    ) -> torch.Tensor:
        """Returns qx times qw transposed: fp32 sums over 128 positions, each scaled and added with
        one rounding.

        Shapes: codes (M, K) and (N, K), scales as in Float8BlockTensorRef; the result is (M, N).
        The bias is added in fp32; accumulation adds `out` to the result in its dtype.
        Errors: AssertionError unless `out` is given exactly if `accumulate` is set.
        """
        assert accumulate == (out is not None), "qgemm: out and accumulate=True need each other"
        tiles_x, tiles_w = sx.shape[0] != qx.shape[0], sw.shape[0] != qw.shape[0]
        sx = sx.repeat_interleave(BLOCK, dim=0)[: len(qx)] if tiles_x else sx
        sw = sw.repeat_interleave(BLOCK, dim=0)[: len(qw)] if tiles_w else sw
        y = torch.zeros(len(qx), len(qw), device=qx.device)
        for i, start in enumerate(range(0, qx.shape[1], BLOCK)):
            part = slice(start, start + BLOCK)
            dots = product_in_order(qx[:, part], qw[:, part])
            a, b = sx[:, i, None], sw[None, :, i]
            if tiles_x and tiles_w:
                y = fused_multiply_add(dots, a * b, y)
            elif tiles_x:
                y = fused_multiply_add(dots * b, a, y)
            else:
                y = fused_multiply_add(dots * a, b, y)
        if bias is not None:
            y = y + bias.float()
        y = y.to(out_dtype)
        return y if out is None else out.copy_(y + out)


def fused_multiply_add(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """Returns a * b + c in fp32 with one rounding.

    The product of two fp32 numbers is exact in binary64. A sum that is not exact is rounded to odd,
    so that the second rounding, to fp32, is correct.
    """
    product, addend = a.double() * b.double(), c.double()
    total = product + addend
    # The exact rounding error of the sum (Knuth).
    part = total - product
    lost = (product - (total - part)) + (addend - part)
    even = (total.view(torch.int64) & 1) == 0
    away = torch.where((lost > 0) == (total > 0), 1, -1)
    odd = (total.view(torch.int64) + torch.where((lost != 0) & even, away, 0)).view(torch.float64)
    return torch.where(total.isfinite() & lost.isfinite(), odd, total).float()
