# SPDX-License-Identifier: Apache-2.0
"""Tests above 2^31 elements, where a 32-bit index would turn negative."""

import ml_dtypes
import numpy as np
import pytest

import narrowfloat as nf


@pytest.mark.large
@pytest.mark.parametrize("scheme", ["fp8_e4m3", "mxfp8_e4m3"])
def test_more_than_2_to_the_31_elements(scheme: str) -> None:
    # One row, repeated by a stride of zero, so that only the codes take memory.
    row = np.random.default_rng(8).standard_normal(1 << 16).astype(ml_dtypes.bfloat16)
    rows = (1 << 15) + 3
    q = nf.quantize(np.broadcast_to(row, (rows, row.size)), scheme)
    data = q.buffers["rowwise_data"]
    assert data.size > 1 << 31
    expected = nf.quantize(row[None], scheme).buffers
    for i in (0, 1, rows // 2, rows - 3, rows - 2, rows - 1):
        np.testing.assert_array_equal(data[i], expected["rowwise_data"][0])
    blocks = row.size // 32
    if scheme.startswith("mxfp8"):
        scales = q.buffers["rowwise_scale_inv"]
        np.testing.assert_array_equal(scales[rows - 1], expected["rowwise_scale_inv"][0])
        assert scales.shape[1] == blocks and not scales[rows:].any()
    sums = np.bitwise_xor.reduce(data, axis=0)
    np.testing.assert_array_equal(sums, expected["rowwise_data"][0])  # the number of rows is odd


@pytest.mark.large
def test_one_row_of_more_than_2_to_the_31_elements() -> None:
    n = (1 << 31) + 64
    x = np.zeros(n, np.float16)  # its pages take no memory until they are written
    x[-64:] = 1.5
    data = nf.quantize(x, "fp8_e5m2").buffers["rowwise_data"]
    code = nf.quantize(x[-1:], "fp8_e5m2").buffers["rowwise_data"][0]
    assert (data[-64:] == code).all()
    assert not any(chunk.any() for chunk in np.split(data[:-64], 128))
