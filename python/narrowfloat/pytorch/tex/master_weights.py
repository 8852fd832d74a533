# SPDX-License-Identifier: Apache-2.0
"""Entries that quantize weights from flat pieces of master weights.

A piece begins at `start_offset` of a matrix (h, w). Blocks use the amaxes of the whole matrix:
processes reduce them after the first entries and before the last.
"""

from collections.abc import Sequence

import torch

from narrowfloat.pytorch import _native
from narrowfloat.pytorch.constants import DType
from narrowfloat.pytorch.tensor._master_weights import amaxes_of_part
from narrowfloat.pytorch.tensor.storage.float8_tensor_storage import float8_scheme
from narrowfloat.pytorch.tensor.storage.mxfp8_tensor_storage import mxfp8_scheme

__all__ = [
    "fp8_block_scaling_compute_partial_amax",
    "fp8_block_scaling_partial_cast",
    "multi_tensor_compute_scale_and_scale_inv",
    "multi_tensor_compute_scale_inv_e8m0",
    "mxfp8_scaling_compute_partial_amax",
    "mxfp8_scaling_partial_cast",
]

_E4M3 = DType.kFloat8E4M3
Lists = Sequence[Sequence[torch.Tensor]]


def _require_lists(entry: str, lists: Lists, names: str) -> None:
    """Raises ValueError unless there is one list per name, all of one length."""
    lengths = [len(each) for each in lists]
    if len(lists) != len(names.split()) or len(set(lengths)) > 1:
        raise ValueError(f"{entry}: needs lists of {names}, equally long, got lengths {lengths}")


@torch.no_grad()
def multi_tensor_compute_scale_and_scale_inv(
    chunk_size: int,
    noop_flag: torch.Tensor | None,
    tensor_lists: Lists,
    max_fp8: float,
    force_pow_2_scales: bool,
    epsilon: float,
) -> None:
    """Writes the scale that maps each amax to max_fp8, and its reciprocal.

    tensor_lists: amaxes, scales, reciprocals; float32. An amax below epsilon is replaced by
    epsilon. An amax of 0, infinity or NaN has scale 1; a scale that overflows becomes the largest
    number. chunk_size and noop_flag are not read.
    Errors: ValueError unless there are three lists of one length.
    """
    entry = "multi_tensor_compute_scale_and_scale_inv"
    _require_lists(entry, tensor_lists, "amaxes scales reciprocals")
    largest = torch.finfo(torch.float32).max
    for amax, scale, scale_inv in zip(*tensor_lists, strict=True):
        floored = torch.where(amax < epsilon, torch.full_like(amax, epsilon), amax)
        found = (torch.full_like(amax, max_fp8) / floored).clamp(max=largest)
        if force_pow_2_scales:
            exponents = torch.frexp(found).exponent - 1
            found = torch.ldexp(torch.ones_like(found), exponents)
        usable = torch.isfinite(floored) & (floored != 0)
        scale.copy_(torch.where(usable, found, torch.ones_like(found)))
        scale_inv.copy_(scale.reciprocal())


@torch.no_grad()
def multi_tensor_compute_scale_inv_e8m0(
    chunk_size: int, noop_flag: torch.Tensor | None, tensor_lists: Lists
) -> None:
    """Writes the scale codes of MXFP8 blocks of E4M3 with these amaxes.

    tensor_lists: amaxes, codes. chunk_size and noop_flag are not read.
    Errors: ValueError unless there are two lists of one length.
    """
    _require_lists("multi_tensor_compute_scale_inv_e8m0", tensor_lists, "amaxes codes")
    spec = _native.make_spec(mxfp8_scheme(_E4M3, False), True, False)
    for amax, codes in zip(*tensor_lists, strict=True):
        if amax.numel() == 0:
            continue
        # One block per amax; its other values are 0.
        blocks = amax.new_zeros((amax.numel(), spec.block_length))
        blocks[:, 0] = amax.reshape(-1)
        made = {
            planned.role: amax.new_empty(planned.shape, dtype=planned.dtype)
            for planned in _native.plan(spec, tuple(blocks.shape))
        }
        _native.quantize(spec, blocks, tuple(map(made.get, _native.ROLES)))
        found = made["rowwise_scale_inv"][: amax.numel(), 0]
        codes.view(torch.uint8).copy_(found.view(codes.shape))


def cast_saturated(values: torch.Tensor, out: torch.Tensor, dtype: DType) -> None:
    """Writes the FP8 codes of float32 values, with saturation."""
    spec = _native.make_spec(float8_scheme(DType.cast(dtype)), True, False)
    one, scale_inv = values.new_ones(1), values.new_empty(1)
    codes = out.view(torch.uint8).reshape(-1)[: values.numel()]
    buffers = (codes, scale_inv, None, None, None, None, None)
    _native.quantize(spec, values, buffers, scale=one)


def scales_of_part(
    scales: torch.Tensor, count: int, start: int, cols: int, block: tuple[int, int]
) -> torch.Tensor:
    """Returns the scale of each element of a piece, from a matrix of block scales."""
    places = torch.arange(start, start + count, device=scales.device)
    return scales[places // cols // block[0], places % cols // block[1]]


def _write_amaxes(
    piece: torch.Tensor, amax: torch.Tensor, h: int, w: int, start: int, block: tuple[int, int]
) -> None:
    """Writes the amax of each block over the piece's elements; 0 if it has none of them."""
    found = amaxes_of_part(piece.reshape(-1), start, (h, w), *block)
    amax.zero_()
    amax[: found.shape[0], : found.shape[1]] = found


@torch.no_grad()
def fp8_block_scaling_compute_partial_amax(
    tensor: torch.Tensor, amax: torch.Tensor, h: int, w: int, start_offset: int, block_len: int
) -> None:
    """Writes the amax of each tile of block_len x block_len over the elements of `tensor`."""
    _write_amaxes(tensor, amax, h, w, start_offset, (block_len, block_len))


@torch.no_grad()
def fp8_block_scaling_partial_cast(
    inp: torch.Tensor,
    out: torch.Tensor,
    scale: torch.Tensor,
    h: int,
    w: int,
    start_offset: int,
    block_len: int,
    out_dtype: DType,
) -> None:
    """Writes the codes of the piece `inp` with the scales of the tiles; out: as many codes."""
    values = inp.reshape(-1).float()
    if values.numel() > 0:
        block = (block_len, block_len)
        scales = scales_of_part(scale, values.numel(), start_offset, w, block)
        cast_saturated(values * scales, out, out_dtype)


def _mxfp8_blocks() -> tuple[tuple[int, int], tuple[int, int]]:
    """Returns rows and columns of a rowwise block and of a columnwise block."""
    length = _native.make_spec(mxfp8_scheme(_E4M3, False), True, False).block_length
    return (1, length), (length, 1)


@torch.no_grad()
def mxfp8_scaling_compute_partial_amax(
    input: torch.Tensor,
    amax_rowwise: torch.Tensor,
    amax_colwise: torch.Tensor,
    rows: int,
    cols: int,
    start_offset: int,
) -> None:
    """Writes the amaxes of each block over the elements of `input`, in both directions."""
    for amax, block in zip((amax_rowwise, amax_colwise), _mxfp8_blocks(), strict=True):
        _write_amaxes(input, amax, rows, cols, start_offset, block)


@torch.no_grad()
def mxfp8_scaling_partial_cast(
    input: torch.Tensor,
    output_rowwise: torch.Tensor,
    output_colwise: torch.Tensor,
    scale_inv_rowwise: torch.Tensor,
    scale_inv_colwise: torch.Tensor,
    rows: int,
    cols: int,
    start_offset: int,
) -> None:
    """Writes the E4M3 codes of the piece `input` with the blocks' scale codes, both directions."""
    values = input.reshape(-1).float()
    if values.numel() == 0:
        return
    directions = ((output_rowwise, scale_inv_rowwise), (output_colwise, scale_inv_colwise))
    for (out, codes), block in zip(directions, _mxfp8_blocks(), strict=True):
        scales = codes.view(torch.uint8).view(torch.float8_e8m0fnu).float().reciprocal()
        cast_saturated(
            values * scales_of_part(scales, values.numel(), start_offset, cols, block), out, _E4M3
        )
