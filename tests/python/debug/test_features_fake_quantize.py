# SPDX-License-Identifier: Apache-2.0
"""Compares fake_quantize() with recorded codes and scales, and tests its edge cases."""

import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
import torch
from golden import DTYPES, Case, assert_same, cases
from narrowfloat.debug.features.fake_quant import fake_quantize
from torch_golden import FLOATS, assert_tensor, bytes_of, tensor_of

import narrowfloat as nf
from narrowfloat import _core
from narrowfloat import pytorch as nfp

CURRENT = [
    case
    for case in cases("cs")
    if not case.params["force_pow_2_scales"] and not case.params["amax_epsilon"]
]
MX = [case for case in cases("mx") if case.params["mode"] == "mxfp8"]
TILES = [case for case in cases("mx") if case.params["mode"] == "mxfp8_2d"]


def name_of(case: Case, prefix: str = "") -> str:
    return f"{prefix}FP8{case.params['q_dtype'].upper()}"


def decoded(case: Case) -> np.ndarray:
    """Returns recorded codes times recorded scale_inv in fp32, rounded to the type of x."""
    x = case["x"]
    with np.errstate(invalid="ignore", over="ignore"):
        if np.isfinite(x.astype(np.float32)).all():
            codes, scale_inv = case.kernel("data"), case.kernel("scale_inv")
        else:  # the feature's largest magnitude is then not finite, and its scale is 1
            element = DTYPES[case.params["q_dtype"]]
            top = float(ml_dtypes.finfo(element).max)
            codes, scale_inv = np.clip(x.astype(np.float32), -top, top).astype(element), 1
        return (codes.astype(np.float32) * np.float32(scale_inv)).astype(x.dtype)


@pytest.mark.parametrize("case", CURRENT, ids=lambda case: case.name)
def test_per_tensor(case: Case) -> None:
    x = tensor_of(case["x"]).reshape(case.params["shape"])
    values = fake_quantize(x, name_of(case))
    assert values.dtype == x.dtype and values.shape == x.shape
    assert_same(bytes_of(values), decoded(case), case.name)


def test_recorded_cases_are_many_and_some_are_not_finite() -> None:
    finite = [np.isfinite(case["x"].astype(np.float32)).all() for case in CURRENT]
    assert len(finite) > 20 and not all(finite) and len(MX) > 20 and len(TILES) >= 6


def decoded_blocks(case: Case) -> np.ndarray:
    """Returns recorded codes times their blocks' powers of two, rounded to the type of x."""
    codes = case["data"].astype(np.float32)
    exponents = case["scale_inv"].astype(np.int64) - 127
    scales = np.where(exponents == 128, np.nan, np.ldexp(np.float32(1), exponents))
    scales = scales.repeat(case.params["block"][1], axis=1)[:, : codes.shape[1]]
    with np.errstate(invalid="ignore", over="ignore"):
        values = codes * scales.astype(np.float32)
        if "dequant.fp32" in case:
            assert_same(values, case["dequant.fp32"], f"{case.name} itself")
        return values.astype(case["x"].dtype)


def check_blocks(case: Case, fp8_format: str) -> None:
    values = fake_quantize(tensor_of(case["x"]), fp8_format)
    assert_same(bytes_of(values), decoded_blocks(case), case.name)


@pytest.mark.parametrize("case", MX, ids=lambda case: case.name)
def test_blocks(case: Case) -> None:
    x = tensor_of(case["x"])
    sizes = (x.numel() // max(x.shape[-1], 1), x.shape[-1])
    if x.numel() and any(size % case.params["block"][1] for size in sizes):
        with pytest.raises(ValueError, match=rf"^quantize: {name_of(case, 'MX')} needs rows and"):
            fake_quantize(x, name_of(case, "MX"))
    else:
        check_blocks(case, name_of(case, "MX"))
    if x.numel():
        check_blocks(case, f"mxfp8_{case.params['q_dtype']}")


@pytest.mark.parametrize("case", TILES, ids=lambda case: case.name)
def test_tiles_by_the_name_of_their_scheme(case: Case) -> None:
    check_blocks(case, f"mxfp8_2d_{case.params['q_dtype']}")


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("scheme", nf.schemes())
def test_every_scheme_as_quantized_and_dequantized(scheme: str, dtype: str) -> None:
    x = np.random.default_rng(5).standard_normal((64, 256)).astype(DTYPES[dtype])
    q = nf.quantize(x, scheme)
    values = fake_quantize(tensor_of(x), scheme)
    assert_tensor(values, tensor_of(q.dequantize()), scheme)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("name", "top"), [("FP8E4M3", 448.0), ("FP8E5M2", 57344.0)])
def test_one_value_that_is_not_finite_makes_the_scale_one(
    name: str, top: float, bad: float
) -> None:
    x = torch.tensor([bad, 1e6, -1e6, 1.0, 1.0625, -0.0])
    values = fake_quantize(x, name)
    kept = {np.inf: top, -np.inf: -top}.get(bad, bad)
    wanted = torch.tensor([kept, top, -top, 1.0, 1.0, -0.0])
    assert torch.equal(values.isnan(), wanted.isnan())
    assert torch.equal(values.nan_to_num(7), wanted.nan_to_num(7))
    assert torch.signbit(values[-1])


@pytest.mark.parametrize("name", ["FP8E4M3", "FP8E5M2", "MXFP8E4M3", "MXFP8E5M2"])
def test_zeros_stay_zeros_of_their_sign(name: str) -> None:
    x = torch.zeros(32, 32)
    x[::2] = -0.0
    values = fake_quantize(x, name)
    assert torch.equal(values, x) and torch.equal(torch.signbit(values), torch.signbit(x))


def test_small_values_flush_beside_a_denormal_largest_one() -> None:
    x = torch.tensor([2.0**-130, 2.0**-140])  # the scale saturates at the largest float32
    assert fake_quantize(x, "FP8E4M3").tolist() == [2.0**-130, 0.0]


@pytest.mark.parametrize("name", ["FP8E4M3", "MXFP8E5M2"])
def test_layouts_shapes_and_scalars(name: str) -> None:
    x = torch.randn(64, 32, 32)
    whole = fake_quantize(x, name)
    assert torch.equal(fake_quantize(x.reshape(-1, 32), name), whole.reshape(-1, 32))
    turned = x.transpose(0, 1)
    assert torch.equal(fake_quantize(turned, name), fake_quantize(turned.contiguous(), name))
    if name == "FP8E4M3":
        assert fake_quantize(torch.tensor(3.0), name).shape == ()
        assert fake_quantize(torch.randn(7), name).shape == (7,)


@pytest.mark.parametrize("dtype", FLOATS.values())
@pytest.mark.parametrize("name", ["FP8E4M3", "MXFP8E4M3"])
def test_an_empty_tensor_is_returned(name: str, dtype: torch.dtype) -> None:
    x = torch.empty(0, 32, dtype=dtype)
    values = fake_quantize(x, name)
    assert values.shape == x.shape and values.dtype == dtype
    assert fake_quantize(x, name, out=torch.empty(0, 32)) is None


@pytest.mark.parametrize("name", ["FP8E4M3", "MXFP8E4M3", "nvfp4"])
def test_the_gradient_passes_straight_through(name: str) -> None:
    x = torch.randn(32, 64, requires_grad=True)
    values = fake_quantize(x, name)
    gradient = torch.randn(32, 64)
    values.backward(gradient)
    assert torch.equal(x.grad, gradient) and not torch.equal(values, x)
    with torch.no_grad():
        assert not fake_quantize(x, name).requires_grad


def test_a_quantized_tensor_stands_for_its_values() -> None:
    q = nfp.MXFP8Quantizer(nfp.DType.kFloat8E4M3)(torch.randn(32, 32, dtype=torch.bfloat16))
    values = fake_quantize(q, "FP8E5M2")
    assert type(values) is torch.Tensor
    assert torch.equal(values, fake_quantize(q.dequantize(), "FP8E5M2"))


def test_out_is_converted_and_broadcast_and_nothing_returned() -> None:
    x = torch.randn(32)
    out = torch.empty(3, 32, dtype=torch.float64)
    assert fake_quantize(x, "FP8E4M3", out=out) is None
    assert torch.equal(out, fake_quantize(x, "FP8E4M3").double().expand(3, 32))


@pytest.mark.parametrize("dtype", [torch.float64, torch.int32, torch.uint8, torch.float8_e4m3fn])
def test_other_dtypes_are_refused(dtype: torch.dtype) -> None:
    x = torch.zeros(32, 32).to(dtype)
    with pytest.raises(AssertionError, match=r"^\[NVTORCH INSPECT ERROR\] Unsupported tensor type"):
        fake_quantize(x, "FP8E4M3")


@pytest.mark.parametrize("name", ["fp8e4m3", "FP8E3M4", "NVFP4", "", None, torch.float8_e4m3fn])
def test_other_formats_are_refused_and_the_four_named(name: object) -> None:
    with pytest.raises(AssertionError) as raised:
        fake_quantize(torch.zeros(32, 32), name)
    assert str(raised.value) == (
        f"[NVTORCH INSPECT ERROR] Unsupported format {name!r}. It must be one of FP8E4M3, FP8E5M2, "
        f"MXFP8E4M3, MXFP8E5M2 or a scheme: {', '.join(_core.schemes())}."
    )


def test_the_dtype_is_looked_at_first() -> None:
    with pytest.raises(
        AssertionError,
        match=r"^.* Unsupported tensor type .*\. It must be float32, float16 or "
        r"bfloat16\.$",
    ):
        fake_quantize(torch.zeros(4, dtype=torch.int32), "no format")


@pytest.mark.parametrize("name", ["FP8E4M3", "MXFP8E4M3", "nvfp4"])
def test_tensors_of_other_devices_are_refused(name: str) -> None:
    with pytest.raises(
        NotImplementedError, match=r"^narrowfloat: tensors must be on the CPU, got meta$"
    ):
        fake_quantize(torch.zeros(32, 32, device="meta"), name)


def test_it_needs_no_host() -> None:
    """Checks that imports and fake_quantize() need no host; a call of a feature names it."""
    program = """
import sys
sys.modules["nvdlfw_inspect"] = None
sys.modules["nvdlfw_inspect.api"] = None
import torch, narrowfloat.debug
from narrowfloat.debug.features.fake_quant import FakeQuant, fake_quantize
x = torch.randn(32, 32)
assert torch.equal(fake_quantize(x, "FP8E4M3"), narrowfloat.debug.fake_quantize(x, "FP8E4M3"))
config = {"gemm": "fprop", "tensor": "activation", "quant_format": "FP8E4M3"}
try:
    FakeQuant().modify_tensor(config, "layer", "fprop", "activation", x, 0, None)
except ModuleNotFoundError as error:
    assert str(error) == (
        "narrowfloat.debug: features run in nvdlfw-inspect: pip install narrowfloat[debug]"
    )
else:
    raise SystemExit("ran without a host")
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_nothing_imports_the_host_unasked() -> None:
    program = """
import sys
import narrowfloat, narrowfloat.pytorch, narrowfloat.debug, torch
narrowfloat.debug.fake_quantize(torch.ones(32, 32), "FP8E4M3")
assert not any(name.split(".")[0] == "nvdlfw_inspect" for name in sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True)
