# SPDX-License-Identifier: Apache-2.0
"""Tests NVFP4 through the NumPy face: every recorded case, options, errors, statistics."""

import re

import ml_dtypes
import numpy as np
import pytest
from golden import DTYPES, Case, assert_same, cases

import narrowfloat as nf

# Records that differ from ours: the recorder's amax propagates the NaN of a transform, and its sums
# round intermediate results of fp32 items.
OTHERWISE = ("nv/rht_single_nan_bf16", "nv/rht_normal_fp32_sign")
CASES = [case for case in cases("nv") if case.name not in OTHERWISE]
RNG = np.random.default_rng(4)


def scheme_of(case: Case) -> str:
    return "nvfp4_2d" if case.params.get("tile", [1, 16])[0] == 16 else "nvfp4"


def options_of(case: Case) -> dict[str, object]:
    params = case.params
    options: dict[str, object] = {}
    if params.get("with_rht"):
        options |= {"rht": True, "rht_sign_mask": params["rht_sign_mask"]}
    if params.get("row_scaled"):
        options["row_scaled"] = True
    if params.get("use_4over6"):
        options |= {
            "four_over_six": params["err_mode"].lower(),
            "four_over_six_fast_error": params["err_use_fast_math"],
            "e4m3_max": params["e4m3_max"],
        }
    return options


def codes(packed: np.ndarray) -> np.ndarray:
    return np.stack([packed & 0xF, packed >> 4], -1).reshape(-1)


def with_signs_of_zero(packed: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Returns codes one per byte, with the signs of x on zeros, which the recorder drops."""
    flat = codes(packed)
    flat[(flat == 0) & np.signbit(x.astype(np.float32)).reshape(-1)] = 8
    return flat


def operand(case: Case, columnwise: bool) -> np.ndarray:
    if not columnwise:
        return case["x"]
    if "rht_x_t" in case:
        return case["rht_x_t"]
    return case["x"].reshape(-1, case["x"].shape[-1]).T


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_recorded(case: Case) -> None:
    both = "data_t" in case
    q = nf.quantize(case["x"], scheme_of(case), columnwise=both, threads=2, **options_of(case))
    for suffix, direction in [("", "rowwise")] + [("_t", "columnwise")] * both:
        got = codes(q.buffers[f"{direction}_data"].reshape(-1))
        want = with_signs_of_zero(
            case.kernel(f"data{suffix}").reshape(-1), operand(case, bool(suffix))
        )
        assert_same(got, want, f"{case.name} data{suffix}")
        scales, recorded = q.buffers[f"{direction}_scale_inv"], case.kernel(f"scale_inv{suffix}")
        padded = np.zeros(scales.shape, np.uint8)
        padded[: recorded.shape[0], : recorded.shape[1]] = recorded.view(np.uint8)
        assert_same(scales, padded, f"{case.name} scale_inv{suffix}, padding zero")
        assert_same(
            q.buffers[f"amax_{direction}"], case.kernel(f"amax{suffix}"), f"{case.name} amax"
        )


@pytest.mark.parametrize(
    "case",
    [c for c in cases("nv") if c.dequantized]
    + [c for c in cases("dq") if c.name.startswith("dq/nvfp4")],
    ids=lambda case: case.name,
)
def test_recorded_dequantize(case: Case) -> None:
    shape = tuple(case.params["shape"])
    options = {"row_scaled": True} if case.params.get("row_scaled") else {}
    if case.params["e4m3_max"] == 256:
        options["e4m3_max"] = 256
    like = nf.quantize(np.zeros(shape, np.float32), scheme_of(case))
    scales = np.zeros(like.buffers["rowwise_scale_inv"].shape, np.uint8)
    recorded = case["scale_inv"]
    scales[: recorded.shape[0], : recorded.shape[1]] = recorded.view(np.uint8)
    data = case["data"].reshape(like.buffers["rowwise_data"].shape)
    buffers = {"rowwise_data": data, "rowwise_scale_inv": scales, "amax_rowwise": case["amax"]}
    q = nf.from_buffers(scheme_of(case), shape, buffers, **options)
    for name, expected in case.dequantized.items():
        assert_same(q.dequantize(DTYPES[name]), expected, f"{case.name} dequant.{name}")


@pytest.mark.parametrize("case", list(cases("rht")), ids=lambda case: case.name)
def test_recorded_transform(case: Case) -> None:
    x = np.ascontiguousarray(case["x"].T)
    y = nf.hadamard_transform(x, case.params["sign_mask"], threads=2)
    # The exact sum, in float64, is rounded once, directly to the type.
    assert_same(y, case["exact.fp64"].T.astype(x.dtype), case.name)
    out = np.empty_like(x)
    assert nf.hadamard_transform(x, case.params["sign_mask"], out) is out
    assert_same(out, y, f"{case.name} out=")


def test_transform_of_columns_is_what_rht_quantizes() -> None:
    x = RNG.standard_normal((48, 32)).astype(ml_dtypes.bfloat16)
    q = nf.quantize(x, "nvfp4", columnwise=True, rht=True)
    plain = nf.quantize(nf.hadamard_transform(x), "nvfp4", False, True)
    for name in ("columnwise_data", "columnwise_scale_inv", "amax_columnwise"):
        assert_same(q.buffers[name], plain.buffers[name], name)
    rowwise = nf.quantize(x, "nvfp4")
    assert_same(q.buffers["rowwise_data"], rowwise.buffers["rowwise_data"], "rows stay as they are")


def test_rht_leaves_rows_alone_whatever_their_number() -> None:
    x = RNG.standard_normal((20, 32)).astype(np.float32)
    made, plain = (nf.quantize(x, "nvfp4", **options) for options in ({"rht": True}, {}))
    for name, expected in plain.buffers.items():
        assert_same(made.buffers[name], expected, name)
    with pytest.raises(ValueError, match=r"rht needs .* rows that is a multiple of 16, got 20$"):
        nf.quantize(x, "nvfp4", columnwise=True, rht=True)


def test_products_need_one_transform_of_both_operands() -> None:
    x = RNG.standard_normal((32, 32)).astype(np.float32)
    plain, turned, other = (
        nf.quantize(x, "nvfp4", True, True, **options)
        for options in ({}, {"rht": True}, {"rht": True, "rht_sign_mask": 3})
    )
    rule = "needs a and b to have gone through the same Hadamard transform, got"
    for a, b, layout, got in (
        (turned, plain, "NT", "rht_sign_mask 55272 of a and no transform of b"),
        (turned, other, "NT", "rht_sign_mask 55272 of a and rht_sign_mask 3 of b"),
        (plain, other, "NN", "no transform of a and rht_sign_mask 3 of b"),
    ):
        out = np.zeros((32, 32), np.float32)
        for mode in ("reproducible", "fast"):
            with pytest.raises(ValueError, match=f"^qgemm: layout {layout} {rule} {got}$"):
                nf.qgemm(a, b, layout=layout, out=out, mode=mode)
        message = f"^grouped_qgemm: group 0: layout {layout} {rule} {got}$"
        with pytest.raises(ValueError, match=message):
            nf.grouped_qgemm([a], [b], layout=layout, out=[out])
        assert not out.any()
    assert_same(nf.qgemm(turned, other), nf.qgemm(plain, plain), "rows are not transformed")


def test_a_sign_mask_has_16_bits() -> None:
    x = np.ones((16, 16), np.float32)
    message = r"^hadamard_transform: sign_mask must fit in 16 bits, got 120808$"
    with pytest.raises(ValueError, match=message):
        nf.hadamard_transform(x, sign_mask=0x1D7E8)
    nf.hadamard_transform(x, sign_mask=0xFFFF)


def test_amax_may_be_a_pair() -> None:
    x = RNG.standard_normal((32, 32)).astype(np.float32)
    q = nf.quantize(x, "nvfp4", columnwise=True, amax=(2.0, np.float32(8.0)))
    assert q.buffers["amax_rowwise"][0] == 2.0
    assert q.buffers["amax_columnwise"][0] == 8.0
    assert q.spec == "nvfp4:amax=2,amax_columnwise=8,columnwise=1"
    one = nf.quantize(x, "nvfp4", columnwise=True, amax=2.0)
    assert one.buffers["amax_columnwise"][0] == 2.0
    with pytest.raises(TypeError, match=r"amax must be a number, .* got tuple$"):
        nf.quantize(x, "nvfp4", amax=(1.0, 2.0, 3.0))


def test_stochastic_rounding_is_unbiased_and_reproducible() -> None:
    x = RNG.uniform(-6, 6, (64, 128)).astype(np.float32)
    options = {"stochastic_rounding": True, "amax": 6.0 * 448 / 448}
    first = nf.quantize(x, "nvfp4", seed=3, **options)
    assert_same(
        nf.quantize(x, "nvfp4", seed=3, threads=3, **options).buffers["rowwise_data"],
        first.buffers["rowwise_data"],
        "the same bits on every thread count",
    )
    other = nf.quantize(x, "nvfp4", seed=3, offset=1, **options).buffers["rowwise_data"]
    assert (other != first.buffers["rowwise_data"]).any()
    rounds = 400
    total = np.zeros(x.shape)
    for seed in range(rounds):
        total += nf.quantize(x, "nvfp4", seed=seed, **options).dequantize()
    # A block's scale follows from its amax: a step between codes is at most a third of the amax.
    # The mean of `rounds` random steps is within 6 standard deviations; 8 bits lose 1/256.
    step = np.abs(x).reshape(-1, 16).max(1).repeat(16).reshape(x.shape) / 3
    bound = step * (6 * 0.5 / np.sqrt(rounds) + 1 / 256)
    assert (np.abs(total / rounds - x) <= bound + 0.07 * step).all()
    # Over all elements the random steps cancel further; the lost 1/256 remains, towards zero.
    bias = np.mean((total / rounds - x) / step)
    assert abs(bias) < 6 * 0.5 / np.sqrt(rounds * x.size) + 1 / 256


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"e4m3_max": 256}, "quantize: e4m3_max must be 448 without four_over_six, got 256"),
        ({"four_over_six": "max"}, "quantize: four_over_six must be 'mae' or 'mse', got 'max'"),
        (
            {"rht": True, "row_scaled": True},
            "quantize: row_scaled must not be given together with rht",
        ),
        ({"seed": -1}, "quantize: seed must be an integer from 0 to 2^64 - 1, got -1"),
        ({"rht": 2}, "quantize: rht must be True or False, got 2"),
    ],
)
def test_refused_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        nf.quantize(np.zeros((16, 16), np.float32), "nvfp4", **options)


def test_refused_shapes() -> None:
    with pytest.raises(ValueError, match=r"needs an even number of columns, got 33$"):
        nf.quantize(np.zeros((2, 33), np.float32), "nvfp4")
    with pytest.raises(ValueError, match=r"a number of rows that is a multiple of 16, got 24$"):
        nf.quantize(np.zeros((24, 16), np.float32), "nvfp4", columnwise=True, rht=True)


def test_shapes_of_buffers() -> None:
    q = nf.quantize(np.zeros((2, 24, 96), np.float32), "nvfp4", columnwise=True, row_scaled=True)
    assert {name: b.shape for name, b in q.buffers.items()} == {
        "rowwise_data": (2, 24, 48),
        "rowwise_scale_inv": (128, 8),
        "columnwise_data": (96, 2, 12),
        "columnwise_scale_inv": (128, 4),
        "amax_rowwise": (48,),
        "amax_columnwise": (96,),
    }
    assert q.dequantize().shape == (2, 24, 96)


def test_columns_decode_too() -> None:
    x = RNG.standard_normal((32, 48)).astype(np.float32)
    q = nf.quantize(x, "nvfp4", rowwise=False, columnwise=True)
    turned = nf.quantize(np.ascontiguousarray(x.T), "nvfp4")
    assert_same(q.dequantize(), np.ascontiguousarray(turned.dequantize().T), "columnwise values")
    missing = {k: v for k, v in q.buffers.items() if k != "amax_columnwise"}
    bare = nf.from_buffers("nvfp4", x.shape, missing)
    with pytest.raises(ValueError, match=r"^dequantize: amax_columnwise is missing$"):
        bare.dequantize()
    # Scales alone can be swizzled without the amax.
    assert_same(
        nf.unswizzle(nf.swizzle(bare)).buffers["columnwise_scale_inv"],
        q.buffers["columnwise_scale_inv"],
        "swizzle and back",
    )


@pytest.mark.parametrize("tiles", [False, True])
def test_named_quantizer(tiles: bool) -> None:
    x = RNG.standard_normal((32, 64)).astype(ml_dtypes.bfloat16)
    quantizer = nf.NVFP4Quantizer(with_2d_quantization=tiles)
    expected = nf.quantize(x, "nvfp4_2d" if tiles else "nvfp4", columnwise=True)
    out = quantizer.update_quantized(x, quantizer.make_empty(x.shape))
    for q in (quantizer.quantize(x), out):
        assert {k: v.tobytes() for k, v in q.buffers.items()} == {
            k: v.tobytes() for k, v in expected.buffers.items()
        }


def test_named_quantizer_takes_transformer_engines_options() -> None:
    x = RNG.standard_normal((32, 64)).astype(ml_dtypes.bfloat16)
    rht = nf.NVFP4Quantizer(
        with_rht=True,
        with_post_rht_amax=True,
        with_random_sign_mask=False,
        stochastic_rounding=True,
    )
    assert rht.quantize(x).spec == (
        "nvfp4:columnwise=1,rht=1,rht_sign_mask=0,stochastic_rounding=1"
    )
    over = nf.NVFP4Quantizer(nvfp4_use_4over6=True, nvfp4_e4m3_max=256, nvfp4_4over6_err_mode="mse")
    assert over.quantize(x).spec == "nvfp4:columnwise=1,e4m3_max=256,four_over_six=mse"
    with pytest.raises(ValueError, match=r"with_rht needs with_post_rht_amax$"):
        nf.NVFP4Quantizer(with_rht=True).quantize(x)
    with pytest.raises(ValueError, match=r"multiples of 16, got shape 32x40$"):
        rht.quantize(np.zeros((32, 40), np.float32))
