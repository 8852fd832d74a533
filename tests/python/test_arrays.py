# SPDX-License-Identifier: Apache-2.0
"""Tests arguments that are arrays: layouts, protocols, read-only memory, `out=`, and errors."""

import array
import ctypes
import multiprocessing
import re

import ml_dtypes
import numpy as np
import pytest
from dlpack_tensor import CUDA, DlpackTensor
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import narrowfloat as nf

FLOATS = [np.float32, np.float16, ml_dtypes.bfloat16]
SCHEMES = st.sampled_from(nf.schemes())


def same_buffers(a: nf.QuantizedTensor, b: nf.QuantizedTensor) -> bool:
    return a.buffers.keys() == b.buffers.keys() and all(
        a.buffers[key].tobytes() == b.buffers[key].tobytes() for key in a.buffers
    )


@st.composite
def layouts(draw: st.DrawFn) -> np.ndarray:
    """Draws views of any rank, order, stride and sign of stride over random bits."""
    shape = draw(st.lists(st.integers(0, 40), min_size=0, max_size=3).map(tuple))
    dtype = draw(st.sampled_from(FLOATS))
    steps = [draw(st.sampled_from([1, 2, -1, -3])) for _ in shape]
    base = tuple(abs(step) * n for step, n in zip(steps, shape, strict=True))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    bits = rng.integers(0, 256, (*base, np.dtype(dtype).itemsize), dtype=np.uint8)
    view = bits.view(dtype).reshape(base)
    view = view[(..., *(slice(None, None, step) for step in steps))]
    view = view.transpose(draw(st.permutations(range(len(shape)))))
    if draw(st.booleans()):
        view.flags.writeable = False
    return view


def assume_whole_bytes(x: np.ndarray, scheme: str, direction: str) -> None:
    """Assumes even lengths along blocks if the scheme packs two codes per byte."""
    rows, cols = x.size // (x.shape[-1] or 1) if x.ndim else 1, x.shape[-1] if x.ndim else 1
    odd = (direction != "columnwise" and cols % 2) or (direction != "rowwise" and rows % 2)
    assume(not ("fp4" in scheme and x.size and odd))


@settings(max_examples=150, deadline=None)
@given(layouts(), SCHEMES, st.sampled_from(["rowwise", "columnwise", "both"]), st.integers(1, 4))
def test_any_layout_gives_the_bytes_of_its_copy(
    x: np.ndarray, scheme: str, direction: str, threads: int
) -> None:
    assume_whole_bytes(x, scheme, direction)
    wanted = {"rowwise": direction != "columnwise", "columnwise": direction != "rowwise"}
    expected = nf.quantize(x.copy(order="C"), scheme, threads=1, **wanted)
    actual = nf.quantize(x, scheme, threads=threads, **wanted)
    assert same_buffers(actual, expected)
    assert actual.shape == x.shape
    assert actual.dtype == x.dtype
    out = nf.quantize(np.zeros(x.shape, x.dtype), scheme, **wanted)
    before = {key: value.ctypes.data for key, value in out.buffers.items()}
    assert nf.quantize(x, scheme, out=out, threads=threads, **wanted) is out
    assert same_buffers(out, expected)
    assert {key: value.ctypes.data for key, value in out.buffers.items()} == before


@settings(max_examples=60, deadline=None)
@given(layouts(), SCHEMES, st.sampled_from(FLOATS))
def test_dequantize_and_fake_quantize_agree(x: np.ndarray, scheme: str, dtype: type) -> None:
    assume_whole_bytes(x, scheme, "rowwise")
    q = nf.quantize(x, scheme)
    values = q.dequantize(dtype)
    assert values.shape == x.shape and values.dtype == dtype
    out = np.empty(x.shape, dtype)
    assert nf.dequantize(q, dtype, out=out, threads=3) is out
    assert out.tobytes() == values.tobytes()
    fake = nf.fake_quantize(x, scheme)
    assert fake.dtype == x.dtype
    assert fake.tobytes() == q.dequantize().tobytes()
    out = np.empty(x.shape, x.dtype)
    assert nf.fake_quantize(x, scheme, out=out) is out
    assert out.tobytes() == fake.tobytes()


def test_a_scalar_array_is_one_by_one() -> None:
    q = nf.quantize(np.array(3.0, np.float32), "mxfp8_e4m3", columnwise=True)
    one = nf.quantize(np.full((1, 1), 3.0, np.float32), "mxfp8_e4m3", columnwise=True)
    assert q.shape == ()
    assert q.dequantize().shape == () and q.dequantize() == 3
    assert same_buffers(q, one)
    for dtype in FLOATS:
        assert same_buffers(nf.quantize(dtype(3), "mxfp8_e4m3", columnwise=True), one)


def test_rows_of_contiguous_elements_are_not_copied() -> None:
    # A copy of the rows would allocate 64 MiB; tracemalloc sees NumPy's allocations.
    import tracemalloc

    x = np.broadcast_to(np.ones((1, 64), np.float32), (1 << 18, 64))
    out = nf.quantize(x, "mxfp8_e4m3")
    tracemalloc.start()
    nf.quantize(x, "mxfp8_e4m3", out=out)
    nf.quantize(x[::2], "fp8_e4m3", out=nf.quantize(x[::2], "fp8_e4m3"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def test_buffer_protocol() -> None:
    values = array.array("f", [1.0, -2.5, 448.0, 1e9])
    expected = nf.quantize(np.array(values, np.float32), "fp8_e4m3", scale=1.0)
    assert same_buffers(nf.quantize(values, "fp8_e4m3", scale=1.0), expected)
    view = memoryview(values).toreadonly()
    assert same_buffers(nf.quantize(view, "fp8_e4m3", scale=1.0), expected)
    assert same_buffers(nf.quantize(view[::-1][::-1], "fp8_e4m3", scale=1.0), expected)
    assert same_buffers(
        nf.quantize(view[::2], "fp8_e4m3", scale=1.0),
        nf.quantize(np.array(values, np.float32)[::2].copy(), "fp8_e4m3", scale=1.0),
    )


def test_ctypes_arrays_have_no_strides() -> None:
    values = np.arange(64, dtype=np.float32).reshape(2, 32) - 20
    rows = ((ctypes.c_float * 32) * 2).from_buffer_copy(values)
    expected = nf.quantize(values, "mxfp8_e4m3")
    assert same_buffers(nf.quantize(rows, "mxfp8_e4m3"), expected)
    shared = multiprocessing.RawArray("f", 64)
    nf.dequantize(nf.quantize(values.reshape(64), "mxfp8_e4m3"), out=shared)
    np.testing.assert_array_equal(np.array(shared), expected.dequantize().reshape(64))


class OnlyDlpack:
    """A CPU tensor of another framework that supports only DLPack."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def __dlpack__(self, **kwargs: object) -> object:
        return self._array.__dlpack__(**kwargs)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_dlpack(dtype: type) -> None:
    x = np.random.default_rng(1).standard_normal((33, 64)).astype(dtype)
    expected = nf.quantize(x, "mxfp8_e4m3", columnwise=True)
    assert same_buffers(nf.quantize(OnlyDlpack(x), "mxfp8_e4m3", columnwise=True), expected)
    transposed = nf.quantize(OnlyDlpack(x.T), "mxfp8_e4m3")
    assert same_buffers(transposed, nf.quantize(x.T.copy(), "mxfp8_e4m3"))
    x.flags.writeable = False
    assert same_buffers(nf.quantize(OnlyDlpack(x), "mxfp8_e4m3", columnwise=True), expected)
    out = np.empty_like(x)
    wrapped = OnlyDlpack(out)
    assert nf.dequantize(expected, out=wrapped) is wrapped
    assert out.tobytes() == expected.dequantize().tobytes()


@pytest.mark.parametrize("dtype", FLOATS)
def test_dlpack_by_hand(dtype: type) -> None:
    x = np.random.default_rng(6).standard_normal((33, 64)).astype(dtype)
    for view in (x, x[:, 16:48], x[::-2], x.T, x[0], x[3:3], np.array(2.5, dtype)):
        expected = nf.quantize(view.copy(), "mxfp8_e4m3", columnwise=True)
        actual = nf.quantize(DlpackTensor(view), "mxfp8_e4m3", columnwise=True)
        assert same_buffers(actual, expected)
        assert actual.dtype == dtype
    out = np.empty_like(x)
    nf.fake_quantize(DlpackTensor(x), "mxfp8_e4m3", out=DlpackTensor(out))
    assert out.tobytes() == nf.fake_quantize(x, "mxfp8_e4m3").tobytes()


def test_memory_of_another_device_is_not_read() -> None:
    with pytest.raises(TypeError, match=r"^quantize: x must be a NumPy array or a CPU object"):
        nf.quantize(DlpackTensor(np.ones((4, 4), np.float32), CUDA), "mxfp8_e4m3")


def test_torch_bfloat16_without_a_copy() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    x = torch.randn(33, 64, dtype=torch.bfloat16)
    bits = x.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    for tensor, array_ in ((x, bits), (x.T, bits.T)):
        assert same_buffers(
            nf.quantize(tensor, "mxfp8_e4m3", columnwise=True),
            nf.quantize(array_, "mxfp8_e4m3", columnwise=True),
        )


def test_the_negative_bit_of_torch_is_applied() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    x = torch.from_numpy(X)
    views = (torch.complex(x, x).conj().imag, torch._neg_view(x), torch._neg_view(x).T)
    for view in views:
        assert view.is_neg()
        values = view.resolve_neg().numpy()
        expected = nf.quantize(values, "mxfp8_e4m3", columnwise=True)
        assert same_buffers(nf.quantize(view, "mxfp8_e4m3", columnwise=True), expected)
        fake = nf.fake_quantize(view, "mxfp8_e4m3")
        assert fake.tobytes() == expected.dequantize().tobytes()
    two = torch._neg_view(torch.tensor([-2.0]))
    expected = nf.quantize(X, "fp8_e4m3", scale=2.0)
    assert same_buffers(nf.quantize(X, "fp8_e4m3", scale=two), expected)
    half = torch._neg_view(torch.tensor([-0.5]))
    made = nf.from_buffers(
        "fp8_e4m3", X.shape, {**expected.buffers, "rowwise_scale_inv": half}, scale=2.0
    )
    assert made.dequantize().tobytes() == expected.dequantize().tobytes()
    with pytest.raises(ValueError, match=r"^quantize: rowwise_scale_inv of out must be writable$"):
        nf.quantize(X, "fp8_e4m3", scale=2.0, out=made)
    out = torch._neg_view(torch.zeros(64, 64))
    with pytest.raises(ValueError, match=r"^dequantize: out must be writable$"):
        nf.dequantize(expected, out=out)
    assert not out.any()


NO_ARRAY = "x must be a NumPy array or a CPU object with the buffer or DLPack protocol, got {}"
NO_FLOAT = "x must be float32, float16 or bfloat16 in native byte order, got {}"
MASKED = "x must not be a masked array, whose mask would be ignored; pass its filled()"


@pytest.mark.parametrize(
    ("x", "message"),
    [
        ([1.0, 2.0], NO_ARRAY.format("list")),
        (None, NO_ARRAY.format("NoneType")),
        ("text", NO_ARRAY.format("str")),
        (1.0, NO_ARRAY.format("float")),
        (np.ones(4), NO_FLOAT.format("float64")),
        (np.ma.masked_less(np.ones((1, 32), np.float32), 2), MASKED),
        (np.ma.masked_array(np.ones((1, 32), np.float32)), MASKED),
        (np.ones(4, np.int32), NO_FLOAT.format("int32")),
        (np.ones(4, np.uint8), NO_FLOAT.format("uint8")),
        (np.ones(4, ">f4"), NO_FLOAT.format(">f4")),
        (np.ones(4, object), NO_FLOAT.format("object")),
        (np.ones(4, ml_dtypes.float8_e4m3fn), NO_FLOAT.format("float8_e4m3fn")),
        (b"bytes", NO_FLOAT.format("uint8")),
        (array.array("d", [1.0]), NO_FLOAT.format("items of format 'd'")),
        (
            OnlyDlpack(np.ones(4, np.int64)),
            NO_FLOAT.format("items of DLPack type 0 with 64 bits"),
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_other_inputs_are_type_errors(x: object, message: str) -> None:
    for call in (nf.quantize, nf.fake_quantize, nf.quantize_dbias):
        with pytest.raises(TypeError) as raised:
            call(x, "fp8_e4m3")
        assert str(raised.value) == f"{call.__name__}: {message}"


X = np.random.default_rng(5).standard_normal((64, 64)).astype(np.float32)


def tensor(**changes: np.ndarray) -> nf.QuantizedTensor:
    made = nf.quantize(X, "mxfp8_e4m3").buffers
    return nf.from_buffers("mxfp8_e4m3", X.shape, {**made, **changes})


def test_out_of_another_plan_is_refused_before_a_byte_is_written() -> None:
    frozen = np.zeros(X.shape, np.uint8)
    read_only = frozen.view()
    read_only.flags.writeable = False
    inside = X.view(np.uint8).reshape(-1)[: X.size].reshape(X.shape)
    cases = [
        (
            nf.quantize(X, "mxfp8_e5m2"),
            "quantize: out must be of the plan mxfp8_e4m3, got mxfp8_e5m2",
        ),
        (
            nf.quantize(X, "mxfp8_e4m3", columnwise=True),
            "quantize: out must be of the plan mxfp8_e4m3, got mxfp8_e4m3:columnwise=1",
        ),
        (
            nf.quantize(X, "mxfp8_e4m3", swizzled=True),
            "quantize: out must be of the plan mxfp8_e4m3, got mxfp8_e4m3:swizzled=1",
        ),
        (
            nf.quantize(X[:32], "mxfp8_e4m3"),
            "quantize: the output must have shape 64x64 as the input has, got 32x64",
        ),
        (tensor(rowwise_data=read_only), "quantize: rowwise_data of out must be writable"),
        (
            tensor(rowwise_data=OnlyDlpack(read_only)),
            "quantize: rowwise_data of out must be writable",
        ),
        (tensor(rowwise_data=inside), "quantize: rowwise_data must not overlap the input"),
    ]
    before = X.copy()
    for out, message in cases:
        held = {key: value.tobytes() for key, value in out.buffers.items()}
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            nf.quantize(X, "mxfp8_e4m3", out=out)
        assert {key: value.tobytes() for key, value in out.buffers.items()} == held
        assert X.tobytes() == before.tobytes()


@pytest.mark.parametrize(
    ("out", "error", "message"),
    [
        (np.zeros((64, 64), np.float16), ValueError, "out must be float32, got float16"),
        (np.zeros((64, 32), np.float32), ValueError, "out must have shape 64x64, got 64x32"),
        (np.zeros((64, 128), np.float32)[:, ::2], ValueError, "out must be C-contiguous"),
        (np.zeros((64, 64), np.float32).T, ValueError, "out must be C-contiguous"),
        (np.broadcast_to(np.float32(0), (64, 64)), ValueError, "out must be writable"),
        (
            [0.0],
            TypeError,
            "out must be a NumPy array or a CPU object with the buffer or DLPack protocol, got "
            "list",
        ),
    ],
    ids=["dtype", "shape", "strides", "transposed", "read-only", "list"],
)
def test_array_outputs_are_checked(out: object, error: type, message: str) -> None:
    q = nf.quantize(X, "mxfp8_e4m3")
    with pytest.raises(error, match=f"^dequantize: {re.escape(message)}$"):
        nf.dequantize(q, out=out)
    with pytest.raises(error, match=f"^fake_quantize: {re.escape(message)}$"):
        nf.fake_quantize(X, "mxfp8_e4m3", out=out)
    if isinstance(out, np.ndarray):
        assert not out.any()


def test_outputs_do_not_overlap_the_input() -> None:
    x = X.copy()
    with pytest.raises(ValueError, match=r"^fake_quantize: out must not overlap the input$"):
        nf.fake_quantize(x, "mxfp8_e4m3", out=x)
    assert x.tobytes() == X.tobytes()
    memory = np.zeros(X.size * 5, np.uint8)
    q = tensor(rowwise_data=memory[: X.size].reshape(X.shape))
    out = memory[: X.size * 4].view(np.float32).reshape(X.shape)
    with pytest.raises(ValueError, match=r"^dequantize: the output must not overlap rowwise_data$"):
        nf.dequantize(q, out=out)
