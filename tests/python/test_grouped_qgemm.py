# SPDX-License-Identifier: Apache-2.0
"""Compares products of groups with the bytes of each product alone."""

import ml_dtypes
import numpy as np
import pytest
from golden import assert_same

import narrowfloat as nf

RNG = np.random.default_rng(19)
SIZES = [33, 0, 64, 2]
N, K = 48, 96


def groups(scheme: str) -> tuple[list[nf.QuantizedTensor], list[nf.QuantizedTensor]]:
    """Returns groups of different numbers of rows, and a weight for each group."""
    x = RNG.standard_normal((sum(SIZES), K)).astype(np.float32)
    a = nf.grouped_quantize(x, SIZES, scheme)
    return a, [nf.quantize(RNG.standard_normal((N, K)).astype(np.float32), scheme) for _ in SIZES]


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("scheme", nf.schemes())
def test_groups_are_the_products_alone(scheme: str, threads: int) -> None:
    a, b = groups(scheme)
    bias = [RNG.standard_normal(N).astype(ml_dtypes.bfloat16) for _ in SIZES]
    got = nf.grouped_qgemm(a, b, bias=bias, dtype=ml_dtypes.bfloat16, threads=threads)
    assert len(got) == len(SIZES)
    for y, x, w, c in zip(got, a, b, bias, strict=True):
        assert_same(y, nf.qgemm(x, w, bias=c, dtype=ml_dtypes.bfloat16), scheme)


def test_results_are_added_to_what_is_there() -> None:
    a, b = groups("mxfp8_e4m3")
    out = [np.ones((size, N), np.float32) for size in SIZES]
    got = nf.grouped_qgemm(a, b, out=out, accumulate=True)
    for y, given, x, w in zip(got, out, a, b, strict=True):
        assert y is given
        assert_same(y, nf.qgemm(x, w, out=np.ones_like(y), accumulate=True), "accumulated")


def test_wrong_groups_are_named() -> None:
    a, b = groups("fp8_e4m3")
    other = nf.quantize(RNG.standard_normal((N, K)).astype(np.float32), "mxfp8_e4m3")
    with pytest.raises(ValueError, match=r"^grouped_qgemm: b must have one item for each of the 4"):
        nf.grouped_qgemm(a, b[:3])
    with pytest.raises(ValueError, match=r"^grouped_qgemm: group 3: a and b must have elements"):
        nf.grouped_qgemm(a, [*b[:3], other])
    with pytest.raises(ValueError, match=r"^grouped_qgemm: accumulate=True needs out, got None$"):
        nf.grouped_qgemm(a, b, accumulate=True)
    with pytest.raises(
        TypeError, match=r"^grouped_qgemm: a must be a sequence, one item for each group$"
    ):
        nf.grouped_qgemm(a[0], b)
    out = [np.zeros((size, N), np.float32) for size in SIZES]
    with pytest.raises(ValueError, match=r"^grouped_qgemm: out of group \d must not overlap out"):
        nf.grouped_qgemm([a[2], a[2]], b[:2], out=[out[2], out[2]])
    assert nf.grouped_qgemm([], []) == []
