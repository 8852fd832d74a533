# SPDX-License-Identifier: Apache-2.0
"""NVFP4 in plain torch operations: 4-bit codes, one scale per block, one amax per tensor.

On finite input the bytes are equal to NVFP4Quantizer's, except that zeros lose their sign here. A
NaN changes its block's scale and the tensor's amax here; the kernels' amaxes ignore it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn

import torch

from narrowfloat.pytorch.custom_recipes.gemm import GEMMType, MMParams
from narrowfloat.pytorch.custom_recipes.nvfp4_blocks import (
    NVFP4Blocks,
    apply_rht,
    decode_blocks,
)
from narrowfloat.pytorch.custom_recipes.reference_tensor import (
    Buffer,
    ReferenceQuantizer,
    ReferenceTensor,
)
from narrowfloat.pytorch.custom_recipes.reference_utils import (
    E2M1_VALUES,
    Fp4Formats,
    cast_from_fp4x2,
    cast_to_fp4x2,
    high_precision_gemm_ref,
    role_of,
)
from narrowfloat.pytorch.quantization.roles import QuantizerRole

__all__ = [
    "NVFP4QuantizerRef",
    "NVFP4TensorRef",
    "cast_from_fp4x2",
    "cast_to_fp4x2",
    "high_precision_gemm_ref",
    "nvfp4_ref_rht_2d_factory",
]


def nvfp4_ref_rht_2d_factory(role: QuantizerRole | str | None) -> NVFP4QuantizerRef:
    """Returns a quantizer: tiles for weights of linear layers, 1x16 blocks with the transform for
    all other tensors.
    """
    resolved = role_of(role)
    if resolved.is_linear_weight():
        return NVFP4QuantizerRef(Fp4Formats.E2M1, quant_tile_shape=(16, 16))
    return NVFP4QuantizerRef(Fp4Formats.E2M1, quant_tile_shape=(1, 16), with_rht=True)


@dataclass(eq=False)
class NVFP4TensorRef(ReferenceTensor):
    """Packed codes and E4M3 scales of the matrix and of the transposed matrix, both rowwise.

    Shapes: data uint8 (M, K/2), scale (M, K/16) without padding; data_t (K, M/2), scale_t (K,
    M/16); the amaxes are fp32 of one element, or one per row.
    """

    data: Buffer = None
    scale: Buffer = None
    data_t: Buffer = None
    scale_t: Buffer = None
    global_amax_row: Buffer = None
    global_amax_col: Buffer = None
    dtype: Any = None
    device: torch.device | None = None
    quant_dtype: Any = None
    original_shape: Any = None
    _quantizer: Any = None

    KEPT: ClassVar[tuple[str, ...]] = ("global_amax_row", "global_amax_col")

    def update_usage(
        self, rowwise_usage: bool | None = None, columnwise_usage: bool | None = None
    ) -> None:
        """Drops a direction. Errors: RuntimeError if an absent direction is required."""
        for wanted, name, parts in (
            (rowwise_usage, "rowwise", ("data", "scale", "global_amax_row")),
            (columnwise_usage, "columnwise", ("data_t", "scale_t", "global_amax_col")),
        ):
            if wanted and getattr(self, parts[0]) is None:
                raise RuntimeError(f"update_usage: {name} data are missing and cannot be made")
            if wanted is False:
                for part in parts:
                    setattr(self, part, None)

    def dequantize(self, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Returns plain values of the rowwise codes. Errors: RuntimeError without them."""
        if self.data is None:
            raise RuntimeError("dequantize: NVFP4TensorRef needs rowwise data")
        q = self._quantizer
        values = decode_blocks(
            self.data, self.scale, self.global_amax_row, q.blocks.e4m3_max, q.blocks.tile[1]
        )
        return values.to(dtype or self.dtype).reshape(self.original_shape)


class NVFP4QuantizerRef(ReferenceQuantizer[NVFP4TensorRef]):
    """Makes NVFP4TensorRef.

    quant_tile_shape: (1, 16) or (16, 16); with pow_2_scales (1, 32): power-of-two scales without an
    amax of the tensor (MXFP4). row_scaled_nvfp4: one amax per row. nvfp4_use_4over6: each block
    uses the better of two scales, by the mean absolute or squared error ("MAE", "MSE"). with_rht:
    applies the random Hadamard transform to the transposed matrix. eps: has no effect.
    Shapes: K is even for rowwise codes, M for columnwise ones.
    Errors: ValueError for another tile, error mode or largest block scale.
    """

    TENSOR = NVFP4TensorRef
    supports_allgather_fp8 = False

    def __init__(
        self,
        dtype: Fp4Formats = Fp4Formats.E2M1,
        rowwise: bool = True,
        columnwise: bool = True,
        pow_2_scales: bool = False,
        eps: float = 0.0,
        quant_tile_shape: tuple[int, int] = (1, 16),
        row_scaled_nvfp4: bool = False,
        nvfp4_use_4over6: bool = False,
        nvfp4_e4m3_max: int = 448,
        nvfp4_4over6_err_mode: str = "MAE",
        nvfp4_4over6_err_use_fast_math: bool = False,
        with_rht: bool = False,
        with_random_sign_mask: bool = True,
    ) -> None:
        super().__init__(rowwise=rowwise, columnwise=columnwise)
        self.dtype = dtype
        self.pow_2_scales = pow_2_scales
        self.eps = eps
        rows, cols = quant_tile_shape
        self.quant_tile_shape = rows, cols
        self.row_scaled_nvfp4 = row_scaled_nvfp4
        self.nvfp4_use_4over6 = nvfp4_use_4over6
        self.nvfp4_e4m3_max = nvfp4_e4m3_max if nvfp4_use_4over6 else 448
        self.nvfp4_4over6_err_mode = nvfp4_4over6_err_mode.upper()
        self.with_rht = with_rht
        self.with_random_sign_mask = with_random_sign_mask
        self.blocks = NVFP4Blocks(
            tile=self.quant_tile_shape,
            pow_2_scales=pow_2_scales,
            e4m3_max=self.nvfp4_e4m3_max,
            error=self.nvfp4_4over6_err_mode if nvfp4_use_4over6 else None,
            fast_error=nvfp4_4over6_err_use_fast_math,
        )

    def _buffers(self, x: torch.Tensor) -> dict[str, torch.Tensor | None]:
        buffers = dict.fromkeys((*NVFP4TensorRef.SAVED, *NVFP4TensorRef.KEPT))
        if self.rowwise_usage:
            amax = self._amax(x)
            data, scale = self.blocks.quantize(x, amax)
            buffers |= {"data": data, "scale": scale, "global_amax_row": amax}
        if self.columnwise_usage:
            x_t = x.t().contiguous()
            if self.with_rht:
                x_t = self._apply_rht(x_t)
            amax = self._amax(x_t)
            data, scale = self.blocks.quantize(x_t, amax)
            buffers |= {"data_t": data, "scale_t": scale, "global_amax_col": amax}
        return buffers

    def _apply_rht(self, x: torch.Tensor) -> torch.Tensor:
        """Transforms each 16 adjacent items of `x`; does not read `with_rht`."""
        return apply_rht(x, self.with_random_sign_mask)

    def _amax(self, x: torch.Tensor) -> torch.Tensor:
        magnitudes = x.abs().float()
        return magnitudes.amax(dim=1) if self.row_scaled_nvfp4 else magnitudes.amax().reshape(1)

    def make_empty(  # type: ignore[override]  # the shape must have a length
        self,
        shape: Sequence[int],
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
        **_: object,
    ) -> NVFP4TensorRef:
        """Returns a tensor that update_quantized() fills. Errors: AssertionError unless 2-D."""
        assert len(shape) == 2, f"make_empty: the shape must have 2 dimensions, got {tuple(shape)}"
        zeros = torch.zeros(tuple(shape), dtype=dtype, device=device)
        made: Any = self.quantize(zeros)
        return made

    def transpose_qresult(self, qresult: NVFP4TensorRef) -> NoReturn:
        """Raises NotImplementedError: the scales of blocks are not valid for the transpose."""
        raise NotImplementedError(
            "transpose_qresult: NVFP4 codes are not supported, because scales belong to blocks of "
            "one direction"
        )

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
        qresult_x: NVFP4TensorRef | None = None,
        qresult_w: NVFP4TensorRef | None = None,
    ) -> torch.Tensor:
        """Returns qx times qw transposed, block by block in fp32; multiplies by the amaxes last.

        Shapes: packed codes (M, K/2) and (N, K/2), scales (M, K/16) and (N, K/16) as E4M3; the
        result is (M, N). qresult_x, qresult_w: the tensors with the codes; their amaxes are read.
        Errors: AssertionError for a bias, or unless K is a multiple of 32 and N of 8, or unless
        `out` is given exactly if `accumulate` is set.
        """
        assert bias is None, "qgemm: NVFP4QuantizerRef takes no bias"
        assert accumulate == (out is not None), "qgemm: out and accumulate=True need each other"
        k, n, block = qx.shape[1] * 2, qw.shape[0], self.blocks.tile[1]
        assert qw.shape[1] * 2 == k, f"qgemm: inner sizes differ, {k} and {qw.shape[1] * 2}"
        assert k % 32 == 0 and n % 8 == 0, f"qgemm: K % 32 and N % 8 must be 0, got K={k}, N={n}"
        x, w = cast_from_fp4x2(qx), cast_from_fp4x2(qw)
        sx, sw = (s.view(torch.float8_e4m3fn) if s.dtype == torch.uint8 else s for s in (sx, sw))
        sx, sw = sx.float(), sw.float()
        y = x.new_zeros(x.shape[0], n)
        for i in range(k // block):
            part = slice(i * block, (i + 1) * block)
            y += torch.outer(sx[:, i], sw[:, i]) * (x[:, part] @ w[:, part].t())
        if k:
            assert qresult_x is not None and qresult_w is not None, "qgemm: needs both tensors"
            y = y * self._alpha(qresult_x, qresult_w, gemm_type)
        if out is not None:
            return out.copy_(y + out.float())
        return y.to(out_dtype)

    def _alpha(
        self, x: NVFP4TensorRef, w: NVFP4TensorRef, gemm_type: GEMMType | None
    ) -> torch.Tensor:
        """Returns the factor of the block products from both amaxes; a column if x has row amaxes.

        Wgrad reads the columnwise codes of both operands, and so the columnwise amaxes.
        """
        side = "global_amax_col" if gemm_type is GEMMType.WGRAD else "global_amax_row"
        amax_x, amax_w = getattr(x, side), getattr(w, side)
        largest = E2M1_VALUES[-1] ** 2 * x._quantizer.nvfp4_e4m3_max * w._quantizer.nvfp4_e4m3_max
        factors = (
            torch.outer(amax_x, amax_w) if max(len(amax_x), len(amax_w)) > 1 else (amax_x * amax_w)
        )
        return torch.div(factors, torch.full_like(factors, largest))
