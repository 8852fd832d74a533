# SPDX-License-Identifier: Apache-2.0
"""Tests all families of quantized tensors: objects, autograd, lifetimes."""

import copy
import re
import warnings
from collections.abc import Callable

import pytest
import torch
from families import (
    ALL,
    E4M3,
    E5M2,
    HYBRIDS,
    SCHEMES,
    assert_nothing_shared,
    assert_same_buffers,
    buffers,
    delayed,
    sample,
    snapshot,
)
from narrowfloat.pytorch.quantization.delayed_update import fused_update

from narrowfloat import pytorch as nfp

every = pytest.mark.parametrize("kind", list(ALL))
schemes = pytest.mark.parametrize("kind", list(SCHEMES))
NO_DATA = "No data to get, both rowwise_data and columnwise_data are False"


def quantized(kind: str, *shape: int, dtype: torch.dtype = torch.float32) -> nfp.QuantizedTensor:
    return ALL[kind]()(sample(*shape, dtype=dtype)).detach()


@every
def test_storage_comes_first(kind: str) -> None:
    tensor = quantized(kind)
    first, *_ = type(tensor).__bases__
    assert issubclass(first, nfp.QuantizedTensorStorage)
    assert not issubclass(first, torch.Tensor)
    assert isinstance(tensor, nfp.QuantizedTensor)


@every
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_nominal_metadata(kind: str, dtype: torch.dtype) -> None:
    tensor = quantized(kind, dtype=dtype)
    assert tensor.dtype == dtype and tensor.shape == (128, 256) and tensor.device.type == "cpu"
    assert tensor.size() == (128, 256) and tensor.size(1) == 256 and tensor.dim() == 2
    assert tensor.is_cpu and not tensor.is_cuda and tensor.is_contiguous()
    assert tensor.data_ptr() == 0 and tensor.storage_offset() == 0
    assert tensor.nbytes == 128 * 256 * dtype.itemsize and len(tensor) == 128
    assert tensor.untyped_storage().nbytes() == 0
    values = tensor.dequantize()
    assert type(values) is torch.Tensor and values.dtype == dtype
    for method, wanted in (("float", torch.float32), ("half", torch.float16),
                           ("bfloat16", torch.bfloat16)):  # fmt: skip
        cast = getattr(tensor, method)()
        assert type(cast) is torch.Tensor and cast.dtype == wanted
    other = tensor.to_dtype(torch.float16)
    assert type(other) is type(tensor) and other.dtype == torch.float16
    assert_same_buffers(other, tensor, "another nominal type")


@every
def test_an_input_of_another_kind_is_named(kind: str) -> None:
    quantizer = quantized(kind, 32, 32)._quantizer
    with pytest.raises(TypeError, match=r"^quantize: the input must be a torch.Tensor, got list$"):
        quantizer([1.0])


@every
def test_repr_never_raises(kind: str) -> None:
    tensor = quantized(kind, 32, 32)
    assert type(tensor).__name__ in repr(tensor) and "data=tensor" in repr(tensor)
    assert not re.search(r"dtype=\d", repr(tensor)), "types have names"
    assert not re.search(r"dtype=\d", repr(tensor._quantizer))
    tensor.prepare_for_saving()
    assert "data=<" in repr(tensor)


@every
def test_quantizing_is_straight_through(kind: str) -> None:
    x = sample(requires_grad=True)
    tensor = ALL[kind]()(x)
    assert tensor.grad_fn is not None and tensor.requires_grad and not tensor.is_leaf
    (tensor.dequantize() * 2).sum().backward()
    assert torch.equal(x.grad, torch.full_like(x, 2))
    with torch.no_grad():
        assert ALL[kind]()(x).grad_fn is None
    internal = ALL[kind]()
    internal.internal = True
    bare = internal(x)
    assert not isinstance(bare, torch.Tensor) and isinstance(bare, nfp.QuantizedTensorStorage)
    assert torch.equal(bare.dequantize(dtype=torch.float32), tensor.dequantize().detach())


@every
@pytest.mark.parametrize("operation", ["clone", "view", "reshape", "contiguous", "expand_as"])
def test_identities_keep_bytes_and_gradients(kind: str, operation: str) -> None:
    tensor = quantized(kind, dtype=torch.bfloat16).requires_grad_()
    arguments = {"view": (128, 256), "reshape": (128, -1), "expand_as": (tensor,)}
    result = getattr(tensor, operation)(*arguments.get(operation, ()))
    assert type(result) is type(tensor)
    assert_same_buffers(result, tensor, operation)
    grad = sample(dtype=torch.bfloat16, seed=6)
    result.backward(grad)
    assert type(tensor.grad) is torch.Tensor and torch.equal(tensor.grad, grad)


@every
@pytest.mark.parametrize(
    "alias",
    [
        lambda t: t.expand(128, -1),
        lambda t: t.expand_as(torch.empty(128, 256)),
        lambda t: torch.broadcast_to(t, (128, 256)),
        torch.ops.aten.alias,
    ],
    ids=["expand", "expand_as", "broadcast_to", "alias"],
)
def test_views_of_the_whole_are_in_the_graph(kind: str, alias: Callable) -> None:
    parameter = torch.nn.Parameter(quantized(kind))
    result = alias(parameter)
    assert type(result) is type(parameter.data) and result.grad_fn is not None
    assert_same_buffers(result, parameter, "the view")
    (result.dequantize() * 2).sum().backward()
    assert torch.equal(parameter.grad, torch.full((128, 256), 2.0))


@every
def test_clone_shares_nothing(kind: str) -> None:
    tensor = quantized(kind)
    before = snapshot(tensor)
    for copied in (tensor.clone(), torch.clone(tensor), copy.deepcopy(tensor)):
        assert type(copied) is type(tensor)
        assert_nothing_shared(tensor, copied)
        assert_same_buffers(copied, tensor, "copied")
        copied.quantize_(sample(seed=9) * 100)
        assert_same_buffers(tensor, before, "the source of a clone")


@every
def test_detach_aliases_and_keeps_the_class(kind: str) -> None:
    base = type(quantized(kind))
    derived = type("Derived", (base,), {})
    tensor = quantized(kind, 64, 64)
    own = derived(shape=tensor.shape, dtype=tensor.dtype, **tensor.get_metadata())
    assert type(own.detach()) is derived
    for name, buffer in buffers(own.detach()).items():
        assert buffer is buffers(own)[name]
    parameter = torch.nn.Parameter(own)
    assert type(parameter) is derived and isinstance(parameter, torch.nn.Parameter)
    assert parameter.requires_grad and not own.detach().requires_grad
    parameter.data.quantize_(torch.zeros(64, 64))
    with torch.no_grad():
        assert not parameter.dequantize().any()


@every
def test_quantize_into_out(kind: str) -> None:
    quantizer = ALL[kind]()
    out = quantizer(sample(64, 64)).detach()
    places = {name: buffer.data_ptr() for name, buffer in buffers(out).items()}
    x = sample(64, 64, seed=8)
    assert quantizer.quantize(x, out=out) is out
    assert_same_buffers(out, quantizer(x).detach(), "out")
    assert {name: buffer.data_ptr() for name, buffer in buffers(out).items()} == places


@every
def test_noop_flag(kind: str) -> None:
    tensor = quantized(kind)
    before = snapshot(tensor)
    tensor.quantize_(sample(seed=3), noop_flag=torch.ones(1))
    assert_same_buffers(tensor, before, "noop")
    tensor.quantize_(quantized(kind, 128, 256) * 2, noop_flag=torch.ones(1))
    assert_same_buffers(tensor, before, "noop of a quantized source")
    tensor.quantize_(sample(seed=3), noop_flag=torch.zeros(1))
    assert_same_buffers(tensor, ALL[kind]()(sample(seed=3)).detach(), "no noop")


def test_noop_leaves_the_amax_of_delayed_scaling() -> None:
    quantizer = delayed()
    tensor = quantizer(torch.ones(4, 4))
    quantizer.update_quantized(torch.full((4, 4), 7.0), tensor, noop_flag=torch.ones(1))
    assert quantizer.amax.item() == 1
    quantizer.update_quantized(torch.full((4, 4), 7.0), tensor)
    assert quantizer.amax.item() == 7
    quantizer.update_quantized(torch.full((4, 4), 2.0), tensor)
    assert quantizer.amax.item() == 7, "steps that share a row of the history add up"
    quantizer.calibrate(torch.tensor([-9.0, 3.0]))
    assert quantizer.amax.item() == 9
    quantizer.calibrate(torch.tensor([-2.0, 1.0]))
    assert quantizer.amax.item() == 2, "calibrating replaces the amax"


@every
def test_in_place_operators_requantize(kind: str) -> None:
    tensor = quantized(kind)
    expected = ALL[kind]()(tensor.dequantize().add(1)).detach()
    alias = tensor
    tensor += 1
    assert alias is tensor
    assert_same_buffers(tensor, expected, "+=")
    tensor.mul_(2).clamp_(-1, 1)
    assert tensor.dequantize().abs().max() <= 1.05  # 4over6 may exceed the amax a little


@every
def test_saving_for_backward(kind: str) -> None:
    quantizer = ALL[kind]()
    quantizer.internal = True
    x = sample()
    bare = quantizer(x)
    places = {name: buffer.data_ptr() for name, buffer in buffers(bare).items()}
    saved, objects = nfp.prepare_for_saving(x, bare, None)
    assert objects[0] is None and objects[1] is bare and objects[2] is None
    assert saved[0] is x and saved[-1] is None and len(objects) == 3
    assert buffers(bare) == {}
    restored, left = nfp.restore_from_saved(objects, [*saved, x], return_saved_tensors=True)
    assert restored[0] is x and restored[1] is bare and restored[2] is None
    assert len(left) == 1 and left[0] is x
    assert {name: buffer.data_ptr() for name, buffer in buffers(bare).items()} == places


def test_restore_from_a_context() -> None:
    class Context:
        pass

    quantizer = delayed()
    quantizer.internal = True
    bare, ctx = quantizer(sample(8, 8)), Context()
    with pytest.raises(AttributeError, match="tensor_objects"):
        nfp.restore_from_func_ctx(ctx)
    ctx.saved_tensors, ctx.tensor_objects = nfp.prepare_for_saving(bare, None)
    assert nfp.restore_from_func_ctx(ctx)[0] is bare and bare._data is not None
    assert ctx.tensor_objects is None
    with pytest.raises(AttributeError, match="tensor_objects"):
        nfp.restore_from_func_ctx(ctx)


@every
def test_clear_releases_the_memory(kind: str) -> None:
    tensor = quantized(kind)
    shared = buffers(tensor)
    tensor.clear()
    tensor.clear()
    spared = ("_scale_inv",)
    for name, buffer in shared.items():
        assert buffer.numel() == 0 or name in spared, name


@every
def test_shape_survives_without_buffers(kind: str) -> None:
    tensor = quantized(kind, dtype=torch.bfloat16)
    tensor.prepare_for_saving()
    if kind not in HYBRIDS:
        assert tensor.shape == (128, 256) and tensor.size() == (128, 256)
        with pytest.raises(RuntimeError, match=r"has no data!$"):
            _ = tensor.device


@schemes
@pytest.mark.parametrize(
    ("rowwise", "columnwise"), [(True, True), (True, False), (False, True)], ids=str
)
def test_make_empty(kind: str, rowwise: bool, columnwise: bool) -> None:
    quantizer = SCHEMES[kind]()
    if kind == "nvfp4_row_scaled" and not rowwise:
        with pytest.raises(ValueError, match=r"^quantize: row_scaled_nvfp4 needs rowwise usage$"):
            quantizer.set_usage(rowwise=False, columnwise=True)
            quantizer.make_empty((128, 256))
        return
    quantizer.set_usage(rowwise=rowwise, columnwise=columnwise)
    assert quantizer.get_usages() == {"rowwise": rowwise, "columnwise": columnwise}
    for shape in ((128, 256), (4, 32, 256)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tensor = quantizer.make_empty(shape, dtype=torch.bfloat16, requires_grad=True)
            flat = kind.startswith("nvfp4") and not rowwise  # columnwise codes of a matrix
            wanted = (128, 256) if flat else shape
            assert tuple(tensor.shape) == tuple(tensor.size()) == wanted
        assert tensor.dtype == torch.bfloat16 and tensor.requires_grad
        assert tensor._quantizer is not quantizer
        assert (getattr(tensor, tensor.ROWWISE) is not None) is rowwise


@every
def test_nd_update(kind: str) -> None:
    quantizer = ALL[kind]()
    tensor = quantizer(sample(32, 4, 128, dtype=torch.bfloat16)).detach()
    new = sample(32, 4, 128, dtype=torch.bfloat16, seed=11)
    tensor.copy_(new)
    assert tensor.shape == (32, 4, 128)
    assert_same_buffers(tensor, quantizer(new).detach(), "updated")


@every
def test_parameters_take_plain_gradients_and_steps(kind: str) -> None:
    parameter = torch.nn.Parameter(quantized(kind))
    x = sample(4, 256, seed=12)
    torch.nn.functional.linear(x, parameter).sum().backward()
    assert type(parameter.grad) is torch.Tensor
    expected = ALL[kind]()(parameter.detach().dequantize() - 0.5 * parameter.grad).detach()
    torch.optim.SGD([parameter], lr=0.5).step()
    assert_same_buffers(parameter.detach(), expected, "a step of SGD")


@every
def test_data_takes_a_plain_tensor(kind: str) -> None:
    tensor = quantized(kind, 64, 64)
    new = sample(64, 64, seed=13)
    tensor.data = new
    assert_same_buffers(tensor.detach(), ALL[kind]()(new).detach(), "data")
    assert tensor.shape == (64, 64) and not tensor.requires_grad


@every
def test_data_of_a_parameter_is_written_in_place(kind: str) -> None:
    parameter = torch.nn.Parameter(quantized(kind))
    assert not parameter.data.requires_grad
    parameter.data.mul_(0)
    parameter.data[:128].add_(1)
    assert (parameter.dequantize()[:128] == 1).all() and parameter.requires_grad


def test_data_of_float8_follows_its_source() -> None:
    tensor = delayed()(torch.zeros(4))
    plain = torch.zeros(3, 2, dtype=torch.float16)
    tensor.data = plain
    assert isinstance(tensor, nfp.Float8Tensor)
    assert tensor.shape == tensor._data.shape == (3, 2) and tensor.dtype == torch.float16
    assert tensor.dequantize().dtype == torch.float16
    other = delayed()(torch.zeros(4, 3, 1))
    tensor.data = other
    assert tensor._data is other._data and tensor._scale_inv is other._scale_inv
    assert tensor.shape == (4, 3, 1) and tensor.dtype == torch.float32
    lonely = nfp.Float8Tensor(
        shape=(4,), dtype=torch.float32, data=torch.zeros(4, dtype=torch.uint8),
        fp8_scale_inv=torch.ones(1), fp8_dtype=E4M3,
    )  # fmt: skip
    with pytest.raises(AssertionError, match=r"needs a quantizer$"):
        lonely.data = plain


@every
def test_quantizer_is_copied_and_can_be_replaced(kind: str) -> None:
    quantizer = ALL[kind]()
    quantizer.optimize_for_gemm = False
    tensor = quantizer(sample(64, 64)).detach()
    assert tensor._quantizer is not quantizer and tensor._get_quantizer() is tensor._quantizer
    with pytest.warns(UserWarning, match=r"^Quantizer is being updated"):
        tensor.update_quantizer(quantizer)
    assert tensor._quantizer is quantizer
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tensor.update_quantizer(quantizer)
    tensor._quantizer = None
    with pytest.raises(
        RuntimeError, match=r"^To be updated, the quantized tensor must already have a quantizer$"
    ):
        tensor.update_quantizer(quantizer)


@schemes
def test_copy_keeps_every_flag(kind: str) -> None:
    quantizer = SCHEMES[kind]()
    quantizer.internal = quantizer.optimize_for_gemm = True
    copied = quantizer.copy()
    assert type(copied) is type(quantizer) and copied is not quantizer
    assert copied.__dict__.keys() == quantizer.__dict__.keys()
    assert copied.internal and copied.optimize_for_gemm
    if kind == "float8_delayed":
        assert copied.scale is quantizer.scale and copied.amax is quantizer.amax


@schemes
def test_copy_from_storage(kind: str) -> None:
    tensor, other = quantized(kind, 64, 64), quantized(kind, 64, 64)
    other.quantize_(sample(64, 64, seed=14))
    tensor.copy_from_storage(other)
    assert_same_buffers(tensor, other, "copied")
    with pytest.raises(TypeError, match=r"^copy_from_storage expects \w+Storage$"):
        tensor.copy_from_storage(nfp.IdentityQuantizer()(torch.zeros(2)))


def test_copy_from_storage_refuses_another_type() -> None:
    first, second = delayed(E4M3)(torch.ones(4)), delayed(E5M2)(torch.ones(4))
    with pytest.raises(RuntimeError, match=r"^FP8 dtype mismatch in copy_from_storage$"):
        first.copy_from_storage(second)


@schemes
def test_data_tensors(kind: str) -> None:
    tensor = quantized(kind)
    pair = tensor.get_data_tensors()
    assert pair[0] is getattr(tensor, tensor.ROWWISE)
    assert pair[1] is getattr(tensor, tensor.COLUMNWISE)
    if not kind.startswith("nvfp4"):
        assert tensor.get_data_tensors(columnwise_data=False) is pair[0]
        assert tensor.get_data_tensors(rowwise_data=False) is pair[1]
        with pytest.raises(ValueError) as raised:
            tensor.get_data_tensors(rowwise_data=False, columnwise_data=False)
        assert str(raised.value) == NO_DATA


@schemes
def test_metadata_makes_an_alias(kind: str) -> None:
    tensor = quantized(kind)
    alias = type(tensor)(shape=tensor.shape, dtype=tensor.dtype, **tensor.get_metadata())
    positional = type(tensor)(tensor.shape, tensor.dtype, **tensor.get_metadata())
    for name, buffer in buffers(tensor).items():
        assert buffers(alias)[name] is buffer and buffers(positional)[name] is buffer
    with pytest.raises(ValueError, match=r"^fake_dtype \(.*\) does not match dtype \(.*\)$"):
        type(tensor)(shape=tensor.shape, dtype=torch.float16, **tensor.get_metadata())


def test_bases_refuse_what_they_have_not() -> None:
    tensor = nfp.QuantizedTensor((2, 2), torch.float32)
    with pytest.raises(
        NotImplementedError, match=r"^QuantizedTensor class does not support tensor views$"
    ):
        tensor.view(4)
    with pytest.raises(
        ValueError, match=r"^Float8Tensor has no quantizer and no default quantizer is available$"
    ):
        nfp.Float8Tensor(
            shape=(1,), dtype=torch.float32, data=torch.zeros(1, dtype=torch.uint8),
            fp8_scale_inv=torch.ones(1), fp8_dtype=E4M3,
        )._get_quantizer()  # fmt: skip


@pytest.mark.parametrize("kind", ["identity", *HYBRIDS])
def test_families_whose_buffers_are_not_planned_say_so(kind: str) -> None:
    quantizer, shape = ALL[kind](), (32, 32)
    for method, plan in {
        "inner_tensor_specs": lambda: quantizer.inner_tensor_specs(shape),
        "storage_metadata": lambda: quantizer.storage_metadata(torch.float32),
        "alloc_tensors": lambda: quantizer.alloc_tensors(shape),
        "create_metadata": lambda: quantizer.create_metadata(shape, torch.float32),
    }.items():
        message = (
            f"{method}: {type(quantizer).__name__} does not plan the inner tensors of a shape, "
            "which TensorSpec needs"
        )
        with pytest.raises(NotImplementedError, match=f"^{message}$"):
            plan()


@every
def test_multi_quantize_and_predicates(kind: str) -> None:
    quantizer = ALL[kind]()
    made = quantizer.multi_quantize([sample(64, 64), sample(32, 64)])
    assert [tuple(t.shape) for t in made] == [(64, 64), (32, 64)]
    safe = kind not in ("float8_delayed",)
    assert quantizer.is_requantization_safe() is safe
    assert quantizer.is_quantizable(sample(256, 256)) is (kind != "nvfp4_row_scaled")
    odd = kind.startswith("float8") or kind == "identity"
    assert quantizer.is_quantizable(sample(3, 5)) is odd
    only_rowwise = kind.startswith("float8")
    assert quantizer.supports_only_rowwise_all_gather() is only_rowwise
    assert quantizer._get_compatible_recipe().__name__ in (
        "DelayedScaling", "Float8CurrentScaling", "MXFP8BlockScaling", "Float8BlockScaling",
        "NVFP4BlockScaling", "CustomRecipe",
    )  # fmt: skip
    assert not quantizer.custom


@pytest.mark.parametrize("quantizer", [nfp.Float8CurrentScalingQuantizer, nfp.MXFP8Quantizer])
def test_a_dtype_that_is_no_element_format_is_refused(quantizer: type) -> None:
    rule = "quantize: a quantizer's dtype must be one of kFloat8E4M3, kFloat8E5M2, kFloat4E2M1"
    with pytest.raises(ValueError, match=f"^{rule}, got kInt32$"):
        quantizer(torch.int32).quantize(torch.zeros(32, 32))


@pytest.mark.filterwarnings("ignore:Float8Tensor of nominal type")
@pytest.mark.parametrize("cast", [lambda m: m.double(), lambda m: m.to(torch.float64)])
@every
def test_modules_become_float64(kind: str, cast: Callable) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    weight = quantized(kind)
    model[0].weight = torch.nn.Parameter(weight)
    # The conversion quantizes the values again, which may change scales and columnwise codes.
    expected = ALL[kind]()(weight.dequantize()).dequantize().double()
    cast(model)
    parameter = model[0].weight
    assert {p.dtype for p in model.parameters()} == {torch.float64}
    assert type(parameter.data) is type(weight) and parameter.requires_grad
    assert torch.equal(parameter.dequantize(), expected)
    parameter.data = expected.double() * 2
    assert torch.equal(
        parameter.dequantize(), ALL[kind]()(expected.float() * 2).dequantize().double()
    )
    with torch.no_grad():
        parameter.mul_(2)
    assert parameter.dtype == torch.float64 and parameter.dequantize().dtype == torch.float64


@pytest.mark.parametrize(("algo", "scale"), [("most_recent", 3.0), ("max", 448 / 7)])
def test_calibrating_takes_nan_and_the_next_scale_ignores_it(algo: str, scale: float) -> None:
    history, scales = torch.tensor([[1.0], [7.0]]), torch.tensor([3.0])
    quantizer = nfp.Float8Quantizer(scales, history[0], "e4m3")
    quantizer.calibrate(torch.tensor([float("nan"), 5.0]))
    assert history[0].isnan().all()
    fused_update(history, scales, 448.0, 0, algo)
    assert scales.item() == scale
