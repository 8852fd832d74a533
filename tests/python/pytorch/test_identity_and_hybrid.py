# SPDX-License-Identifier: Apache-2.0
"""Tests tensors in high precision, and tensors of two formats."""

import copy
import re

import pytest
import torch
from families import ALL, E4M3, HYBRIDS, SCHEMES, assert_same_buffers, buffers, sample, snapshot
from narrowfloat.pytorch._read_only import ReadOnlyValues
from narrowfloat.pytorch.quantization import QuantizerRequest

from narrowfloat import pytorch as nfp


def identity(x: torch.Tensor) -> nfp.IdentityTensor:
    return nfp.IdentityQuantizer()(x).detach()


def test_identity_aliases_its_input() -> None:
    x = sample(8, 16)
    tensor = identity(x)
    assert tensor._hp_data.data_ptr() == x.data_ptr() and tensor.dtype == x.dtype
    assert identity(x.t()).stride() == (1, 16) and not identity(x.t()).is_contiguous()
    contiguous = identity(x.t()).contiguous()
    assert isinstance(contiguous, nfp.IdentityTensor) and contiguous.is_contiguous()
    assert torch.equal(contiguous.dequantize(), x.t())
    cast = nfp.IdentityQuantizer(dtype=torch.float16)(x).detach()
    assert cast.dtype == cast.dequantize().dtype == torch.float16


def test_identity_usages_never_change() -> None:
    tensor = identity(sample())
    for wanted in ((False, False), (True, False), (None, True)):
        tensor.update_usage(*wanted)
        assert tensor.get_usages() == {"rowwise": True, "columnwise": True}
    assert tensor.get_data_tensors() == (tensor._hp_data, None)
    assert tensor.get_data_tensors(rowwise_data=False) is tensor._hp_data


def test_identity_views_alias() -> None:
    x = sample(8, 16)
    tensor = identity(x)
    for part, wanted in (
        (tensor[2:4], x[2:4]), (tensor[:, ::3], x[:, ::3]), (tensor.split(4)[1], x[4:]),
        (tensor.view(4, 32), x.view(4, 32)), (tensor.as_strided((2, 2), (3, 1), 5),
                                              x.as_strided((2, 2), (3, 1), 5)),
    ):  # fmt: skip
        assert (
            isinstance(part, nfp.IdentityTensor) and part._hp_data.data_ptr() == wanted.data_ptr()
        )
        assert part.stride() == wanted.stride()
        assert part.storage_offset() == wanted.storage_offset()
        assert torch.equal(part.dequantize(), wanted)
    row = tensor[2:4]
    again = row.as_strided((1, 16), (16, 1))
    assert torch.equal(again.dequantize(), x[2:3]), "an offset left out is the present one"


def test_identity_updates_copy() -> None:
    quantizer, x = nfp.IdentityQuantizer(), sample(8, 16).clone()
    tensor = identity(x)
    new = sample(8, 16, seed=2)
    quantizer.update_quantized(new, tensor)
    assert tensor._hp_data.data_ptr() == x.data_ptr() and torch.equal(x, new)
    for flag, wanted in ((1.0, new), (0.0, new * 2)):
        quantizer.update_quantized(new * 2, tensor, noop_flag=torch.tensor([flag]))
        assert torch.equal(tensor.dequantize(), wanted)
    other = sample(8, 16, dtype=torch.float16)
    quantizer.update_quantized(other, tensor, noop_flag=torch.ones(1))
    assert torch.equal(tensor.dequantize(), new * 2)
    quantizer.update_quantized(other, tensor)
    assert torch.equal(x, other.float()), "a source of another type is converted in place"
    assert tensor.dtype == torch.float32
    nfp.IdentityQuantizer(dtype=torch.float16).update_quantized(new, tensor)
    assert torch.equal(x, new.half().float())
    with pytest.raises(
        ValueError,
        match=r"^quantize: the output must have the input's shape \(7,\), got \(8, 16\)$",
    ):
        quantizer.update_quantized(sample(7), tensor)
    with pytest.raises(
        ValueError, match=r"^IdentityQuantizer can only update IdentityTensor, got .*$"
    ):
        quantizer.update_quantized(x, ALL["mxfp8"]()(sample()))


@pytest.mark.parametrize("kind", ["identity", *HYBRIDS])
def test_writes_of_another_type_reach_the_tensor(kind: str) -> None:
    tensor = ALL[kind]()(sample(256, 256)).detach()
    tensor[:128].quantize_(torch.zeros(128, 256, dtype=torch.bfloat16))
    for rowwise in (True, False):
        alone = tensor.detach()
        alone.update_usage(rowwise_usage=rowwise, columnwise_usage=not rowwise)
        values = alone.dequantize()
        assert not values[:128].any() and values[128:].any()


def test_identity_storage_types() -> None:
    held = sample(4, 4)
    bare = nfp.IdentityTensorStorage(hp_data=held, fake_dtype=torch.bfloat16)
    assert bare.dequantize().dtype == torch.bfloat16
    assert bare.dequantize(dtype=torch.float32) is held
    assert nfp.IdentityTensorStorage(hp_data=held)._dtype == torch.float32
    assert nfp.IdentityTensorStorage(hp_data=None)._dtype == torch.float32
    assert bare.view(16)._hp_data.data_ptr() == held.data_ptr()
    tensors, shell = bare.prepare_for_saving()
    with pytest.raises(RuntimeError, match=r"^IdentityTensorStorage has no data to dequantize$"):
        shell.dequantize()
    shell.restore_from_saved(tensors)
    assert shell.dequantize(dtype=torch.float32) is held


def test_identity_makes_zeros_of_any_type() -> None:
    tensor = identity(sample(4, 4))
    for dtype in (None, torch.float16, torch.int32):
        zeros = tensor.new_zeros(3, 5, dtype=dtype)
        assert isinstance(zeros, nfp.IdentityTensor) and zeros.shape == (3, 5)
        assert zeros.dtype == (dtype or torch.float32) and not zeros.dequantize().any()


def test_gradient_does_not_reach_into_the_buffer() -> None:
    x = sample(4, 4, requires_grad=True)
    tensor = nfp.IdentityQuantizer()(x)
    tensor.dequantize().mul(3).sum().backward()
    assert tensor._hp_data.grad_fn is None and torch.equal(x.grad, torch.full((4, 4), 3.0))


# Hybrid.


def hybrid(
    rowwise: nfp.Quantizer, columnwise: nfp.Quantizer, **options: str
) -> nfp.HybridQuantizer:
    return nfp.HybridQuantizer(
        rowwise_quantizer=rowwise, columnwise_quantizer=columnwise, **options
    )


BLOCKS = [kind for kind in SCHEMES if not kind.startswith(("float8", "nvfp4_row"))]


@pytest.mark.parametrize("columns", BLOCKS)
@pytest.mark.parametrize("rows", [kind for kind in SCHEMES if kind != "nvfp4_row_scaled"])
def test_each_child_makes_its_direction(rows: str, columns: str) -> None:
    x = sample()
    tensor = hybrid(SCHEMES[rows](), SCHEMES[columns]())(x).detach()
    rowwise, columnwise = SCHEMES[rows](), SCHEMES[columns]()
    rowwise.set_usage(rowwise=True, columnwise=False)
    columnwise.set_usage(rowwise=False, columnwise=True)
    assert_same_buffers(tensor.rowwise_sub_storage, rowwise(x).detach(), "rows")
    assert_same_buffers(tensor.columnwise_sub_storage, columnwise(x).detach(), "columns")
    assert torch.equal(tensor.dequantize(), rowwise(x).dequantize())


def test_columns_of_dequantized_rows() -> None:
    x = sample(dtype=torch.bfloat16)
    quantizer = HYBRIDS["hybrid_nvfp4_mxfp8"]()
    expected = nfp.MXFP8Quantizer(E4M3, rowwise=False)
    tensor = quantizer(x).detach()
    source = nfp.NVFP4Quantizer(columnwise=False)(x).dequantize()
    assert source.dtype == torch.bfloat16
    assert_same_buffers(tensor.columnwise_sub_storage, expected(source).detach(), "columns")
    quantizer.set_usage(rowwise=False)
    transient = quantizer(x).detach()
    assert transient.rowwise_sub_storage is None
    assert_same_buffers(transient.columnwise_sub_storage, expected(source).detach(), "transient")
    new = sample(dtype=torch.bfloat16, seed=3)
    tensor.quantize_(new)
    source = nfp.NVFP4Quantizer(columnwise=False)(new).dequantize()
    assert_same_buffers(tensor.columnwise_sub_storage, expected(source).detach(), "updated")


@pytest.mark.parametrize(
    ("rowwise", "columnwise", "options", "error", "message"),
    [
        (QuantizerRequest(), nfp.IdentityQuantizer(), {}, TypeError,
         "HybridQuantizer does not support nested QuantizerRequest objects, got QuantizerRequest "
         "as rowwise_quantizer"),
        (nfp.IdentityQuantizer(), None, {}, TypeError,
         "HybridQuantizer: columnwise_quantizer must be a Quantizer, got NoneType"),
        (nfp.IdentityQuantizer(), nfp.IdentityQuantizer(), {"columnwise_source": "x"}, ValueError,
         "HybridQuantizer: columnwise_source must be one of ('original', 'rowwise_dequantized'), "
         "got 'x'"),
    ],
)  # fmt: skip
def test_hybrid_arguments(
    rowwise: object, columnwise: object, options: dict, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        hybrid(rowwise, columnwise, **options)
    same = nfp.IdentityQuantizer()
    with pytest.raises(
        ValueError,
        match=r"^HybridQuantizer requires distinct rowwise and columnwise quantizers, "
        r"got one for both$",
    ):
        hybrid(same, same)


def test_hybrid_takes_its_children_over() -> None:
    rows, columns = nfp.MXFP8Quantizer(E4M3), nfp.MXFP8Quantizer(E4M3)
    quantizer = hybrid(rows, columns)
    assert rows.get_usages() == {"rowwise": True, "columnwise": False}
    assert columns.get_usages() == {"rowwise": False, "columnwise": True}
    copied = quantizer.copy()
    assert copied.rowwise_quantizer is not rows and copied.columnwise_quantizer is not columns
    quantizer.set_usage(rowwise=False, columnwise=False)
    empty = quantizer(sample()).detach()
    assert buffers(empty) == {} and empty.shape == (128, 256)
    with pytest.raises(RuntimeError, match=r"^HybridQuantizedTensor has no data to dequantize$"):
        empty.dequantize()
    with pytest.raises(
        TypeError,
        match=r"^.* requires a parent HybridQuantizer with both children, got .* without .*$",
    ):
        nfp.HybridQuantizedTensorStorage(rowwise_storage=None, columnwise_storage=None)


def test_hybrid_usages_change_together_or_not_at_all() -> None:
    tensor = HYBRIDS["hybrid_mxfp8_identity"]()(sample()).detach()
    tensor.update_usage(columnwise_usage=False)
    before = snapshot(tensor)
    with pytest.raises(
        RuntimeError,
        match=(
            r"^update_usage: HybridQuantizedTensor has no columnwise data, and it "
            r"cannot be made of the other direction$"
        ),
    ):
        tensor.update_usage(rowwise_usage=False, columnwise_usage=True)
    assert_same_buffers(tensor, before, "unchanged")
    quantizer = HYBRIDS["hybrid_mxfp8_identity"]()
    quantizer.update_quantized(sample(seed=3), tensor)
    assert tensor.get_usages() == {"rowwise": True, "columnwise": False}
    tensor.update_usage(rowwise_usage=False)
    assert buffers(tensor) == {}


def test_saving_a_hybrid_copy_leaves_the_original() -> None:
    tensor = HYBRIDS["hybrid_mxfp8_identity"]()(sample()).detach()
    before = snapshot(tensor)
    tensor.detach().prepare_for_saving()
    assert_same_buffers(tensor, before, "the original")
    child = nfp.MXFP8Quantizer(E4M3)
    child.internal = True
    bare = hybrid(child, nfp.IdentityQuantizer()).quantize_impl(sample())
    with pytest.raises(
        NotImplementedError,
        match=r"^detach: a child that is a bare MXFP8TensorStorage cannot be aliased$",
    ):
        bare.detach()


def test_hybrid_views_never_mix() -> None:
    tensor = HYBRIDS["hybrid_mxfp8_identity"]()(sample()).detach()
    viewed = tensor.view(4, 32, 256)
    assert isinstance(viewed, nfp.HybridQuantizedTensor)
    assert isinstance(viewed.rowwise_sub_storage, nfp.MXFP8Tensor)
    assert isinstance(viewed.columnwise_sub_storage, nfp.IdentityTensor)
    with pytest.warns(UserWarning, match="inner dimension"):
        assert type(tensor.view(-1)) is ReadOnlyValues
    with pytest.raises(RuntimeError, match="inner dimension"):
        torch.ops.aten.view(tensor, [-1])


def test_texts_name_what_is_missing() -> None:
    tensor = HYBRIDS["hybrid_mxfp8_identity"]()(sample()).detach()
    tensor.update_usage(rowwise_usage=False)
    assert repr(tensor).startswith("HybridQuantizedTensor(rowwise=None, columnwise=IdentityTensor")
    tensor.update_usage(columnwise_usage=False)
    assert "rowwise=None, columnwise=None" in repr(tensor)


def test_what_backward_may_quantize_again() -> None:
    assert nfp.IdentityQuantizer().allows_save_original_input_for_backward()
    assert HYBRIDS["hybrid_mxfp8_identity"]().allows_save_original_input_for_backward()
    assert not HYBRIDS["hybrid_nvfp4_mxfp8"]().allows_save_original_input_for_backward()


def test_hybrid_groups_are_the_childrens() -> None:
    quantizer = hybrid(
        nfp.Float8CurrentScalingQuantizer(E4M3), nfp.NVFP4Quantizer(with_amax_reduction=True)
    )
    assert quantizer.with_amax_reduction
    group = object()
    quantizer.amax_reduction_group = group
    assert quantizer.rowwise_quantizer.amax_reduction_group is group
    assert quantizer.amax_reduction_group is group
    quantizer.columnwise_quantizer.amax_reduction_group = object()
    with pytest.raises(
        RuntimeError,
        match=r"^HybridQuantizer: the children must reduce amaxes over one group, got several$",
    ):
        _ = quantizer.amax_reduction_group
    quantizer.with_amax_reduction = False
    assert not quantizer.columnwise_quantizer.with_amax_reduction


@pytest.mark.parametrize("kind", list(HYBRIDS))
def test_hybrid_zeros(kind: str) -> None:
    tensor = HYBRIDS[kind]()(sample()).detach()
    state = torch.random.get_rng_state()
    zeros = tensor.new_zeros(64, 64, dtype=torch.bfloat16)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert zeros.shape == (64, 64) and zeros.dtype == torch.bfloat16
    for name, buffer in buffers(zeros).items():
        assert not buffer.any(), name


def test_hybrid_zeros_that_cannot_be() -> None:
    tensor = HYBRIDS["hybrid_mxfp8_identity"]()(sample()).detach()
    for dtype in (torch.int32, torch.float64, torch.bool):
        with pytest.raises(TypeError, match=r"^new_zeros only supports"):
            tensor.new_zeros((32, 32), dtype=dtype)
    tensor.update_usage(rowwise_usage=False, columnwise_usage=False)
    with pytest.raises(
        RuntimeError, match=r"^new_zeros: a hybrid tensor needs at least one present sub-storage$"
    ):
        tensor.new_zeros((32, 32))
    both = hybrid(nfp.IdentityQuantizer(), nfp.IdentityQuantizer())(sample(4, 8)).detach()
    zeros = both.new_zeros((2, 3), dtype=torch.int32)
    assert zeros.dtype == torch.int32 and not zeros.dequantize().any()


def test_hybrid_aliases_have_children_of_their_own() -> None:
    tensor = HYBRIDS["hybrid_mxfp8_identity"]()(sample()).detach()
    alias = nfp.HybridQuantizedTensor.make_like(tensor, dtype=torch.float16)
    assert alias.dtype == torch.float16 and alias.rowwise_sub_storage is not None
    assert alias.rowwise_sub_storage is not tensor.rowwise_sub_storage
    assert_same_buffers(alias, tensor, "the same memory")
    alias.rowwise_sub_storage._rowwise_data = None
    assert tensor.rowwise_sub_storage._rowwise_data is not None


def test_a_deep_copy_keeps_attributes() -> None:
    tensor = ALL["hybrid_mxfp8_identity"]()(sample()).detach()
    tensor.note = [1]
    copied = copy.deepcopy(torch.nn.Parameter(tensor))
    alone = copy.deepcopy(tensor)
    assert isinstance(copied, torch.nn.Parameter)
    assert alone.note == [1] and alone.note is not tensor.note


@pytest.mark.parametrize("family", ALL)
def test_data_of_another_device_replaces_all_or_nothing(family: str) -> None:
    tensor = ALL[family]()(sample()).detach()
    elsewhere = ALL[family]()(sample().to("meta")).detach()
    before = snapshot(tensor)
    with pytest.raises(RuntimeError, match="incompatible tensor type"):  # as between plain tensors
        tensor.data = elsewhere
    assert not tensor.is_meta and tensor.device.type == "cpu"
    assert_same_buffers(tensor, before, "nothing was replaced")
