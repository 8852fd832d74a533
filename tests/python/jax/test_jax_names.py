# SPDX-License-Identifier: Apache-2.0
"""Tests names that programs import from TransformerEngine's modules for JAX."""

import importlib

import jax.numpy as jnp
import ml_dtypes
import narrowfloat.jax as nfj
import numpy as np
import pytest
from narrowfloat.jax.cpp_extensions.quantization import (
    _jax_quantize,
    _jax_quantize_dbias,
    quantize_dbias,
)
from narrowfloat.jax.quantize import NoScaleTensor, QuantizerFactory, ScalingMode

# By module: names that TransformerEngine has there.
PLACES = {
    "quantize.quantizer": ("QuantizerFactory", "QuantizerSet", "noop_quantizer_set"),
    "quantize.tensor": ("ScaledTensorFactory",),
    "quantize.misc": ("QuantizeLayout",),
    "dense": ("dense", "grouped_dense"),
    "cpp_extensions.gemm": ("gemm", "grouped_gemm"),
}


@pytest.mark.parametrize(("module", "name"), [(m, n) for m, names in PLACES.items() for n in names])
def test_a_name_lies_in_the_module_where_transformer_engine_has_it(module: str, name: str) -> None:
    made = importlib.import_module(f"narrowfloat.jax.{module}")
    homes = (nfj, nfj.quantize, nfj.cpp_extensions)
    (home,) = [home for home in homes if name in home.__all__]
    assert getattr(made, name) is getattr(home, name)


def test_every_quantize_primitive_is_one() -> None:
    from narrowfloat.jax.cpp_extensions import quantization

    primitives = {
        getattr(quantization, f"{name}QuantizePrimitive") for name in ("BaseDBias", "DBias", "")
    }
    assert len(primitives) == 1


def test_the_private_quantize_functions_of_transformer_engine() -> None:
    x = jnp.asarray(np.arange(32 * 64).reshape(32, 64), jnp.float32)
    quantizer = QuantizerFactory.create(1, ScalingMode.MXFP8_1D_SCALING, jnp.float8_e4m3fn)
    tensor, sums = _jax_quantize_dbias(x, quantizer, jnp.bfloat16)
    wanted, wanted_sums = quantize_dbias(x, quantizer)
    assert tensor.dequantize().dtype == sums.dtype == jnp.bfloat16
    for each in (tensor, _jax_quantize(x, quantizer)):
        made, other = each.rowwise_tensor, wanted.rowwise_tensor
        assert np.asarray(made.data).tobytes() == np.asarray(other.data).tobytes()
    # Every sum is an integer below 2^24, so float32 holds it and the rounding is the only one.
    assert np.array_equal(sums, np.asarray(wanted_sums).astype(ml_dtypes.bfloat16))


def test_the_private_quantize_functions_without_a_quantizer() -> None:
    x = jnp.ones((4, 4))
    plain = NoScaleTensor(x)
    assert _jax_quantize(x).data is x and _jax_quantize(plain) is plain
    tensor, sums = _jax_quantize_dbias(plain)
    assert tensor is plain and sums is None
