# SPDX-License-Identifier: Apache-2.0
"""Compares all 16-bit inputs and all codes with ml_dtypes, where its rules agree with ours."""

import ml_dtypes
import numpy as np
import pytest

import narrowfloat as nf

ELEMENTS = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}
ALL_16_BITS = np.arange(1 << 16, dtype=np.uint16).reshape(256, 256)
ALL_CODES = np.arange(256, dtype=np.uint8).reshape(1, 256)


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_every_16_bit_input_encodes_as_in_ml_dtypes(element: str, dtype: type) -> None:
    x = ALL_16_BITS.view(dtype)
    q = nf.quantize(x, f"fp8_{element}", scale=1.0)
    values = x.astype(np.float32)
    with np.errstate(all="ignore"):
        witness = x.astype(ELEMENTS[element]).view(np.uint8)
    # ml_dtypes does not saturate and keeps a NaN's sign; neither is compared.
    in_range = np.abs(values) <= float(ml_dtypes.finfo(ELEMENTS[element]).max)
    assert np.count_nonzero(in_range) > 30000
    np.testing.assert_array_equal(q.buffers["rowwise_data"][in_range], witness[in_range])


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_inputs_out_of_range_saturate_and_nan_is_one_code(element: str, dtype: type) -> None:
    x = ALL_16_BITS.view(dtype)
    codes = nf.quantize(x, f"fp8_{element}", scale=1.0).buffers["rowwise_data"]
    values = x.astype(np.float32)
    largest = ml_dtypes.finfo(ELEMENTS[element]).max
    largest_code = int(np.array(largest).view(np.uint8))
    above = values > float(largest)
    assert set(codes[above]) <= {largest_code}
    assert set(codes[values < -float(largest)]) <= {largest_code | 0x80}
    assert set(codes[np.isnan(values)]) == {0x7F}


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_every_code_decodes_as_in_ml_dtypes(element: str, dtype: type) -> None:
    buffers = {"rowwise_data": ALL_CODES, "rowwise_scale_inv": np.ones(1, np.float32)}
    q = nf.from_buffers(f"fp8_{element}", ALL_CODES.shape, buffers)
    with np.errstate(invalid="ignore"):
        witness = ALL_CODES.view(ELEMENTS[element]).astype(dtype)
        np.testing.assert_array_equal(
            q.dequantize(dtype).astype(np.float32), witness.astype(np.float32)
        )


def test_every_mx_scale_code_decodes_as_in_ml_dtypes() -> None:
    block = 32
    codes = np.full((256, block), np.array(1.0, ml_dtypes.float8_e4m3fn).view(np.uint8))
    made = nf.quantize(np.zeros(codes.shape, np.float32), "mxfp8_e4m3")
    scales = made.buffers["rowwise_scale_inv"]
    scales[: len(codes), 0] = np.arange(256)
    q = nf.from_buffers(
        "mxfp8_e4m3", codes.shape, {"rowwise_data": codes, "rowwise_scale_inv": scales}
    )
    witness = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
    np.testing.assert_array_equal(q.dequantize()[:, 0], witness)


@pytest.mark.parametrize("scheme", nf.schemes())
def test_reencoding_the_decoded_values_gives_the_codes_back(scheme: str) -> None:
    x = np.random.default_rng(11).standard_normal((64, 96)).astype(np.float32)
    q = nf.quantize(x, scheme)
    again = nf.quantize(q.dequantize(), scheme)
    np.testing.assert_array_equal(again.dequantize(), q.dequantize())
