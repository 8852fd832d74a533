# SPDX-License-Identifier: Apache-2.0
"""Compares one recorded linear layer, forward and both backward products, group fl."""

import ml_dtypes
import numpy as np
import pytest
from golden import Case, assert_same, cases
from test_nvfp4 import codes, with_signs_of_zero

import narrowfloat as nf

# Half the distance of neighbouring numbers, relative to the power of two below them.
ROUNDOFF = {"fp32": 2.0**-24, "bf16": 2.0**-8}
TYPES = {"fp32": np.float32, "bf16": ml_dtypes.bfloat16}


def specs(case: Case) -> dict[str, tuple[str, dict[str, object]]]:
    """Returns scheme and options of x, w and dy by the recorded recipe."""
    mode = case.params["mode"]
    if mode.startswith("current_scaling"):
        return {"x": ("fp8_e4m3", {}), "w": ("fp8_e4m3", {}), "dy": ("fp8_e5m2", {})}
    weights = "nvfp4_2d" if "16x16" in mode else "nvfp4"
    options = {"rht": True} if "RHT" in mode else {}
    return {"x": ("nvfp4", options), "w": (weights, {}), "dy": ("nvfp4", options)}


def check_codes(case: Case, name: str, suffix: str, data: np.ndarray, rht: bool) -> None:
    recorded = case[f"q{name}{suffix}"]
    got = data.reshape(-1)
    if recorded.dtype != np.uint8:
        return assert_same(got, recorded, f"{case.name} q{name}{suffix}")
    operand = case[name].reshape(-1, case[name].shape[-1])
    if suffix:
        operand = (nf.hadamard_transform(operand) if rht else operand).T
    want = with_signs_of_zero(recorded.reshape(-1), np.ascontiguousarray(operand))
    assert_same(codes(got), want, f"{case.name} q{name}{suffix}")


def check_operand(case: Case, name: str, q: nf.QuantizedTensor, rht: bool) -> None:
    for suffix, direction in (("", "rowwise"), ("_t", "columnwise")):
        check_codes(case, name, suffix, q.buffers[f"{direction}_data"], rht)
        scales = q.buffers[f"{direction}_scale_inv"]
        recorded = case[f"s{name}{suffix}"]
        if recorded.ndim == 2:
            scales = np.ascontiguousarray(scales[: recorded.shape[0], : recorded.shape[1]])
            assert_same(
                q.buffers[f"amax_{direction}"], case[f"amax_{name}{suffix}"], f"{case.name} amax"
            )
        assert_same(scales, recorded, f"{case.name} s{name}{suffix}")


def matrix(q: nf.QuantizedTensor, direction: str) -> np.ndarray:
    """Returns the values of one direction's buffers in binary64."""
    names = [f"{direction}_data", f"{direction}_scale_inv", f"amax_{direction}"]
    buffers = {name: q.buffers[name] for name in names if name in q.buffers}
    if "scale" in q.buffers:
        buffers.pop(f"amax_{direction}", None)
    values = nf.from_buffers(q.scheme, q.shape, buffers).dequantize().astype(np.float64)
    return values.reshape(-1, values.shape[-1])


@pytest.mark.parametrize("case", list(cases("fl")), ids=lambda case: case.name)
def test_linear_layer(case: Case) -> None:
    q = {}
    for name, (scheme, options) in specs(case).items():
        q[name] = nf.quantize(case[name], scheme, columnwise=True, **options)
        check_operand(case, name, q[name], bool(options))
    x, w, dy = q["x"], q["w"], q["dy"]
    products = {
        "y": ("TN", x, w, matrix(x, "rowwise"), matrix(w, "rowwise").T),
        "dx": ("NN", dy, w, matrix(dy, "rowwise"), matrix(w, "columnwise")),
        "dw": ("NT", dy, x, matrix(dy, "columnwise").T, matrix(x, "columnwise")),
    }
    out_dtype = case.params["out_dtype"]
    for name, (layout, a, b, left, right) in products.items():
        got = nf.qgemm(a, b, layout=layout, dtype=TYPES[out_dtype]).astype(np.float64)
        exact = case[f"exact_{name}.fp64"].reshape(got.shape)
        # fp32 sums in any order, the recorder's scales as factors of the sums, and one rounding.
        bound = (left.shape[1] + 8) * 2.0**-24 * (np.abs(left) @ np.abs(right))
        bound += (np.abs(exact) + bound) * ROUNDOFF[out_dtype]
        assert (np.abs(got - exact) <= bound).all(), f"{case.name} {name}"
        recorded = case[name].astype(np.float64).reshape(got.shape)
        assert (np.abs(got - recorded) <= 2 * bound).all(), f"{case.name} {name}, recorded"
