# SPDX-License-Identifier: Apache-2.0
"""Compares the public functions with the NumPy face, for every mode, layout, dtype and split."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hostile import FLOATS, MODE_IDS, MODES, assert_numpy_bytes, halves, hostile, make
from narrowfloat.jax.cpp_extensions.quantization import (
    dequantize,
    quantize,
    quantize_dbias,
)
from narrowfloat.jax.quantize import (
    DelayedScaleQuantizer,
    NoScaleTensor,
    NVFP4Quantizer,
    QuantizeLayout,
    ScaledTensor1x,
    ScalingMode,
    TensorUsage,
    compute_scale_from_amax,
)

import narrowfloat as nf

LAYOUTS = list(QuantizeLayout)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
@pytest.mark.parametrize(("mode", "dtype"), MODES, ids=MODE_IDS)
def test_same_bytes_as_numpy(mode: ScalingMode, dtype: str, layout: QuantizeLayout) -> None:
    for name in FLOATS:
        x = hostile((96, 160), name)
        quantizer = make(mode, dtype, layout)
        tensor = quantize(jnp.asarray(x), quantizer)
        assert tensor.dequantize().dtype == FLOATS[name]
        assert_numpy_bytes(tensor, x, quantizer)


@pytest.mark.parametrize(("mode", "dtype"), MODES, ids=MODE_IDS)
@pytest.mark.parametrize(
    ("shape", "axis"),
    [((2, 64, 32), -1), ((64, 2, 32), -2), ((3, 32, 5, 32), 2), ((2, 32, 64), 1)],
)
def test_dimensions_split_anywhere(
    mode: ScalingMode, dtype: str, shape: tuple[int, ...], axis: int
) -> None:
    if axis == 1 and shape[0] == 2 and mode.is_block_scaling:
        shape = (32, *shape[1:])
    x = hostile(shape)
    quantizer = make(mode, dtype, QuantizeLayout.ROWWISE_COLWISE)
    tensor = quantize(jnp.asarray(x), quantizer, axis)
    assert_numpy_bytes(tensor, x, quantizer, axis)
    found = halves(tensor)
    assert found["rowwise"].data.shape == shape
    turned = shape[axis:] + shape[:axis]
    assert found["columnwise"].data.shape == (shape if mode.is_mxfp8_scaling else turned)
    for half in found.values():
        assert half.dequantize().shape == half.data.shape


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("mode", "dtype"), MODES, ids=MODE_IDS)
def test_special_values(mode: ScalingMode, dtype: str, special: float) -> None:
    x = hostile((32, 64), "float32")
    x[3, 5] = special
    quantizer = make(mode, dtype, QuantizeLayout.ROWWISE_COLWISE)
    assert_numpy_bytes(quantize(jnp.asarray(x), quantizer), x, quantizer)


@pytest.mark.parametrize("factor", [0.0, 1e-40, 1e38])
@pytest.mark.parametrize(("mode", "dtype"), MODES, ids=MODE_IDS)
def test_tiny_and_huge_tensors(mode: ScalingMode, dtype: str, factor: float) -> None:
    x = (np.random.default_rng(3).uniform(-3, 3, (32, 64)) * factor).astype(np.float32)
    quantizer = make(mode, dtype, QuantizeLayout.ROWWISE_COLWISE)
    assert_numpy_bytes(quantize(jnp.asarray(x), quantizer), x, quantizer)


def test_tile_rows_of_unequal_magnitude_keep_their_scales() -> None:
    x = np.ones((48, 32), np.float32) * np.repeat([1.0, 8.0, 64.0], 16)[:, None]
    tensor = quantize(
        jnp.asarray(x),
        make(ScalingMode.NVFP4_2D_SCALING, "float4_e2m1fn", QuantizeLayout.ROWWISE_COLWISE),
    )
    # The ratios of amaxes are powers of two, so that codes and scales represent every value.
    np.testing.assert_array_equal(np.asarray(tensor.dequantize()), x)


@pytest.mark.parametrize("layout", LAYOUTS[1:], ids=lambda layout: layout.name)
def test_hadamard_transform_of_columns(layout: QuantizeLayout) -> None:
    x = hostile((64, 128))
    quantizer = make(ScalingMode.NVFP4_1D_SCALING, "float4_e2m1fn", layout, use_rht=True)
    tensor = quantize(jnp.asarray(x), quantizer)
    assert_numpy_bytes(tensor, x, quantizer)
    colwise = halves(tensor)["columnwise"]
    assert colwise.has_rht_applied
    # The inverse transform restores groups of 16 items.
    back = np.asarray(colwise.dequantize(), np.float32).T.reshape(4, 16, 128)
    error = np.abs(back - x.astype(np.float32).reshape(4, 16, 128)).max(1)
    energy = np.sqrt((x.astype(np.float32).reshape(4, 16, 128) ** 2).sum(1))
    # Each of 16 transformed items errs by at most a sixth of the largest one, which the energy
    # bounds. The inverse adds 16 of them, a quarter of each.
    assert (error <= energy / 6 * 4 + 1e-6).all()


@pytest.mark.parametrize(("mode", "dtype"), MODES, ids=MODE_IDS)
def test_dbias_is_the_cores(mode: ScalingMode, dtype: str) -> None:
    x = hostile((288, 96), "float32")
    quantizer = make(mode, dtype, QuantizeLayout.ROWWISE_COLWISE)
    tensor, dbias = quantize_dbias(jnp.asarray(x), quantizer)
    _, expected = nf.quantize_dbias(x, "mxfp8_e4m3")
    assert np.asarray(dbias).tobytes() == expected.tobytes()
    assert_numpy_bytes(tensor, x, quantizer)
    assert quantize_dbias(jnp.asarray(x), quantizer, is_dbias=False)[1] is None


def test_dbias_keeps_the_columns_dimensions() -> None:
    x = jnp.ones((64, 2, 32), jnp.bfloat16)
    quantizer = make(ScalingMode.MXFP8_1D_SCALING, "float8_e4m3fn", QuantizeLayout.ROWWISE)
    _, dbias = quantize_dbias(x, quantizer, flatten_axis=-2)
    np.testing.assert_array_equal(np.asarray(dbias, np.float32), np.full((2, 32), 64.0))


def test_without_a_quantizer() -> None:
    x = jnp.ones((4, 6), jnp.float32)
    tensor, dbias = quantize_dbias(x)
    assert isinstance(tensor, NoScaleTensor) and tensor.data is x
    np.testing.assert_array_equal(np.asarray(dbias), np.full(6, 4.0))
    assert dequantize(quantize(x)) is x


def test_an_amax_that_is_known_is_taken() -> None:
    x = jnp.asarray(hostile((32, 64)))
    quantizer = make(ScalingMode.CURRENT_TENSOR_SCALING, "float8_e4m3fn", QuantizeLayout.ROWWISE)
    # An amax of zero is used too; its scale is 1.
    for amax, scale in [(896.0, 0.5), (0.0, 1.0)]:
        tensor = quantize(NoScaleTensor(x, jnp.asarray([amax], jnp.float32)), quantizer)
        assert float(tensor.scale_inv[0]) == 1 / scale
        assert float(tensor.amax[0]) == max(amax, float(jnp.abs(x).max()))


def test_delayed_scaling_over_time() -> None:
    """Compares with a model: slot 0 is empty, the newest amax is last, the scale is a step late."""
    for algo in ("max", "most_recent"):
        quantizer = DelayedScaleQuantizer(
            jnp.float8_e4m3fn, margin=1.0, amax_history=jnp.zeros((3,), jnp.float32)
        )
        quantizer.amax_compute_algo = type(quantizer.amax_compute_algo)(algo)
        history, scale = [0.0, 0.0, 0.0], 1.0
        for amax in (2.0, 16.0, 4.0, 0.0, 1.0, np.inf):
            x = np.full((32, 32), amax, np.float32)
            tensor = quantize(jnp.asarray(x), quantizer)
            inverse = tensor.get_tensor(TensorUsage.LHS).scale_inv[0]
            assert float(inverse) == np.float32(1) / np.float32(scale)
            used = max([amax, *history[1:]]) if algo == "max" else amax
            if 0 < used < np.inf:
                scale = 448.0 / used / 2
            history = [0.0, *history[2:], amax]
            np.testing.assert_array_equal(np.asarray(quantizer.amax_history), history)
            assert float(quantizer.scale[0]) == scale


def test_scale_from_amax_never_overflows() -> None:
    for amax, old, expected in [
        (2.0, None, 224.0),
        (1e-40, None, np.finfo(np.float32).max),
        (0.0, 3.0, 3.0),
        (-1.0, None, 1.0),
        (np.nan, 5.0, 5.0),
        (np.inf, None, 1.0),
    ]:
        given = None if old is None else jnp.asarray([old], jnp.float32)
        scale = compute_scale_from_amax(
            jnp.asarray([amax], jnp.float32), jnp.float8_e4m3fn, 0.0, given
        )
        assert float(scale[0]) == np.float32(expected)


@pytest.mark.parametrize(("mode", "dtype"), MODES, ids=MODE_IDS)
def test_empty_tensors(mode: ScalingMode, dtype: str) -> None:
    quantizer = make(mode, dtype, QuantizeLayout.ROWWISE_COLWISE)
    for shape in ((0, 64), (64, 0)):
        tensor, dbias = quantize_dbias(jnp.zeros(shape, jnp.bfloat16), quantizer)
        assert tensor.dequantize().shape == shape
        np.testing.assert_array_equal(np.asarray(dbias, np.float32), np.zeros(shape[1]))


def test_stochastic_rounding_is_the_cores() -> None:
    x = np.random.default_rng(1).uniform(-6, 6, (32, 64)).astype(np.float32)
    state = np.array([[7, 0, 3, 0]], np.uint32)
    quantizer = NVFP4Quantizer(stochastic_rounding_rng_state=jnp.asarray(state))
    tensor = quantize(jnp.asarray(x), quantizer)
    q = nf.quantize(x, "nvfp4", True, True, stochastic_rounding=True, seed=7, offset=3)
    for direction, half in halves(tensor).items():
        codes = q.buffers[f"{direction}_data"]
        want = np.stack([codes & 0xF, codes >> 4], -1).reshape(-1)
        got = np.asarray(half.data).view(np.uint8).reshape(-1) & 0xF
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(("mode", "dtype"), MODES, ids=MODE_IDS)
def test_get_tensor_picks_the_direction(mode: ScalingMode, dtype: str) -> None:
    x = jnp.asarray(hostile((32, 64)))
    both = quantize(x, make(mode, dtype, QuantizeLayout.ROWWISE_COLWISE))
    for usage in TensorUsage:
        assert isinstance(both.get_tensor(usage), ScaledTensor1x)
        wants = mode.get_quantize_layout(usage)
        assert both.get_tensor(usage).is_colwise == wants.has_colwise
    rowwise = quantize(x, make(mode, dtype, QuantizeLayout.ROWWISE))
    assert rowwise.get_tensor(TensorUsage.LHS) is rowwise
    if mode.is_block_scaling:
        with pytest.raises(
            ValueError, match=r"^get_tensor: RHS of \w+ needs COLWISE data, got ROW"
        ):
            rowwise.get_tensor(TensorUsage.RHS)


def test_padding_of_scales_round_trips() -> None:
    from narrowfloat.jax.quantize import (
        apply_padding_to_scale_inv,
        remove_padding_from_scale_inv,
    )

    # Padded scales of (32, 5, 96) cannot have three dimensions, so that they become a matrix.
    for shape, axis, padded in [((96, 96), -1, (128, 4)), ((32, 5, 96), -1, (256, 4))]:
        x = jnp.asarray(hostile(shape))
        mode = ScalingMode.MXFP8_1D_SCALING
        tensor = quantize(x, make(mode, "float8_e4m3fn", QuantizeLayout.ROWWISE), axis)
        wide = apply_padding_to_scale_inv(tensor.scale_inv, mode, shape, flatten_axis=axis)
        assert wide.shape == padded
        back = remove_padding_from_scale_inv(wide, mode, shape, flatten_axis=axis)
        assert back.shape == tensor.scale_inv.shape
        assert np.asarray(back).tobytes() == np.asarray(tensor.scale_inv).tobytes()
        assert np.asarray(wide).view(np.uint8).sum() == np.asarray(back).view(np.uint8).sum()


def test_the_dtype_of_values_may_be_another() -> None:
    x = jnp.asarray(hostile((32, 64), "float32"))
    quantizer = make(ScalingMode.MXFP8_1D_SCALING, "float8_e4m3fn", QuantizeLayout.ROWWISE)
    assert quantizer.quantize(x, dq_dtype=jnp.bfloat16).dequantize().dtype == ml_dtypes.bfloat16
    assert jax.tree.structure(quantizer.quantize(x)) == jax.tree.structure(quantizer.quantize(x))
