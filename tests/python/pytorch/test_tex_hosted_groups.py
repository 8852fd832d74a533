# SPDX-License-Identifier: Apache-2.0
"""Tests that functions for groups give the same bytes on TransformerEngine's classes."""

from collections.abc import Iterator

import pytest
import torch
from host_classes import assert_same_fields, assert_same_group, hosts_quantizer
from narrowfloat.pytorch import tensor, tex
from narrowfloat.pytorch.tensor._hosted import HostedView, set_generation
from narrowfloat.pytorch.utils import set_non_tn_fp8_gemm_supported

E4M3, BF16 = tex.DType.kFloat8E4M3, tex.DType.kBFloat16

MAKERS = {
    "current": lambda: tensor.Float8CurrentScalingQuantizer(E4M3),
    "mxfp8": lambda: tensor.MXFP8Quantizer(E4M3),
    "block": lambda: tensor.Float8BlockQuantizer(
        E4M3, rowwise=True, columnwise=True, block_scaling_dim=1
    ),
    "nvfp4": lambda: tensor.NVFP4Quantizer(),
}
SPLITS = [128, 0, 256]


@pytest.fixture(params=[(9, 0), (10, 0)], ids=["9.0", "10.0"], autouse=True)
def same_generation(request: pytest.FixtureRequest) -> Iterator[None]:
    """Gives both packages one generation, so that both keep or drop per-tensor transposes."""
    before = HostedView.generation, set_non_tn_fp8_gemm_supported(request.param == (10, 0))
    set_generation(*request.param)
    yield
    set_generation(*before[0])
    set_non_tn_fp8_gemm_supported(before[1])


def pair(name: str, **options: object) -> tuple[object, object]:
    own = MAKERS[name]()
    for option, value in options.items():
        setattr(own, option, value)
    return own, hosts_quantizer(own)


def sample(rows: int = sum(SPLITS), cols: int = 128, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, cols, generator=torch.Generator().manual_seed(seed)).bfloat16()


def sizes() -> torch.Tensor:
    return torch.tensor(SPLITS)


@pytest.mark.parametrize("internal", [False, True], ids=["tensor", "storage"])
@pytest.mark.parametrize("name", MAKERS)
def test_group_quantize_makes_the_hosts_group(name: str, internal: bool) -> None:
    own, its = pair(name, internal=internal)
    ours = tex.group_quantize(sample(), own, 3, sizes())
    hosts = tex.group_quantize(sample(), its, 3, sizes())
    assert hosts.quantizer is its and hosts.quantized_tensors is None
    assert_same_group(ours, hosts)


@pytest.mark.parametrize("name", MAKERS)
def test_group_quantize_fills_the_hosts_group(name: str) -> None:
    own, its = pair(name)
    ours = tex.group_quantize(sample(256), own, 2, None)
    hosts = tex.group_quantize(sample(256), its, 2, None)
    tex.group_quantize(sample(256, seed=1), own, 2, None, output=ours)
    assert tex.group_quantize(sample(256, seed=1), its, 2, None, output=hosts) is hosts
    assert_same_group(ours, hosts)
    other = pair(name)[1]
    with pytest.raises(
        ValueError,
        match=r"^group_quantize: output must have been made by the same quantizer, got one of .*$",
    ):
        tex.group_quantize(sample(256), other, 2, None, output=hosts)


@pytest.mark.parametrize("name", MAKERS)
def test_group_dequantize_makes_a_plain_group_of_the_host(name: str) -> None:
    own, its = pair(name)
    ours = tex.group_dequantize(tex.group_quantize(sample(), own, 3, sizes()), BF16)
    hosts = tex.group_dequantize(tex.group_quantize(sample(), its, 3, sizes()), BF16)
    assert hosts.quantizer is None and hosts.rowwise_data.dtype == torch.bfloat16
    assert_same_group(ours, hosts)


@pytest.mark.parametrize("name", ["mxfp8", "nvfp4"])
def test_grouped_swizzle_leaves_the_hosts_quantizer_alone(name: str) -> None:
    own, its = pair(name)
    ours = tex.group_quantize(sample(), own, 3, sizes())
    hosts = tex.group_quantize(sample(), its, 3, sizes())
    tex.grouped_swizzle_for_gemm(ours, True, True)
    tex.grouped_swizzle_for_gemm(hosts, True, True)
    assert hosts.quantizer is its and not its.optimize_for_gemm
    assert_same_group(ours, hosts)


@pytest.mark.parametrize("columns", [False, True])
def test_group_requantize_inplace(columns: bool) -> None:
    own, its = pair("mxfp8", columnwise_usage=False)
    ours = tex.group_quantize(sample(), own, 3, sizes())
    hosts = tex.group_quantize(sample(), its, 3, sizes())
    ready = pair("mxfp8", columnwise_usage=columns, optimize_for_gemm=True)
    values = [
        tex.group_requantize_inplace(
            group, quantizer, 3, sizes(), BF16, tensor_offsets=None, return_dequantized=True
        )
        for group, quantizer in zip((ours, hosts), ready, strict=True)
    ]
    assert torch.equal(*values)
    assert (hosts.columnwise_data is not None) is columns
    assert_same_group(ours, hosts)


def test_bgrad_group_quantize_sums_the_rows_of_each_group() -> None:
    own, its = pair("mxfp8")
    ours, sums = tex.bgrad_group_quantize(sample(), own, 3, sizes())
    hosts, others = tex.bgrad_group_quantize(sample(), its, 3, sizes(), None, None)
    assert torch.equal(sums, others) and not sums[1].any()
    assert_same_group(ours, hosts)
    with pytest.raises(
        ValueError,
        match=r"^bgrad_group_quantize: groups must have the same columns, got last_dims$",
    ):
        tex.bgrad_group_quantize(sample(), its, 3, sizes(), torch.tensor([1]))


@pytest.mark.parametrize("name", MAKERS)
def test_products_of_groups(name: str) -> None:
    """Checks that products of groups are the products of the members, in both packages."""
    own, its = pair(name)
    weights = [sample(64 * 2, seed=i) for i in range(3)]
    results = []
    for quantizer in (own, its):
        tokens = tex.group_quantize(sample(seed=9), quantizer, 3, sizes())
        quantized = [tex.quantize(weight, quantizer) for weight in weights]
        out = [torch.full((rows, 128), 2.0) for rows in SPLITS]
        tex.te_general_grouped_gemm_for_discrete_in(
            quantized, True, tokens, False, out, None, None, torch.full((1,), 0.5), torch.ones(1)
        )
        results.append(out)
    parts = sample(seed=9).split(SPLITS)
    for ours, hosts, weight, part in zip(*results, weights, parts, strict=True):
        assert torch.equal(ours, hosts)
        if part.numel():
            a, b = tex.quantize(weight, own), tex.quantize(part, own)
            wanted = torch.full((len(part), 128), 2.0)
            tex.generic_gemm(
                a, True, b, False, wanted, None, tex.DType.kFloat32, None, None, False, None,
                False, accumulate=True, alpha=0.5, beta=1.0,
            )  # fmt: skip
            assert torch.equal(ours, wanted)


def test_bias_of_groups_is_added_to_rounded_results_under_a_scale_per_row() -> None:
    a, b = [torch.eye(32) for _ in range(2)], [sample(4, 32, seed=i).float() for i in range(2)]
    biases = [torch.arange(32.0), -torch.arange(32.0)]
    scale = torch.arange(8.0)
    out = [torch.zeros(4, 32, dtype=torch.bfloat16) for _ in range(2)]
    tex.te_general_grouped_gemm_for_grouped_tensor(
        a, True, b, False, out, biases, scale, torch.ones(2), torch.zeros(2)
    )
    for i in range(2):
        added = biases[i] * scale[4 * i : 4 * i + 4, None]
        assert torch.equal(out[i], (b[i].bfloat16().float() + added).bfloat16())


def test_grouped_products_with_bias_gradients_and_empty_splits() -> None:
    own, its = pair("mxfp8")
    rows = [64, 0]
    inputs = [sample(64, 96, seed=1), sample(0, 96)]
    grads = [sample(64, 32, seed=2), sample(0, 32)]
    results = []
    for quantizer in (own, its):
        a, b = ([tex.quantize(t, quantizer) for t in ts] for ts in (inputs, grads))
        out = [torch.full((32, 96), 3.0) for _ in rows]
        bias = [torch.full((32,), 7.0) for _ in rows]
        none = [torch.empty(0)] * 2
        tex.te_general_grouped_gemm(
            a, False, b, True, out, tex.DType.kFloat32, rows, bias, tex.DType.kFloat32, False,
            none, True, [torch.empty(1)], 1, False, True, 0,
        )  # fmt: skip
        results.append((out, bias))
    assert not results[0][0][1].any() and not results[0][1][1].any()
    for ours, hosts in zip(*results, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(ours, hosts, strict=True))
    values = tex.dequantize(tex.quantize(grads[0], own), tex.DType.kFloat32)
    assert torch.equal(results[0][1][0], values.sum(0))


def test_grouped_products_into_one_tensor() -> None:
    own, _ = pair("mxfp8")
    parts, weights = [sample(32, seed=1), sample(0), sample(64, seed=2)], [sample(64, seed=5)] * 3
    a, b = ([tex.quantize(t, own) for t in ts] for ts in (weights, parts))
    whole = torch.zeros(96, 64)
    tex.te_general_grouped_gemm(
        a, True, b, False, [whole], tex.DType.kFloat32, [32, 0, 64], [torch.empty(0)] * 3,
        tex.DType.kFloat32, True, [torch.empty(0)] * 3, False, [], 0, False, True,
    )  # fmt: skip
    wanted = [
        tex.generic_gemm(
            a[i], True, b[i], False, None, None, tex.DType.kFloat32, None, None, False, None, False
        )[0]
        for i in (0, 2)
    ]
    assert torch.equal(whole, torch.cat(wanted))
    with pytest.raises(
        ValueError,
        match=(
            r"^te_general_grouped_gemm: A, B, D, bias and pre_gelu_out must have the "
            r"same length, got 3, 2, 3, 3, 3$"
        ),
    ):
        tex.te_general_grouped_gemm(
            a, True, b[:2], False, [whole] * 3, tex.DType.kFloat32, [], [torch.empty(0)] * 3,
            tex.DType.kFloat32, False, [torch.empty(0)] * 3, False, [], 0, False, True,
        )  # fmt: skip


def test_offsets_of_splits() -> None:
    splits = torch.tensor([3, 0, 2])
    assert tex.splits_to_offsets(splits, 4).tolist() == [0, 12, 12, 20]
    sizes_, (plain, padded) = tex.splits_to_offsets_multi(
        splits.int(),
        torch.device("cpu"),
        strides=[1, 5],
        include_leading_zero=[False, True],
        dtypes=[torch.int32, torch.int64],
    )
    assert sizes_.dtype == torch.int64 and sizes_.tolist() == [3, 0, 2]
    assert plain.dtype == torch.int32 and plain.tolist() == [3, 3, 5]
    assert padded.dtype == torch.int64 and padded.tolist() == [0, 15, 15, 25]
    with pytest.raises(
        ValueError,
        match=(
            r"^splits_to_offsets_multi: strides, include_leading_zero and dtypes must "
            r"have the same length, got 2, 1 and 1$"
        ),
    ):
        tex.splits_to_offsets_multi(
            splits,
            torch.device("cpu"),
            strides=[1, 2],
            include_leading_zero=[True],
            dtypes=[torch.int64],
        )
    with pytest.raises(
        ValueError, match=r"^splits_to_offsets: first_dims must be a vector of int64, got .* of .*$"
    ):
        tex.splits_to_offsets(splits.int(), 4)
    with pytest.raises(
        ValueError, match=r"^splits_to_offsets: logical_last_dim must be positive, got 0$"
    ):
        tex.splits_to_offsets(splits, 0)


def test_addresses_of_tensors() -> None:
    tensors = [torch.zeros(3), torch.zeros(5)]
    found = tex.copy_data_ptrs_to_device(tensors, torch.device("cpu"))
    assert found.tolist() == [t.data_ptr() for t in tensors]


def test_kernels_of_fused_grouped_layers_are_refused_by_name() -> None:
    entry = tex.grouped_mlp_experimental.swizzle_scales_and_pack_ptrs_for_discrete_weights
    with pytest.raises(NotImplementedError, match="swizzle_scales_and_pack_ptrs"):
        entry([], [], 0, "cpu")


@pytest.mark.parametrize("shape", [(6, 10), (2, 3, 4), (5,)])
def test_fp8_transpose_puts_the_last_dimension_first(shape: tuple[int, ...]) -> None:
    codes = torch.randint(0, 256, shape, dtype=torch.uint8)
    wanted = codes.movedim(-1, 0).contiguous()
    assert torch.equal(tex.fp8_transpose(codes, E4M3, out=None), wanted)
    out = torch.empty_like(wanted)
    assert tex.fp8_transpose(codes, E4M3, out=out) is out and torch.equal(out, wanted)


def test_swap_first_dims() -> None:
    x = torch.randn(2, 3, 4)
    assert torch.equal(tex.swap_first_dims(x), x.transpose(0, 1))
    out = torch.empty(3, 2, 4)
    assert (
        torch.equal(tex.swap_first_dims(x, out=out), x.transpose(0, 1))
        and out[1, 0, 0] == x[0, 1, 0]
    )
    with pytest.raises(ValueError, match="at least two dimensions"):
        tex.swap_first_dims(torch.zeros(3))


@pytest.mark.parametrize("shape", [(160, 288), (16, 32), (128, 64)])
def test_transposes_of_nvfp4_tiles_are_the_quantizers_columns(shape: tuple[int, int]) -> None:
    quantizer = tensor.NVFP4Quantizer(with_2d_quantization=True)
    whole = quantizer(sample(*shape))
    assert torch.equal(tex.nvfp4_data_transpose(whole._rowwise_data), whole._columnwise_data)
    rows, cols = (size // 16 for size in shape)
    scales = torch.full_like(whole._columnwise_scale_inv, 3)
    tex.nvfp4_2d_scale_transpose(whole._rowwise_scale_inv, scales, rows, cols)
    assert torch.equal(scales, whole._columnwise_scale_inv)
    codes, scales = (torch.full_like(t, 5) for t in (whole._columnwise_data, scales))
    tex.nvfp4_2d_multi_tensor_transpose(
        [whole._rowwise_data], [codes], [whole._rowwise_scale_inv], [scales], *([n] for n in shape)
    )
    assert torch.equal(codes, whole._columnwise_data)
    assert torch.equal(scales, whole._columnwise_scale_inv)


def test_nvfp4_data_transpose_moves_every_code() -> None:
    """Compares with unpacked codes, for sizes that are not multiples of a tile."""
    packed = torch.randint(0, 256, (6, 5), dtype=torch.uint8)
    codes = torch.stack((packed % 16, packed // 16), -1).reshape(6, 10).t().reshape(10, 3, 2)
    wanted = codes[..., 0] + codes[..., 1] * 16
    assert torch.equal(tex.nvfp4_data_transpose(packed), wanted)
    with pytest.raises(ValueError) as raised:
        tex.nvfp4_data_transpose(packed[:3])
    assert str(raised.value) == (
        "nvfp4_data_transpose: needs a matrix with a multiple of 2 rows, got (3, 5)"
    )
    with pytest.raises(
        ValueError, match=r"^nvfp4_data_transpose: out must be \(10, 3\), got \(3, 10\)$"
    ):
        tex.nvfp4_data_transpose(packed, out=torch.empty(3, 10, dtype=torch.uint8))


def test_a_member_of_the_hosts_group_reads_like_the_tensor_alone() -> None:
    own, its = pair("mxfp8")
    group = tex.group_quantize(sample(), its, 3, sizes())
    from narrowfloat.pytorch.tensor._hosted import native

    members = native(group).split_into_quantized_tensors()
    for member, part in zip(members, sample().split(SPLITS), strict=True):
        if part.numel():
            assert_same_fields(tex.quantize(part, own), member)


def test_nvfp4_quantize_with_amax_keeps_the_given_amaxes() -> None:
    own, its = pair("nvfp4")
    x = sample()
    alone = tex.quantize(x, own)
    given = alone._amax_rowwise.clone(), alone._amax_columnwise.clone()
    assert_same_fields(tex.nvfp4_quantize_with_amax(x, own, *given), alone)
    doubled = [amax * 2 for amax in given]
    ours = tex.nvfp4_quantize_with_amax(x, own, *doubled)
    hosts = tex.nvfp4_quantize_with_amax(x, its, *doubled)
    assert hosts._amax_rowwise is doubled[0] and hosts._amax_columnwise is doubled[1]
    assert_same_fields(ours, hosts)
    assert not torch.equal(ours._rowwise_scale_inv, alone._rowwise_scale_inv)
    with pytest.raises(
        ValueError, match=r"^nvfp4_quantize_with_amax: needs an NVFP4Quantizer, got MXFP8Quantizer$"
    ):
        tex.nvfp4_quantize_with_amax(x, pair("mxfp8")[1], *given)
    with pytest.raises(
        ValueError, match=r"^nvfp4_quantize_with_amax: amaxes must have one element, got 2 and 1$"
    ):
        tex.nvfp4_quantize_with_amax(x, its, torch.ones(2), given[1])


def test_nvfp4_group_quantize_with_amax_is_that_of_each_member() -> None:
    own, its = pair("nvfp4")
    x, amaxes = sample(), (torch.tensor([4.0, 5.0, 6.0]), torch.tensor([7.0, 8.0, 9.0]))
    ours = tex.nvfp4_group_quantize_with_amax(
        x, own, 3, sizes(), rowwise_amax=amaxes[0], columnwise_amax=amaxes[1]
    )
    hosts = tex.nvfp4_group_quantize_with_amax(
        x, its, 3, sizes(), rowwise_amax=amaxes[0], columnwise_amax=amaxes[1]
    )
    assert_same_group(ours, hosts)
    assert torch.equal(hosts.amax, amaxes[0]) and torch.equal(hosts.columnwise_amax, amaxes[1])
    with pytest.raises(ValueError) as raised:
        tex.nvfp4_group_quantize_with_amax(
            x, own, 3, sizes(), rowwise_amax=amaxes[0], columnwise_amax=amaxes[1][:2]
        )
    assert str(raised.value) == (
        "nvfp4_group_quantize_with_amax: needs the same columns in all groups and 3 amaxes, got "
        "last_dims None and 3 and 2 amaxes"
    )
    for i, (member, part) in enumerate(zip(ours.quantized_tensors, x.split(SPLITS), strict=True)):
        if part.numel():
            alone = tex.nvfp4_quantize_with_amax(part, own, *(a[i : i + 1] for a in amaxes))
            assert_same_fields(alone, member)
    with pytest.raises(ValueError, match="3 amaxes, got last_dims None and 2 and 3 amaxes"):
        tex.nvfp4_group_quantize_with_amax(
            x, its, 3, sizes(), rowwise_amax=torch.ones(2), columnwise_amax=amaxes[1]
        )


@pytest.mark.parametrize("place", [0, 1], ids=["ours", "hosts"])
def test_a_group_keeps_the_offsets_that_are_given(place: int) -> None:
    quantizer = pair("mxfp8")[place]
    offsets = tex.splits_to_offsets(sizes(), 128)
    given = tex.group_quantize(sample(), quantizer, 3, sizes(), tensor_offsets=offsets)
    sums, _ = tex.bgrad_group_quantize(sample(), quantizer, 3, sizes(), tensor_offsets=offsets)
    found = tex.group_quantize(sample(), quantizer, 3, sizes())
    assert given.tensor_offsets is offsets and sums.tensor_offsets is offsets
    assert torch.equal(found.tensor_offsets, offsets)
