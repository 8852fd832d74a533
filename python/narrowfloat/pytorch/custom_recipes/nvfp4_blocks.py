# SPDX-License-Identifier: Apache-2.0
"""Quantizes blocks of NVFP4 in plain torch operations, with the roundings of the kernels."""

from dataclasses import dataclass

import torch

from narrowfloat.common.recipe.nvfp4 import ERROR_MODES
from narrowfloat.pytorch.custom_recipes.reference_utils import (
    E2M1_VALUES,
    cast_from_fp4x2,
    cast_to_fp4x2,
)

FLT_MAX = torch.finfo(torch.float32).max
E2M1_MAX = E2M1_VALUES[-1]
E4M3_MAX = torch.finfo(torch.float8_e4m3fn).max

# The signs of the random Hadamard transform, a constant.
RHT_SIGNS = (1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1)


def hadamard_matrix(signs: bool, device: torch.device | None = None) -> torch.Tensor:
    """Returns diag(signs) times Sylvester's matrix times 1/4, fp32 (16, 16)."""
    h = torch.ones(1, 1, device=device)
    pair = torch.tensor([[1.0, 1.0], [1.0, -1.0]], device=device)
    for _ in range(4):
        h = torch.kron(h, pair)
    if signs:
        h = torch.tensor(RHT_SIGNS, dtype=torch.float32, device=device)[:, None] * h
    return h * 0.25


def apply_rht(x: torch.Tensor, signs: bool) -> torch.Tensor:
    """Multiplies each 16 adjacent items by the matrix in binary64; rounds to the type of `x`."""
    h = hadamard_matrix(signs, x.device).double()
    return (x.double().reshape(-1, 16) @ h).to(x.dtype).reshape(x.shape)


def encode_scale(amax: torch.Tensor, e4m3_max: float) -> torch.Tensor:
    """Returns the scale of a tensor with this amax, under which the scales of blocks fit E4M3."""
    scale = torch.div(torch.full_like(amax, e4m3_max * E2M1_MAX), amax).clamp(max=FLT_MAX)
    return torch.where(scale == 0, 1.0, scale)


def decode_blocks(
    data: torch.Tensor, scale: torch.Tensor, amax: torch.Tensor, e4m3_max: float, block: int
) -> torch.Tensor:
    """Returns the values of packed codes, fp32.

    Shapes: (M, K/2), (M, K/16), one amax or M to (M, K).
    """
    codes = cast_from_fp4x2(data)
    reciprocal = torch.reciprocal(torch.full_like(amax, E2M1_MAX * e4m3_max))
    factors = scale.float() * amax.reshape(-1, 1) * reciprocal.reshape(-1, 1)
    return codes * factors.repeat_interleave(block, dim=1)[:, : codes.shape[1]]


@dataclass(frozen=True)
class NVFP4Blocks:
    """A tile of rows x columns that shares a scale, and the rule that chooses the scale.

    error: "MAE" or "MSE" if each block chooses between two scales (4over6), else None.
    """

    tile: tuple[int, int] = (1, 16)
    pow_2_scales: bool = False
    e4m3_max: float = E4M3_MAX
    error: str | None = None
    fast_error: bool = False

    def __post_init__(self) -> None:
        tiles = ((1, 32),) if self.pow_2_scales else ((1, 16), (16, 16))
        if self.tile not in tiles:
            raise ValueError(
                f"NVFP4QuantizerRef: quant_tile_shape must be one of {tiles}, got {self.tile}"
            )
        if self.error is not None and self.error not in ERROR_MODES:
            raise ValueError(
                f"NVFP4QuantizerRef: nvfp4_4over6_err_mode must be MAE or MSE, got {self.error!r}"
            )
        if self.e4m3_max not in (256, 448):
            raise ValueError(
                f"NVFP4QuantizerRef: nvfp4_e4m3_max must be 448 or 256, got {self.e4m3_max}"
            )

    def quantize(self, x: torch.Tensor, amax: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns packed codes and scales of a matrix with a known amax.

        Shapes: x (M, K), amax one or M; codes uint8 (M, K/2), scales (M, blocks of a row), E4M3, or
        uint8 exponents of powers of two. The last block of a row may be shorter.
        """
        rows, cols = x.shape
        tiles = self._tiles(x.float())
        if self.pow_2_scales:
            codes, scale = _power_of_two(tiles)
        elif self.error is not None:
            codes, scale = self._better_of_two(tiles, amax)
        else:
            codes, scale = self._scaled(tiles, amax)
        packed = cast_to_fp4x2(self._matrix(codes)[:rows, :cols])
        # A tile's scale is repeated in each of its rows.
        return packed, scale.repeat_interleave(self.tile[0], dim=0)[:rows].contiguous()

    def _tiles(self, x: torch.Tensor) -> torch.Tensor:
        """Returns (tile rows, tile columns, rows, columns), padded with zeros to whole tiles."""
        height, width = self.tile
        pad = (0, -x.shape[1] % width, 0, -x.shape[0] % height)
        x = torch.nn.functional.pad(x, pad)
        return x.reshape(x.shape[0] // height, height, x.shape[1] // width, width).transpose(1, 2)

    def _matrix(self, tiles: torch.Tensor) -> torch.Tensor:
        """Inverts _tiles(); the result includes the padding."""
        down, across, height, width = tiles.shape
        return tiles.transpose(1, 2).reshape(down * height, across * width)

    def _scaled(self, tiles: torch.Tensor, amax: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        encode = encode_scale(amax, self.e4m3_max).reshape(-1, 1)
        sixth = torch.reciprocal(torch.full_like(encode, E2M1_MAX))
        decode_scale = (tiles.abs().amax(dim=(2, 3)) * (encode * sixth)).clamp(max=FLT_MAX)
        scale = decode_scale.clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)
        return tiles * _multiplier(scale, encode)[:, :, None, None], scale

    def _better_of_two(
        self, tiles: torch.Tensor, amax: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the scaled tiles and their scales, which map the amax to 4 if that has the
        smaller error, else to 6.
        """
        encode = encode_scale(amax, self.e4m3_max).reshape(-1, 1)
        largest = tiles.abs().amax(dim=(2, 3))
        base = torch.div(largest, torch.full_like(largest, E2M1_MAX)) * encode
        candidates = []
        for factor in (1.5, 1.0):
            scale = (base * factor).clamp(max=E4M3_MAX).to(torch.float8_e4m3fn)
            scaled = tiles * _multiplier(scale, encode)[:, :, None, None]
            error = self._error(tiles, scaled, scale, amax.reshape(-1, 1), encode)
            candidates.append((scaled, scale, error))
        (scaled4, scale4, error4), (scaled6, scale6, error6) = candidates
        takes4 = error4 < error6
        scale = torch.where(takes4, scale4.float(), scale6.float()).to(torch.float8_e4m3fn)
        return torch.where(takes4[:, :, None, None], scaled4, scaled6), scale

    def _error(
        self,
        tiles: torch.Tensor,
        scaled: torch.Tensor,
        scale: torch.Tensor,
        amax: torch.Tensor,
        encode: torch.Tensor,
    ) -> torch.Tensor:
        """Returns the error of each tile: sums items of a row in order, rows in a tree of strides
        8, 4, 2, 1.
        """
        codes = cast_from_fp4x2(cast_to_fp4x2(scaled))
        products = codes * scale.float()[:, :, None, None]
        if self.fast_error:
            difference = products.half().float() - tiles * encode[:, :, None, None]
        else:
            bound = torch.full_like(products, E2M1_MAX * self.e4m3_max)
            difference = torch.div(products * amax[:, :, None, None], bound) - tiles
        errors = difference.abs() if self.error == "MAE" else difference * difference
        rows = torch.zeros_like(errors[..., 0])
        for i in range(errors.shape[3]):
            rows = rows + errors[..., i]
        stride = rows.shape[2] // 2
        while stride:
            rows = rows[..., :stride] + rows[..., stride : 2 * stride]
            stride //= 2
        return rows[..., 0]


def _multiplier(scale: torch.Tensor, encode: torch.Tensor) -> torch.Tensor:
    """Returns the factor of a block's items, the reciprocal of the factor that decodes them."""
    return torch.reciprocal(scale.float() * torch.reciprocal(encode)).clamp(max=FLT_MAX)


def _power_of_two(tiles: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the scaled tiles and the codes of amax / 6, rounded up to a power of two, with bias
    127; a block of zeros has code 0.
    """
    amax = tiles.abs().amax(dim=(2, 3))
    mantissa, exponent = torch.frexp(torch.div(amax, torch.full_like(amax, E2M1_MAX)))
    exponent = torch.where(mantissa == 0.5, exponent - 1, exponent).clamp(-127, 127)
    exponent = torch.where(amax == 0, -127, exponent)
    scaled = tiles.double() * torch.exp2(-exponent.double())[:, :, None, None]
    return scaled.float(), (exponent + 127).to(torch.uint8)
