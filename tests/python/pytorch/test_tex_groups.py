# SPDX-License-Identifier: Apache-2.0
"""Tests grouped quantization by functions of the native module."""

import pytest
import torch
from narrowfloat.pytorch import tex
from narrowfloat.pytorch.quantized_tensor import Quantizer
from narrowfloat.pytorch.tensor.float8_blockwise_tensor import Float8BlockQuantizer
from narrowfloat.pytorch.tensor.float8_tensor import Float8CurrentScalingQuantizer
from narrowfloat.pytorch.tensor.grouped_tensor import GroupedTensor
from narrowfloat.pytorch.tensor.mxfp8_tensor import MXFP8Quantizer
from narrowfloat.pytorch.tensor.nvfp4_tensor import NVFP4Quantizer
from torch_golden import assert_tensor

import narrowfloat as nf

E4M3, BF16 = tex.DType.kFloat8E4M3, tex.DType.kBFloat16
COLS = 256
SPLITS = [
    [256, 256, 256, 256],
    [0, 128, 384, 512],
    [512, 384, 128, 0],
    [128, 0, 384, 512],
    [0, 0, 0, 0],
]

MAKERS = {
    "current": lambda: Float8CurrentScalingQuantizer(E4M3),
    "mxfp8": lambda: MXFP8Quantizer(E4M3),
    "mxfp8_2d": lambda: MXFP8Quantizer(E4M3, with_2d_quantization=True),
    "block_1d": lambda: Float8BlockQuantizer(E4M3, rowwise=True, columnwise=True,
                                             block_scaling_dim=1),
    "block_2d": lambda: Float8BlockQuantizer(E4M3, rowwise=True, columnwise=True),
    "nvfp4": lambda: NVFP4Quantizer(with_rht=True, with_post_rht_amax=True),
}  # fmt: skip


def sizes(splits: list[int]) -> torch.Tensor:
    return torch.tensor(splits, dtype=torch.int64)


def maker(name: str, rowwise: bool = True, columnwise: bool = True) -> Quantizer:
    quantizer = MAKERS[name]()
    quantizer.set_usage(rowwise=rowwise, columnwise=columnwise)
    return quantizer


@pytest.mark.parametrize("splits", SPLITS, ids=str)
@pytest.mark.parametrize("spare_rows", [0, 128])
@pytest.mark.parametrize("name", list(MAKERS))
def test_each_group_as_if_it_were_alone(name: str, splits: list[int], spare_rows: int) -> None:
    x = torch.randn(sum(splits) + spare_rows, COLS).to(torch.bfloat16)
    quantizer = maker(name)
    grouped = tex.group_quantize(x, quantizer, len(splits), sizes(splits))
    assert isinstance(grouped, GroupedTensor) and grouped.num_tensors == len(splits)
    parts = x[: sum(splits)].split(splits)
    for member, part in zip(grouped.split_into_quantized_tensors(), parts, strict=True):
        alone = quantizer(part)
        assert type(member) is type(alone) and member.shape == alone.shape
        for mine, want in zip(
            member.prepare_for_saving()[0], alone.prepare_for_saving()[0], strict=True
        ):
            assert (mine is None) == (want is None)
            if mine is not None and part.numel():
                assert_tensor(mine, want, f"{name} {tuple(part.shape)}")
            elif mine is not None:
                assert (mine.shape, mine.dtype) == (want.shape, want.dtype)


@pytest.mark.parametrize(("rowwise", "columnwise"), [(True, False), (False, True)])
@pytest.mark.parametrize("swizzled", [False, True])
def test_one_direction_and_swizzled_scales(rowwise: bool, columnwise: bool, swizzled: bool) -> None:
    splits = [128, 0, 384]
    x = torch.randn(512, COLS)
    quantizer = maker("mxfp8", rowwise, columnwise)
    quantizer.optimize_for_gemm = swizzled
    grouped = tex.group_quantize(x, quantizer, 3, sizes(splits))
    assert grouped._with_gemm_swizzled_scales is swizzled
    assert (grouped.rowwise_data is None) == columnwise
    core = nf.grouped_quantize(x.numpy(), splits, "mxfp8_e4m3", rowwise, columnwise,
                               swizzled=swizzled)  # fmt: skip
    direction = "rowwise" if rowwise else "columnwise"
    for member, want in zip(grouped.split_into_quantized_tensors(), core, strict=True):
        assert member._with_gemm_swizzled_scales is swizzled
        for field in (f"{direction}_data", f"{direction}_scale_inv"):
            assert_tensor(getattr(member, f"_{field}"), want.buffers[field], field)


def test_uniform_groups_need_no_sizes_and_groups_may_differ_in_columns() -> None:
    x = torch.randn(256, COLS)
    grouped = tex.group_quantize(x, maker("mxfp8"), 2, None)
    want = maker("mxfp8")(x[128:])
    assert_tensor(grouped.split_into_quantized_tensors()[1]._rowwise_data, want._rowwise_data, "2")
    cols = [128, 384]
    flat = torch.randn(64, sum(cols))
    grouped = tex.group_quantize(flat, maker("mxfp8"), 2, None, sizes(cols))
    second = flat.reshape(-1)[64 * 128 :].view(64, 384)
    member = grouped.split_into_quantized_tensors()[1]
    assert_tensor(member._columnwise_data, maker("mxfp8")(second)._columnwise_data, "columns")


def test_groups_of_internal_quantizers_are_bare() -> None:
    x, quantizer = torch.randn(256, COLS), maker("mxfp8")
    quantizer.internal = True
    grouped = tex.group_quantize(x, quantizer, 2, None)
    assert not isinstance(grouped, torch.Tensor)
    member = grouped.split_into_quantized_tensors()[0]
    assert not isinstance(member, torch.Tensor)
    assert_tensor(member._rowwise_data, maker("mxfp8")(x[:128])._rowwise_data, "codes")


def test_groups_have_to_fit() -> None:
    with pytest.raises(ValueError) as raised:
        tex.group_quantize(torch.zeros(128, COLS), maker("mxfp8"), 2, sizes([128, 128]))
    assert str(raised.value) == ("group_quantize: the groups need 65536 elements, got 32768")


@pytest.mark.parametrize("name", ["current", "mxfp8", "block_2d", "nvfp4"])
def test_group_dequantize(name: str) -> None:
    splits = [128, 0, 256]
    x = torch.randn(384, COLS).to(torch.bfloat16)
    grouped = tex.group_quantize(x, maker(name), 3, sizes(splits))
    plain = tex.group_dequantize(grouped, BF16)
    assert plain.quantizer is None and plain.rowwise_data.dtype == torch.bfloat16
    want = torch.cat([maker(name)(part).dequantize() for part in x.split(splits)])
    assert_tensor(plain.rowwise_data.view(384, COLS), want.detach(), name)


@pytest.mark.parametrize("columnwise", [False, True])
@pytest.mark.parametrize("splits", [[128, 128, 1024], [0, 256, 128, 1152]], ids=str)
def test_grouped_swizzle(columnwise: bool, splits: list[int]) -> None:
    x = torch.randn(sum(splits), COLS)
    grouped = tex.group_quantize(
        x, maker("mxfp8", not columnwise, columnwise), len(splits), sizes(splits)
    )
    field = "columnwise_scale_inv" if columnwise else "scale_inv"
    shape = getattr(grouped, field).shape
    tex.grouped_swizzle_for_gemm(grouped, not columnwise, columnwise)
    assert grouped._with_gemm_swizzled_scales and getattr(grouped, field).shape == shape
    direction = "columnwise" if columnwise else "rowwise"
    for part, member in zip(x.split(splits), grouped.split_into_quantized_tensors(), strict=True):
        assert member._with_gemm_swizzled_scales
        core = nf.quantize(part.numpy(), "mxfp8_e4m3", not columnwise, columnwise, swizzled=True)
        if part.numel():
            scales = getattr(member, f"_{direction}_scale_inv")
            assert_tensor(scales, core.buffers[f"{direction}_scale_inv"], str(part.shape))
    before = getattr(grouped, field).clone()
    tex.grouped_swizzle_for_gemm(grouped, True, True)
    assert torch.equal(getattr(grouped, field), before)


def ready(columnwise: bool = True) -> Quantizer:
    """Returns a quantizer with swizzled scales, as layers use for products."""
    quantizer = maker("mxfp8", True, columnwise)
    quantizer.optimize_for_gemm = True
    return quantizer


@pytest.mark.parametrize("splits", SPLITS, ids=str)
@pytest.mark.parametrize("spare_rows", [0, 128])
def test_requantize(splits: list[int], spare_rows: int) -> None:
    """Checks that rows stay, columns are made from decoded values, and scales are swizzled."""
    rows, live = sum(splits) + spare_rows, sum(splits)
    x = torch.randn(rows, COLS).to(torch.bfloat16)
    wire = tex.group_quantize(x, maker("mxfp8", True, False), len(splits), sizes(splits))
    before = wire.rowwise_data.clone()
    decoded = tex.group_requantize_inplace(
        wire, ready(), len(splits), sizes(splits), BF16, return_dequantized=True
    )
    values = torch.cat([maker("mxfp8")(part).dequantize() for part in x[:live].split(splits)])
    assert_tensor(decoded[:live], values.detach(), "values")
    assert torch.equal(wire.rowwise_data[: live * COLS], before[: live * COLS])
    assert wire._with_gemm_swizzled_scales is (live > 0)
    for part, source, member in zip(
        values.detach().split(splits),
        x[:live].split(splits),
        wire.split_into_quantized_tensors(),
        strict=True,
    ):
        if not part.numel():
            assert member._columnwise_data.shape == part.shape
            continue
        columns = nf.quantize(part.float().numpy(), "mxfp8_e4m3", False, True, swizzled=True)
        rowwise = nf.quantize(source.float().numpy(), "mxfp8_e4m3", swizzled=True)
        for core in (columns, rowwise):
            for field, array in core.buffers.items():
                assert_tensor(getattr(member, f"_{field}"), array, field)


def test_requantize_leaves_what_is_ready() -> None:
    x, splits = torch.randn(512, COLS).to(torch.bfloat16), [128, 128, 256]
    grouped = tex.group_quantize(x, ready(), 3, sizes(splits))
    fields = ("rowwise_data", "scale_inv", "columnwise_data", "columnwise_scale_inv")
    before = [getattr(grouped, field).clone() for field in fields]
    assert tex.group_requantize_inplace(grouped, ready(), 3, sizes(splits), BF16) is None
    for field, old in zip(fields, before, strict=True):
        assert torch.equal(getattr(grouped, field), old)
    wire = tex.group_quantize(x, maker("mxfp8", True, False), 3, sizes(splits))
    assert tex.group_requantize_inplace(wire, ready(False), 3, sizes(splits), BF16) is None
    assert wire._with_gemm_swizzled_scales and wire.columnwise_data is None


def test_what_requantize_refuses() -> None:
    x, splits = torch.randn(256, COLS).to(torch.bfloat16), sizes([128, 128])
    wire = tex.group_quantize(x, maker("mxfp8", True, False), 2, splits)
    other = MXFP8Quantizer(tex.DType.kFloat8E5M2)
    swizzled = tex.group_quantize(x, ready(False), 2, splits)
    for tensor, quantizer, values, message in (
        (wire, other, False,
         "group_requantize_inplace: the quantizer must have the dtype of the codes, "
         f"{E4M3!r}, got {tex.DType.kFloat8E5M2!r}"),
        (tex.group_quantize(x, ready(), 2, splits), ready(), True,
         "group_requantize_inplace: return_dequantized needs scales in compact format, got "
         "swizzled ones"),
        (swizzled, ready(), False,
         "group_requantize_inplace: columnwise data need scales in compact format, got swizzled "
         "ones"),
    ):  # fmt: skip
        before = tensor.scale_inv.clone()
        with pytest.raises(RuntimeError) as raised:
            tex.group_requantize_inplace(tensor, quantizer, 2, splits, BF16, None, values)
        assert str(raised.value) == message
        assert torch.equal(tensor.scale_inv, before)


def test_a_noop_flag_of_zero_is_none() -> None:
    x, quantizer = torch.randn(256, COLS), maker("mxfp8")
    grouped = tex.group_quantize(x, quantizer, 2, None, noop_flag=torch.zeros(1))
    want = tex.group_quantize(x, quantizer, 2, None)
    assert torch.equal(grouped.rowwise_data, want.rowwise_data)
    skipped = tex.group_quantize(x, quantizer, 2, None, noop_flag=torch.ones(1))
    assert skipped.rowwise_data.shape == want.rowwise_data.shape


@pytest.mark.parametrize("name", list(MAKERS))
def test_an_output_is_filled_in_place(name: str) -> None:
    quantizer, x = maker(name), torch.randn(256, COLS, dtype=torch.bfloat16)
    output = tex.group_quantize(torch.zeros_like(x), quantizer, 2, None)
    pointers, want = buffers_of(output), tex.group_quantize(x, quantizer, 2, None)
    before = output.rowwise_data.clone()
    one = torch.ones(1)
    assert tex.group_quantize(x, quantizer, 2, None, noop_flag=one, output=output) is output
    assert torch.equal(output.rowwise_data, before)
    assert tex.group_quantize(x, quantizer, 2, None, output=output) is output
    assert buffers_of(output) == pointers
    for field in ("rowwise_data", "scale_inv", "columnwise_data", "columnwise_scale_inv"):
        mine, expected = getattr(output, field), getattr(want, field)
        assert mine is expected is None or torch.equal(mine, expected), field


def buffers_of(grouped: GroupedTensor) -> list[int]:
    return [t.data_ptr() for t in (grouped.rowwise_data, grouped.scale_inv) if t is not None]


def test_an_output_that_does_not_fit_is_refused_and_left_alone() -> None:
    quantizer, x = maker("mxfp8"), torch.randn(256, COLS)
    output = tex.group_quantize(torch.zeros_like(x), quantizer, 2, None)
    several = tex.group_quantize(torch.zeros_like(x), quantizer, 2, sizes([128, 128]))
    before = output.rowwise_data.clone()
    for message, arguments, target in (
        (
            r"^group_quantize: output needs members of one shape, got first_dims$",
            (x, quantizer, 2, sizes([64, 192])),
            output,
        ),
        ("needs members of one shape, got members of several", (x, quantizer, 2, None), several),
        ("must have 4 members", (x, quantizer, 4, None), output),
        (r"of \(128, ", (x[:128], quantizer, 2, None), output),
        ("made by the same quantizer", (x, maker("mxfp8"), 2, None), output),
    ):
        with pytest.raises(ValueError, match=message):
            tex.group_quantize(*arguments, output=target)
    assert torch.equal(output.rowwise_data, before)


@pytest.mark.parametrize("splits", SPLITS, ids=str)
def test_sums_of_groups_beside_their_codes(splits: list[int]) -> None:
    x = torch.randn(sum(splits) + 128, COLS, dtype=torch.bfloat16)
    grouped, sums = tex.bgrad_group_quantize(x, maker("mxfp8"), len(splits), sizes(splits))
    alone = tex.group_quantize(x, maker("mxfp8"), len(splits), sizes(splits))
    used = sum(splits) * COLS
    assert torch.equal(grouped.rowwise_data[:used], alone.rowwise_data[:used])
    assert (sums.shape, sums.dtype) == ((len(splits), COLS), x.dtype)
    for part, found in zip(x[: sum(splits)].split(splits), sums, strict=True):
        assert torch.equal(found, part.float().sum(0).to(x.dtype))
