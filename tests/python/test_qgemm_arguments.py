# SPDX-License-Identifier: Apache-2.0
"""Tests the operands and outputs of qgemm, and its errors."""

import re
from dataclasses import dataclass

import numpy as np
import pytest
from golden import assert_same

import narrowfloat as nf

M, N, K = 4, 6, 32


@dataclass(frozen=True)
class Ones:
    """An operand that the test makes, because pytest keeps parameters until the process ends."""

    scheme: str
    rows: int
    cols: int
    columnwise: bool = False

    def make(self) -> nf.QuantizedTensor:
        x = np.ones((self.rows, self.cols), np.float32)
        return nf.quantize(x, self.scheme, rowwise=not self.columnwise, columnwise=self.columnwise)


@pytest.fixture
def a() -> nf.QuantizedTensor:
    x = np.random.default_rng(1).standard_normal((M, K)).astype(np.float32)
    return nf.quantize(x, "mxfp8_e4m3")


@pytest.fixture
def b() -> nf.QuantizedTensor:
    x = np.random.default_rng(2).standard_normal((N, K)).astype(np.float32)
    return nf.quantize(x, "mxfp8_e4m3")


def raises(error: type, message: str) -> pytest.RaisesExc:
    return pytest.raises(error, match=f"^qgemm: {re.escape(message)}$")


def test_out_is_filled_and_returned(a: nf.QuantizedTensor, b: nf.QuantizedTensor) -> None:
    out = np.full((M, N), np.nan, np.float32)
    assert nf.qgemm(a, b, out=out) is out
    assert_same(out, nf.qgemm(a, b), "out")


def test_operands_are_read_only_and_the_bias_may_be_strided(
    a: nf.QuantizedTensor, b: nf.QuantizedTensor
) -> None:
    frozen = {key: value.copy() for key, value in a.buffers.items()}
    for value in frozen.values():
        value.flags.writeable = False
    read_only = nf.from_buffers("mxfp8_e4m3", (M, K), frozen)
    bias = np.arange(2 * N, dtype=np.float32)[::-2]
    assert_same(nf.qgemm(read_only, b, bias=bias), nf.qgemm(a, b) + bias, "strided bias")


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"a": np.ones((2, 2))}, TypeError, "a must be a QuantizedTensor, got ndarray"),
        ({"b": None}, TypeError, "b must be a QuantizedTensor, got NoneType"),
        ({"layout": "TT"}, ValueError, "layout must be 'TN', 'NN' or 'NT', got 'TT'"),
        (
            {"dtype": np.int8},
            TypeError,
            "dtype must be float32, float16 or bfloat16, got <class 'numpy.int8'>",
        ),
        ({"threads": 0}, ValueError, "threads must be from 1 to 2147483647, got 0"),
        ({"alpha": 2.0}, TypeError, "unknown option 'alpha'; there are: threads"),
        (
            {"accumulate": True},
            ValueError,
            "accumulate=True needs out, got None",
        ),
        (
            {"layout": "NN"},
            ValueError,
            "layout NN needs as many columns of a as rows of b, got a of shape 4x32 and b of shape "
            "6x32",
        ),
        (
            {"b": Ones("mxfp8_e4m3", 6, 31)},
            ValueError,
            "layout TN needs as many columns of a as columns of b, got a of shape 4x32 and b of "
            "shape 6x31",
        ),
        (
            {"b": Ones("mxfp8_e4m3", 32, 6), "layout": "NN"},
            ValueError,
            "layout NN reads columnwise_data of b, which is missing",
        ),
        (
            {"a": Ones("mxfp8_e5m2", 4, 32, columnwise=True)},
            ValueError,
            "layout TN reads rowwise_data of a, which is missing",
        ),
        (
            {"b": Ones("fp8_e4m3", 6, 32)},
            ValueError,
            "a and b must have elements of one width and scales of one type over blocks of one "
            "length, got mxfp8_e4m3 and fp8_e4m3",
        ),
        (
            {"bias": np.ones(4, np.float32)},
            ValueError,
            "bias must have one item for each column of the result, shape 6, got shape 4",
        ),
        (
            {"bias": np.ones((1, 6), np.float32)},
            ValueError,
            "bias must have one item for each column of the result, shape 6, got shape 1x6",
        ),
        (
            {"bias": np.ones(6)},
            TypeError,
            "bias must be float32, float16 or bfloat16 in native byte order, got float64",
        ),
        (
            {"out": np.ones((6, 4), np.float32)},
            ValueError,
            "out must have shape 4x6, got 6x4",
        ),
        (
            {"out": np.ones((4, 6), np.float16)},
            ValueError,
            "out must be float32, got float16",
        ),
    ],
)
def test_wrong_arguments(
    a: nf.QuantizedTensor,
    b: nf.QuantizedTensor,
    changed: dict[str, object],
    error: type,
    message: str,
) -> None:
    out = np.full((M, N), 7, np.float32)
    made = {key: x.make() if isinstance(x, Ones) else x for key, x in changed.items()}
    arguments = {"a": a, "b": b, "out": out, **made}
    if "accumulate" in changed:
        del arguments["out"]
    with raises(error, message):
        nf.qgemm(arguments.pop("a"), arguments.pop("b"), **arguments)
    assert (out == 7).all()


def test_out_must_not_be_what_is_read() -> None:
    memory = np.zeros(4096, np.uint8)
    data, scale_inv = memory[:128].reshape(4, 32), memory[512:1024].reshape(128, 4)
    a = nf.from_buffers(
        "mxfp8_e4m3", (4, 32), {"rowwise_data": data, "rowwise_scale_inv": scale_inv}
    )
    b = Ones("mxfp8_e4m3", 4, 32).make()
    for name, begin in [("rowwise_data", 124), ("rowwise_scale_inv", 1020)]:
        out = memory[begin : begin + 64].view(np.float32).reshape(4, 4)
        for operand, pair in [("a", (a, b)), ("b", (b, a))]:
            with raises(ValueError, f"out must not overlap {name} of {operand}"):
                nf.qgemm(*pair, out=out)
    out = memory[2048:2112].view(np.float32).reshape(4, 4)
    with raises(ValueError, "out must not overlap bias"):
        nf.qgemm(a, b, out=out, bias=out[0])
    assert not memory.any()
    nf.qgemm(a, b, out=out)
