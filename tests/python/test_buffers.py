# SPDX-License-Identifier: Apache-2.0
"""Tests QuantizedTensor: its buffers, from_buffers, swizzling."""

import re
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import narrowfloat as nf

X = np.random.default_rng(3).standard_normal((2, 33, 65)).astype(np.float32)
Q = nf.quantize(X, "mxfp8_e4m3", columnwise=True)


def test_keys_shapes_and_types_per_tensor() -> None:
    q = nf.quantize(X, "fp8_e4m3", columnwise=True)
    described = {key: (value.shape, value.dtype.name) for key, value in q.buffers.items()}
    assert described == {
        "rowwise_data": ((2, 33, 65), "uint8"),
        "rowwise_scale_inv": ((1,), "float32"),
        "columnwise_data": ((65, 2, 33), "uint8"),
        "columnwise_scale_inv": ((1,), "float32"),
        "scale": ((1,), "float32"),
        "amax_rowwise": ((1,), "float32"),
    }
    assert q.buffers["columnwise_scale_inv"] is q.buffers["rowwise_scale_inv"]
    columnwise = nf.quantize(X, "fp8_e4m3", rowwise=False, columnwise=True)
    assert set(columnwise.buffers) == {
        "columnwise_data",
        "columnwise_scale_inv",
        "scale",
        "amax_rowwise",
    }
    np.testing.assert_array_equal(columnwise.dequantize(), q.dequantize())


def test_keys_shapes_and_types_mx() -> None:
    described = {key: (value.shape, value.dtype.name) for key, value in Q.buffers.items()}
    assert described == {
        "rowwise_data": ((2, 33, 65), "uint8"),
        "rowwise_scale_inv": ((128, 4), "uint8"),
        "columnwise_data": ((2, 33, 65), "uint8"),
        "columnwise_scale_inv": ((4, 128), "uint8"),
    }
    assert all(value.flags.c_contiguous and value.flags.writeable for value in Q.buffers.values())


def test_buffers_are_live_views() -> None:
    q = nf.quantize(X, "fp8_e4m3", scale=1.0)
    q.buffers["rowwise_data"][...] = 0
    assert not q.dequantize().any()
    q.buffers.clear()
    assert "rowwise_data" in q.buffers


def test_buffers_outlive_the_tensor() -> None:
    data = nf.quantize(np.ones((2048, 2048), np.float32), "fp8_e4m3", scale=1.0).buffers[
        "rowwise_data"
    ]
    assert (data == np.array(1, ml_dtypes.float8_e4m3fn).view(np.uint8)).all()


def test_large_buffers_begin_on_a_huge_page() -> None:
    q = nf.quantize(np.zeros((2048, 2048), np.float32), "mxfp8_e4m3")
    assert q.buffers["rowwise_data"].ctypes.data % (2 << 20) == 0
    assert q.dequantize().ctypes.data % (2 << 20) == 0


def test_from_buffers_borrows() -> None:
    q = nf.from_buffers("mxfp8_e4m3", X.shape, Q.buffers, ml_dtypes.bfloat16)
    assert q.spec == Q.spec and q.shape == X.shape and q.dtype == ml_dtypes.bfloat16
    assert all(q.buffers[key] is value for key, value in Q.buffers.items())
    np.testing.assert_array_equal(q.dequantize(np.float32), Q.dequantize())
    copied = {key: value.copy() for key, value in Q.buffers.items()}
    assert nf.from_buffers("mxfp8_e4m3", list(X.shape), copied, "float16").dtype == np.float16
    target = nf.from_buffers("mxfp8_e4m3", X.shape, copied)
    nf.quantize(2 * X, "mxfp8_e4m3", columnwise=True, out=target)
    np.testing.assert_array_equal(
        copied["rowwise_data"], nf.quantize(2 * X, "mxfp8_e4m3").buffers["rowwise_data"]
    )


@pytest.mark.parametrize("scheme", nf.schemes())
@pytest.mark.parametrize("direction", ["rowwise", "columnwise"])
def test_one_direction_is_enough_to_dequantize(scheme: str, direction: str) -> None:
    x = X[..., :64]
    q = nf.quantize(x, scheme, direction == "rowwise", direction == "columnwise")
    names = [f"{direction}_data", f"{direction}_scale_inv"]
    if "scale" not in q.buffers and f"amax_{direction}" in q.buffers:
        names.append(f"amax_{direction}")  # NVFP4's scales depend on it
    partial = {key: q.buffers[key] for key in names}
    for value in partial.values():
        value.flags.writeable = False
    again = nf.from_buffers(scheme, x.shape, partial)
    np.testing.assert_array_equal(again.dequantize(), q.dequantize())


def test_a_partial_tensor_is_no_output() -> None:
    whole = nf.quantize(X, "fp8_e4m3").buffers
    partial = {key: whole[key] for key in ("rowwise_data", "rowwise_scale_inv")}
    q = nf.from_buffers("fp8_e4m3", X.shape, partial)
    with pytest.raises(ValueError, match=r"^quantize: scale is missing$"):
        nf.quantize(X, "fp8_e4m3", out=q)


def test_copies_of_a_shared_scale_are_taken() -> None:
    q = nf.quantize(X, "fp8_e4m3", columnwise=True)
    copied = {key: value.copy() for key, value in q.buffers.items()}
    again = nf.from_buffers("fp8_e4m3", X.shape, copied)
    nf.quantize(4 * X, "fp8_e4m3", columnwise=True, out=again)
    assert copied["columnwise_scale_inv"] == copied["rowwise_scale_inv"]
    without = {key: value for key, value in copied.items() if key != "columnwise_scale_inv"}
    shared = nf.from_buffers("fp8_e4m3", X.shape, without)
    assert shared.buffers["columnwise_scale_inv"] is copied["rowwise_scale_inv"]


def test_protocols_instead_of_arrays() -> None:
    one = nf.quantize(np.ones(4, np.float32), "fp8_e4m3", scale=2.0)
    data = bytes(one.buffers["rowwise_data"])
    scale_inv = memoryview(one.buffers["rowwise_scale_inv"])
    q = nf.from_buffers("fp8_e4m3", 4, {"rowwise_data": data, "rowwise_scale_inv": scale_inv})
    np.testing.assert_array_equal(q.dequantize(), np.ones(4))


def changed(**changes: object) -> Callable[[], object]:
    return lambda: nf.from_buffers("mxfp8_e4m3", X.shape, {**Q.buffers, **changes})


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            changed(data=X),
            ValueError,
            "from_buffers: unknown buffer 'data'; there are: rowwise_data, rowwise_scale_inv, "
            "columnwise_data, columnwise_scale_inv, scale, amax_rowwise, amax_columnwise",
        ),
        (
            changed(scale=np.ones(1, np.float32)),
            ValueError,
            "from_buffers: buffers must be those of mxfp8_e4m3, got scale",
        ),
        (
            changed(rowwise_data=np.zeros(X.shape, np.float32)),
            TypeError,
            "from_buffers: rowwise_data must be uint8, got float32",
        ),
        (
            changed(rowwise_data=np.zeros(X.shape, np.int8)),
            TypeError,
            "from_buffers: rowwise_data must be uint8 or float32 in native byte order, got int8",
        ),
        (
            changed(rowwise_data=[1]),
            TypeError,
            "from_buffers: rowwise_data must be a NumPy array or a CPU object with the buffer or "
            "DLPack protocol, got list",
        ),
        (
            changed(rowwise_scale_inv=np.zeros((66, 3), np.uint8)),
            ValueError,
            "from_buffers: rowwise_scale_inv must have shape 128x4, got 66x3",
        ),
        (
            changed(rowwise_data=np.zeros((2, 33, 130), np.uint8)[..., ::2]),
            ValueError,
            "from_buffers: rowwise_data must be C-contiguous",
        ),
        (
            lambda: nf.from_buffers("fp8_e4m3", 4, {"rowwise_data": np.zeros(4, np.uint8)}),
            ValueError,
            "from_buffers: rowwise_data needs rowwise_scale_inv, which is missing",
        ),
        (
            lambda: nf.from_buffers("fp8_e4m3", 4, [np.zeros(4, np.uint8)]),
            TypeError,
            "from_buffers: buffers must be a mapping of names to arrays, got list",
        ),
        (
            lambda: nf.from_buffers("fp8_e4m3", (2.5,), {}),
            TypeError,
            "from_buffers: shape must be an int or a sequence of ints, got (2.5,)",
        ),
        (
            lambda: nf.from_buffers("fp8_e4m3", 4, {}, np.int8),
            TypeError,
            "from_buffers: dtype must be float32, float16 or bfloat16, got <class 'numpy.int8'>",
        ),
    ],
)
def test_wrong_buffers(call: Callable[[], object], error: type, message: str) -> None:
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        call()


@pytest.mark.parametrize("scheme", [name for name in nf.schemes() if name.startswith("mxfp8")])
def test_swizzle_and_back(scheme: str) -> None:
    q = nf.quantize(X, scheme, columnwise=True)
    swizzled = nf.swizzle(q)
    assert swizzled.spec == q.spec + ",swizzled=1"
    direct = nf.quantize(X, scheme, columnwise=True, swizzled=True)
    for key, value in direct.buffers.items():
        np.testing.assert_array_equal(swizzled.buffers[key], value)
        assert not np.shares_memory(swizzled.buffers[key], q.buffers[key])
    back = nf.unswizzle(swizzled)
    assert back.spec == q.spec
    for key, value in q.buffers.items():
        np.testing.assert_array_equal(back.buffers[key], value)
    np.testing.assert_array_equal(swizzled.dequantize(), q.dequantize())


def test_what_cannot_be_swizzled() -> None:
    message = r"^swizzle: the scheme must have swizzled scales, got fp8_e4m3$"
    with pytest.raises(ValueError, match=message):
        nf.swizzle(nf.quantize(X, "fp8_e4m3"))
    with pytest.raises(
        ValueError, match=r"^unswizzle: the scales must be swizzled, got compact ones$"
    ):
        nf.unswizzle(Q)
    with pytest.raises(
        ValueError, match=r"^swizzle: the scales must be compact, got swizzled ones$"
    ):
        nf.swizzle(nf.swizzle(Q))
    with pytest.raises(TypeError, match=r"^swizzle: q must be a QuantizedTensor, got ndarray$"):
        nf.swizzle(X)


def test_tensors_that_were_not_constructed(tmp_path: Path) -> None:
    empty = nf.QuantizedTensor.__new__(nf.QuantizedTensor)
    message = "is a QuantizedTensor whose __init__ did not run"
    for call in (nf.dequantize, nf.swizzle, nf.unswizzle):
        with pytest.raises(TypeError, match=f"^{call.__name__}: q {message}$"):
            call(empty)
    for a, b, name in ((empty, Q, "a"), (Q, empty, "b")):
        with pytest.raises(TypeError, match=f"^qgemm: {name} {message}$"):
            nf.qgemm(a, b)
    with pytest.raises(TypeError, match=f"^quantize: out {message}$"):
        nf.quantize(X, "mxfp8_e4m3", out=empty)
    for convention in ("narrowfloat", "modelopt"):
        with pytest.raises(TypeError, match=f"^save: w {message}$"):
            nf.save(tmp_path / "x.safetensors", {"w": empty}, convention=convention)


@pytest.mark.parametrize("shape", [(0,), (0, 32), (32, 0), (3, 0, 64)])
@pytest.mark.parametrize("scheme", nf.schemes())
def test_empty_tensors(scheme: str, shape: tuple[int, ...]) -> None:
    q = nf.quantize(np.zeros(shape, np.float32), scheme, columnwise=True)
    assert q.dequantize().shape == shape
    packed = "fp4" in scheme
    assert q.buffers["rowwise_data"].shape == (*shape[:-1], shape[-1] // (2 if packed else 1))
    if "scale" in q.buffers:
        assert q.buffers["amax_rowwise"] == 0 and q.buffers["scale"] == 1
        assert q.buffers["rowwise_scale_inv"] == 1
