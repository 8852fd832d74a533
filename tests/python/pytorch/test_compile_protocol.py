# SPDX-License-Identifier: Apache-2.0
"""Tests the protocols of tracing: values, flattening, specs without data."""

from collections.abc import Callable

import pytest
import torch
from families import ALL, E4M3, E5M2, SCHEMES, VALUES, assert_same_buffers, buffers, sample
from narrowfloat.pytorch import tex
from narrowfloat.pytorch.dynamo import (
    TensorSpec,
    is_value_opaque_quantizer,
    register_value_opaque_quantizer,
    to_tensor_spec,
)
from torch._library.opaque_object import get_opaque_type_name
from torch._subclasses.fake_tensor import FakeTensorMode

from narrowfloat import pytorch as nfp

schemes = pytest.mark.parametrize("kind", list(SCHEMES))


@pytest.mark.parametrize("kind", VALUES)
def test_quantizers_are_values(kind: str) -> None:
    first, second = SCHEMES[kind](), SCHEMES[kind]()
    assert first == second and hash(first) == hash(second) and first is not second
    second.internal = True
    assert first != second
    derived = type("Derived", (type(first),), {})
    one, two = derived.__new__(derived), derived.__new__(derived)
    one.__dict__.update(first.__dict__)
    two.__dict__.update(first.__dict__)
    assert one != two and one == one and one != first


def test_fields_tell_values_apart() -> None:
    assert nfp.MXFP8Quantizer(E4M3) != nfp.MXFP8Quantizer(E5M2)
    assert nfp.MXFP8Quantizer(E4M3) != nfp.MXFP8Quantizer(E4M3, with_2d_quantization=True)
    assert nfp.NVFP4Quantizer() != nfp.NVFP4Quantizer(with_random_sign_mask=False)
    assert nfp.NVFP4Quantizer() != nfp.Float8CurrentScalingQuantizer(E4M3)
    current = nfp.Float8CurrentScalingQuantizer
    assert current(E4M3, amax_epsilon=1e-3) != current(E4M3)


@pytest.mark.parametrize("kind", [kind for kind in ALL if kind not in VALUES])
def test_others_keep_their_identity(kind: str) -> None:
    first = ALL[kind]()
    assert first == first and first != first.copy() and first != ALL[kind]()
    assert hash(first) == hash(first)


def test_groups_are_no_values() -> None:
    quantizer = nfp.Float8CurrentScalingQuantizer(E4M3, amax_reduction_group=object())
    for use in (hash, lambda q: q == nfp.Float8CurrentScalingQuantizer(E4M3)):
        with pytest.raises(TypeError, match=r"with a process group cannot be compared or hashed$"):
            use(quantizer)


@pytest.mark.parametrize("kind", VALUES)
def test_text_rebuilds_the_value(kind: str) -> None:
    quantizer = SCHEMES[kind]()
    text, names = quantizer.__fx_repr__()
    rebuilt = eval(text, dict(names))
    assert rebuilt == quantizer and type(rebuilt) is type(quantizer)
    assert "amax_reduction_group" not in rebuilt.__dict__
    assert_same_buffers(rebuilt(sample()).detach(), quantizer(sample()).detach(), "rebuilt")


@schemes
@pytest.mark.parametrize("internal", [False, True])
def test_flatten_and_back(kind: str, internal: bool) -> None:
    quantizer = SCHEMES[kind]()
    quantizer.internal = internal
    tensor = quantizer(sample())
    tensor = tensor if internal else tensor.detach().requires_grad_()
    names, context = tensor.__tensor_flatten__()
    assert set(names) == set(buffers(tensor)) and context["cls"] is type(tensor)
    assert context["is_tensor"] is not internal
    assert context["requires_grad"] is not internal
    inner = {name: getattr(tensor, name) for name in names}
    back = type(tensor).__tensor_unflatten__(inner, context, torch.Size((128, 256)), (256, 1))
    assert type(back) is type(tensor)
    for name in names:
        assert getattr(back, name) is inner[name]
    if not internal:
        assert back.requires_grad and back.shape == (128, 256) and back.dtype == tensor.dtype
    if kind in VALUES:
        assert type(tensor).__tensor_flatten__(back)[1] == context


@pytest.mark.parametrize(
    ("kind", "order"),
    [
        ("float8_current", ["_data", "_transpose", "_scale_inv"]),
        ("mxfp8", ["_rowwise_data", "_rowwise_scale_inv", "_columnwise_data",
                   "_columnwise_scale_inv"]),
        ("nvfp4", ["_rowwise_data", "_rowwise_scale_inv", "_columnwise_data",
                   "_columnwise_scale_inv", "_amax_rowwise", "_amax_columnwise"]),
    ],
)  # fmt: skip
def test_order_of_flattening(kind: str, order: list[str]) -> None:
    tensor = SCHEMES[kind]()(sample()).detach()
    assert tensor.__tensor_flatten__()[0] == order


@schemes
@pytest.mark.parametrize("internal", [False, True])
@pytest.mark.parametrize("fake", [False, True])
def test_specs_agree_with_allocation(kind: str, internal: bool, fake: bool) -> None:
    quantizer = SCHEMES[kind]()
    quantizer.internal = internal
    usages = [(True, False)] if kind == "nvfp4_row_scaled" else [(True, True), (True, False)]
    for rowwise, columnwise in usages:
        quantizer.set_usage(rowwise=rowwise, columnwise=columnwise)
        for shape in ((128, 256), (2, 64, 256)):
            planned = quantizer.inner_tensor_specs(shape)
            if fake:
                with FakeTensorMode():
                    tensor = TensorSpec(shape, torch.bfloat16, quantizer).create_tensor()
            else:
                tensor = quantizer.make_empty(shape, dtype=torch.bfloat16)
            names = tensor.__tensor_flatten__()[0]
            assert [(n, tuple(getattr(tensor, n).shape), getattr(tensor, n).dtype) for n in names] \
                == [(n, tuple(s), d) for n, (s, d) in planned.items()]  # fmt: skip


@schemes
def test_tensor_specs(kind: str) -> None:
    tensor = SCHEMES[kind]()(sample(dtype=torch.bfloat16)).detach().requires_grad_()
    spec = to_tensor_spec(tensor)
    assert spec.shape == tensor.shape and spec.dtype == tensor.dtype and spec.requires_grad
    assert spec.quantizer is not tensor._quantizer
    names, context = tensor.__tensor_flatten__()
    assert spec.is_quantized and spec.inner_names() == tuple(names)
    made = spec.create_tensor()
    assert type(made) is type(tensor) and made.requires_grad and made.dtype == tensor.dtype
    rebuilt = spec.assemble([getattr(tensor, name) for name in names])
    assert_same_buffers(rebuilt.detach(), tensor.detach(), "assembled")
    metadata = spec.create_metadata()
    assert metadata["cls"] is context["cls"] and metadata["is_tensor"]
    assert metadata["nontensor_kwargs"].keys() == context["nontensor_kwargs"].keys()
    if kind != "nvfp4_row_scaled":
        spec.update_usage(columnwise_usage=False)
        assert not any("columnwise" in name for name in spec.inner_names())
        assert tensor._quantizer.columnwise_usage, "the spec's quantizer is its own"


def test_plain_tensor_specs() -> None:
    spec = to_tensor_spec(torch.zeros(3, 4, requires_grad=True))
    assert not spec.is_quantized and spec.inner_names() == ("data",)
    assert spec.create_metadata() is None
    made = spec.create_tensor()
    assert made.shape == (3, 4) and made.requires_grad
    with pytest.raises(ValueError, match=r"^update_usage: a plain tensor has no usages$"):
        spec.update_usage(rowwise_usage=True)


@pytest.mark.parametrize("kind", ["float8_current", "mxfp8", "blockwise_2d", "nvfp4"])
def test_a_graph_takes_a_tensor(kind: str) -> None:
    tensor = SCHEMES[kind]()(sample(64, 64)).detach()

    @torch.compile(backend="aot_eager", fullgraph=True)
    def double(t: torch.Tensor) -> torch.Tensor:
        return t * 2

    assert torch.equal(double(tensor), tensor.dequantize() * 2)


VALUE_OPS = torch.library.Library("nf_values", "DEF")


def operator_with(cls: type) -> Callable[..., torch.Tensor]:
    """Returns an operator with a quantizer of the given class as an argument."""
    if not hasattr(torch.ops.nf_values, cls.__name__):
        VALUE_OPS.define(f"{cls.__name__}(Tensor x, {get_opaque_type_name(cls)} q) -> Tensor")
        VALUE_OPS.impl(cls.__name__, lambda x, q: q(x).dequantize(), "CompositeExplicitAutograd")
        torch.library.register_fake(
            f"nf_values::{cls.__name__}", lambda x, q: torch.empty_like(x), lib=VALUE_OPS
        )
    return getattr(torch.ops.nf_values, cls.__name__)


@pytest.mark.parametrize("kind", VALUES)
def test_operators_of_a_graph_take_values(kind: str) -> None:
    quantizer = SCHEMES[kind]()
    if not quantizer.columnwise_usage:
        pytest.skip("of the same class as another")
    operator = operator_with(type(quantizer))
    x = sample(dtype=torch.bfloat16)
    compiled = torch.compile(lambda a: operator(a, quantizer), backend="eager", fullgraph=True)
    assert torch.equal(compiled(x), quantizer(x).dequantize())


@pytest.mark.parametrize("kind", VALUES)
def test_a_graph_makes_a_tensor(kind: str) -> None:
    quantizer = SCHEMES[kind]()

    def codes(x: torch.Tensor) -> list[torch.Tensor]:
        spec = TensorSpec(tuple(x.shape), x.dtype, quantizer, device=x.device)
        tensor = spec.create_tensor()
        return [getattr(tensor, name) for name in spec.inner_names()]

    torch._dynamo.reset()  # otherwise graphs of other kinds count as recompilations
    made = torch.compile(codes, backend="eager", fullgraph=True)(sample())
    planned = quantizer.inner_tensor_specs((128, 256))
    assert [(tuple(t.shape), t.dtype) for t in made] == list(planned.values())


def test_classes_of_a_program_become_values() -> None:
    class Marked(nfp.MXFP8Quantizer):
        mark: int

    class Holder(nfp.MXFP8Quantizer):
        table: torch.Tensor

    first, second = Marked(E4M3), Marked(E4M3)
    first.mark = second.mark = 1
    assert first != second and not is_value_opaque_quantizer(first)
    for _ in range(2):
        register_value_opaque_quantizer(Marked)
    assert is_value_opaque_quantizer(first) and first == second and hash(first) == hash(second)
    second.mark = 2
    assert first != second
    with pytest.raises(TypeError) as raised:
        register_value_opaque_quantizer(Holder)
    assert str(raised.value) == (
        "Holder cannot be a value: its field 'table' is annotated <class 'torch.Tensor'>; make it "
        "in _rebuild_derived_state() and leave the annotation out"
    )


def test_inner_tensors_follow_the_order_of_flattening() -> None:
    class Reversed(nfp.MXFP8Quantizer):
        def inner_tensor_specs(self, shape: object) -> dict:
            return dict(reversed(super().inner_tensor_specs(shape).items()))

    names = tuple(ALL["mxfp8"]().inner_tensor_specs((128, 256)))
    with pytest.raises(RuntimeError) as raised:
        TensorSpec((128, 256), torch.float32, Reversed(E4M3)).inner_names()
    assert str(raised.value) == (
        f"inner_tensor_specs: {names[::-1]} do not follow the order of flattening, {names}"
    )


@pytest.mark.parametrize("kind", ["mxfp8", "blockwise_1d", "nvfp4", "float8_current"])
def test_tex_fills_bare_storages(kind: str) -> None:
    quantizer = ALL[kind]()
    quantizer.internal = True
    x = sample()
    storage = quantizer.make_empty(x.shape, dtype=x.dtype)
    assert tex.quantize(x, quantizer, storage) is storage
    assert_same_buffers(storage, quantizer(x), "filled")
    if kind != "float8_current":
        other = ALL["mxfp8" if kind == "nvfp4" else "nvfp4"]()
        other.internal = True
        with pytest.raises(AssertionError, match=r"^Cannot store quantized data in "):
            tex.quantize(x, quantizer, other(x))
