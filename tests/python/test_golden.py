# SPDX-License-Identifier: Apache-2.0
"""Tests every recorded case of the existing schemes through the NumPy face."""

import numpy as np
import pytest
from golden import DTYPES, Case, assert_same, cases

import narrowfloat as nf


def by_name(group: str, *prefixes: str) -> pytest.MarkDecorator:
    chosen = [c for c in cases(group) if not prefixes or c.name.split("/")[1].startswith(prefixes)]
    assert chosen, f"no golden cases in {group}"
    return pytest.mark.parametrize("case", chosen, ids=lambda case: case.name)


def per_tensor_options(case: Case) -> dict[str, object]:
    if case.params["mode"] == "fp8_delayed_scaling":
        return {"scale": case["scale"]}
    return {
        "amax_epsilon": case.params["amax_epsilon"],
        "force_pow_2_scales": case.params["force_pow_2_scales"],
    }


def mx_scheme(case: Case) -> str:
    return f"{case.params['mode']}_{case.params['q_dtype']}"


def check_dequantize(
    case: Case, scheme: str, shape: tuple[int, ...], **buffers: np.ndarray
) -> None:
    q = nf.from_buffers(scheme, shape, buffers)
    for name, expected in case.dequantized.items():
        assert_same(q.dequantize(DTYPES[name]), expected, f"{case.name} dequant.{name}")


def pad_scales(scales: np.ndarray, shape: list[int]) -> np.ndarray:
    padded = np.zeros(shape, np.uint8)
    padded[: scales.shape[0], : scales.shape[1]] = scales
    return padded


@pytest.mark.parametrize("columnwise", [False, True], ids=["rowwise", "both"])
@by_name("cs")
def test_current_scaling(case: Case, columnwise: bool) -> None:
    check_per_tensor(case, columnwise)


@pytest.mark.parametrize("columnwise", [False, True], ids=["rowwise", "both"])
@by_name("ds")
def test_delayed_scaling(case: Case, columnwise: bool) -> None:
    check_per_tensor(case, columnwise)


def check_per_tensor(case: Case, columnwise: bool) -> None:
    scheme = f"fp8_{case.params['q_dtype']}"
    x = case["x"].reshape(case.params["shape"])
    q = nf.quantize(x, scheme, columnwise=columnwise, **per_tensor_options(case))
    assert_same(q.buffers["rowwise_data"], case.kernel("data"), f"{case.name} data")
    assert_same(q.buffers["rowwise_scale_inv"], case.kernel("scale_inv"), f"{case.name} scale_inv")
    assert_same(q.buffers["scale"], case.kernel("scale"), f"{case.name} scale")
    assert_same(q.buffers["amax_rowwise"], case.kernel("amax"), f"{case.name} amax")
    if columnwise and "data_t" in case:
        assert_same(q.buffers["columnwise_data"], case.kernel("data_t"), f"{case.name} data_t")
        assert q.buffers["columnwise_data"].shape == (x.shape[-1], *x.shape[:-1])
        assert q.buffers["columnwise_scale_inv"] is q.buffers["rowwise_scale_inv"]
    check_dequantize(
        case,
        scheme,
        x.shape,
        rowwise_data=case["data"].view(np.uint8).reshape(x.shape),
        rowwise_scale_inv=case["scale_inv"],
    )


@by_name("mx")
def test_mxfp8(case: Case) -> None:
    directions = [("rowwise", "")] + [("columnwise", "_colwise")] * ("data_colwise" in case)
    for direction, suffix in directions:
        q = nf.quantize(
            case["x"], mx_scheme(case), rowwise=not suffix, columnwise=bool(suffix), threads=2
        )
        check_mx_direction(case, q, direction, suffix)


@by_name("mx")
def test_mxfp8_in_both_directions_at_once(case: Case) -> None:
    if "data_colwise" not in case:
        return check_mx_direction(case, nf.quantize(case["x"], mx_scheme(case)), "rowwise", "")
    q = nf.quantize(case["x"], mx_scheme(case), columnwise=True)
    check_mx_direction(case, q, "rowwise", "")
    check_mx_direction(case, q, "columnwise", "_colwise")


def check_mx_direction(case: Case, q: nf.QuantizedTensor, direction: str, suffix: str) -> None:
    data, scales = q.buffers[f"{direction}_data"], q.buffers[f"{direction}_scale_inv"]
    assert_same(data, case[f"data{suffix}"], f"{case.name} data{suffix}")
    expected = pad_scales(
        case[f"scale_inv{suffix}"], case.params[f"padded_scale_shape_{suffix[1:] or 'rowwise'}"]
    )
    assert scales.shape == expected.shape
    assert_same(scales, expected, f"{case.name} scale_inv{suffix}, padding zero")
    check_mx_dequantize(case, direction, suffix)


def check_mx_dequantize(case: Case, direction: str, suffix: str) -> None:
    padded = pad_scales(
        case[f"scale_inv{suffix}"], case.params[f"padded_scale_shape_{suffix[1:] or 'rowwise'}"]
    )
    buffers = {
        f"{direction}_data": case[f"data{suffix}"].view(np.uint8),
        f"{direction}_scale_inv": padded,
    }
    q = nf.from_buffers(mx_scheme(case), tuple(case.params["shape"]), buffers)
    for name in DTYPES:
        recorded = f"dequant{suffix}.{name}"
        if recorded in case:
            assert_same(q.dequantize(DTYPES[name]), case[recorded], f"{case.name} {recorded}")


@by_name("mx")
def test_mxfp8_swizzled(case: Case) -> None:
    both = "data_colwise" in case
    q = nf.quantize(case["x"], mx_scheme(case), columnwise=both)
    direct = nf.quantize(case["x"], mx_scheme(case), columnwise=both, swizzled=True)
    swizzled = nf.swizzle(q)
    assert swizzled.spec == direct.spec
    for suffix, direction in [("", "rowwise")] + [("_colwise", "columnwise")] * both:
        key, expected = f"{direction}_scale_inv", case[f"scale_inv{suffix}_swizzled"]
        assert_same(direct.buffers[key], expected, f"{case.name} swizzled=True {key}")
        assert_same(swizzled.buffers[key], expected, f"{case.name} swizzle() {key}")
        assert direct.buffers[key].shape == q.buffers[key].shape
        back = nf.unswizzle(swizzled)
        assert_same(back.buffers[key], q.buffers[key], f"{case.name} unswizzle() {key}")
    assert_same(direct.dequantize(), q.dequantize(), f"{case.name} dequantize of swizzled scales")


@by_name("mx", "dbias_")
def test_dbias(case: Case) -> None:
    # Integers: the sums are exact in fp32, so that their order has no effect.
    q, dbias = nf.quantize_dbias(case["x"], mx_scheme(case), columnwise=True)
    check_mx_direction(case, q, "rowwise", "")
    check_mx_direction(case, q, "columnwise", "_colwise")
    assert dbias.shape == (case["x"].shape[-1],)
    assert dbias.dtype == case["x"].dtype
    assert_same(dbias, case["dbias"], f"{case.name} dbias")


BLOCK_SCHEMES = {"fp8_blockwise_1d": "fp8_block1x128", "fp8_blockwise_2d": "fp8_block128x128"}


def block_scheme(case: Case) -> str:
    return f"{BLOCK_SCHEMES[case.params['mode']]}_{case.params['q_dtype']}"


def stored_block_scales(case: Case, scales: np.ndarray, stored: tuple[int, ...]) -> np.ndarray:
    """Returns recorded scales, [line][block], as stored: 1-D is [block][line]. Padding is zero."""
    ordered = scales.T if case.params["mode"] == "fp8_blockwise_1d" else scales
    padded = np.zeros(stored, np.float32)
    padded[: ordered.shape[0], : ordered.shape[1]] = ordered
    return padded


@pytest.mark.parametrize("direction", ["rowwise", "columnwise", "both"])
@by_name("bs")
def test_fp8_blocks(case: Case, direction: str) -> None:
    rowwise, columnwise = direction != "columnwise", direction != "rowwise"
    if columnwise and "data_t" not in case:
        columnwise, rowwise = False, True
    options = {k: case.params[k] for k in ("amax_epsilon", "force_pow_2_scales")}
    q = nf.quantize(case["x"], block_scheme(case), rowwise, columnwise, **options)
    for name, suffix in [("rowwise", "")] * rowwise + [("columnwise", "_t")] * columnwise:
        data, scales = q.buffers[f"{name}_data"], q.buffers[f"{name}_scale_inv"]
        assert_same(data, case.kernel(f"data{suffix}"), f"{case.name} data{suffix}")
        expected = stored_block_scales(case, case.kernel(f"scale_inv{suffix}"), scales.shape)
        assert_same(scales, expected, f"{case.name} scale_inv{suffix}, padding zero")
    if columnwise:
        x = case["x"]
        assert q.buffers["columnwise_data"].shape == (x.shape[-1], *x.shape[:-1])


def check_block_dequantize(case: Case) -> None:
    shape = tuple(case.params["shape"])
    like = nf.quantize(np.zeros(shape, np.float32), block_scheme(case))
    stored = like.buffers["rowwise_scale_inv"].shape
    check_dequantize(
        case,
        block_scheme(case),
        shape,
        rowwise_data=case["data"].view(np.uint8),
        rowwise_scale_inv=stored_block_scales(case, case["scale_inv"], stored),
    )


@by_name("bs")
def test_dequantize_recorded_fp8_blocks(case: Case) -> None:
    check_block_dequantize(case)


@by_name("dq", "blockwise")
def test_dequantize_fp8_blocks(case: Case) -> None:
    check_block_dequantize(case)


@by_name("sw")
def test_swizzle(case: Case) -> None:
    padded = case.params["padded_shape"]
    rowwise = case.params["direction"] == "rowwise"
    direction = "rowwise" if rowwise else "columnwise"
    # The smallest tensor whose scales have this shape: blocks of 32 along one dimension.
    shape = (padded[0], padded[1] * 32) if rowwise else (padded[0] * 32, padded[1])
    buffers = {
        f"{direction}_data": np.zeros(shape, np.uint8),
        f"{direction}_scale_inv": case["scale_inv"],
    }
    compact = nf.from_buffers("mxfp8_e4m3", shape, buffers)
    swizzled = nf.swizzle(compact)
    key = f"{direction}_scale_inv"
    assert_same(swizzled.buffers[key], case["scale_inv_swizzled"], f"{case.name} swizzle()")
    back = nf.unswizzle(swizzled)
    assert_same(back.buffers[key], case["scale_inv"], f"{case.name} unswizzle()")


@by_name("dq", "tensor_")
def test_dequantize_per_tensor(case: Case) -> None:
    check_dequantize(
        case,
        f"fp8_{case.params['q_dtype']}",
        tuple(case.params["shape"]),
        rowwise_data=case["data"].view(np.uint8),
        rowwise_scale_inv=case["scale_inv"].reshape(1),
    )


@by_name("dq", "mxfp8_")
def test_dequantize_mxfp8(case: Case) -> None:
    rows, cols = case.params["shape"]
    direction = "rowwise" if case.params["block"][0] == 1 else "columnwise"
    scheme = f"mxfp8_{case.params['q_dtype']}"
    empty = nf.quantize(
        np.zeros((rows, cols), np.float32), scheme, direction == "rowwise", direction != "rowwise"
    )
    key = f"{direction}_scale_inv"
    check_dequantize(
        case,
        scheme,
        (rows, cols),
        **{
            f"{direction}_data": case["data"].view(np.uint8),
            key: pad_scales(case["scale_inv"], list(empty.buffers[key].shape)),
        },
    )
