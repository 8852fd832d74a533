# SPDX-License-Identifier: Apache-2.0
"""Tests properties that follow from a scheme's rule for any input, and their exceptions.

The same properties in tests/conformance/properties_test.cc have the reasons in their comments.
"""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import narrowfloat as nf

FLOATS = [np.float32, np.float16, ml_dtypes.bfloat16]
CANDIDATES: list[dict[str, object]] = [
    {},
    {"force_pow_2_scales": True},
    {"force_pow_2_scales": False},
    {"swizzled": True},
    {"row_scaled": True},
    {"stochastic_rounding": True, "seed": 11},
    {"four_over_six": "mae", "e4m3_max": 256},
    {"four_over_six": "mse", "four_over_six_fast_error": True},
]


def takes(scheme: str, options: dict[str, object]) -> bool:
    try:
        nf.quantize(np.zeros((16, 16), np.float32), scheme, **options)
    except ValueError:
        return False
    return True


VARIANTS = [(scheme, o) for scheme in nf.schemes() for o in CANDIDATES if takes(scheme, o)]
ANY = st.sampled_from(VARIANTS)
NEAREST = st.sampled_from([v for v in VARIANTS if "stochastic_rounding" not in v[1]])
ROWS_OF = {16: "nvfp4_2d", 32: "mxfp8_2d", 128: "fp8_block128x128"}
# By scheme: the rows of a tile, if a scale covers several rows.
TILES = {s: n for n in (16, 32, 128) for s in nf.schemes() if s.startswith(ROWS_OF[n])}
SPECIAL = [0.0, -0.0, 1.0, -448.0, 6.0, 57344.0, 0.25, 225.0, np.inf, -np.inf, np.nan]


@st.composite
def matrices(draw: st.DrawFn, *, near: bool = False) -> np.ndarray:
    """Draws matrices with even sides: normal numbers, scaled by row and column, and special values.

    near: within some binades of 1, and finite.
    """
    rows, cols = draw(st.integers(1, 70)) * 2, draw(st.integers(1, 150)) * 2
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    reach = 2 if near else 12
    x = rng.standard_normal((rows, cols))
    x *= np.exp2(rng.integers(-reach, reach + 1, (rows, 1)))
    x *= np.exp2(rng.integers(-reach, reach + 1, (1, cols)))
    count = draw(st.integers(0, 5))
    if count and not near:
        places = rng.integers(0, x.size, count)
        special = st.lists(st.sampled_from(SPECIAL), min_size=count, max_size=count)
        x.reshape(-1)[places] = draw(special)
    if near:
        x[np.abs(x) < 2.0**-8] = 0.5
    with np.errstate(over="ignore"):
        return x.astype(draw(st.sampled_from(FLOATS)))


def codes(q: nf.QuantizedTensor) -> np.ndarray:
    """Returns the rowwise codes, one per item."""
    data = q.buffers["rowwise_data"]
    if data.shape == q.shape:
        return data
    return np.stack([data & 15, data >> 4], axis=-1).reshape(q.shape)


def sign(q: nf.QuantizedTensor) -> int:
    return 0x80 if q.buffers["rowwise_data"].shape == q.shape else 0x8


def same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype and a.tobytes() == b.tobytes()


@settings(max_examples=100, deadline=None)
@given(matrices(), ANY)
def test_negated_items_have_negated_codes(x: np.ndarray, variant: tuple[str, dict]) -> None:
    scheme, options = variant
    plain, negated = nf.quantize(x, scheme, **options), nf.quantize(-x, scheme, **options)
    flipped = np.where(np.isnan(x.astype(np.float32)), 0, sign(plain)).astype(np.uint8)
    assert same(codes(plain) ^ flipped, codes(negated))
    for name, buffer in plain.buffers.items():
        assert name == "rowwise_data" or same(buffer, negated.buffers[name]), name


@settings(max_examples=100, deadline=None)
@given(matrices(near=True), ANY, st.integers(-3, 6))
def test_a_power_of_two_moves_no_code(x: np.ndarray, variant: tuple[str, dict], power: int) -> None:
    scheme, options = variant
    x = x.astype(np.float32)
    factor = np.float32(2.0**power)
    plain, scaled = nf.quantize(x, scheme, **options), nf.quantize(x * factor, scheme, **options)
    assert same(plain.buffers["rowwise_data"], scaled.buffers["rowwise_data"])
    assert same(plain.dequantize() * factor, scaled.dequantize())


@settings(max_examples=100, deadline=None)
@given(matrices(), NEAREST, st.integers(0, 2**32 - 1))
def test_rows_in_another_order_have_the_same_codes(
    x: np.ndarray, variant: tuple[str, dict], seed: int
) -> None:
    scheme, options = variant
    # Rows of a tile share its scale and move together.
    height = TILES.get(scheme, 1)
    x = np.resize(x, (3 * height, x.shape[1])) if height > 1 else x
    order = np.random.default_rng(seed).permutation(x.shape[0] // height)
    rows = (order[:, None] * height + np.arange(height)).reshape(-1)
    q = nf.quantize(x, scheme, **options)
    moved = nf.quantize(np.ascontiguousarray(x[rows]), scheme, **options)
    assert same(np.ascontiguousarray(codes(q)[rows]), codes(moved))
    assert same(np.ascontiguousarray(q.dequantize()[rows]), moved.dequantize())


@settings(max_examples=60, deadline=None)
@given(matrices(), ANY, st.integers(1, 4))
def test_both_directions_are_the_two_single_ones(
    x: np.ndarray, variant: tuple[str, dict], threads: int
) -> None:
    scheme, options = variant
    both = nf.quantize(x, scheme, columnwise=True, threads=threads, **options)
    alone = {
        **nf.quantize(x, scheme, rowwise=False, columnwise=True, **options).buffers,
        **nf.quantize(x, scheme, **options).buffers,
    }
    assert both.buffers.keys() == alone.keys()
    for name, buffer in both.buffers.items():
        assert same(buffer, alone[name]), name


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32 - 1), NEAREST, st.integers(1, 8))
def test_order_within_a_block_is_kept(seed: int, variant: tuple[str, dict], half: int) -> None:
    scheme, options = variant
    # Within one row and 16 columns: a block of every scheme, or part of one.
    x = np.random.default_rng(seed).standard_normal((1, 2 * half)).astype(np.float32)
    values = nf.quantize(x, scheme, **options).dequantize()
    assert (np.diff(values[0, np.argsort(x[0])]) >= 0).all()


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32 - 1), NEAREST)
def test_quantizing_the_values_again(seed: int, variant: tuple[str, dict]) -> None:
    scheme, options = variant
    if "four_over_six" in options:  # may choose another candidate
        return
    rng = np.random.default_rng(seed)
    x = rng.uniform(0.25, 8, (34, 300)) * rng.choice([-1, 1], (34, 300))
    once = nf.quantize(x.astype(np.float32), scheme, **options)
    twice = nf.quantize(once.dequantize(), scheme, **options)
    scales = once.buffers["rowwise_scale_inv"]
    if scales.dtype == np.float32 and (np.frexp(scales[scales != 0])[0] != 0.5).any():
        assert same(codes(once), codes(twice))  # plain scales: codes stay
    elif scheme.startswith("nvfp4"):
        assert same(codes(once), codes(twice))
        assert same(scales, twice.buffers["rowwise_scale_inv"])
    else:  # powers of two: values stay
        assert same(once.dequantize(), twice.dequantize())


@pytest.mark.parametrize("scheme", [s for s in nf.schemes() if s.endswith("e4m3")])
def test_codes_may_double_when_quantized_again(scheme: str) -> None:
    """Checks 225: it becomes 224, the half of 448, under scale 1, and then 448 under scale 2."""
    options = {"force_pow_2_scales": True} if takes(scheme, {"force_pow_2_scales": True}) else {}
    once = nf.quantize(np.full((2, 32), 225, np.float32), scheme, **options)
    twice = nf.quantize(once.dequantize(), scheme, **options)
    assert (once.dequantize() == 224).all() and same(once.dequantize(), twice.dequantize())
    assert (codes(twice) == codes(once) + 8).all()


def test_plain_scales_may_move_when_quantized_again() -> None:
    once = nf.quantize(np.full((1, 32), 1.1748046875, np.float32), "fp8_e4m3")
    twice = nf.quantize(once.dequantize(), "fp8_e4m3")
    assert same(codes(once), codes(twice))
    assert once.buffers["scale"] != twice.buffers["scale"]


def test_blocks_that_vanish_change_their_codes() -> None:
    x = np.full((2, 16), 1e-6, np.float32)
    x[0, 0] = 1000
    once = nf.quantize(x, "nvfp4")
    assert (codes(once)[1] == 7).all() and (once.dequantize()[1] == 0).all()
    assert (codes(nf.quantize(once.dequantize(), "nvfp4"))[1] == 0).all()


def test_chance_keeps_no_order() -> None:
    x = np.full((1, 256), 0.25, np.float32)
    x[0, ::16] = 6
    values = nf.quantize(x, "nvfp4", stochastic_rounding=True, amax=2688.0).dequantize()
    assert set(np.unique(values[x < 1])) == {0.0, 0.5}
