# SPDX-License-Identifier: Apache-2.0
"""Tests the reference of current scaling: recorded bytes, shapes, usages, products, roles."""

import numpy as np
import pytest
import torch
from golden import Case, cases
from narrowfloat.pytorch.custom_recipes import quantization_current_scaling
from narrowfloat.pytorch.custom_recipes.gemm import GEMMType, MMParams
from narrowfloat.pytorch.custom_recipes.reference_current_scaling import (
    CurrentScalingQuantizerRef,
    CurrentScalingTensorRef,
    current_scaling_ref_factory,
    current_scaling_ref_quantizer_factory,
)
from narrowfloat.pytorch.quantization import QuantizerRole
from narrowfloat.pytorch.quantized_tensor import prepare_for_saving, restore_from_saved
from test_golden_gemm import assert_within
from torch_golden import FLOATS, FP8, assert_tensor, bytes_of, tensor_of

import narrowfloat as nf

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def quantizer_of(case: Case) -> CurrentScalingQuantizerRef:
    return CurrentScalingQuantizerRef(
        FP8[case.params["q_dtype"]],
        pow_2_scales=case.params["force_pow_2_scales"],
        eps=case.params["amax_epsilon"],
    )


@pytest.mark.parametrize("case", list(cases("cs")), ids=lambda case: case.name)
def test_recorded(case: Case) -> None:
    q = quantizer_of(case).quantize(tensor_of(case["x"]))
    for name, tensor in (
        ("data", q.data),
        ("data_t", q.data_t),
        ("scale_inv", q.scale),
        ("scale_inv", q.scale_t),
    ):
        if name in case:
            assert_tensor(tensor, case[name], f"{case.name} {name}")
    for name, expected in case.dequantized.items():
        if name in FLOATS:
            assert_tensor(q.dequantize(FLOATS[name]), expected, f"{case.name} dequant.{name}")


def test_all_recorded_cases_run() -> None:
    assert len(list(cases("cs"))) == 137


@pytest.mark.parametrize("dtype", [E4M3, E5M2], ids=str)
@pytest.mark.parametrize("x_dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("power", [False, True])
def test_finite_input_gives_the_kernels_bytes(
    dtype: torch.dtype, x_dtype: torch.dtype, power: bool
) -> None:
    torch.manual_seed(5)
    x = (torch.randn(48, 80) * 3).to(x_dtype)
    q = CurrentScalingQuantizerRef(dtype, pow_2_scales=power).quantize(x)
    scheme = "fp8_e4m3" if dtype == E4M3 else "fp8_e5m2"
    kernel = nf.quantize(x.float().numpy(), scheme, columnwise=True, force_pow_2_scales=power)
    # fp32 represents every input. The largest number of the type matters only if a scale overflows.
    assert (bytes_of(q.data) == kernel.buffers["rowwise_data"].reshape(-1)).all()
    assert (bytes_of(q.data_t) == kernel.buffers["columnwise_data"].reshape(-1)).all()
    assert_tensor(q.scale, kernel.buffers["rowwise_scale_inv"], "scale_inv")


@pytest.mark.parametrize("shape", [(), (5,), (1,), (3, 4), (2, 3, 4), (2, 1, 3, 4), (0, 4), (4, 0)])
def test_shapes(shape: tuple[int, ...]) -> None:
    x = torch.arange(int(np.prod(shape)), dtype=torch.float32).reshape(shape) - 3
    q = CurrentScalingQuantizerRef(E4M3).quantize(x)
    assert q.original_shape == shape and q.size() == torch.Size(shape) == q.shape
    assert q.dequantize().shape == shape and q.dequantize().dtype == torch.float32
    if x.ndim >= 2:
        assert q.data.shape == (x.numel() // max(shape[-1], 1), shape[-1]) or x.numel() == 0
        assert q.data_t.shape == q.data.t().shape and q.data_t.is_contiguous()
    if x.numel() == 0:
        assert q.scale.tolist() == [1.0]
    kernel = nf.quantize(x.numpy(), "fp8_e4m3").dequantize()
    assert_tensor(q.dequantize(), kernel, "values")


def test_only_high_precision_is_taken() -> None:
    for dtype in (torch.float64, torch.int32, torch.uint8):
        with pytest.raises(AssertionError) as raised:
            CurrentScalingQuantizerRef(E4M3).quantize(torch.zeros(2, 2, dtype=dtype))
        assert str(raised.value) == (
            f"quantize: a reference takes float32, float16 and bfloat16, got {dtype}"
        )


def test_flags_of_quantizer_and_tensor() -> None:
    quantizer = CurrentScalingQuantizerRef(E4M3)
    q = quantizer.quantize(torch.ones(2, 2, requires_grad=True))
    assert quantizer.internal and quantizer.custom and quantizer.supports_allgather_fp8
    assert q.custom and q._quantizer is quantizer and not q.data.requires_grad
    assert q._data is q.data and q._scale_inv is q.scale and q.scale_t is q.scale
    copy = quantizer.copy()
    copy.set_usage(columnwise=False)
    assert quantizer.get_usages() == {"rowwise": True, "columnwise": True}
    one = copy(torch.ones(2, 2))
    assert one.data_t is None and one.scale_t is None
    assert one.get_usages() == {"rowwise": True, "columnwise": False}


def test_update_usage() -> None:
    x = torch.randn(4, 6)
    q = CurrentScalingQuantizerRef(E4M3, columnwise=False).quantize(x)
    want = CurrentScalingQuantizerRef(E4M3).quantize(x)
    q.update_usage(columnwise_usage=True)
    assert_tensor(q.data_t, want.data_t, "data_t")
    q.update_usage(rowwise_usage=False)
    assert q.get_usages() == {"rowwise": False, "columnwise": True}
    assert_tensor(q.dequantize(), want.dequantize(), "decoded columns")
    with pytest.raises(RuntimeError) as raised:
        q.update_usage(rowwise_usage=True)
    assert str(raised.value) == ("update_usage: rowwise data cannot be made of columnwise data")
    q.update_usage(columnwise_usage=False)
    with pytest.raises(RuntimeError) as raised:
        q.update_usage(columnwise_usage=True)
    assert str(raised.value) == "update_usage: columnwise data needs rowwise data"
    with pytest.raises(RuntimeError) as raised:
        q.dequantize()
    assert str(raised.value) == "dequantize: the tensor holds no data"


def test_save_and_restore() -> None:
    x = torch.randn(4, 6)
    q = CurrentScalingQuantizerRef(E4M3).quantize(x)
    data, data_t, scale, scale_t = q.data, q.data_t, q.scale, q.scale_t
    tensors, objects = prepare_for_saving(x, q, None)
    wanted = [x, data, data_t, scale, scale_t, None]
    assert all(tensor is want for tensor, want in zip(tensors, wanted, strict=True))
    assert objects == [None, q, None] and q.data is None and q.scale_t is None
    restored = restore_from_saved(objects, tensors)
    assert restored[0] is x and restored[1] is q and restored[2] is None
    assert q.data is data and q.data_t is data_t and q.scale is scale and q.scale_t is scale_t
    q.clear()
    assert q.get_usages() == {"rowwise": False, "columnwise": False}


def test_update_quantized_and_noop() -> None:
    quantizer = CurrentScalingQuantizerRef(E4M3)
    first, second = torch.randn(4, 6), torch.randn(4, 6) * 9
    q = quantizer.quantize(first)
    held, before = q.data, bytes_of(q.data).copy()
    assert quantizer.update_quantized(second, q, noop_flag=torch.ones(1)) is q
    assert q.data is held and (bytes_of(q.data) == before).all()
    assert quantizer.update_quantized(second, q, noop_flag=torch.zeros(1)) is q
    assert_tensor(q.dequantize(), quantizer.quantize(second).dequantize(), "updated")
    assert quantizer.quantize(first, out=q) is q
    assert_tensor(q.dequantize(), quantizer.quantize(first).dequantize(), "out=")


def test_make_empty() -> None:
    quantizer = CurrentScalingQuantizerRef(E5M2)
    q = quantizer.make_empty((3, 5), dtype=torch.bfloat16, device="cpu")
    assert (q.data.shape, q.data.dtype) == ((3, 5), E5M2)
    assert (q.data_t.shape, q.scale.shape, q.dtype) == ((5, 3), (1,), torch.bfloat16)
    x = torch.randn(3, 5)
    quantizer.update_quantized(x, q)
    assert_tensor(q.data, quantizer.quantize(x).data, "filled")
    with pytest.raises(AssertionError) as raised:
        quantizer.make_empty((2, 3, 5))
    assert str(raised.value) == "make_empty: the shape must have 2 dimensions, got (2, 3, 5)"


PRODUCTS = [c for c in cases("gm") if c.params["mode"] not in
            ("nvfp4_gemm", "fp8_blockwise_gemm", "mxfp8_gemm")]  # fmt: skip


def product(case: Case) -> torch.Tensor:
    names = ("qx", "qw", "sx", "sw")
    qx, qw, sx, sw = (tensor_of(case[name]) for name in names)
    extra = {}
    if "bias" in case:
        extra["bias"] = tensor_of(case["bias"]).reshape(-1)
    if case.params.get("accumulate"):
        extra |= {"out": tensor_of(case["out_in"]), "accumulate": True}
    out_dtype = FLOATS[case.params.get("out_dtype", "fp32")]
    return CurrentScalingQuantizerRef(E4M3).qgemm(qx, qw, None, out_dtype, sx, sw, **extra)


@pytest.mark.parametrize("case", PRODUCTS, ids=lambda case: case.name)
def test_recorded_products(case: Case) -> None:
    y = product(case)
    assert y.shape == (case.params["M"], case.params["N"])
    if case.params.get("exactness") == "exact":
        assert_tensor(y, case["y"], case.name)
    if "exact.fp64" in case:
        as_array = bytes_of(y).view(case["y"].dtype).reshape(y.shape)
        assert_within(case, as_array)


def test_there_are_products() -> None:
    assert len(PRODUCTS) == 15


@pytest.mark.parametrize("out_dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("accumulate", [False, True])
def test_products_are_those_of_the_library(out_dtype: torch.dtype, accumulate: bool) -> None:
    """Checks that no bit differs: the order of sums is the same."""
    torch.manual_seed(6)
    x, w = torch.randn(37, 130), torch.randn(24, 130)
    quantizer = CurrentScalingQuantizerRef(E4M3)
    qx, qw = quantizer.quantize(x), quantizer.quantize(w)
    out = torch.randn(37, 24).to(out_dtype) if accumulate else None
    kernel_x, kernel_w = (nf.quantize(t.numpy(), "fp8_e4m3") for t in (x, w))
    numpy_dtype = np.float32 if out_dtype == torch.float32 else nf.qgemm(
        kernel_x, kernel_w, dtype="bfloat16").dtype  # fmt: skip
    held = None if out is None else np.ascontiguousarray(
        bytes_of(out).view(numpy_dtype).reshape(37, 24)).copy()  # fmt: skip
    want = nf.qgemm(kernel_x, kernel_w, dtype=numpy_dtype, out=held, accumulate=accumulate)
    got = quantizer.qgemm(
        qx.data, qw.data, MMParams(), out_dtype, qx.scale, qw.scale, None, out, accumulate,
        GEMMType.FPROP, qx, qw,
    )  # fmt: skip
    assert_tensor(got, want, "qgemm")
    assert (got is out) == accumulate


def test_products_of_whole_tensors() -> None:
    quantizer = CurrentScalingQuantizerRef(E4M3)
    x, w = torch.randn(5, 16).to(torch.bfloat16), torch.randn(7, 16).to(torch.bfloat16)
    qx, qw = quantizer.quantize(x), quantizer.quantize(w)
    want = quantizer.qgemm(qx.data, qw.data, None, torch.bfloat16, qx.scale, qw.scale)
    assert_tensor(quantizer.qgemm(qx, qw), want, "the nominal dtype")
    y = quantizer.qgemm(qx, qw, out_dtype=torch.float32)
    # 15 sums, one rounding of the result, and one of each of the two decoded values: 18 in all.
    a, b = (q.dequantize(torch.float32).double() for q in (qx, qw))
    assert ((y.double() - a @ b.t()).abs() <= 18 * 2.0**-24 * (a.abs() @ b.abs().t())).all()


def test_products_of_nothing() -> None:
    quantizer = CurrentScalingQuantizerRef(E4M3)
    one, bias = torch.ones(1), torch.arange(3.0)
    for rows, inner in ((0, 4), (2, 0)):
        a, b = torch.zeros(rows, inner).to(E4M3), torch.zeros(3, inner).to(E4M3)
        y = quantizer.qgemm(a, b, None, torch.float32, one, one)
        assert torch.equal(y, torch.zeros(rows, 3))
        y = quantizer.qgemm(a, b, None, torch.float32, one, one, bias)
        assert torch.equal(y, bias.expand(rows, 3))


def test_out_goes_with_accumulate() -> None:
    quantizer = CurrentScalingQuantizerRef(E4M3)
    a, one = torch.ones(2, 2).to(E4M3), torch.ones(1)
    for out, accumulate, message in (
        (torch.zeros(2, 2), False, "qgemm: out must be None without accumulate=True"),
        (None, True, "qgemm: accumulate=True needs out, got None"),
        (torch.zeros(2, 3), True,
         "qgemm: out must be (2, 2) torch.float32, got (2, 3) torch.float32"),
    ):  # fmt: skip
        with pytest.raises(AssertionError) as raised:
            quantizer.qgemm(a, a, None, torch.float32, one, one, None, out, accumulate)
        assert str(raised.value) == message
    with pytest.raises(AssertionError) as raised:
        quantizer.qgemm(a, torch.ones(2, 3).to(E4M3), None, torch.float32, one, one)
    assert str(raised.value) == "qgemm: inner sizes differ, (2, 2) and (2, 3)"


def test_transpose_qresult() -> None:
    x = torch.randn(4, 6)
    quantizer = CurrentScalingQuantizerRef(E4M3)
    q = quantizer.quantize(x)
    turned = quantizer.transpose_qresult(q)
    assert turned.data is q.data_t and turned.data_t is q.data
    assert torch.equal(turned.dequantize(), q.dequantize().t())


@pytest.mark.parametrize(
    ("role", "dtype"),
    [
        ("input", E4M3), ("weight", E4M3), ("output", E5M2), ("grad_output", E5M2),
        ("linear_input", E4M3), ("linear_weight", E4M3), ("linear_output", E5M2),
        ("linear_grad_output", E5M2), ("grad_input", E4M3), (None, E4M3),
        (QuantizerRole("linear", "input"), E4M3), (QuantizerRole("linear", "weight"), E4M3),
        (QuantizerRole("linear", "output"), E4M3), (QuantizerRole(), E4M3),
        (QuantizerRole("linear", "grad_output"), E5M2),
        (QuantizerRole("linear", "grad_input"), E4M3),
    ],
)  # fmt: skip
def test_roles(role: object, dtype: torch.dtype) -> None:
    quantizer = current_scaling_ref_quantizer_factory(role)
    assert isinstance(quantizer, CurrentScalingQuantizerRef) and quantizer.dtype == dtype
    assert (quantizer.rowwise_usage, quantizer.columnwise_usage) == (True, True)
    assert (quantizer.pow_2_scales, quantizer.eps) == (False, 0.0)
    if not isinstance(role, str):
        assert current_scaling_ref_factory(role).dtype == dtype
    assert isinstance(quantizer.quantize(torch.randn(2, 2)), CurrentScalingTensorRef)


def test_an_unknown_word_is_no_role() -> None:
    with pytest.raises(ValueError) as raised:
        current_scaling_ref_quantizer_factory("activation")
    assert str(raised.value) == (
        "quantizer factory: a role must be one of input, weight, output, grad_output, grad_input "
        "(or linear_input, ...), got 'activation'"
    )


def test_the_older_module_name_has_the_same_objects() -> None:
    for name in quantization_current_scaling.__all__:
        assert getattr(quantization_current_scaling, name) is globals()[name]


def test_reduction_needs_a_group() -> None:
    quantizer = CurrentScalingQuantizerRef(E4M3, with_amax_reduction=True)
    with pytest.raises(AssertionError) as raised:
        quantizer.quantize(torch.ones(2, 2))
    assert str(raised.value) == "quantize: with_amax_reduction needs amax_reduction_group"
