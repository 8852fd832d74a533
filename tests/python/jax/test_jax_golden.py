# SPDX-License-Identifier: Apache-2.0
"""Compares the XLA handlers with every recorded case that they support, code by code."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden import DTYPES as RECORDED
from golden import Case, assert_same, cases
from handler import (
    BOTH,
    COLWISE,
    CURRENT,
    DELAYED,
    DTYPES,
    MXFP8,
    NVFP4,
    NVFP4_2D,
    ROWWISE,
    bits,
    dbias_quantize,
    float32,
    rht_matrix,
)
from narrowfloat.jax.cpp_extensions.amax import calculate_amax, calculate_post_rht_amax
from narrowfloat.jax.quantize import compute_scale_from_amax


def by_name(group: str, *prefixes: str) -> pytest.MarkDecorator:
    chosen = [c for c in cases(group) if not prefixes or c.name.split("/")[1].startswith(prefixes)]
    assert chosen, f"no golden cases in {group}"
    return pytest.mark.parametrize("case", chosen, ids=lambda case: case.name)


def matrix_of(x: np.ndarray) -> np.ndarray:
    """Returns x with two or more dimensions, because handlers split the dimensions in two."""
    return x.reshape(1, -1) if x.ndim < 2 else x


def check_per_tensor(case: Case, mode: int) -> None:
    x = matrix_of(case["x"].reshape(case.params["shape"]))
    element = case.params["q_dtype"]
    out = dbias_quantize(x, mode, element, BOTH, scale=case.kernel("scale"))
    assert_same(out.data, case.kernel("data"), f"{case.name} data")
    if x.size:
        assert_same(out.scale_inv, case.kernel("scale_inv"), f"{case.name} scale_inv")
        assert_same(out.scale_inv_t, case.kernel("scale_inv"), f"{case.name} scale_inv_t")
    assert_same(out.amax, case.kernel("amax"), f"{case.name} amax")
    if "data_t" in case:
        assert_same(out.data_t, case.kernel("data_t"), f"{case.name} data_t")


@by_name("ds")
def test_delayed_scaling(case: Case) -> None:
    check_per_tensor(case, DELAYED)


@by_name("cs")
def test_current_scaling(case: Case) -> None:
    check_per_tensor(case, CURRENT)
    plain = case.params["amax_epsilon"] == 0 and not case.params["force_pow_2_scales"]
    if not plain or not case["x"].size:
        return
    amax = calculate_amax(jnp.asarray(case["x"]))
    assert_same(np.asarray(amax), case.kernel("amax"), f"{case.name} amax")
    if case["x"].dtype == np.float32:  # a scale that overflows is the largest value of x's dtype
        scale = compute_scale_from_amax(amax, DTYPES[case.params["q_dtype"]], 0.0)
        assert_same(np.asarray(scale), case.kernel("scale"), f"{case.name} scale")


def mxfp8_calls() -> list[tuple[Case, int]]:
    """Returns each recorded case with the layouts that it has codes for."""
    recorded = [case for case in cases("mx") if case.params["mode"] == "mxfp8"]
    return [
        (case, layout)
        for case in recorded
        for layout in (ROWWISE, COLWISE, BOTH)
        if layout == ROWWISE or "data_colwise" in case
    ]


NAMES = {ROWWISE: "row", COLWISE: "col", BOTH: "both"}
MXFP8_CALLS = mxfp8_calls()


def test_tiles_of_mxfp8_alone_are_left_out() -> None:
    """Checks that only tiles of 32x32 are left out, because they have no scaling mode."""
    modes = {case.params["mode"] for case in cases("mx")}
    assert modes == {"mxfp8", "mxfp8_2d"}
    assert {layout for _, layout in MXFP8_CALLS} == set(NAMES)


@pytest.mark.parametrize(
    ("case", "layout"), MXFP8_CALLS, ids=[f"{case.name}-{NAMES[way]}" for case, way in MXFP8_CALLS]
)
def test_mxfp8(case: Case, layout: int) -> None:
    with_dbias = "dbias" in case
    out = dbias_quantize(
        matrix_of(case["x"]), MXFP8, case.params["q_dtype"], layout, is_dbias=with_dbias
    )
    for name, suffix in [("", "")] * (layout != COLWISE) + [("_t", "_colwise")] * (layout != 0):
        assert_same(getattr(out, f"data{name}"), case[f"data{suffix}"], f"{case.name} data")
        recorded = case[f"scale_inv{suffix}"]
        padded = np.zeros(case.params[f"padded_scale_shape_{suffix[1:] or 'rowwise'}"], np.uint8)
        padded[: recorded.shape[0], : recorded.shape[1]] = recorded
        assert_same(getattr(out, f"scale_inv{name}"), padded, f"{case.name} scale_inv{suffix}")
    if with_dbias:
        assert_same(out.dbias, case["dbias"], f"{case.name} dbias")


# Records that differ from ours: the recorder's amax propagates the NaN of a transform, and its sums
# round intermediate results of fp32 items.
OTHERWISE = ("nv/rht_single_nan_bf16", "nv/rht_normal_fp32_sign")


def fits(case: Case) -> bool:
    """Returns whether attributes can express the case: they have no row scaling and no 4over6."""
    options = ("row_scaled", "use_4over6")
    return case.name not in OTHERWISE and not any(case.params.get(o) for o in options)


NV_CASES = [case for case in cases("nv") if fits(case)]


def with_signs_of_zero(packed: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Returns codes one per byte, with the signs of x on zeros, which the recorder drops."""
    flat = np.stack([packed & 0xF, packed >> 4], -1).reshape(-1)
    flat[(flat == 0) & np.signbit(x.astype(np.float32)).reshape(-1)] = 8
    return flat


@pytest.mark.parametrize("case", NV_CASES, ids=lambda case: case.name)
def test_nvfp4(case: Case) -> None:
    x, rht = matrix_of(case["x"]), bool(case.params.get("with_rht"))
    mode = NVFP4_2D if case.params.get("tile", [1, 16])[0] == 16 else NVFP4
    both = "data_t" in case
    options = {}
    if rht:
        options["rht_matrix"] = rht_matrix(case.params["rht_sign_mask"])
        options["post_rht_amax"] = case.kernel("amax_t")
    amax = case.kernel("amax")
    out = dbias_quantize(x, mode, "e2m1", BOTH if both else ROWWISE, amax=amax, **options)
    operands = {"": x, "_t": case["rht_x_t"] if rht else x.reshape(-1, x.shape[-1]).T}
    for suffix in ["", "_t"][: 1 + both]:
        want = with_signs_of_zero(case.kernel(f"data{suffix}").reshape(-1), operands[suffix])
        assert_same(getattr(out, f"data{suffix}").reshape(-1), want, f"{case.name} data{suffix}")
        recorded = case.kernel(f"scale_inv{suffix}").view(np.uint8)
        scales = getattr(out, f"scale_inv{suffix}")
        padded = np.zeros(scales.shape, np.uint8)
        padded[: recorded.shape[0], : recorded.shape[1]] = recorded
        assert_same(scales, padded, f"{case.name} scale_inv{suffix}, padding zero")
    assert_same(out.amax, amax, f"{case.name} amax stays")
    if rht and case["x"].dtype.name == "bfloat16" and "amax_t" in case:
        measured, transformed = calculate_post_rht_amax(jnp.asarray(x), x.ndim - 1, True)
        default = case.params["rht_sign_mask"] == 0xD7E8
        assert_same(np.asarray(measured), amax, f"{case.name} amax")
        if default:
            assert_same(np.asarray(transformed), case.kernel("amax_t"), f"{case.name} amax_t")


@by_name("dq", "tensor_")
def test_dequantize_per_tensor(case: Case) -> None:
    data = jnp.asarray(case["data"].reshape(case.params["shape"]))
    for name, expected in case.dequantized.items():
        call = jax.ffi.ffi_call(
            "te_dequantize_ffi", jax.ShapeDtypeStruct(data.shape, RECORDED[name])
        )
        got = call(data, float32(0), float32(1), jnp.asarray(case["scale_inv"].reshape(1)))
        assert_same(np.asarray(got), expected, f"{case.name} dequant.{name}")


@by_name("dq", "mxfp8_")
def test_dequantize_mxfp8(case: Case) -> None:
    rows, cols = case.params["shape"]
    columnwise = case.params["block"][0] != 1
    out = dbias_quantize(
        np.zeros((rows, cols), np.float32),
        MXFP8,
        case.params["q_dtype"],
        COLWISE if columnwise else ROWWISE,
    )
    scales = np.zeros_like(out.scale_inv_t if columnwise else out.scale_inv)
    recorded = case["scale_inv"]
    scales[: recorded.shape[0], : recorded.shape[1]] = recorded
    spec = f"mxfp8_{case.params['q_dtype']}" + ":columnwise=1,rowwise=0" * columnwise
    for name, expected in case.dequantized.items():
        call = jax.ffi.ffi_call(
            "nf_dequantize_ffi", jax.ShapeDtypeStruct((rows, cols), RECORDED[name])
        )
        got = call(
            jnp.asarray(case["data"]),
            jnp.asarray(scales),
            float32(0),
            spec=spec,
            flatten_axis=np.int64(1),
        )
        assert_same(bits(got), expected, f"{case.name} dequant.{name}")
