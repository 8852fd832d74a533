# SPDX-License-Identifier: Apache-2.0
"""Compares the recorded products, group gm, in every layout: exact bytes, else within a bound."""

import ml_dtypes
import numpy as np
import pytest
from golden import DTYPES, Case, assert_same, cases

import narrowfloat as nf

CASES = list(cases("gm"))

# Half the distance of neighbouring numbers, relative to the power of two below them.
UNIT_ROUNDOFF = {np.dtype(np.float32): 2.0**-24, np.dtype(np.float16): 2.0**-11}
UNIT_ROUNDOFF[np.dtype(ml_dtypes.bfloat16)] = 2.0**-8


def scheme_of(case: Case, side: str) -> str:
    """Returns our name for the mode, element type and tile of a case."""
    mode, element = case.params["mode"], case.params.get(f"q{side}_dtype")
    if mode == "nvfp4_gemm":
        return "nvfp4" if case.params["tile"][0] == 1 else "nvfp4_2d"
    if mode == "fp8_blockwise_gemm":
        rows, cols = case.params[f"tile_{side}"]
        return f"fp8_block{rows}x{cols}_{element}"
    return f"{'mxfp8' if mode == 'mxfp8_gemm' else 'fp8'}_{element}"


def placed(recorded: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Returns the recorded scales, (lines, blocks), in a buffer of `shape` with padding 0xFF."""
    buffer = np.frombuffer(b"\xff" * int(np.prod(shape)) * recorded.itemsize, recorded.dtype)
    buffer = buffer.reshape(shape).copy()
    if recorded.ndim == 2 and any(a > b for a, b in zip(recorded.shape, shape, strict=True)):
        recorded = recorded.T
    buffer[tuple(slice(n) for n in recorded.shape)] = recorded
    return buffer


def operand(case: Case, side: str, columnwise: bool) -> nf.QuantizedTensor:
    """Returns an operand of the product whose lines are rows or, if columnwise, columns."""
    codes, scales = case[f"q{side}"].view(np.uint8), case[f"s{side}"]
    scheme, direction = scheme_of(case, side), "columnwise" if columnwise else "rowwise"
    lines, length = codes.shape[0], case.params["K"]
    shape = (length, lines) if columnwise else (lines, length)
    plan = nf.quantize(
        np.zeros(shape, np.float32), scheme, rowwise=not columnwise, columnwise=columnwise
    ).buffers
    keeps_orientation = case.params["mode"] == "mxfp8_gemm"
    if columnwise and keeps_orientation:
        codes, scales = codes.T, scales.T
    scale_key, options = f"{direction}_scale_inv", {}
    buffers = {
        f"{direction}_data": np.ascontiguousarray(codes),
        scale_key: placed(scales.view(plan[scale_key].dtype), plan[scale_key].shape),
    }
    if f"amax_{side}" in case:
        buffers[f"amax_{direction}"] = case[f"amax_{side}"]
        if len(case[f"amax_{side}"]) > 1:
            options["row_scaled"] = True
    return nf.from_buffers(scheme, shape, buffers, **options)


def product(case: Case, layout: str) -> np.ndarray:
    directions = {"TN": (False, False), "NN": (False, True), "NT": (True, True)}[layout]
    a, b = (operand(case, *side) for side in zip("xw", directions, strict=True))
    options = {"dtype": DTYPES[case.params.get("out_dtype", "fp32")], "layout": layout}
    if "bias" in case:
        options["bias"] = case["bias"].reshape(-1)
    if case.params.get("accumulate"):
        options |= {"out": case["out_in"].copy(), "accumulate": True}
    return nf.qgemm(a, b, **options)


def assert_within(case: Case, y: np.ndarray) -> None:
    """Bounds the sum of K products and two scales in fp32, and one rounding per added term.

    Every product passes through fewer than K + 8 roundings of fp32, each by 2**-24 at most.
    """
    roundoff = UNIT_ROUNDOFF[y.dtype]
    terms = [case[name].astype(np.float64) for name in ("bias", "out_in") if name in case]
    wanted = case["exact.fp64"] - sum(terms)  # both records contain the terms
    sum_of_products = case["abs_sum.fp64"] - sum(map(np.abs, terms))
    error = (case.params["K"] + 8) * 2.0**-24 * sum_of_products
    error = error + roundoff * (np.abs(wanted) + error)
    for term in terms:
        wanted = wanted + term
        error = error + roundoff * (np.abs(wanted) + error)
    off = np.abs(y.astype(np.float64) - wanted) - error
    assert (off <= 0).all(), f"{case.name}: {off.max()} past the bound at {off.argmax()}"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_recorded_product(case: Case) -> None:
    y = product(case, "TN")
    assert y.shape == (case.params["M"], case.params["N"])
    if case.params.get("exactness") == "exact":
        assert_same(y, case["y"], f"{case.name} y")
    if "exact.fp64" in case:
        assert_within(case, y)
    # The other layouts sum the same items, so that they have the same bytes.
    for layout in ("NN", "NT"):
        assert_same(product(case, layout), y, f"{case.name} {layout}")


def test_all_records_are_there() -> None:
    assert len(CASES) == 36


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_bound_holds_for_the_record_too(case: Case) -> None:
    """Checks that TransformerEngine's results, quantized or plain, are within the bound too."""
    if "y" not in case or "exact.fp64" not in case:
        pytest.skip("the case records no result or no exact one")
    assert_within(case, case["y"])
