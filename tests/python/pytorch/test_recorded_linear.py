# SPDX-License-Identifier: Apache-2.0
"""Compares general_gemm with recorded linear layers, group fl: references and quantizers."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from golden import Case, cases
from narrowfloat.pytorch.constants import DType
from narrowfloat.pytorch.cpp_extensions import general_gemm
from narrowfloat.pytorch.custom_recipes.gemm import custom_gemm
from narrowfloat.pytorch.custom_recipes.reference_current_scaling import (
    CurrentScalingQuantizerRef,
    current_scaling_ref_factory,
)
from narrowfloat.pytorch.custom_recipes.reference_nvfp4 import NVFP4QuantizerRef
from narrowfloat.pytorch.quantization import QuantizerRole
from narrowfloat.pytorch.tensor.float8_tensor import Float8CurrentScalingQuantizer
from narrowfloat.pytorch.tensor.mxfp8_tensor import MXFP8Quantizer
from narrowfloat.pytorch.tensor.nvfp4_tensor import NVFP4Quantizer
from test_golden_linear import ROUNDOFF
from torch_golden import FLOATS, assert_tensor, tensor_of

CASES = list(cases("fl"))
TENSOR_TYPES = {"x": "input", "w": "weight", "dy": "grad_output"}


def references(case: Case) -> dict[str, object]:
    """Returns the references that quantize x, w and dy by the recorded recipe."""
    mode = case.params["mode"]
    if mode.startswith("current_scaling"):
        return {
            name: current_scaling_ref_factory(QuantizerRole("linear", tensor_type))
            for name, tensor_type in TENSOR_TYPES.items()
        }
    weights = (16, 16) if "16x16" in mode else (1, 16)
    rht = "RHT" in mode
    return {
        "x": NVFP4QuantizerRef(with_rht=rht),
        "w": NVFP4QuantizerRef(quant_tile_shape=weights),
        "dy": NVFP4QuantizerRef(with_rht=rht),
    }


def natives(case: Case) -> dict[str, object]:
    mode = case.params["mode"]
    if mode.startswith("current_scaling"):
        e4m3, e5m2 = DType.kFloat8E4M3, DType.kFloat8E5M2
        return {
            name: Float8CurrentScalingQuantizer(e5m2 if name == "dy" else e4m3)
            for name in TENSOR_TYPES
        }
    rht = "RHT" in mode
    return {
        "x": NVFP4Quantizer(with_rht=rht, with_post_rht_amax=rht),
        "w": NVFP4Quantizer(with_2d_quantization="16x16" in mode),
        "dy": NVFP4Quantizer(with_rht=rht, with_post_rht_amax=rht),
    }


def magnitudes(case: Case, left: str, right: str) -> tuple[np.ndarray, int]:
    """Returns sums of |a| |b| of a recorded product, by the references, and their length."""
    quantized = {n: q.quantize(tensor_of(case[n])) for n, q in references(case).items()}

    def matrix(name: str) -> torch.Tensor:
        q, rows = quantized[name.removesuffix("_t")], not name.endswith("_t")
        if isinstance(q._quantizer, NVFP4QuantizerRef):
            turned = type(q)(
                data=q.data if rows else q.data_t,
                scale=q.scale if rows else q.scale_t,
                global_amax_row=q.global_amax_row if rows else q.global_amax_col,
                dtype=torch.float32,
                _quantizer=q._quantizer,
            )
            data = turned.data
            turned.original_shape = (data.shape[0], data.shape[1] * 2)
            return turned.dequantize(torch.float32)
        codes = q.data if rows else q.data_t
        return codes.float() * q.scale

    a, b = matrix(left).double().abs(), matrix(right).double().abs()
    return (a @ b.t()).numpy(), a.shape[1]


PRODUCTS = {
    "y": ("TN", "w", "x", ("x", "w")),
    "dx": ("NN", "w", "dy", ("dy", "w_t")),
    "dw": ("NT", "x", "dy", ("dy_t", "x_t")),
}


@pytest.mark.parametrize("quantizers", [references, natives], ids=lambda f: f.__name__)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_linear_layer(case: Case, quantizers: Callable[[Case], dict]) -> None:
    q = {n: quantizer.quantize(tensor_of(case[n])) for n, quantizer in quantizers(case).items()}
    out_dtype = case.params["out_dtype"]
    for name, (layout, a, b, sides) in PRODUCTS.items():
        y = general_gemm(q[a], q[b], FLOATS[out_dtype], layout=layout, grad=name != "y")[0]
        leading = () if name == "dw" else tuple(q[b].shape[:-1])
        assert y.shape == (*(leading or y.shape[:1]), y.shape[-1]), f"{case.name} {name}"
        got = y.double().numpy().reshape(-1, y.shape[-1])
        exact = case[f"exact_{name}.fp64"].reshape(got.shape)
        sums, length = magnitudes(case, *sides)
        # fp32 sums in any order, factors of the scales after the sums, and one rounding.
        bound = (length + 8) * 2.0**-24 * sums
        bound += (np.abs(exact) + bound) * ROUNDOFF[out_dtype]
        assert (np.abs(got - exact) <= bound).all(), f"{case.name} {name}"
        recorded = tensor_of(case[name]).double().numpy().reshape(got.shape)
        assert (np.abs(got - recorded) <= 2 * bound).all(), f"{case.name} {name}, recorded"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_codes_of_the_references(case: Case) -> None:
    for name, quantizer in references(case).items():
        q = quantizer.quantize(tensor_of(case[name]))
        for suffix, data, scale in (("", q.data, q.scale), ("_t", q.data_t, q.scale_t)):
            assert_tensor(data, case[f"q{name}{suffix}"], f"{case.name} q{name}{suffix}")
            assert_tensor(scale, case[f"s{name}{suffix}"], f"{case.name} s{name}{suffix}")


def test_all_recorded_cases_run() -> None:
    assert len(CASES) == 5


def pair() -> tuple:
    torch.manual_seed(3)
    quantizer = CurrentScalingQuantizerRef(torch.float8_e4m3fn)
    return quantizer.quantize(torch.randn(24, 32)), quantizer.quantize(torch.randn(2, 8, 32))


def test_out_accumulation_and_output_quantizers_are_honoured() -> None:
    w, x = pair()
    plain = general_gemm(w, x)[0]
    assert plain.shape == (2, 8, 24) and plain.dtype == torch.float32
    out = torch.zeros(2, 8, 24)
    assert general_gemm(w, x, out=out)[0] is out and torch.equal(out, plain)
    held = torch.randn(2, 8, 24)
    out = held.clone()
    assert general_gemm(w, x, out=out, accumulate=True)[0] is out
    assert torch.equal(out, held + plain)
    quantizer = CurrentScalingQuantizerRef(torch.float8_e5m2)
    y = general_gemm(w, x, quantization_params=quantizer)[0]
    assert_tensor(y.data, quantizer.quantize(plain).data, "quantized")
    bias = torch.randn(24)
    assert torch.equal(general_gemm(w, x, bias=bias)[0], plain + bias)


def test_with_grad_a_bias_asks_for_its_gradient() -> None:
    w, _ = pair()
    quantizer = CurrentScalingQuantizerRef(torch.float8_e5m2)
    dy = quantizer.quantize(torch.randn(2, 8, 24))
    dx, bias_grad, *_ = general_gemm(w, dy, layout="NN", grad=True, bias=torch.zeros(24))
    assert dx.shape == (2, 8, 32)
    assert torch.equal(bias_grad, dy.dequantize().reshape(16, 24).sum(0))


def test_what_custom_gemm_refuses() -> None:
    w, x = pair()
    other = MXFP8Quantizer(DType.kFloat8E4M3)(torch.zeros(32, 32))
    for arguments, extra, error, message in (
        ((w, other), {}, TypeError,
         "custom_gemm: both operands must be custom tensors, got CurrentScalingTensorRef and "
         "MXFP8Tensor"),
        ((w, x), {"gelu": True}, NotImplementedError, "custom_gemm: gelu is not supported"),
        ((w, x), {"quantization_params": w._quantizer, "accumulate": True}, NotImplementedError,
         "custom_gemm: accumulate is not supported for a quantized result"),
    ):  # fmt: skip
        with pytest.raises(error) as raised:
            general_gemm(*arguments, **extra)
        assert str(raised.value) == message
    w.update_usage(rowwise_usage=False)
    with pytest.raises(ValueError) as raised:
        custom_gemm(w, x)
    assert str(raised.value) == "custom_gemm: CurrentScalingTensorRef has no data"
    w._quantizer = x._quantizer = None
    with pytest.raises(ValueError) as raised:
        custom_gemm(w, x)
    assert str(raised.value) == "custom_gemm: needs an operand with a quantizer, got none"
