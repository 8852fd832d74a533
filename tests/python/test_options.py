# SPDX-License-Identifier: Apache-2.0
"""Tests the effect of each option, and the messages about options that are not supported."""

import re
from fractions import Fraction

import numpy as np
import pytest

import narrowfloat as nf

X = np.random.default_rng(7).standard_normal((40, 72)).astype(np.float32)


def raises(error: type, message: str) -> pytest.RaisesExc:
    return pytest.raises(error, match=f"^{re.escape(message)}$")


def bytes_of(q: nf.QuantizedTensor) -> dict[str, bytes]:
    return {key: value.tobytes() for key, value in q.buffers.items()}


def test_schemes_and_backends() -> None:
    assert "mxfp8_e4m3" in nf.schemes() and "fp8_e5m2" in nf.schemes()
    assert nf.backends()[-1] == "scalar"
    assert re.fullmatch(r"\d+\.\d+\.\d+", nf.__version__)


def test_unknown_scheme_names_those_there_are() -> None:
    message = (
        f"unknown scheme 'mxfp8' (did you mean 'mxfp8_e4m3'?); there are: {', '.join(nf.schemes())}"
    )
    for call in (
        lambda: nf.quantize(X, "mxfp8"),
        lambda: nf.fake_quantize(X, "mxfp8"),
        lambda: nf.from_buffers("mxfp8", X.shape, {}),
    ):
        with raises(ValueError, message):
            call()


@pytest.mark.parametrize("option", ["hadamard", "Scale", "", "nonsense"])
def test_unknown_options_are_type_errors(option: str) -> None:
    known = (
        "amax, amax_columnwise, amax_epsilon, e4m3_max, force_pow_2_scales, four_over_six, "
        "four_over_six_fast_error, noop, offset, rht, rht_sign_mask, row_scaled, scale, seed, "
        "stochastic_rounding, swizzled, threads"
    )
    for value in (None, False, 1.0, "text"):
        with raises(TypeError, f"quantize: unknown option '{option}'; there are: {known}"):
            nf.quantize(X, "fp8_e4m3", **{option: value})
    reading = known.replace("noop, ", "").replace(", threads", "")
    with raises(TypeError, f"from_buffers: unknown option '{option}'; there are: {reading}"):
        nf.from_buffers("fp8_e4m3", (1,), nf.quantize(X[0, :1], "fp8_e4m3").buffers, **{option: 1})
    with raises(TypeError, f"dequantize: unknown option '{option}'; there are: threads"):
        nf.dequantize(nf.quantize(X, "fp8_e4m3"), **{option: 1})


def test_fake_quantize_is_rowwise() -> None:
    with pytest.raises(
        TypeError, match=r"^fake_quantize: unknown option 'columnwise'; there are: "
    ):
        nf.fake_quantize(X, "fp8_e4m3", columnwise=True)


def test_options_that_a_scheme_does_not_take_are_value_errors() -> None:
    with raises(
        ValueError,
        "quantize: mxfp8_e4m3 does not take the option 'scale'; it takes: columnwise, rowwise, "
        "swizzled",
    ):
        nf.quantize(X, "mxfp8_e4m3", scale=1.0)
    taken = "amax, amax_epsilon, columnwise, force_pow_2_scales, rowwise, scale"
    with raises(
        ValueError, f"quantize: fp8_e4m3 does not take the option 'swizzled'; it takes: {taken}"
    ):
        nf.quantize(X, "fp8_e4m3", swizzled=True)
    assert nf.quantize(X, "fp8_e4m3", swizzled=False).spec == "fp8_e4m3"


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"scale": "2"},
            TypeError,
            "scale must be a number, a bool or a float32 array of one element, got str",
        ),
        (
            {"amax": [1.0]},
            TypeError,
            "amax must be a number, a bool or a float32 array of one element, got list",
        ),
        (
            {"scale": np.ones(2, np.float32)},
            TypeError,
            "scale must be a float or a float32 array of one element, got float32 of shape 2",
        ),
        (
            {"scale": np.ones(1)},
            TypeError,
            "scale must be float32 in native byte order, got float64",
        ),
        ({"threads": "2"}, TypeError, "threads must be an int or None, got str"),
        ({"threads": 2.0}, TypeError, "threads must be an int or None, got float"),
        ({"threads": True}, TypeError, "threads must be an int or None, got bool"),
        ({"threads": 0}, ValueError, "threads must be from 1 to 2147483647, got 0"),
        ({"threads": -1}, ValueError, "threads must be from 1 to 2147483647, got -1"),
        ({"threads": 1 << 70}, ValueError, f"threads must be from 1 to 2147483647, got {1 << 70}"),
        (
            {"amax_epsilon": -1.0},
            ValueError,
            "amax_epsilon must be finite and not negative, got -1",
        ),
        ({"rowwise": False}, ValueError, "fp8_e4m3 needs rowwise, columnwise or both, got neither"),
    ],
)
def test_wrong_values(options: dict[str, object], error: type, message: str) -> None:
    with raises(error, f"quantize: {message}"):
        nf.quantize(X, "fp8_e4m3", **options)


@pytest.mark.parametrize("value", [0.0, -2.0, 3.0, np.inf, -np.inf, np.nan, 1e-45, 1e300, 2])
@pytest.mark.parametrize("option", ["scale", "amax"])
def test_every_value_of_scale_and_amax_is_taken(option: str, value: float) -> None:
    with np.errstate(over="ignore"):
        item = np.array([value], np.float32)
    forms = [value, item, item.reshape(()), item.reshape(1, 1), np.float64(value)]
    made = [nf.quantize(X, "fp8_e4m3", **{option: form}) for form in forms]
    stored = made[0].buffers["scale" if option == "scale" else "amax_rowwise"]
    np.testing.assert_array_equal(stored, item)
    assert all(bytes_of(q) == bytes_of(made[0]) for q in made)


@pytest.mark.parametrize("sign", [1, -1])
def test_an_int_that_no_float_holds_is_infinite(sign: int) -> None:
    for value in (10**40, 10**400):
        q = nf.quantize(X, "fp8_e4m3", amax=sign * value)
        assert bytes_of(q) == bytes_of(nf.quantize(X, "fp8_e4m3", amax=sign * np.inf))


@pytest.mark.parametrize("seed", [2**24 + 1, 2**40, 2**63 - 1, 2**64 - 1])
def test_seeds_of_numpy_are_integers(seed: int) -> None:
    types = [int, np.uint64, lambda value: np.array(value, np.uint64)]
    types += [np.int64] * (seed < 2**63)
    made = [
        nf.quantize(X, "nvfp4", stochastic_rounding=True, seed=as_type(seed), offset=as_type(seed))
        for as_type in types
    ]
    assert {q.spec for q in made} == {f"nvfp4:offset={seed},seed={seed},stochastic_rounding=1"}
    assert all(bytes_of(q) == bytes_of(made[0]) for q in made)


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (3.0, TypeError, "must be an int, got 3.0 of type float"),
        (2.0**53, TypeError, "must be an int, got 9007199254740992.0 of type float"),
        (
            np.float32(16777217),
            TypeError,
            f"must be an int, got {np.float32(16777216)!r} of type float32",
        ),
        (np.ones(1), TypeError, "must be an int, got array([1.]) of type ndarray"),
        ("3", TypeError, "must be an int, got '3' of type str"),
        (True, TypeError, "must be an int, got True of type bool"),
        (2**64, ValueError, f"must be an integer from 0 to 2^64 - 1, got {2**64}"),
        (np.int64(-1), ValueError, "must be an integer from 0 to 2^64 - 1, got -1"),
    ],
)
@pytest.mark.parametrize("option", ["seed", "offset", "rht_sign_mask"])
def test_integers_are_ints(option: str, value: object, error: type, message: str) -> None:
    with raises(error, f"quantize: {option} {message}"):
        nf.quantize(X, "nvfp4", **{option: value})


def test_directions_are_bools_of_numpy_too() -> None:
    q = nf.quantize(X, "mxfp8_e4m3", rowwise=np.False_, columnwise=np.True_)
    assert q.spec == "mxfp8_e4m3:columnwise=1,rowwise=0"
    with pytest.raises(TypeError, match="incompatible function arguments"):
        nf.quantize(X, "mxfp8_e4m3", columnwise=1)


def test_none_means_not_given() -> None:
    q = nf.quantize(X, "fp8_e4m3", scale=None, amax=None, noop=None, threads=None)
    assert q.spec == "fp8_e4m3"
    assert bytes_of(q) == bytes_of(nf.quantize(X, "fp8_e4m3"))


def test_a_given_amax_stands_in_for_the_measured_one() -> None:
    q = nf.quantize(X, "fp8_e4m3", amax=7.0)
    assert q.buffers["amax_rowwise"] == 7
    assert q.buffers["scale"] == np.float32(Fraction(448, 7))
    np.testing.assert_array_equal(
        q.buffers["rowwise_data"],
        nf.quantize(X, "fp8_e4m3", scale=float(q.buffers["scale"][0])).buffers["rowwise_data"],
    )


def test_spec_text() -> None:
    assert nf.quantize(X, "fp8_e4m3").spec == "fp8_e4m3"
    q = nf.quantize(X, "fp8_e5m2", False, True, force_pow_2_scales=np.True_, amax_epsilon=0.5)
    assert q.spec == "fp8_e5m2:amax_epsilon=0.5,columnwise=1,force_pow_2_scales=1,rowwise=0"
    assert q.scheme == "fp8_e5m2"
    assert repr(q) == f"QuantizedTensor(spec='{q.spec}', shape=(40, 72), dtype=float32)"


@pytest.mark.parametrize("noop", [1, 1.0, True, np.float32(1), np.ones(1, np.float32)])
@pytest.mark.parametrize("scheme", nf.schemes())
def test_noop_writes_nothing(scheme: str, noop: object) -> None:
    fresh = nf.quantize(X, scheme, columnwise=True, noop=noop)
    assert not any(value.any() for value in fresh.buffers.values())
    assert not nf.fake_quantize(X, scheme, noop=noop).any()
    out = nf.quantize(X, scheme, columnwise=True)
    before = bytes_of(out)
    assert nf.quantize(-2 * X, scheme, columnwise=True, out=out, noop=noop) is out
    assert bytes_of(out) == before
    array = np.full(X.shape, 3, np.float32)
    assert nf.fake_quantize(X, scheme, out=array, noop=noop) is array
    assert (array == 3).all()
    q, dbias = nf.quantize_dbias(X, scheme, noop=noop)
    assert not dbias.any() and not q.buffers["rowwise_data"].any()


@pytest.mark.parametrize("noop", [0, 2.0, False, None, np.nan, np.zeros(1, np.float32)])
def test_other_values_of_noop_change_nothing(noop: object) -> None:
    expected = bytes_of(nf.quantize(X, "mxfp8_e4m3"))
    assert bytes_of(nf.quantize(X, "mxfp8_e4m3", noop=noop)) == expected


def test_out_takes_the_spec_of_the_call() -> None:
    out = nf.quantize(X, "fp8_e4m3", scale=2.0)
    nf.quantize(X, "fp8_e4m3", scale=4.0, out=out)
    assert out.spec == "fp8_e4m3:scale=4"
    assert bytes_of(out) == bytes_of(nf.quantize(X, "fp8_e4m3", scale=4.0))
    nf.quantize(X, "fp8_e4m3", scale=8.0, out=out, noop=1)
    assert out.spec == "fp8_e4m3:scale=4"


def test_dbias_into_given_buffers() -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    q, dbias = nf.quantize_dbias(x, "mxfp8_e4m3")
    np.testing.assert_array_equal(dbias, x.sum(axis=0))
    out = (nf.quantize(0 * x, "mxfp8_e4m3"), np.empty(4, np.float32))
    again = nf.quantize_dbias(x, "mxfp8_e4m3", out=out)
    assert again[0] is out[0] and again[1] is out[1]
    assert bytes_of(out[0]) == bytes_of(q)
    np.testing.assert_array_equal(out[1], dbias)
    with raises(ValueError, "quantize_dbias: out must have shape 4, got 3"):
        nf.quantize_dbias(x, "mxfp8_e4m3", out=(out[0], np.empty(3, np.float32)))
    with raises(TypeError, "quantize_dbias: out must be a tuple (QuantizedTensor, array) or None"):
        nf.quantize_dbias(x, "mxfp8_e4m3", out=out[0])


def test_dtype_of_dequantize() -> None:
    q = nf.quantize(X.astype(np.float16), "mxfp8_e4m3")
    assert q.dequantize().dtype == np.float16
    assert q.dequantize("float32").dtype == np.float32
    assert nf.dequantize(q, "bfloat16").dtype.name == "bfloat16"
    with raises(TypeError, "dequantize: dtype must be float32, float16 or bfloat16, got 'float64'"):
        q.dequantize("float64")
    with raises(TypeError, "dequantize: dtype must be float32, float16 or bfloat16, got 'no type'"):
        q.dequantize("no type")
    with raises(TypeError, "dequantize: q must be a QuantizedTensor, got ndarray"):
        nf.dequantize(X)
