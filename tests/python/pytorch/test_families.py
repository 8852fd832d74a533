# SPDX-License-Identifier: Apache-2.0
"""Tests the differences between families: usages, derived buffers, options, refusals."""

import re
import warnings
from collections.abc import Iterator

import pytest
import torch
from families import (
    ALL,
    E4M3,
    E5M2,
    SCHEMES,
    assert_same_buffers,
    buffers,
    delayed,
    sample,
    snapshot,
)
from narrowfloat.pytorch import constants
from narrowfloat.pytorch._arrays import array_of
from narrowfloat.pytorch.utils import (
    get_device_compute_capability,
    is_non_tn_fp8_gemm_supported,
    round_up_to_nearest_multiple,
    set_non_tn_fp8_gemm_supported,
)
from torch._subclasses.fake_tensor import FakeTensorMode

from narrowfloat import _core
from narrowfloat import pytorch as nfp


@pytest.fixture
def any_layout() -> Iterator[None]:
    """Emulates a device whose products read FP8 in any layout."""
    before = set_non_tn_fp8_gemm_supported(True)
    yield
    set_non_tn_fp8_gemm_supported(before)


def test_dtypes() -> None:
    assert nfp.DType.cast(torch.float8_e5m2) is E5M2 and nfp.DType.cast(7) is E4M3
    assert nfp.DType.cast(E4M3) is E4M3 and hash(E4M3) == hash(7)
    assert {d.name: int(d) for d in nfp.DType} == {
        "kByte": 0, "kInt32": 2, "kFloat32": 4, "kFloat16": 5, "kBFloat16": 6,
        "kFloat8E4M3": 7, "kFloat8E5M2": 8, "kFloat4E2M1": 10,
    }  # fmt: skip
    for theirs, ours in constants.TE_DType.items():
        assert constants.TE_DType_To_Torch[ours] is theirs
    assert nfp.DType.kFloat4E2M1 not in constants.TE_DType_To_Torch


def test_round_up() -> None:
    assert [round_up_to_nearest_multiple(n, 4) for n in (0, 1, 4, 5)] == [0, 4, 4, 8]
    with pytest.raises(ValueError, match=r"^multiple cannot be zero\.$"):
        round_up_to_nearest_multiple(3, 0)


# Per-tensor FP8.


def test_float8_usages() -> None:
    assert not is_non_tn_fp8_gemm_supported() and get_device_compute_capability() == (9, 0)
    tensor = nfp.Float8CurrentScalingQuantizer(E4M3)(sample(6, 4, 8)).detach()
    transpose = tensor._transpose
    assert torch.equal(transpose, tensor._data.permute(2, 0, 1)) and transpose.shape == (8, 6, 4)
    tensor.update_usage(columnwise_usage=False)
    assert tensor._transpose is None and tensor._transpose_invalid
    assert tensor.get_usages() == {"rowwise": True, "columnwise": False}
    tensor.update_usage(columnwise_usage=True)
    assert torch.equal(tensor._transpose, transpose)
    values = tensor.dequantize()
    tensor.update_usage(rowwise_usage=False)
    assert tensor._data is None and torch.equal(tensor.dequantize(), values)
    with pytest.raises(
        RuntimeError,
        match=r"^update_usage: rowwise codes were dropped and cannot be made of the transpose$",
    ):
        tensor.update_usage(rowwise_usage=True)
    tensor.update_usage(columnwise_usage=False)
    assert tensor.get_usages() == {"rowwise": False, "columnwise": False}
    with pytest.raises(
        RuntimeError, match=r"^update_usage: the transpose needs the rowwise codes$"
    ):
        tensor.update_usage(columnwise_usage=True)


def test_float8_caches() -> None:
    tensor = nfp.Float8CurrentScalingQuantizer(E4M3)(sample(6, 8)).detach()
    tensor._data.zero_()
    tensor._reset_caches()
    assert tensor._transpose_invalid and tensor.get_usages()["columnwise"] is False
    place = tensor._transpose.data_ptr()
    tensor._create_transpose()
    assert tensor._transpose.data_ptr() == place and not tensor._transpose.any()
    tensor.remove_caches()
    assert tensor._transpose is None
    tensor._create_transpose()
    tensor.update_usage(rowwise_usage=False)
    tensor._reset_caches()
    assert not tensor._transpose_invalid, "it is all there is"


def test_float8_on_devices_without_transposes(any_layout: None) -> None:
    quantizer = nfp.Float8CurrentScalingQuantizer(E4M3)
    tensor = quantizer(sample(6, 8)).detach()
    assert tensor._transpose is None
    assert tensor.get_usages() == {"rowwise": True, "columnwise": True}
    tensor.update_usage(rowwise_usage=False, columnwise_usage=True)
    assert tensor._data is not None
    quantizer.set_usage(rowwise=False, columnwise=True)
    columnwise = quantizer(sample(6, 8)).detach()
    assert torch.equal(columnwise._data, tensor._data)
    tensor.update_usage(rowwise_usage=False, columnwise_usage=False)
    assert tensor._data is None
    with pytest.raises(
        RuntimeError,
        match=r"^update_usage: rowwise codes were dropped and cannot be made of the transpose$",
    ):
        tensor.update_usage(columnwise_usage=True)


@pytest.mark.parametrize("kind", ["float8_delayed", "float8_current"])
def test_columnwise_alone_is_not_implemented(kind: str) -> None:
    quantizer = SCHEMES[kind]()
    tensor = quantizer(sample(8, 8)).detach()
    before = snapshot(tensor)
    quantizer.set_usage(rowwise=False, columnwise=True)
    message = (
        r"^Columnwise-only per-tensor FP8 quantization is not implemented: the "
        r"transpose is made of the rowwise codes, and the quantizer has "
        r"rowwise_usage=False$"
    )
    with pytest.raises(NotImplementedError, match=message):
        quantizer(sample(8, 8))
    with pytest.raises(NotImplementedError, match=message):
        quantizer.update_quantized(sample(8, 8), tensor)
    quantizer.set_usage(columnwise=False)
    with pytest.raises(
        ValueError, match=r"^quantize: the quantizer has neither rowwise nor columnwise usage$"
    ):
        quantizer.update_quantized(sample(8, 8), tensor)
    assert_same_buffers(tensor, before, "unchanged")


@pytest.mark.parametrize("kind", SCHEMES)
def test_a_quantizer_without_a_direction_says_so(kind: str) -> None:
    quantizer, x = SCHEMES[kind](), sample(128, 128)
    tensor = quantizer(x).detach()
    before = snapshot(tensor)
    quantizer.set_usage(rowwise=False, columnwise=False)
    message = r"^quantize: the quantizer has neither rowwise nor columnwise usage$"
    for call in (lambda: quantizer(x), lambda: quantizer.update_quantized(x, tensor)):
        with pytest.raises(ValueError, match=message):
            call()
    assert_same_buffers(tensor, before, "unchanged")


def test_delayed_scaling_names_the_state_that_is_missing() -> None:
    one = torch.ones(1)
    for name, state in {"scale": (None, one), "amax": (one, None)}.items():
        message = f"^Float8Quantizer: {name} must be a torch.Tensor, got NoneType$"
        with pytest.raises(TypeError, match=message):
            nfp.Float8Quantizer(*state, E4M3)


def test_update_follows_the_quantizers_flags() -> None:
    quantizer = nfp.Float8CurrentScalingQuantizer(E4M3)
    tensor = quantizer(sample(8, 8)).detach()
    quantizer.set_usage(columnwise=False)
    quantizer.update_quantized(sample(8, 8), tensor)
    assert tensor._transpose is None and tensor._transpose_invalid
    quantizer.set_usage(columnwise=True)
    quantizer.update_quantized(sample(8, 8), tensor)
    assert torch.equal(tensor._transpose, tensor._data.t()) and not tensor._transpose_invalid
    block = nfp.MXFP8Quantizer(E4M3, columnwise=False)
    tensor = block(sample(64, 64)).detach()
    assert tensor._columnwise_data is None
    block.set_usage(rowwise=False, columnwise=True)
    block.update_quantized(sample(64, 64), tensor)
    assert tensor.get_usages() == {"rowwise": False, "columnwise": True}
    assert_same_buffers(tensor, block(sample(64, 64)).detach(), "columns")


@pytest.mark.parametrize("kind", ["float8_delayed", "float8_current"])
def test_tensor_from_codes(kind: str) -> None:
    quantizer = delayed(scale=4.0) if kind == "float8_delayed" else SCHEMES[kind]()
    codes = torch.tensor([1.0, -2.0]).to(torch.float8_e4m3fn)
    tensor = quantizer.create_tensor_from_data(codes, fake_dtype=torch.bfloat16)
    assert tensor._data.dtype == torch.uint8 and tensor._data.data_ptr() == codes.data_ptr()
    assert tensor._scale_inv.shape == (1,) and tensor.dtype == torch.bfloat16
    if kind == "float8_delayed":
        assert tensor.dequantize().tolist() == [0.25, -0.5]
    assert not isinstance(quantizer.create_tensor_from_data(codes, internal=True), torch.Tensor)
    assert quantizer.get_columnwise_shape((2, 3, 4)) == (4, 2, 3)


def test_scalars_and_empty_tensors() -> None:
    for kind in ("float8_delayed", "float8_current", "blockwise_1d", "blockwise_2d", "identity"):
        scalar = ALL[kind]()(torch.tensor(3.0)).detach()
        assert scalar.shape == () and scalar.dequantize().shape == ()
        assert scalar.dequantize().item() == pytest.approx(3.0, rel=1 / 16)  # half a step of E4M3
    for kind in SCHEMES:
        for shape in ((0, 256), (128, 0)):
            empty = ALL[kind]()(torch.empty(shape)).detach()
            assert empty.shape == shape and empty.dequantize().shape == shape, kind


@pytest.mark.parametrize(
    "arguments", [{"use_existing_amax": True}, {"scale": torch.ones(1)}, {"amax": torch.ones(1)}],
    ids=str,
)  # fmt: skip
def test_unused_arguments_warn(arguments: dict[str, object]) -> None:
    with pytest.warns(DeprecationWarning, match=r"^Float8CurrentScalingQuantizer does not use "):
        nfp.Float8CurrentScalingQuantizer(E4M3, "cpu", **arguments)


# Blocks.


@pytest.mark.parametrize("kind", ["mxfp8", "nvfp4"])
def test_each_direction_is_quantized_by_itself(kind: str) -> None:
    tensor = ALL[kind]()(sample()).detach()
    tensor.update_usage(columnwise_usage=False)
    assert set(buffers(tensor)) <= {"_rowwise_data", "_rowwise_scale_inv", "_amax_rowwise"}
    before = snapshot(tensor)
    with pytest.raises(RuntimeError):
        tensor.update_usage(columnwise_usage=True)
    assert_same_buffers(tensor, before, "unchanged")
    tensor.update_usage(rowwise_usage=False)
    assert buffers(tensor) == {}
    with pytest.raises(
        RuntimeError, match=r"^update_usage: \w+ lacks _rowwise_data, which rowwise usage needs$"
    ):
        tensor.update_usage(rowwise_usage=True)


def test_mxfp8_columns_dequantize() -> None:
    x = sample()
    tensor = nfp.MXFP8Quantizer(E4M3, rowwise=False)(x).detach()
    assert tensor._rowwise_data is None
    # Half a step of a 3-bit mantissa, under a scale_inv of at most twice the smallest possible one.
    torch.testing.assert_close(tensor.dequantize(), x, rtol=2**-4, atol=2**-8)


@pytest.mark.parametrize("kind", ["blockwise_1d", "blockwise_2d"])
def test_blockwise_usages(kind: str) -> None:
    tensor = ALL[kind]()(sample(192, 320)).detach()
    whole = snapshot(tensor)
    with pytest.raises(AssertionError, match="at least one direction"):
        tensor.update_usage(rowwise_usage=False, columnwise_usage=False)
    values = tensor.dequantize()
    tensor.update_usage(columnwise_usage=False)
    if kind == "blockwise_1d":
        with pytest.raises(AssertionError, match="only tiles that keep"):
            tensor.update_usage(columnwise_usage=True)
        with pytest.raises(AssertionError, match=r"^Only tiles"):
            tensor._create_columnwise()
        return
    with pytest.raises(AssertionError, match="only tiles that keep"):
        tensor.update_usage(rowwise_usage=False, columnwise_usage=True)
    tensor.update_usage(columnwise_usage=True)
    assert_same_buffers(tensor, whole, "made again")
    tensor.update_usage(rowwise_usage=False)
    assert torch.equal(tensor.dequantize(), values), "from the columns"
    tensor._transpose_columnwise_data()
    assert torch.equal(tensor._columnwise_data, whole["_rowwise_data"])


def test_blockwise_mode_must_match() -> None:
    tensor = ALL["blockwise_1d"]()(sample()).detach()
    before = snapshot(tensor)
    with pytest.raises(
        ValueError,
        match=r"^Float8BlockQuantizer: the output must have block_scaling_dim 2, got 1$",
    ):
        ALL["blockwise_2d"]().update_quantized(sample(), tensor)
    assert_same_buffers(tensor, before, "unchanged")
    other = nfp.Float8BlockQuantizer(E5M2, rowwise=True, columnwise=True, block_scaling_dim=1)
    other.update_quantized(sample(), tensor)
    assert tensor._fp8_dtype == E5M2
    assert_same_buffers(tensor, other(sample()).detach(), "the quantizer's type")
    with pytest.raises(
        RuntimeError, match=r"^Float8BlockQuantizer: block_scaling_dim must be 1 or 2, got .*$"
    ):
        nfp.Float8BlockQuantizer(E4M3, rowwise=True, columnwise=True, block_scaling_dim=3)
    assert other.block_len == 128


def test_blockwise_data_keeps_its_shape() -> None:
    tensor = ALL["blockwise_2d"]()(sample()).detach()
    with pytest.raises(ValueError) as raised:
        tensor.data = sample(64, 256)
    assert str(raised.value) == (
        "Float8BlockwiseQTensor.data: the shape must stay (128, 256), got (64, 256)"
    )
    with pytest.raises(
        ValueError, match=r"^Float8BlockwiseQTensor\.data: stride and layout must stay$"
    ):
        tensor.data = sample(256, 128).t()


def test_nvfp4_tiles_make_their_columns() -> None:
    for shape in ((128, 256), (2, 48, 64)):
        tensor = ALL["nvfp4_2d"]()(sample(*shape)).detach()
        whole = snapshot(tensor)
        tensor.update_usage(columnwise_usage=False)
        tensor.update_usage(rowwise_usage=True, columnwise_usage=True)
        assert_same_buffers(tensor, whole, "made again")
    runs = ALL["nvfp4"]()(sample()).detach()
    runs.update_usage(columnwise_usage=False)
    with pytest.raises(
        RuntimeError,
        match=r"^update_usage: columnwise NVFP4 data can be made of rowwise data only "
        r"under 2-D quantization without the transform$",
    ):
        runs.update_usage(rowwise_usage=True, columnwise_usage=True)


def test_nvfp4_columns_alone() -> None:
    tensor = nfp.NVFP4Quantizer(rowwise=False)(sample(2, 32, 64)).detach()
    with pytest.warns(UserWarning, match="only columnwise data"):
        assert tuple(tensor.size()) == (64, 64)
    with pytest.raises(
        NotImplementedError,
        match=r"^Dequantizing columnwise NVFP4 data is not implemented: the transform "
        r"that it may have gone through is not undone$",
    ):
        tensor.dequantize()
    with pytest.raises(AssertionError, match=r"^clone: an NVFP4Tensor needs its rowwise data$"):
        tensor.clone()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nvfp4_use_4over6": True, "nvfp4_e4m3_max": 100},
         "nvfp4_e4m3_max must be 448 or 256, got 100"),
        ({"nvfp4_4over6_err_mode": "max"}, "nvfp4_4over6_err_mode must be MAE or MSE, got MAX"),
    ],
)  # fmt: skip
def test_nvfp4_values(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        nfp.NVFP4Quantizer(**options)
    assert nfp.NVFP4Quantizer(nvfp4_e4m3_max=100).nvfp4_e4m3_max == 448


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"with_rht": True}, "quantize: with_rht needs with_post_rht_amax"),
        ({"with_rht": True, "with_post_rht_amax": True},
         "quantize: with_rht takes bfloat16, got torch.float32"),
        ({"nvfp4_use_4over6": True, "stochastic_rounding": True},
         "quantize: nvfp4_use_4over6 cannot go with stochastic_rounding"),
        ({"nvfp4_use_4over6": True, "with_rht": True},
         "quantize: nvfp4_use_4over6 cannot go with with_rht"),
        ({"row_scaled_nvfp4": True, "with_2d_quantization": True},
         "quantize: row_scaled_nvfp4 cannot go with with_2d_quantization"),
        ({"row_scaled_nvfp4": True, "with_amax_reduction": True},
         "quantize: row_scaled_nvfp4 cannot go with with_amax_reduction"),
        ({"row_scaled_nvfp4": True, "rowwise": False},
         "quantize: row_scaled_nvfp4 needs rowwise usage"),
    ],
)  # fmt: skip
def test_nvfp4_combinations(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        nfp.NVFP4Quantizer(**options)(sample())


def test_nvfp4_stochastic_rounding_follows_the_generator() -> None:
    quantizer = nfp.NVFP4Quantizer(stochastic_rounding=True)
    torch.manual_seed(3)
    first = quantizer(sample()).detach()
    second = quantizer(sample()).detach()
    torch.manual_seed(3)
    assert_same_buffers(quantizer(sample()).detach(), first, "the same seed")
    assert not torch.equal(first._rowwise_data, second._rowwise_data)
    nearest = ALL["nvfp4"]()(sample()).detach()
    assert torch.equal(nearest._rowwise_scale_inv, first._rowwise_scale_inv)


def test_fp4_of_dequantized_values_is_the_same() -> None:
    tensor = ALL["nvfp4"]()(sample()).detach()
    again = ALL["nvfp4"]()(tensor.dequantize()).detach()
    assert torch.equal(again._rowwise_data, tensor._rowwise_data)
    assert torch.equal(again._rowwise_scale_inv, tensor._rowwise_scale_inv)


@pytest.mark.parametrize(
    ("kind", "shape"), [("mxfp8", (33, 64)), ("mxfp8", (64, 48)), ("nvfp4", (24, 64))], ids=str
)
def test_shapes_of_no_whole_blocks(kind: str, shape: tuple[int, int]) -> None:
    quantizer = ALL[kind]()
    message = (
        f"quantize: {type(quantizer).__name__} needs rows and columns in multiples of "
        f"{quantizer._spec().block_length}, got shape {shape[0]}x{shape[1]}"
    )
    for build in (lambda: quantizer(torch.zeros(shape)), lambda: quantizer.make_empty(shape)):
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            build()


@pytest.mark.parametrize("kind", ["mxfp8", "blockwise_1d", "blockwise_2d", "nvfp4"])
def test_shapes_of_scales_are_the_planners(kind: str) -> None:
    quantizer = ALL[kind]()
    tensor = quantizer(sample(96, 160)).detach()
    for columnwise, name in ((False, "_rowwise_scale_inv"), (True, "_columnwise_scale_inv")):
        assert quantizer.get_scale_shape((96, 160), columnwise) == getattr(tensor, name).shape
    spec = _core.parse_spec(quantizer._spec().text)
    planned = {role: tuple(shape) for role, _, shape, _ in spec.plan((96, 160))}
    assert planned["rowwise_scale_inv"] == tensor._rowwise_scale_inv.shape
    assert planned["columnwise_data"] == tensor._columnwise_data.shape
    if kind == "nvfp4":
        assert nfp.NVFP4Quantizer.convert_shape_for_fp4((3, 8)) == (3, 4)
        assert nfp.NVFP4Quantizer.get_columnwise_shape((2, 3, 8)) == (8, 2, 3)


def test_mxfp8_from_buffers() -> None:
    tensor = ALL["mxfp8"]()(sample()).detach()
    built = nfp.MXFP8Quantizer(E4M3).create_tensor_from_data(
        tensor._rowwise_data, tensor._rowwise_scale_inv, torch.float32
    )
    assert torch.equal(built.dequantize(), tensor.dequantize())


def test_mxfp8_extreme_scales() -> None:
    tensor = ALL["mxfp8"]()(torch.ones(32, 64)).detach()
    tensor._rowwise_scale_inv[0, 0], tensor._rowwise_scale_inv[0, 1] = 0, 255
    code = torch.tensor(1.0).to(torch.float8_e4m3fn).view(torch.uint8)
    tensor._rowwise_data[0] = code
    values = tensor.dequantize()[0]
    assert torch.equal(values[:32], torch.full((32,), 2.0**-127)) and values[32:].isnan().all()


# Wrong use.


@pytest.mark.parametrize("kind", list(ALL))
def test_update_refuses_another_class(kind: str) -> None:
    other = ALL["mxfp8" if "mxfp8" not in kind else "nvfp4"]()(sample()).detach()
    error = AssertionError if kind.startswith(("mxfp8", "blockwise", "nvfp4")) else ValueError
    before = snapshot(other)
    with pytest.raises(error):
        ALL[kind]().update_quantized(sample(), other)
    assert_same_buffers(other, before, "unchanged")


@pytest.mark.parametrize("kind", ["mxfp8", "blockwise_1d", "nvfp4"])
def test_update_refuses_bare_storages_of_blocks(kind: str) -> None:
    quantizer = ALL[kind]()
    quantizer.internal = True
    with pytest.raises(AssertionError, match=r"^Cannot store quantized data in "):
        quantizer.update_quantized(sample(), quantizer(sample()))


@pytest.mark.parametrize("kind", list(SCHEMES))
def test_update_refuses_another_shape(kind: str) -> None:
    quantizer = SCHEMES[kind]()
    tensor = quantizer(sample(64, 128)).detach()
    before = snapshot(tensor)
    message = "quantize: the output must have the input's shape (128, 64), got (64, 128)"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        quantizer.update_quantized(sample(128, 64), tensor)
    assert_same_buffers(tensor, before, "unchanged")


@pytest.mark.parametrize("kind", list(SCHEMES))
def test_wrong_types_are_refused(kind: str) -> None:
    quantizer = SCHEMES[kind]()
    tensor = quantizer(sample(64, 128)).detach()
    before = snapshot(tensor)
    for dtype in (torch.float64, torch.int32):
        with pytest.raises((TypeError, ValueError)):
            quantizer.update_quantized(sample(64, 128).to(dtype), tensor)
    assert_same_buffers(tensor, before, "unchanged")


@pytest.mark.parametrize("kind", list(SCHEMES))
def test_the_negative_bit_is_applied(kind: str) -> None:
    quantizer, x = SCHEMES[kind](), sample(64, 128)
    expected = quantizer(x).detach()
    wide = torch._neg_view(-torch.cat((x, x), dim=1))
    for negated in (torch._neg_view(-x), wide[:, :128], torch._neg_view(-x.t().contiguous()).t()):
        assert negated.is_neg() and torch.equal(negated, x)
        assert_same_buffers(quantizer(negated).detach(), expected, "a new tensor")
        written = quantizer(torch.zeros_like(x)).detach()
        with torch.no_grad():
            written.copy_(negated)
        assert_same_buffers(written, expected, "a copy")


def test_the_negative_bit_of_what_verbs_read() -> None:
    verbs, spec = _core.TorchTensors(torch), _core.make_spec("fp8_e4m3")
    codes, out = torch.zeros(1, 4, dtype=torch.uint8), torch.zeros(1, 4)
    two, half = (torch._neg_view(torch.tensor([-number])) for number in (2.0, 0.5))
    buffers = (codes, torch.zeros(1), *(None,) * 5)
    x = torch.tensor([[1.0, -2.0, 3.0, 0.0]])
    verbs.quantize(spec, torch._neg_view(-x), buffers, scale=two)
    verbs.dequantize(spec, (codes, half, *(None,) * 5), out)
    assert torch.equal(out, x)
    array = array_of(half)
    assert array.tolist() == [0.5] and not array.flags.writeable


def test_messages_of_the_verb() -> None:
    verbs = _core.TorchTensors(torch)
    spec = _core.make_spec("fp8_e4m3")
    codes, scale_inv = torch.zeros(4, 4, dtype=torch.uint8), torch.zeros(1)
    nothing = (None,) * 5
    with FakeTensorMode():
        views = [torch.zeros(3)[1:2]]
    views.append(torch.zeros(3)[1:2])
    views[1].untyped_storage().resize_(0)
    cases = [
        (lambda: verbs.quantize(spec, torch.zeros(4, 4, dtype=torch.float64),
                                (codes, scale_inv, *nothing)),
         TypeError, "quantize: the input must be uint8, float32, float16 or bfloat16, got "
         "torch.float64"),
        (lambda: verbs.quantize(spec, torch.zeros(4, 4, device="meta"),
                                (codes, scale_inv, *nothing)),
         NotImplementedError, "quantize: the input must be on the CPU or a CUDA device, got a "
         "tensor on meta"),
        (lambda: verbs.quantize(spec, [1.0], (codes, scale_inv, *nothing)),
         TypeError, "quantize: the input must be a torch.Tensor, got list"),
        (lambda: verbs.quantize(spec, torch.zeros(4, 4), (codes[:2], scale_inv, *nothing)),
         ValueError, "quantize: rowwise_data must be uint8 of 4x4 and contiguous, got uint8 of "
         "2x4"),
        (lambda: verbs.quantize(spec, torch.zeros(4, 4), (codes.t()[:, ::2], scale_inv, *nothing)),
         ValueError, "quantize: rowwise_data must be uint8 of 4x4 and contiguous, got uint8 of "
         "4x2"),
        (lambda: verbs.quantize(spec, torch.zeros(4, 4), (codes,)),
         ValueError, "quantize: needs 7 buffers, got 1"),
        (lambda: verbs.quantize(spec, torch.zeros(4, 4),
                                (codes, torch._neg_view(scale_inv), *nothing)),
         ValueError, "quantize: rowwise_scale_inv must not have PyTorch's negative bit, because it "
         "is written, got a tensor with it"),
        (lambda: verbs.quantize(spec, ALL["mxfp8"]()(torch.zeros(32, 32)),
                                (codes, scale_inv, *nothing)),
         ValueError, "quantize: the input must have memory, got a tensor without"),
        (lambda: verbs.quantize(spec, torch.zeros(4, 4), (codes, views[0], *nothing)),
         ValueError, "quantize: rowwise_scale_inv must have memory, got a tensor without"),
        (lambda: verbs.quantize(spec, torch.zeros(4, 4), (codes, views[1], *nothing)),
         ValueError, "quantize: rowwise_scale_inv must have memory, got a tensor without"),
    ]  # fmt: skip
    for call, error, message in cases:
        with pytest.raises(error) as caught:
            call()
        assert str(caught.value) == message
    assert not codes.any() and not scale_inv.any()


def test_custom_quantizers_cannot_make_empty() -> None:
    class Custom(nfp.Quantizer):
        @property
        def custom(self) -> bool:
            return True

        def update_quantized(self, src: object, dst: object, *, noop_flag: object = None) -> object:
            return dst

    with pytest.raises(
        NotImplementedError,
        match=r"^.* class does not implement make_empty function, required for "
        r"construction of unintialized quantized tensor$",
    ):
        Custom(rowwise=True, columnwise=True).make_empty((2, 2))


def test_no_warning_in_ordinary_use() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for kind in ALL:
            tensor = ALL[kind]()(sample()).detach()
            repr(tensor), tensor.clone(), tensor + 1
