# SPDX-License-Identifier: Apache-2.0
"""Tests that pickles, torch.save, copies and state dictionaries keep every bit and quantizer."""

import copy
import io
import pickle
import subprocess
import sys
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest
import torch
import torch.multiprocessing
from families import ALL, E4M3, assert_nothing_shared, assert_same_buffers, sample

from narrowfloat import pytorch as nfp

every = pytest.mark.parametrize("kind", list(ALL))


def quantized(kind: str) -> nfp.QuantizedTensor:
    return ALL[kind]()(sample(dtype=torch.bfloat16)).detach()


def saved(thing: object) -> io.BytesIO:
    stream = io.BytesIO()
    torch.save(thing, stream)
    stream.seek(0)
    return stream


def same_quantizer(first: nfp.Quantizer, second: nfp.Quantizer) -> bool:
    plain = (int, float, bool, str, torch.dtype, type(None))
    return type(first) is type(second) and all(
        second.__dict__[name] == value
        for name, value in first.__dict__.items()
        if isinstance(value, plain)
    )


@every
@pytest.mark.parametrize("weights_only", [True, False])
def test_save_and_load(kind: str, weights_only: bool) -> None:
    tensor = quantized(kind)
    expected = tensor.clone()
    stream = saved(tensor)
    tensor.zero_()
    loaded = torch.load(stream, weights_only=weights_only)
    assert type(loaded) is type(expected) and loaded.dtype == torch.bfloat16
    assert_same_buffers(loaded, expected, "loaded")
    assert loaded.get_usages() == expected.get_usages()
    assert same_quantizer(loaded._quantizer, expected._quantizer)
    loaded += 1  # operators in place need the quantizer
    assert_same_buffers(
        loaded, ALL[kind]()(expected.dequantize() + 1).detach(), "used after loading"
    )


@every
def test_copies_and_files_keep_requires_grad(kind: str) -> None:
    tensor = quantized(kind).requires_grad_()
    stream = saved(tensor)
    for made in (copy.copy(tensor), torch.load(stream), pickle.loads(pickle.dumps(tensor))):
        assert made.requires_grad and made.is_leaf
        assert_same_buffers(made, tensor, "copied")


@every
def test_memory_is_handed_on_buffer_by_buffer(kind: str) -> None:
    """Checks functions that would access the memory of the wrapper, which has none."""
    tensor = quantized(kind)
    for take in (torch.from_dlpack, np.from_dlpack):
        with pytest.raises(
            BufferError,
            match=r"^dlpack: a quantized tensor is not an array of values; pass dequantize\(\) or "
            rf"a buffer, got {type(tensor).__name__}$",
        ):
            take(tensor)
    with pytest.raises(
        TypeError,
        match=r"^apply_: needs a tensor of plain values, as dequantize\(\) gives, got "
        rf"{type(tensor).__name__}$",
    ):
        tensor.apply_(lambda value: value)
    assert not tensor.is_shared()
    tensor.share_memory_()
    assert tensor.is_shared()
    other = pickle.loads(bytes(ForkingPickler.dumps(tensor)))
    other.zero_()
    assert not tensor.dequantize().any()


@every
def test_the_older_format_of_files(kind: str) -> None:
    """Checks a format with values after the objects: loading cannot compute a transpose."""
    tensor, stream = quantized(kind), io.BytesIO()
    torch.save(tensor, stream, _use_new_zipfile_serialization=False)
    stream.seek(0)
    loaded = torch.load(stream, weights_only=False)
    if kind.startswith("float8"):
        assert loaded.get_usages() == {"rowwise": True, "columnwise": False}
        loaded.update_usage(columnwise_usage=True)
    assert_same_buffers(loaded, tensor, "loaded")


@every
def test_one_direction_survives(kind: str) -> None:
    if kind in ("nvfp4_row_scaled", "identity", "nvfp4", "nvfp4_4over6", "nvfp4_2d"):
        pytest.skip("one direction alone is all there is, or cannot be read")
    tensor = quantized(kind)
    tensor.update_usage(rowwise_usage=False, columnwise_usage=True)
    loaded = torch.load(saved(tensor), weights_only=True)
    assert loaded.get_usages() == tensor.get_usages()
    assert torch.equal(loaded.dequantize(), tensor.dequantize())


@every
def test_pickle_names_one_function(kind: str) -> None:
    tensor = quantized(kind)
    build, arguments = tensor.__reduce_ex__(2)
    assert build.__module__.startswith("narrowfloat.pytorch.tensor.")
    assert build.__qualname__ == build.__name__
    assert_same_buffers(build(*arguments), tensor, "rebuilt")
    assert_same_buffers(pickle.loads(pickle.dumps(tensor)), tensor, "pickled")
    assert_same_buffers(type(tensor)._make_in_reduce_ex(*arguments), tensor, "older payload")
    assert_same_buffers(copy.copy(tensor), tensor, "copy.copy")


def test_older_payloads_have_fewer_arguments() -> None:
    tensor = quantized("float8_current")
    arguments = tensor.__reduce_ex__(2)[1]
    old = nfp.Float8Tensor._make_in_reduce_ex(*arguments[:5])
    assert torch.equal(old.dequantize(), tensor.dequantize()) and old._quantizer is None
    tensor = quantized("mxfp8")
    arguments = tensor.__reduce_ex__(2)[1]
    assert_same_buffers(nfp.MXFP8Tensor._make_in_reduce_ex(*arguments[:8]), tensor, "old MXFP8")


@every
def test_deepcopy(kind: str) -> None:
    parameter = torch.nn.Parameter(quantized(kind))
    parameter.note = ["kept"]
    copied = copy.deepcopy(parameter)
    assert isinstance(copied, torch.nn.Parameter) and copied.requires_grad
    assert_same_buffers(copied.detach(), parameter.detach(), "copied")
    assert_nothing_shared(copied.detach(), parameter.detach())
    assert copied._quantizer is not parameter._quantizer
    if hasattr(copied, "note"):
        assert copied.note == ["kept"] and copied.note is not parameter.note
    shared = copy.deepcopy([parameter, parameter])
    assert shared[0] is shared[1]


class Model(torch.nn.Module):
    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(weight)
        self.bias = torch.nn.Parameter(torch.zeros(4))


@every
def test_state_dict(kind: str) -> None:
    model, other = Model(quantized(kind)), Model(quantized(kind) * 0)
    other.weight = torch.nn.Parameter(ALL[kind]()(other.weight.detach()).detach())
    state = model.state_dict()
    assert type(state["weight"]) is type(model.weight) and not state["weight"].requires_grad
    loaded = torch.load(saved(state), weights_only=True)
    other.load_state_dict(loaded)
    assert_same_buffers(other.weight.detach(), model.weight.detach(), "load_state_dict")
    plain = sample(dtype=torch.bfloat16, seed=10)
    other.load_state_dict({"weight": plain, "bias": torch.ones(4)})
    assert_same_buffers(other.weight.detach(), ALL[kind]()(plain).detach(), "from plain")


@every
def test_modules_change_their_nominal_type(kind: str) -> None:
    model = Model(quantized(kind))
    before = model.weight.detach().clone()
    assert model.float() is model
    assert model.weight.dtype == torch.float32 and isinstance(model.weight, torch.nn.Parameter)
    assert type(model.weight) is type(before)
    assert_same_buffers(model.weight.detach(), before, "bytes are kept")
    model.half()
    assert model.weight.dtype == model.bias.dtype == torch.float16
    model.bfloat16()
    assert model.weight.dtype == model.bias.dtype == torch.bfloat16
    assert_same_buffers(model.weight.detach(), before, "bytes are kept")


@every
def test_assigned_data_keeps_requires_grad(kind: str) -> None:
    """Assigns values of the same and of another nominal type, as torch.Tensor.data allows."""
    for requires_grad in (True, False):
        weight = torch.nn.Parameter(quantized(kind), requires_grad=requires_grad)
        for dtype in (weight.dtype, torch.float32):
            weight.data = torch.ones(weight.shape, dtype=dtype)
            assert weight.requires_grad == requires_grad, dtype


@pytest.mark.filterwarnings("ignore:Float8Tensor of nominal type")  # advice for FSDP2
@pytest.mark.parametrize("kind", ["float8_current", "mxfp8", "nvfp4"])
def test_to_a_type_requantizes(kind: str) -> None:
    model = Model(quantized(kind))
    expected = ALL[kind]()(model.weight.detach().dequantize().to(torch.float32)).detach()
    model.to(torch.float32)
    assert type(model.weight) is type(expected) and model.weight.dtype == torch.float32
    assert model.weight.requires_grad
    assert_same_buffers(model.weight.detach(), expected, "requantized")


def test_groups_do_not_travel() -> None:
    quantizer = nfp.Float8CurrentScalingQuantizer(E4M3, amax_reduction_group=object())
    assert pickle.loads(pickle.dumps(quantizer)).amax_reduction_group is None
    assert copy.deepcopy(quantizer).amax_reduction_group is None
    assert quantizer.copy().amax_reduction_group is quantizer.amax_reduction_group


def test_loading_needs_the_import() -> None:
    """Checks that weights_only refuses narrowfloat's functions by name before the import."""
    stream = saved(quantized("mxfp8")).getvalue()
    program = (
        "import io, pickle, sys, torch\n"
        "try: torch.load(io.BytesIO(sys.stdin.buffer.read()), weights_only=True)\n"
        "except pickle.UnpicklingError as error: print('_make_mxfp8' in str(error))"
    )
    done = subprocess.run([sys.executable, "-c", program], input=stream, capture_output=True)
    assert done.stdout.decode().strip() == "True", done.stderr.decode()
