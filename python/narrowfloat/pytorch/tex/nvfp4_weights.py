# SPDX-License-Identifier: Apache-2.0
"""Entries that quantize weights to tiles of NVFP4 from pieces of master weights.

The amaxes of tiles and weights cover the whole weight: processes reduce them between
nvfp4_multi_tensor_compute_partial_amax() and the other entries.
"""

from collections.abc import Sequence
from typing import Any

import torch

from narrowfloat import _core
from narrowfloat.pytorch import _native
from narrowfloat.pytorch.constants import NVFP4_BLOCK_SCALING_SIZE, DType
from narrowfloat.pytorch.tensor._master_weights import amaxes_of_part, magnitudes
from narrowfloat.pytorch.tensor.storage.nvfp4_tensor_storage import codes_per_byte, nvfp4_scheme
from narrowfloat.pytorch.tex.master_weights import cast_saturated, scales_of_part

__all__ = [
    "nvfp4_compute_global_scale",
    "nvfp4_multi_tensor_2d_partial_cast",
    "nvfp4_multi_tensor_compute_partial_amax",
    "nvfp4_multi_tensor_fused_scale",
]

_E4M3 = DType.kFloat8E4M3
Tensors = Sequence[torch.Tensor]


def _require_tiles(entry: str, block_len: int) -> None:
    """Raises ValueError for another tile size than NVFP4's."""
    if block_len != NVFP4_BLOCK_SCALING_SIZE:
        raise ValueError(f"{entry}: block_len must be {NVFP4_BLOCK_SCALING_SIZE}, got {block_len}")


@torch.no_grad()
def nvfp4_multi_tensor_compute_partial_amax(
    master_weight_list: Tensors,
    partial_amax_list: Tensors,
    global_amax_list: Tensors,
    h_list: Sequence[int],
    w_list: Sequence[int],
    start_offset_list: Sequence[int],
    block_len: int = NVFP4_BLOCK_SCALING_SIZE,
) -> None:
    """Writes the amax of each tile over a piece's elements, and updates the weights' amaxes.

    Errors: ValueError for another block_len.
    """
    _require_tiles("nvfp4_multi_tensor_compute_partial_amax", block_len)
    lists = (master_weight_list, partial_amax_list, global_amax_list)
    sizes = (h_list, w_list, start_offset_list)
    for piece, tiles, whole, h, w, start in zip(*lists, *sizes, strict=True):
        values = piece.reshape(-1)
        tiles.copy_(amaxes_of_part(values, start, (h, w), block_len, block_len))
        if values.numel() > 0:
            whole.copy_(torch.maximum(whole, magnitudes(values).max().to(whole.dtype)))


@torch.no_grad()
def nvfp4_compute_global_scale(global_amax: torch.Tensor, global_scale: torch.Tensor) -> None:
    """Writes the scale that maps each weight's amax to the largest product of scale and code."""
    limits = torch.finfo(torch.float32)
    numerator = torch.full_like(global_amax, _core.E4M3_MAX * _core.E2M1_MAX)
    scale = (numerator / global_amax.clamp(min=limits.tiny)).clamp(max=limits.max)
    global_scale.copy_(torch.where(global_amax > 0, scale, torch.ones_like(scale)))


@torch.no_grad()
def nvfp4_multi_tensor_fused_scale(
    block_amax_list: Tensors,
    global_amax_list: Tensors,
    per_block_scale_list: Tensors,
    target_scale_list: Tensors,
    target_amax_list: Tensors,
    tile_rows_list: Sequence[int],
    tile_cols_list: Sequence[int],
    rows_padded_list: Sequence[int],
    block_len: int,
) -> None:
    """Writes the scales of tiles: float32, and E4M3 codes for each line; and the weights' amaxes.

    Shapes: per tile (tile_rows, tile_cols); codes (rows_padded, >= tile_cols), 0 in the padding.
    Errors: ValueError for another block_len.
    """
    _require_tiles("nvfp4_multi_tensor_fused_scale", block_len)
    lists = (block_amax_list, global_amax_list, per_block_scale_list, target_scale_list)
    for amax, whole, scale, codes, target, cols in zip(
        *lists, target_amax_list, tile_cols_list, strict=True
    ):
        global_scale = torch.empty_like(whole)
        nvfp4_compute_global_scale(whole, global_scale)
        factor = global_scale * torch.full_like(global_scale, 1 / _core.E2M1_MAX)
        scale.copy_((amax * factor).clamp(max=torch.finfo(torch.float32).max))
        per_tile = scale.new_empty(scale.numel(), dtype=torch.uint8)
        cast_saturated(scale.reshape(-1), per_tile, _E4M3)
        lines = per_tile.view(scale.shape).repeat_interleave(block_len, 0)[: codes.shape[0]]
        codes.zero_()
        codes[: len(lines), :cols] = lines
        target.copy_(whole.view(target.shape))


def _write_e2m1(values: torch.Tensor, out: torch.Tensor) -> None:
    """Writes the packed E2M1 codes of float32 values, with saturation.

    The last two items of each NVFP4 block are set to E2M1's maximum, with an amax that makes its
    scale 1. So the codes before them are the codes of the unscaled values.
    """
    per_byte, block = codes_per_byte(), NVFP4_BLOCK_SCALING_SIZE
    room = block - per_byte
    count = -(-values.numel() // room)
    blocks = values.new_full((count, block), _core.E2M1_MAX)
    flat = values.new_zeros(count * room)
    flat[: values.numel()] = values.clamp(-_core.E2M1_MAX, _core.E2M1_MAX)
    blocks[:, :room] = flat.view(count, room)
    spec = _native.make_spec(nvfp4_scheme(DType.kFloat4E2M1, False), True, False)
    made = {
        planned.role: values.new_empty(planned.shape, dtype=planned.dtype)
        for planned in _native.plan(spec, tuple(blocks.shape))
    }
    amax = values.new_full((1,), _core.E4M3_MAX * _core.E2M1_MAX)
    _native.quantize(spec, blocks, tuple(map(made.get, _native.ROLES)), amax=amax)
    codes = made["rowwise_data"][:, : room // per_byte].reshape(-1)
    out.copy_(codes[: values.numel() // per_byte])


def _partial_cast(
    piece: torch.Tensor,
    out: torch.Tensor,
    scale: torch.Tensor,
    global_scale: torch.Tensor,
    w: int,
    start: int,
    block_len: int,
) -> None:
    """Writes the codes of one piece."""
    codes = scale.new_empty(scale.numel(), dtype=torch.uint8)
    cast_saturated(scale.reshape(-1).float(), codes, _E4M3)
    rounded = codes.view(torch.float8_e4m3fn).float().view(scale.shape)
    whole = torch.where(global_scale > 0, global_scale, torch.ones_like(global_scale))
    encode = (rounded * whole.reciprocal()).reciprocal().clamp(max=torch.finfo(torch.float32).max)
    values = piece.reshape(-1).float()
    tiles = scales_of_part(encode, values.numel(), start, w, (block_len, block_len))
    _write_e2m1(values * tiles, out.view(-1)[: values.numel() // codes_per_byte()])


@torch.no_grad()
def nvfp4_multi_tensor_2d_partial_cast(
    inp_list: Tensors,
    out_list: Tensors,
    scale_list: Tensors,
    global_scale_list: Tensors,
    h_list: Sequence[int],
    w_list: Sequence[int],
    start_offset_list: Sequence[int],
    block_len: int = NVFP4_BLOCK_SCALING_SIZE,
) -> None:
    """Writes the packed codes of each piece with the scales of its tiles.

    Errors: ValueError for another block_len or a piece of half bytes; nothing is written then.
    """
    entry = "nvfp4_multi_tensor_2d_partial_cast"
    _require_tiles(entry, block_len)
    per_byte = codes_per_byte()
    for piece, start in zip(inp_list, start_offset_list, strict=True):
        if (start % per_byte, piece.numel() % per_byte) != (0, 0):
            raise ValueError(
                f"{entry}: pieces must be whole bytes, got {piece.numel()} elements from {start}"
            )
    lists: tuple[Any, ...] = (
        inp_list,
        out_list,
        scale_list,
        global_scale_list,
        w_list,
        start_offset_list,
    )
    for piece, out, scale, global_scale, w, start in zip(*lists, strict=True):
        if piece.numel() > 0:
            _partial_cast(piece, out, scale, global_scale, w, start, block_len)
