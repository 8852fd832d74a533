# SPDX-License-Identifier: Apache-2.0
"""Tests a complete family that this file alone defines, without changes to the package."""

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from families import E4M3, E5M2, assert_nothing_shared, assert_same_buffers, buffers, sample
from narrowfloat.pytorch.constants import element_of
from narrowfloat.pytorch.cpp_extensions import general_gemm
from narrowfloat.pytorch.dynamo import to_tensor_spec
from narrowfloat.pytorch.quantized_tensor import prepare_for_saving, restore_from_saved
from narrowfloat.pytorch.tensor._families import register_family
from narrowfloat.pytorch.tensor._scheme_quantizer import SchemeQuantizer
from narrowfloat.pytorch.tensor._scheme_tensor import SchemeTensor
from narrowfloat.pytorch.tensor.storage._fields import Buffer, Setting
from narrowfloat.pytorch.tensor.storage._scheme_storage import BlockStorage
from narrowfloat.pytorch.tensor.utils import quantize_master_weights, replace_raw_data

from narrowfloat import _core
from narrowfloat import pytorch as nfp

# The family: MXFP8's scheme with other names, and with a setting that the scheme does not have.


class RunStorage(BlockStorage):
    BUFFERS = tuple(
        Buffer(f"_{direction}_{part}", f"{direction}_{part}", (f"{direction}_{part}",))
        for part in ("data", "scale_inv")
        for direction in ("rowwise", "columnwise")
    )
    SETTINGS = (
        Setting("_element", "element", "Element", E4M3, nfp.DType.cast),
        Setting("_note", "note", "Note", "", keyword_only=True),
    )

    def _scheme(self) -> str:
        return _core.mx_scheme(element_of(self._element), False)

    def _why_no_view(self, shape: torch.Size) -> str | None:
        return None if shape[-1:] == self._logical_shape()[-1:] else "runs would break"

    def _view_buffers(self, shape: torch.Size) -> dict[str, torch.Tensor | None]:
        codes = {"rowwise_data": self._rowwise_data, "columnwise_data": self._columnwise_data}
        return {name: None if data is None else data.view(shape) for name, data in codes.items()}


class RunQuantizer(SchemeQuantizer):
    def __init__(self, element: nfp.DType = E4M3, note: str = "", **usages: bool) -> None:
        super().__init__(**{"rowwise": True, "columnwise": True, **usages})
        self.dtype, self.note = element, note

    def _scheme(self) -> str:
        return _core.mx_scheme(element_of(self.dtype), False)

    def _settings(self) -> dict[str, Any]:
        return {"element": self.dtype, "note": self.note}


class RunTensor(RunStorage, SchemeTensor):
    pass


register_family(
    RunTensor, RunStorage, RunQuantizer, default=lambda storage: RunQuantizer(storage._element)
)
RunQuantizer.register_value_class("dtype", "note")


# The tests of the new family.


def model_of(tensor: RunStorage) -> dict[str, torch.Tensor]:
    """Returns the buffers of an MXFP8Tensor of the same values. Requires: tensor.source."""
    return buffers(nfp.MXFP8Quantizer(tensor._element)(tensor.source).detach())


def run_tensor(*shape: int, **options: object) -> RunTensor:
    x = sample(*shape, dtype=torch.bfloat16)
    tensor = RunQuantizer(**options)(x).detach()
    tensor.source = x
    return tensor


@pytest.mark.parametrize("element", [E4M3, E5M2])
def test_quantize_and_dequantize(element: nfp.DType) -> None:
    tensor = run_tensor(element=element, note="first")
    assert type(tensor) is RunTensor and tensor._note == "first" and tensor._element is element
    assert_same_buffers(buffers(tensor), model_of(tensor), "quantized")
    expected = nfp.MXFP8Quantizer(element)(tensor.source).dequantize()
    assert torch.equal(tensor.dequantize(), expected)
    other = RunQuantizer(element).make_empty((128, 256), dtype=torch.bfloat16)
    assert RunQuantizer(element, "second").quantize(tensor.source, out=other) is other
    assert_same_buffers(buffers(other), model_of(tensor), "quantized into")
    assert other._note == "second"
    quantizer = RunQuantizer(element)
    quantizer.internal = True
    assert type(quantizer(tensor.source)) is RunStorage
    assert_same_buffers(buffers(quantizer(tensor.source)), model_of(tensor), "bare")


def test_gradients_pass_through() -> None:
    x = sample(64, 64, requires_grad=True)
    (RunQuantizer()(x).dequantize() * 3).sum().backward()
    assert torch.equal(x.grad, torch.full_like(x, 3))


def test_constructor_follows_the_table() -> None:
    tensor = run_tensor()
    flat = [tensor._rowwise_data, tensor._rowwise_scale_inv]
    bare = RunStorage(*flat, None, None, E4M3, RunQuantizer(), note="kept")
    assert bare._rowwise_data is flat[0] and bare._columnwise_data is None and bare._note == "kept"
    with pytest.raises(TypeError, match=r"^RunStorage is missing the argument 'columnwise_data'$"):
        RunStorage(*flat)
    with pytest.raises(
        TypeError, match=r"^RunStorage got multiple values for argument 'rowwise_data'$"
    ):
        RunStorage(*flat, None, None, rowwise_data=flat[0])
    metadata = tensor.get_metadata()
    alias = RunTensor(shape=tensor.shape, dtype=tensor.dtype, **metadata)
    assert all(getattr(alias, name) is buffer for name, buffer in buffers(tensor).items())
    assert alias.get_metadata().keys() == metadata.keys()


@pytest.mark.parametrize("weights_only", [True, False])
def test_save_and_load(weights_only: bool) -> None:
    tensor = run_tensor(note="saved")
    stream = io.BytesIO()
    torch.save({"weight": torch.nn.Parameter(tensor), "bare": tensor}, stream)
    stream.seek(0)
    loaded = torch.load(stream, weights_only=weights_only)["bare"]
    assert type(loaded) is RunTensor and loaded._note == "saved" and loaded.dtype == tensor.dtype
    assert loaded._quantizer == tensor._quantizer
    assert_same_buffers(loaded, tensor, "loaded")


def test_copies_share_nothing() -> None:
    tensor = run_tensor(note="copied")
    assert_same_buffers(pickle.loads(pickle.dumps(tensor)), tensor, "pickled")
    for copied in (tensor.clone(), copy.deepcopy(tensor), torch.ops.aten.clone(tensor)):
        assert type(copied) is RunTensor and copied._note == "copied"
        assert_same_buffers(copied, tensor, "copied")
        assert_nothing_shared(copied, tensor)


def test_state_dict() -> None:
    model, other = torch.nn.Linear(256, 128, bias=False), torch.nn.Linear(256, 128, bias=False)
    model.weight = torch.nn.Parameter(run_tensor())
    other.weight = torch.nn.Parameter(RunQuantizer()(sample(seed=8)).detach())
    other.load_state_dict(model.state_dict())
    assert_same_buffers(other.weight.detach(), model.weight.detach(), "loaded")
    other.load_state_dict({"weight": torch.zeros(128, 256)})
    assert type(other.weight.detach()) is RunTensor and not other.weight.dequantize().any()


def test_saving_for_backward_and_flattening() -> None:
    tensor = run_tensor(note="flat")
    expected = {name: buffer.clone() for name, buffer in buffers(tensor).items()}
    quantizer = tensor._quantizer.copy()
    quantizer.internal = True
    saved, objects = prepare_for_saving(quantizer(tensor.source))
    assert [b is None for b in saved] == [False] * 4
    (restored,) = restore_from_saved(objects, saved)
    assert_same_buffers(buffers(restored), expected, "restored")
    names, context = tensor.__tensor_flatten__()
    assert names == ["_rowwise_data", "_rowwise_scale_inv", "_columnwise_data",
                     "_columnwise_scale_inv"]  # fmt: skip
    inner = {name: getattr(tensor, name) for name in names}
    back = RunTensor.__tensor_unflatten__(inner, context, tensor.shape, tensor.stride())
    assert back._note == "flat" and back._rowwise_data is tensor._rowwise_data
    made = to_tensor_spec(tensor).create_tensor()
    assert type(made) is RunTensor and made._note == "flat"
    assert made._quantizer == tensor._quantizer
    double = torch.compile(lambda t: t * 2, backend="aot_eager", fullgraph=True)
    assert torch.equal(double(tensor), tensor.dequantize() * 2)


def test_products() -> None:
    a, b = run_tensor(64, 128), run_tensor(32, 128)
    expected = general_gemm(*(nfp.MXFP8Quantizer(E4M3)(t.source) for t in (a, b)), torch.float32)
    assert torch.equal(general_gemm(a, b, torch.float32)[0], expected[0])
    quantized = general_gemm(a, b, torch.float32, RunQuantizer())[0]
    assert_same_buffers(quantized, RunQuantizer()(expected[0]).detach(), "quantized output")
    with pytest.raises(RuntimeError, match=r"scaling_mode.*RunTensor and MXFP8Tensor"):
        general_gemm(a, nfp.MXFP8Quantizer(E4M3)(b.source), torch.float32)


def test_operators() -> None:
    tensor = run_tensor()
    for alias in (tensor.detach(), tensor[:], tensor.view(2, 64, 256), tensor[32:64]):
        assert type(alias) is RunTensor
        assert alias._rowwise_data.untyped_storage().data_ptr() == tensor._rowwise_data.data_ptr()
    plain = tensor.dequantize()
    assert torch.equal(
        tensor @ torch.ones(256, 3).bfloat16(), plain @ torch.ones(256, 3).bfloat16()
    )
    tensor += 1
    assert_same_buffers(tensor, RunQuantizer()(plain + 1).detach(), "written in place")
    tensor[32:64] = 0
    assert not tensor.dequantize()[32:64].any() and tensor.dequantize()[:32].any()
    assert type(tensor.new_empty(64, 64)) is type(torch.empty_like(tensor)) is RunTensor
    assert not tensor.zero_().dequantize().any()
    other = run_tensor(note="")
    tensor.copy_(other)
    assert_same_buffers(tensor, other, "copied")
    tensor.data = sample(64, 64)
    assert tensor.shape == (64, 64) and tensor._quantizer == RunQuantizer()


def test_default_quantizer_and_usages() -> None:
    tensor = run_tensor(element=E5M2)
    bare = RunTensor(
        shape=tensor.shape, dtype=tensor.dtype, **{**tensor.get_metadata(), "quantizer": None}
    )
    bare.zero_().copy_(tensor.source)
    assert_same_buffers(bare, tensor, "by the default quantizer")
    bare.update_usage(columnwise_usage=False)
    assert bare.get_usages() == {"rowwise": True, "columnwise": False}
    with pytest.raises(RuntimeError, match=r"lacks _columnwise_data"):
        bare.update_usage(columnwise_usage=True)


def test_groups_and_hybrids() -> None:
    group = nfp.GroupedTensor.make_grouped_tensor(3, None, None, 96, 64, RunQuantizer())
    parts = [sample(32, 64, seed=seed) for seed in range(3)]
    for member, part in zip(group.quantize(parts), parts, strict=True):
        assert_same_buffers(member, RunQuantizer()(part).detach(), "member")
    hybrid = nfp.HybridQuantizer(
        rowwise_quantizer=RunQuantizer(), columnwise_quantizer=nfp.IdentityQuantizer()
    )(sample())
    assert type(hybrid.rowwise_sub_storage) is RunTensor
    assert_same_buffers(
        hybrid.rowwise_sub_storage, RunQuantizer(columnwise=False)(sample()).detach(), "child"
    )


def test_what_a_family_leaves_out_is_refused() -> None:
    tensor = run_tensor()
    with pytest.raises(
        NotImplementedError, match=r"^replace_raw_data: not available for RunTensor"
    ):
        replace_raw_data(tensor, torch.empty(128, 256, dtype=torch.uint8))
    with pytest.raises(ValueError, match=r"^quantize_master_weights: not available for RunTensor$"):
        quantize_master_weights([tensor], [torch.zeros(128 * 256)], [0], None)
