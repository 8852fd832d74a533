# SPDX-License-Identifier: Apache-2.0
"""Tests the classes with TransformerEngine's names."""

import re

import ml_dtypes
import numpy as np
import pytest

import narrowfloat as nf

X = np.random.default_rng(2).standard_normal((64, 96)).astype(ml_dtypes.bfloat16)


def one(value: float) -> np.ndarray:
    return np.array([value], np.float32)


def bytes_of(q: nf.QuantizedTensor) -> dict[str, bytes]:
    return {key: value.tobytes() for key, value in q.buffers.items()}


@pytest.mark.parametrize(
    ("fp8_dtype", "element"),
    [
        ("e4m3", "e4m3"),
        ("e5m2", "e5m2"),
        (ml_dtypes.float8_e4m3fn, "e4m3"),
        (np.dtype(ml_dtypes.float8_e5m2), "e5m2"),
    ],
)
def test_fp8_dtype_chooses_the_scheme(fp8_dtype: object, element: str) -> None:
    assert nf.Float8Quantizer(one(1), one(0), fp8_dtype).scheme == f"fp8_{element}"
    assert nf.Float8CurrentScalingQuantizer(fp8_dtype).scheme == f"fp8_{element}"
    assert nf.MXFP8Quantizer(fp8_dtype).scheme == f"mxfp8_{element}"
    tiles = nf.MXFP8Quantizer(fp8_dtype, with_2d_quantization=True)
    assert tiles.scheme == f"mxfp8_2d_{element}"


@pytest.mark.parametrize("fp8_dtype", ["e3m4", np.float32, ml_dtypes.float8_e4m3fnuz, object()])
def test_other_types_are_refused(fp8_dtype: object) -> None:
    message = (
        f"fp8_dtype must be 'e4m3', 'e5m2' or the ml_dtypes type of one of them, got {fp8_dtype!r}"
    )
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        nf.MXFP8Quantizer(fp8_dtype)


def test_delayed_scaling_reads_scale_and_raises_amax() -> None:
    scale, amax = one(2), one(0)
    quantizer = nf.Float8Quantizer(scale, amax, "e4m3")
    q = quantizer.quantize(X)
    assert bytes_of(q) == bytes_of(nf.quantize(X, "fp8_e4m3", columnwise=True, scale=2.0))
    largest = np.abs(X.astype(np.float32)).max()
    assert amax == largest
    quantizer(X / 4)
    assert amax == largest
    scale[0] = 8
    quantizer.update_quantized(2 * X, q)
    assert amax == 2 * largest and q.buffers["scale"] == 8
    assert bytes_of(q) == bytes_of(nf.quantize(2 * X, "fp8_e4m3", columnwise=True, scale=8.0))
    before = bytes_of(q)
    assert quantizer.update_quantized(9 * X, q, noop_flag=one(1)) is q
    assert bytes_of(q) == before and amax == 2 * largest
    assert nf.Float8Quantizer(scale=scale, amax=amax, fp8_dtype="e4m3").quantize(X).spec == (
        "fp8_e4m3:columnwise=1,scale=8"
    )


def test_scale_must_be_there() -> None:
    quantizer = nf.Float8Quantizer(None, np.zeros(1, np.float32), "e4m3")
    message = r"^quantize: scale must be a float32 array of one element, got None$"
    with pytest.raises(TypeError, match=message):
        quantizer.quantize(X)


def test_amax_must_be_a_writable_float32_item() -> None:
    with pytest.raises(
        TypeError, match=r"^quantize: amax must be a float32 array of one element, got float64$"
    ):
        nf.Float8Quantizer(one(1), np.zeros(1), "e4m3").quantize(X)
    with pytest.raises(
        ValueError,
        match=r"^quantize: amax must be a writable float32 array of one element, got size=2, "
        r"writeable=True$",
    ):
        nf.Float8Quantizer(one(1), np.zeros(2, np.float32), "e4m3").quantize(X)


def test_current_scaling() -> None:
    quantizer = nf.Float8CurrentScalingQuantizer(
        "e5m2", columnwise=False, force_pow_2_scales=True, amax_epsilon=8.0
    )
    expected = nf.quantize(X, "fp8_e5m2", force_pow_2_scales=True, amax_epsilon=8.0)
    assert bytes_of(quantizer.quantize(X)) == bytes_of(expected)
    out = quantizer.make_empty(X.shape, ml_dtypes.bfloat16)
    assert out.dtype == ml_dtypes.bfloat16
    assert not any(value.any() for value in out.buffers.values())
    assert quantizer.update_quantized(X, out) is out
    assert bytes_of(out) == bytes_of(expected)


def test_columnwise_only_per_tensor_is_refused_as_there() -> None:
    for quantizer in (
        nf.Float8CurrentScalingQuantizer("e4m3", rowwise=False),
        nf.Float8Quantizer(one(1), one(0), "e4m3", rowwise=False),
    ):
        message = (
            "quantize: Columnwise-only per-tensor FP8 quantization is not implemented by "
            f"TransformerEngine's {type(quantizer).__name__}; narrowfloat.quantize does it"
        )
        with pytest.raises(NotImplementedError, match=f"^{re.escape(message)}$"):
            quantizer.quantize(X)


@pytest.mark.parametrize("tiles", [False, True])
def test_mxfp8(tiles: bool) -> None:
    quantizer = nf.MXFP8Quantizer("e4m3", with_2d_quantization=tiles)
    expected = nf.quantize(X, quantizer.scheme, columnwise=True)
    assert bytes_of(quantizer.quantize(X)) == bytes_of(expected)
    quantizer.set_usage(columnwise=False)
    assert quantizer.quantize(X).spec == quantizer.scheme
    quantizer.set_usage(rowwise=False, columnwise=True)
    assert quantizer.quantize(X).spec == f"{quantizer.scheme}:columnwise=1,rowwise=0"
    quantizer.set_usage(rowwise=True)
    quantizer.optimize_for_gemm = True
    out = quantizer.make_empty(X.shape)
    assert bytes_of(quantizer.update_quantized(X, out)) == bytes_of(nf.swizzle(expected))


@pytest.mark.parametrize("shape", [(33, 64), (64, 33), (64,), (), (3, 8, 64)])
def test_mxfp8_refuses_what_transformer_engine_refuses(shape: tuple[int, ...]) -> None:
    quantizer = nf.MXFP8Quantizer("e4m3")
    text = "x".join(map(str, shape)) or "scalar"
    message = (
        f"quantize: MXFP8Quantizer needs rows and columns in multiples of 32, got shape {text}"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        quantizer.quantize(np.zeros(shape, np.float32))
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        quantizer.make_empty(shape)
    assert nf.quantize(np.zeros(shape, np.float32), quantizer.scheme).shape == shape


@pytest.mark.parametrize(("dim", "scheme"), [(1, "fp8_block1x128"), (2, "fp8_block128x128")])
@pytest.mark.parametrize("pow_2", [True, False])
def test_fp8_blocks(dim: int, scheme: str, pow_2: bool) -> None:
    x = np.linspace(-3, 5, 128 * 256, dtype=np.float32).reshape(128, 256)
    quantizer = nf.Float8BlockQuantizer(
        "e5m2",
        rowwise=True,
        columnwise=True,
        amax_epsilon=0.25,
        force_pow_2_scales=pow_2,
        block_scaling_dim=dim,
    )
    expected = nf.quantize(
        x, f"{scheme}_e5m2", columnwise=True, amax_epsilon=0.25, force_pow_2_scales=pow_2
    )
    assert bytes_of(quantizer.quantize(x)) == bytes_of(expected)
    out = quantizer.make_empty(x.shape)
    assert bytes_of(quantizer.update_quantized(x, out)) == bytes_of(expected)
    # Scales are powers of two, whose mantissas are 0, unless the caller asks for other scales.
    mantissas = expected.buffers["rowwise_scale_inv"].view(np.uint32) & 0x7FFFFF
    assert (mantissas == 0).all() == pow_2


@pytest.mark.parametrize("dim", [1, 2])
@pytest.mark.parametrize("shape", [(130, 96), (96,), (), (3, 5, 200)])
def test_fp8_blocks_take_any_shape(shape: tuple[int, ...], dim: int) -> None:
    x = np.ones(shape, np.float32)
    quantizer = nf.Float8BlockQuantizer(
        "e4m3", rowwise=True, columnwise=True, block_scaling_dim=dim
    )
    made = quantizer.quantize(x)
    assert bytes_of(made) == bytes_of(nf.quantize(x, quantizer.scheme, columnwise=True))
    assert quantizer.make_empty(shape).shape == shape
    np.testing.assert_array_equal(nf.dequantize(made), x)


def test_fp8_blocks_are_runs_or_tiles() -> None:
    with pytest.raises(RuntimeError, match=r"block_scaling_dim must be 1 or 2, got 3$"):
        nf.Float8BlockQuantizer("e4m3", rowwise=True, columnwise=True, block_scaling_dim=3)


@pytest.mark.parametrize(
    ("quantizer", "option"),
    [
        (nf.MXFP8Quantizer("e4m3"), "with_2d_quantization"),
        (nf.NVFP4Quantizer(), "with_2d_quantization"),
        (nf.Float8BlockQuantizer("e4m3", rowwise=True, columnwise=True), "block_scaling_dim"),
    ],
)
def test_options_of_the_scheme_cannot_be_changed(quantizer: object, option: str) -> None:
    value = getattr(quantizer, option)
    with pytest.raises(AttributeError, match=f"'{option}' of '{type(quantizer).__name__}'"):
        setattr(quantizer, option, 1)
    assert getattr(quantizer, option) == value


def test_a_list_is_no_tensor() -> None:
    with pytest.raises(TypeError, match=r"^quantize: x must be a NumPy array or a CPU object"):
        nf.MXFP8Quantizer("e4m3").quantize([[1.0]])
