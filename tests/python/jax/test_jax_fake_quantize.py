# SPDX-License-Identifier: Apache-2.0
"""Compares fake_quantize by a scheme's name with the NumPy face, also under transformations."""

import jax
import jax.numpy as jnp
import narrowfloat.jax as nfj
import numpy as np
import pytest
from hostile import FLOATS, hostile, make
from narrowfloat.jax.quantize import QuantizeLayout, ScalingMode

import narrowfloat as nf


@pytest.mark.parametrize("scheme", nf.schemes())
@pytest.mark.parametrize("dtype", FLOATS)
def test_every_scheme_gives_numpys_bytes(scheme: str, dtype: str) -> None:
    x = hostile((48, 96), dtype)
    got = jax.jit(nfj.fake_quantize, static_argnums=1)(jnp.asarray(x), scheme)
    expected = nf.fake_quantize(x, scheme)
    assert np.asarray(got).tobytes() == expected.tobytes()


def test_options_stand_in_the_text() -> None:
    x = hostile((32, 64))
    got = nfj.fake_quantize(jnp.asarray(x), "fp8_e4m3:scale=0.5")
    assert np.asarray(got).tobytes() == nf.fake_quantize(x, "fp8_e4m3", scale=0.5).tobytes()
    assert np.asarray(got).tobytes() != nf.fake_quantize(x, "fp8_e4m3").tobytes()


def test_rows_are_what_flatten_axis_says() -> None:
    x = hostile((4, 8, 32), "float32")
    got = nfj.fake_quantize(jnp.asarray(x), "mxfp8_2d_e4m3", flatten_axis=-2)
    expected = nf.fake_quantize(x.reshape(4, 256), "mxfp8_2d_e4m3").reshape(x.shape)
    assert np.asarray(got).tobytes() == expected.tobytes()


def test_gradients_and_batches() -> None:
    x = jnp.asarray(hostile((3, 16, 32), "float32"))
    values = jax.vmap(lambda item: nfj.fake_quantize(item, "nvfp4"))(x)
    for item, got in zip(np.asarray(x), np.asarray(values), strict=True):
        assert got.tobytes() == nf.fake_quantize(item, "nvfp4").tobytes()
    gradient = jax.grad(lambda a: jnp.sum(nfj.fake_quantize(a, "nvfp4") * 3))(x[0])
    np.testing.assert_array_equal(gradient, np.full((16, 32), 3, np.float32))


def test_no_quantizer_changes_nothing() -> None:
    x = jnp.asarray(hostile((4, 32), "float32"))
    assert nfj.fake_quantize(x, None) is x


def test_codes_have_no_derivative_and_the_message_names_what_has() -> None:
    quantizer = make(ScalingMode.MXFP8_1D_SCALING, "float8_e4m3fn", QuantizeLayout.ROWWISE)
    with pytest.raises(NotImplementedError, match=r"fake_quantize\(\) passes gradients"):
        jax.grad(lambda x: jnp.sum(quantizer.quantize(x).dequantize()))(jnp.ones((4, 32)))


def test_empty_and_refused() -> None:
    assert nfj.fake_quantize(jnp.zeros((0, 32)), "mxfp8_e4m3").shape == (0, 32)
    with pytest.raises(ValueError, match="unknown scheme 'fp8_e9m9'"):
        jax.make_jaxpr(lambda x: nfj.fake_quantize(x, "fp8_e9m9"))(jnp.zeros((4, 32)))
    with pytest.raises(jax.errors.JaxRuntimeError, match="INVALID_ARGUMENT: quantize: nvfp4"):
        nfj.fake_quantize(jnp.zeros((4, 33)), "nvfp4").block_until_ready()
