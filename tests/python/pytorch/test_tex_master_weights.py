# SPDX-License-Identifier: Apache-2.0
"""Tests that pieces of master weights are quantized to the bytes of whole master weights."""

import itertools
from collections.abc import Callable

import pytest
import torch
from narrowfloat.pytorch import tensor, tex
from narrowfloat.pytorch.constants import NVFP4_BLOCK_SCALING_SIZE

E4M3, E5M2 = tex.DType.kFloat8E4M3, tex.DType.kFloat8E5M2
LARGEST = {E4M3: 448.0, E5M2: 57344.0}
SHAPE = (160, 224)
# Ends of pieces: within rows, within blocks, one empty piece.
CUTS = (0, 1, 700, 700, 9001, 160 * 224)


def weight(shape: tuple[int, int] = SHAPE) -> torch.Tensor:
    spread = torch.logspace(-3, 3, shape[1]).expand(shape)
    values = torch.randn(shape, generator=torch.Generator().manual_seed(5)) * spread
    values[32:64] = 0
    return values.to(torch.bfloat16)


def pieces() -> list[tuple[int, torch.Tensor]]:
    flat = weight().reshape(-1)
    return [(a, flat[a:b]) for a, b in itertools.pairwise(CUTS)]


def shared(measure: Callable[[torch.Tensor, int], torch.Tensor]) -> torch.Tensor:
    """Returns the largest amaxes over all pieces, as an all-reduce between processes does."""
    return torch.stack([measure(part, start) for start, part in pieces()]).amax(0)


@pytest.mark.parametrize("dtype", [E4M3, E5M2])
@pytest.mark.parametrize("powers", [True, False])
def test_block_scaled_tiles(dtype: object, powers: bool) -> None:
    quantizer = tensor.Float8BlockQuantizer(
        dtype, rowwise=True, columnwise=False, force_pow_2_scales=powers, amax_epsilon=1e-4
    )
    whole = quantizer(weight())
    shape = whole._rowwise_scale_inv.shape

    def measure(part: torch.Tensor, start: int) -> torch.Tensor:
        amax = torch.full(shape, -1.0)
        tex.fp8_block_scaling_compute_partial_amax(part, amax, *SHAPE, start, quantizer.block_len)
        return amax

    amax, scale, scale_inv = shared(measure), torch.empty(shape), torch.empty(shape)
    tex.multi_tensor_compute_scale_and_scale_inv(
        0, None, [[amax], [scale], [scale_inv]], LARGEST[dtype], powers, 1e-4
    )
    content = tuple(-(-size // quantizer.block_len) for size in SHAPE)
    rows, cols = map(slice, content)
    assert torch.equal(scale_inv[rows, cols], whole._rowwise_scale_inv[rows, cols])
    codes = torch.zeros(weight().numel(), dtype=torch.uint8)
    for start, part in pieces():
        out = codes[start : start + part.numel()]
        tex.fp8_block_scaling_partial_cast(
            part, out, scale, *SHAPE, start, quantizer.block_len, dtype
        )
    assert torch.equal(codes, whole._rowwise_data.reshape(-1))


def test_mxfp8_in_both_directions() -> None:
    whole = tensor.MXFP8Quantizer(E4M3)(weight())
    names = ("rowwise", "columnwise")
    wanted = [getattr(whole, f"_{name}_scale_inv") for name in names]

    def measure(part: torch.Tensor, start: int) -> torch.Tensor:
        amaxes = [torch.full(codes.shape, -1.0, dtype=torch.bfloat16) for codes in wanted]
        tex.mxfp8_scaling_compute_partial_amax(part, *amaxes, *SHAPE, start)
        return torch.cat([amax.reshape(-1) for amax in amaxes])

    amaxes = shared(measure).split([codes.numel() for codes in wanted])
    scales = [torch.empty_like(codes) for codes in wanted]
    lists = [[a.view(s.shape) for a, s in zip(amaxes, scales, strict=True)], scales]
    tex.multi_tensor_compute_scale_inv_e8m0(0, None, lists)
    assert all(torch.equal(*pair) for pair in zip(scales, wanted, strict=True))
    codes = [torch.zeros(weight().numel(), dtype=torch.uint8) for _ in names]
    for start, part in pieces():
        outs = [each[start : start + part.numel()] for each in codes]
        tex.mxfp8_scaling_partial_cast(part, *outs, *scales, *SHAPE, start)
    for name, found in zip(names, codes, strict=True):
        assert torch.equal(found, getattr(whole, f"_{name}_data").reshape(-1)), name


def test_scales_of_extreme_amaxes() -> None:
    """Checks that 0, infinity and NaN have scale 1, and that overflow gives the largest scale."""
    largest = torch.finfo(torch.float32).max
    amax = torch.tensor([0.0, torch.inf, torch.nan, 1e-45, 448.0, 3.0])
    scale, scale_inv = torch.empty(6), torch.empty(6)
    lists = [[amax], [scale], [scale_inv]]
    tex.multi_tensor_compute_scale_and_scale_inv(0, None, lists, 448.0, False, 0.0)
    wanted = torch.tensor([1.0, 1.0, 1.0, largest, 1.0, 448.0 / 3.0])
    assert torch.equal(scale, wanted) and torch.equal(scale_inv, 1 / wanted)
    tex.multi_tensor_compute_scale_and_scale_inv(0, None, lists, 448.0, True, 0.0)
    assert scale.tolist() == [1.0, 1.0, 1.0, 2.0**127, 1.0, 128.0]
    tex.multi_tensor_compute_scale_and_scale_inv(0, None, lists, 448.0, True, 4.0)
    assert scale.tolist() == [64.0, 1.0, 1.0, 64.0, 1.0, 64.0]


def test_current_scaling_has_the_quantizers_scale() -> None:
    amax = torch.rand(50) * 100
    scale, scale_inv = torch.empty(50), torch.empty(50)
    for powers in (False, True):
        lists = [[amax], [scale], [scale_inv]]
        tex.multi_tensor_compute_scale_and_scale_inv(0, None, lists, 448.0, powers, 0.0)
        quantizer = tensor.Float8CurrentScalingQuantizer(E4M3, force_pow_2_scales=powers)
        found = torch.cat([quantizer(value.reshape(1, 1))._scale_inv for value in amax])
        assert torch.equal(scale_inv, found)


def test_lists_of_other_lengths_are_refused() -> None:
    with pytest.raises(
        ValueError,
        match=(
            r"^multi_tensor_compute_scale_and_scale_inv: needs lists of amaxes scales "
            r"reciprocals, equally long, got lengths \[1, 0, 0\]$"
        ),
    ):
        tex.multi_tensor_compute_scale_and_scale_inv(
            0, None, [[torch.ones(1)], [], []], 448.0, False, 0.0
        )
    with pytest.raises(ValueError, match="amaxes codes"):
        tex.multi_tensor_compute_scale_inv_e8m0(0, None, [[]])


EVEN_CUTS = (0, 2, 700, 700, 9002, 160 * 224)


def test_nvfp4_tiles() -> None:
    """Checks that scales are repeated for each line of a tile, and codes are the quantizer's."""
    quantizer = tensor.NVFP4Quantizer(columnwise=False, with_2d_quantization=True)
    whole = quantizer(weight())
    block = NVFP4_BLOCK_SCALING_SIZE
    tiles = tuple(size // block for size in SHAPE)
    flat = weight().reshape(-1)
    parts = [(a, flat[a:b]) for a, b in itertools.pairwise(EVEN_CUTS)]
    amaxes, largest = [], torch.zeros(1)
    for start, part in parts:
        amaxes.append(torch.full(tiles, -1.0))
        tex.nvfp4_multi_tensor_compute_partial_amax(
            [part], [amaxes[-1]], [largest], [SHAPE[0]], [SHAPE[1]], [start], block
        )
    amax, global_scale = torch.stack(amaxes).amax(0), torch.empty(1)
    assert torch.equal(largest, whole._amax_rowwise)
    tex.nvfp4_compute_global_scale(largest, global_scale)
    scale = torch.empty(tiles)
    codes = torch.full_like(whole._rowwise_scale_inv, 9)
    target = torch.empty(1)
    tex.nvfp4_multi_tensor_fused_scale(
        [amax], [largest], [scale], [codes], [target], [tiles[0]], [tiles[1]], [len(codes)], block
    )
    assert torch.equal(target, whole._amax_rowwise)
    used = slice(SHAPE[0]), slice(tiles[1])
    assert torch.equal(codes[used], whole._rowwise_scale_inv[used])
    packed = torch.zeros(flat.numel() // 2, dtype=torch.uint8)
    for start, part in parts:
        out = packed[start // 2 : (start + part.numel()) // 2]
        tex.nvfp4_multi_tensor_2d_partial_cast(
            [part], [out], [scale], [global_scale], [SHAPE[0]], [SHAPE[1]], [start], block
        )
    assert torch.equal(packed, whole._rowwise_data.reshape(-1))


def test_nvfp4_pieces_of_half_bytes_and_other_tiles_are_refused() -> None:
    part, out = torch.ones(3), torch.zeros(2, dtype=torch.uint8)
    arguments = ([part], [out], [torch.ones(1, 1)], [torch.ones(1)], [16], [16])
    with pytest.raises(
        ValueError,
        match=(
            r"^nvfp4_multi_tensor_2d_partial_cast: pieces must be whole bytes, got 3 "
            r"elements from 1$"
        ),
    ):
        tex.nvfp4_multi_tensor_2d_partial_cast(*arguments, [1])
    with pytest.raises(
        ValueError, match=r"^nvfp4_multi_tensor_2d_partial_cast: block_len must be 16, got 32$"
    ):
        tex.nvfp4_multi_tensor_2d_partial_cast(*arguments, [0], 32)


def test_nvfp4_global_scale_of_nothing_and_of_tiny_amaxes() -> None:
    amax, scale = torch.tensor([0.0, 1e-45, 2688.0]), torch.empty(3)
    tex.nvfp4_compute_global_scale(amax, scale)
    assert scale.tolist() == [1.0, torch.finfo(torch.float32).max, 1.0]
