# SPDX-License-Identifier: Apache-2.0
"""Tests groups, requantization to other schemes, and scales for other GEMMs."""

import ml_dtypes
import numpy as np
import pytest
from golden import assert_same

import narrowfloat as nf

RNG = np.random.default_rng(9)


def same_buffers(a: nf.QuantizedTensor, b: nf.QuantizedTensor) -> None:
    assert a.buffers.keys() == b.buffers.keys()
    for name, buffer in a.buffers.items():
        assert_same(buffer, b.buffers[name], name)


def test_rows_at_uneven_distances_are_refused() -> None:
    rows = np.zeros((2, 4, 64), np.float32)[:, :3]
    with pytest.raises(ValueError) as raised:
        nf.grouped_quantize(rows, [3, 3], "mxfp8_e4m3")
    message = "grouped_quantize: the input's rows must be a constant distance apart"
    assert str(raised.value) == message


@pytest.mark.parametrize("scheme", nf.schemes())
@pytest.mark.parametrize("sizes", [[32, 0, 64, 2, 30], [128], [0, 128], [2] * 64])
def test_each_group_is_quantized_as_if_alone(scheme: str, sizes: list[int]) -> None:
    x = (RNG.standard_normal((128, 48)) * np.logspace(-3, 3, 128)[:, None]).astype(
        ml_dtypes.bfloat16
    )
    groups = nf.grouped_quantize(x, sizes, scheme, columnwise=True, threads=3)
    assert len(groups) == len(sizes)
    ends = np.cumsum(sizes)
    for group, end, size in zip(groups, ends, sizes, strict=True):
        same_buffers(group, nf.quantize(x[end - size : end], scheme, columnwise=True))


def test_groups_have_random_numbers_of_their_own() -> None:
    x = np.tile(RNG.standard_normal((16, 32)).astype(np.float32), (2, 1))
    options = {"stochastic_rounding": True, "seed": 1, "offset": 5}
    first, second = nf.grouped_quantize(x, [16, 16], "nvfp4", **options)
    same_buffers(first, nf.quantize(x[:16], "nvfp4", **options))
    same_buffers(second, nf.quantize(x[16:], "nvfp4", **{**options, "offset": 6}))
    assert second.spec == "nvfp4:offset=6,seed=1,stochastic_rounding=1"


SHAPES = [(6, 40), (0, 40), (130, 66), (2, 32)]


@pytest.mark.parametrize("scheme", nf.schemes())
def test_packed_groups_are_views_of_one_buffer(scheme: str) -> None:
    tensors = [RNG.standard_normal(shape).astype(np.float16) for shape in SHAPES]
    groups, packed = nf.grouped_quantize_packed(tensors, scheme, columnwise=True)
    plan = nf.plan_grouped(SHAPES, scheme, columnwise=True)
    assert packed.keys() == plan.keys() == groups[0].buffers.keys()
    for name, array in packed.items():
        assert array.shape == (plan[name]["size"],) and array.dtype == plan[name]["dtype"]
        owned = np.zeros(array.shape, bool)
        for group, (offset, shape) in zip(groups, plan[name]["groups"], strict=True):
            part = group.buffers[name]
            assert part.shape == shape
            assert part.size == 0 or np.shares_memory(part, array[offset : offset + part.size])
            owned[offset : offset + part.size] = True
        assert not array[~owned].any()
    for group, tensor in zip(groups, tensors, strict=True):
        same_buffers(group, nf.quantize(tensor, scheme, columnwise=True))
        assert_same(group.dequantize(), nf.quantize(tensor, scheme).dequantize(), scheme)


def test_packed_groups_keep_their_dtypes() -> None:
    x = RNG.standard_normal((4, 32))
    dtypes = [np.float16, np.float32, ml_dtypes.bfloat16]
    groups, _ = nf.grouped_quantize_packed([x.astype(dtype) for dtype in dtypes], "mxfp8_e4m3")
    for group, dtype in zip(groups, dtypes, strict=True):
        assert group.dtype == dtype and group.dequantize().dtype == dtype
        same_buffers(group, nf.quantize(x.astype(dtype), "mxfp8_e4m3"))


def test_packed_groups_count_random_numbers_as_groups_do() -> None:
    x = RNG.standard_normal((32, 32)).astype(np.float32)
    options = {"stochastic_rounding": True, "seed": 1, "offset": 5}
    packed, _ = nf.grouped_quantize_packed([x[:16], x[16:]], "nvfp4", **options)
    for got, expected in zip(
        packed, nf.grouped_quantize(x, [16, 16], "nvfp4", **options), strict=True
    ):
        same_buffers(got, expected)
        assert got.spec == expected.spec


def test_plans_of_groups_refuse_what_quantize_refuses() -> None:
    with pytest.raises(ValueError) as odd:
        nf.plan_grouped([(4, 32), (4, 33)], "nvfp4")
    assert str(odd.value) == (
        "quantize: nvfp4 packs two codes in a byte and needs an even number of columns, got 33"
    )
    with pytest.raises(TypeError) as half:
        nf.plan_grouped([(4, 1.5)], "nvfp4")
    assert str(half.value) == (
        "plan_grouped: shape must be an int or a sequence of ints, got (4, 1.5)"
    )
    with pytest.raises(TypeError) as half_rows:
        nf.grouped_quantize(np.ones((64, 32), np.float32), [1.0, 63.0], "nvfp4")
    assert str(half_rows.value) == (
        "grouped_quantize: group_sizes must be an int or a sequence of ints, got [1.0, 63.0]"
    )


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ([4, 3], "the groups must have the input's 8 rows together, got 7"),
        ([4, 5], "group 1 must end within the input's 8 rows, got an end at row 9"),
        ([8, -1], "group 1 must have 0 rows or more, got -1"),
        ([2**45], f"group 0 must end within the input's 8 rows, got an end at row {2**45}"),
    ],
)
def test_sizes_add_up(sizes: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=f"^grouped_quantize: {message}$"):
        nf.grouped_quantize(np.zeros((8, 32), np.float32), sizes, "mxfp8_e4m3")


@pytest.mark.parametrize("target", nf.schemes())
@pytest.mark.parametrize("source", ["fp8_e5m2", "mxfp8_e4m3", "nvfp4"])
def test_requantize_is_dequantize_and_quantize(source: str, target: str) -> None:
    x = RNG.standard_normal((64, 96)).astype(np.float32)
    q = nf.quantize(x, source)
    for between in (np.float32, ml_dtypes.bfloat16):
        got = nf.requantize(q, target, True, True, between)
        same_buffers(got, nf.quantize(q.dequantize(between), target, columnwise=True))


@pytest.mark.parametrize("scheme", ["fp8_block1x128_e4m3", "fp8_block128x128_e5m2"])
@pytest.mark.parametrize("columnwise", [False, True])
def test_block_scales_become_mxfp8_scales(scheme: str, columnwise: bool) -> None:
    x = (RNG.standard_normal((260, 300)) * np.logspace(-4, 4, 300)).astype(np.float32)
    q = nf.quantize(x, scheme, rowwise=not columnwise, columnwise=columnwise)
    scales = nf.block_scales_to_mxfp8(q, columnwise)
    direction = "columnwise" if columnwise else "rowwise"
    data = q.buffers[f"{direction}_data"]
    mx = nf.from_buffers(
        f"mxfp8_{scheme[-4:]}",
        data.shape,
        {"rowwise_data": data, "rowwise_scale_inv": scales},
        swizzled=True,
    )
    values = q.dequantize()
    assert_same(mx.dequantize(), np.ascontiguousarray(values.T if columnwise else values), scheme)


def test_the_smallest_power_of_two_becomes_the_code_zero() -> None:
    """Checks 2^-127, subnormal in fp32: E8M0 has it (docs/decisions.md, decision 177)."""
    q = nf.quantize(np.ones((4, 128), np.float32), "fp8_block1x128_e4m3")
    buffers = {name: np.array(buffer) for name, buffer in q.buffers.items()}
    buffers["rowwise_scale_inv"][...] = np.float32(2.0**-127)
    small = nf.from_buffers("fp8_block1x128_e4m3", (4, 128), buffers)
    scales = nf.block_scales_to_mxfp8(small)
    assert not np.asarray(scales).any()


def test_only_powers_of_two_become_mxfp8_scales() -> None:
    x = np.full((4, 128), 3.0, np.float32)
    q = nf.quantize(x, "fp8_block1x128_e4m3", force_pow_2_scales=False)
    with pytest.raises(
        ValueError,
        match=(
            r"^block_scales_to_mxfp8: the scale of line 0, block 0 must be a power of "
            r"two of at least 2\^-127, got 0\.0066964286$"
        ),
    ):
        nf.block_scales_to_mxfp8(q)
    message = (
        r"^block_scales_to_mxfp8: the scheme must have fp32 scales per block, got "
        r"mxfp8_e4m3$"
    )
    with pytest.raises(ValueError, match=message):
        nf.block_scales_to_mxfp8(nf.quantize(x, "mxfp8_e4m3"))
