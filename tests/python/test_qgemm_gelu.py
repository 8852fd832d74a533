# SPDX-License-Identifier: Apache-2.0
"""Tests GELU after a product, and the product times GELU's derivative."""

import ml_dtypes
import numpy as np
import pytest
from golden import assert_same

import narrowfloat as nf

M, N, K = 37, 70, 64  # no whole vectors


@pytest.fixture
def a() -> nf.QuantizedTensor:
    x = np.random.default_rng(1).standard_normal((M, K)).astype(np.float32)
    return nf.quantize(x, "mxfp8_e4m3")


@pytest.fixture
def b() -> nf.QuantizedTensor:
    x = np.random.default_rng(2).standard_normal((N, K)).astype(np.float32)
    return nf.quantize(x / 8, "mxfp8_e4m3")


def gelu_and_gradient(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns GELU and its derivative in float64, without cancellation where both are small."""
    x = x.astype(np.float64)
    slope = 2 * np.sqrt(2 / np.pi)
    v = slope * (x + 0.044715 * x**3)
    one, other = 1 / (1 + np.exp(-v)), 1 / (1 + np.exp(v))
    return x * one, one * (1 + x * other * slope * (1 + 3 * 0.044715 * x**2))


def test_gelu_and_its_gradient(a: nf.QuantizedTensor, b: nf.QuantizedTensor) -> None:
    bias = np.linspace(-4, 4, N, dtype=np.float32)
    total = nf.qgemm(a, b)
    gelu_in = np.empty((M, N), np.float32)
    y = nf.qgemm(a, b, bias=bias, gelu=True, gelu_in=gelu_in)
    assert_same(gelu_in, total + bias, "gelu_in")
    # Half a step of float32, and the difference of two computations in float64.
    want = gelu_and_gradient(gelu_in)[0]
    assert (np.abs(y - want) <= (2.0**-24 + 2.0**-46) * np.abs(want)).all()
    assert_same(nf.qgemm(a, b, bias=bias, gelu=True), y, "without gelu_in")
    dx = nf.qgemm(a, b, gelu=True, gelu_in=gelu_in, grad=True)
    want = total.astype(np.float64) * gelu_and_gradient(gelu_in)[1]
    assert (np.abs(dx - want) <= 2.0**-24 * np.abs(want) + 2.0**-48 * np.abs(total)).all()
    assert_same(gelu_in, total + bias, "gelu_in")


def test_narrow_results_are_the_rounded_ones(a: nf.QuantizedTensor, b: nf.QuantizedTensor) -> None:
    wide_in, wide = np.empty((M, N), np.float32), nf.qgemm(a, b, gelu=True)
    nf.qgemm(a, b, gelu=True, gelu_in=wide_in)
    for dtype in (np.float16, ml_dtypes.bfloat16):
        kept, out = np.empty((M, N), dtype), np.empty((M, N), dtype)
        y = nf.qgemm(a, b, dtype=dtype, out=out, gelu=True, gelu_in=kept, threads=2)
        assert y is out
        assert_same(y, wide.astype(dtype), "y")
        assert_same(kept, wide_in.astype(dtype), "gelu_in")


def test_what_is_refused(a: nf.QuantizedTensor, b: nf.QuantizedTensor) -> None:
    out, point = np.zeros((M, N), np.float32), np.zeros((M, N), np.float32)
    read_only = point.copy()
    read_only.flags.writeable = False
    for message, options in {
        "qgemm: grad=True needs gelu=True": {"grad": True},
        "qgemm: GELU's derivative needs gelu_in": {"gelu": True, "grad": True},
        "qgemm: gelu_in needs gelu": {"gelu_in": point},
        "qgemm: gelu_in must have shape 37x70, got 37x69": {
            "gelu": True,
            "gelu_in": np.zeros((M, N - 1), np.float32),
        },
        "qgemm: gelu_in must be float32, got float16": {
            "gelu": True,
            "gelu_in": np.zeros((M, N), np.float16),
        },
        "qgemm: gelu_in must be float32 of shape 37x70 as out is, got float16 of 37x70": {
            "gelu": True,
            "grad": True,
            "gelu_in": np.zeros((M, N), np.float16),
        },
        "qgemm: gelu_in must be writable": {"gelu": True, "gelu_in": read_only},
        "qgemm: out must not overlap gelu_in": {"gelu": True, "gelu_in": out},
    }.items():
        with pytest.raises(ValueError) as error:
            nf.qgemm(a, b, out=out, **options)
        assert str(error.value) == message
    assert not out.any() and not point.any()
    # An input need not be writable.
    nf.qgemm(a, b, gelu=True, grad=True, gelu_in=read_only)
