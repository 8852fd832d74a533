# SPDX-License-Identifier: Apache-2.0
"""Compares TransformerEngine's norms, activations and softmax for JAX with exact float32 values.

usage: jax_fused.py NAME...   (with several devices, for `sharded_fused`)

Most values need more digits than bfloat16 has, so that codes and amaxes show the roundings.
"""

import narrowfloat.te  # isort: skip  (first: it makes the next import work)
import os
import sys
import warnings

os.environ["NVTE_JAX_CUSTOM_CALLS"] = "true"

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from transformer_engine.jax import cpp_extensions as tex
from transformer_engine.jax import quantize as te
from transformer_engine.jax.cpp_extensions.activation import ActivationParams
from transformer_engine.jax.sharding import MeshResource, global_shard_guard

import narrowfloat as nf

assert narrowfloat.te
Both = te.QuantizeLayout.ROWWISE_COLWISE
RANDOM = np.random.default_rng(0)
ROWS, COLUMNS = 128, 256


def normalizable() -> np.ndarray:
    """Returns rows of mean 0 and mean square 16, whose normalized values are exactly a quarter."""
    few = RANDOM.permuted(np.tile([7.0, 7, 5, 2, 1, 0, 0, 0], (ROWS, COLUMNS // 16)), axis=1)
    return RANDOM.permuted(np.concatenate([few, -few], axis=1), axis=1).astype(np.float32)


def parameter() -> np.ndarray:
    """Returns values of 8 binary digits, from 1 up to 2, which bfloat16 represents."""
    return (1 + RANDOM.integers(0, 128, COLUMNS) / 128).astype(np.float32)


def integers(*shape: int) -> np.ndarray:
    return RANDOM.integers(-127, 128, shape).astype(np.float32)


def narrow(x: np.ndarray) -> jax.Array:
    return jnp.asarray(x, jnp.bfloat16)


def rounded(x: np.ndarray) -> np.ndarray:
    return x.astype(ml_dtypes.bfloat16).astype(np.float32)


def quantizer(mode: str, layout: te.QuantizeLayout = Both) -> te.Quantizer:
    dtype = jnp.float4_e2m1fn if mode == "NVFP4_1D" else jnp.float8_e4m3fn
    return te.QuantizerFactory.create(1, getattr(te.ScalingMode, f"{mode}_SCALING"), dtype, layout)


def same(found: jax.Array, expected: np.ndarray) -> None:
    found = np.asarray(found)
    np.testing.assert_array_equal(found.reshape(expected.shape).view(expected.dtype), expected)


def is_mxfp8_of(tensor: te.ScaledTensor2x, values: np.ndarray) -> None:
    """Checks that both directions of a tensor have the codes and scales of the values."""
    expected = nf.quantize(values, "mxfp8_e4m3", columnwise=True).buffers
    found = {"rowwise": tensor.rowwise_tensor, "columnwise": tensor.colwise_tensor}
    for name, part in found.items():
        same(part.data, expected[f"{name}_data"])
        same(part.scale_inv, expected[f"{name}_scale_inv"])


def is_scaled(tensor: te.ScaledTensor1x, values: np.ndarray) -> None:
    """Checks that a tensor of scale 1 has the codes of the values."""
    same(tensor.data, np.float32(values).astype(ml_dtypes.float8_e4m3fn).view(np.uint8))


def norms() -> None:
    """Checks that MXFP8 and a given scale get float32 values, and other results rounded ones."""
    x, gamma, beta = normalizable(), parameter(), parameter()
    for centered in (True, False):
        weight = rounded(gamma - 1) if centered else gamma
        value = x / 4 * gamma + beta
        assert (rounded(value) != value).any()

        given = narrow(x), narrow(weight), narrow(beta), centered, 0.0
        made, mean, deviation = tex.layernorm_fwd(*given, quantizer("MXFP8_1D"))
        is_mxfp8_of(made, value)
        same(mean, np.zeros(ROWS, np.float32))
        same(deviation, np.full(ROWS, 0.25, np.float32))
        delayed = quantizer("DELAYED_TENSOR", te.QuantizeLayout.ROWWISE)
        is_scaled(tex.layernorm_fwd(*given, delayed)[0], value)
        assert float(delayed.amax_history.max()) == np.abs(value).max(), "of the float32 values"
        plain = tex.layernorm_fwd(*given, output_amax_when_no_scaling=True)[0]
        same(plain.data.astype(jnp.float32), rounded(value))
        assert float(plain.amax[0]) == np.abs(rounded(value)).max(), "of the rounded values"
    made, deviation = tex.rmsnorm_fwd(narrow(x), narrow(gamma), False, 0.0, quantizer("MXFP8_1D"))
    is_mxfp8_of(made, x / 4 * gamma)
    same(deviation, np.full(ROWS, 0.25, np.float32))


def norm_gradients() -> None:
    """Checks that gradients are float32 until the end, from statistics of the forward pass."""
    x, gamma, dz = normalizable(), parameter(), integers(ROWS, COLUMNS)
    zeros, quarters = np.zeros(ROWS, np.float32), np.full(ROWS, 0.25, np.float32)
    exact = [of.astype(np.float64) for of in (x, gamma, dz)]
    normalized, weighted = exact[0] / 4, exact[2] * exact[1]
    along = normalized * (weighted * normalized).mean(-1, keepdims=True)
    sums = (exact[2] * normalized).sum(0), exact[2].sum(0)
    for centered in (True, False):
        weight = rounded(gamma - 1) if centered else gamma
        given = [narrow(dz), narrow(x), zeros, quarters, narrow(weight)]
        made = tex.layernorm_bwd(*given, narrow(weight), centered, 0.0)
        dx = weighted - along - weighted.mean(-1, keepdims=True)
        check_gradient(made[0], dx / 4, weighted)
        for found, expected in zip(made[1:], sums, strict=True):
            same(found.astype(jnp.float32), rounded(expected.astype(np.float32)))
    found, dgamma = tex.rmsnorm_bwd(narrow(dz), narrow(x), quarters, narrow(gamma), False, 0.0)
    check_gradient(found, (weighted - along) / 4, weighted)
    same(dgamma.astype(jnp.float32), rounded(sums[0].astype(np.float32)))


def check_gradient(found: jax.Array, exact: np.ndarray, weighted: np.ndarray) -> None:
    """Checks that the result is rounded to bfloat16 once, after float32 means of COLUMNS terms.

    Normalized values are below 2 and have mean square 1, so that the parts are below 4 times the
    largest weighted gradient; the deviation is a quarter.
    """
    error = (COLUMNS + 8) * 2.0**-24 * np.abs(weighted).max()
    bound = error + 2.0**-8 * (np.abs(exact) + error)
    assert found.dtype == jnp.bfloat16
    assert (np.abs(np.asarray(found, np.float64) - exact) <= bound).all()


def activations() -> None:
    """Checks that MXFP8 quantizes rounded values, and that given scales and amaxes use float32."""
    both = integers(ROWS, 2, COLUMNS) / 64
    x, gate = both[:, 0], both[:, 1]
    value = np.square(np.maximum(x, 0)) * gate
    kind = ("squared_relu", "linear")
    assert (rounded(value) != value).any()
    is_mxfp8_of(tex.act_lu(narrow(both), kind, quantizer("MXFP8_1D")), rounded(value))
    delayed = quantizer("DELAYED_TENSOR", te.QuantizeLayout.ROWWISE)
    is_scaled(tex.act_lu(narrow(both), kind, delayed), value)
    assert float(delayed.amax_history.max()) == np.abs(value).max()
    plain = tex.act_lu(narrow(both), kind, output_amax_when_no_scaling=True)
    same(plain.data.astype(jnp.float32), rounded(value))
    assert float(plain.amax[0]) == np.abs(value).max() != np.abs(rounded(value)).max()
    spoiled = both.copy()
    spoiled[0, 0, 0] = np.nan
    plain = tex.act_lu(narrow(spoiled), kind, output_amax_when_no_scaling=True)
    assert float(plain.amax[0]) == np.abs(value[np.isfinite(plain.data)]).max(), "NaN is ignored"
    half = tex.act_lu(narrow(both), kind, quantizer("NVFP4_1D", te.QuantizeLayout.ROWWISE))
    assert float(half.amax[0]) == np.abs(value).max(), "the activation's, not found anew"


def gradients() -> None:
    """Checks that the sums of a bias add float32 values, and that MXFP8 quantizes rounded ones."""
    x, dz = integers(ROWS, 1, COLUMNS), integers(ROWS, COLUMNS)
    value = 2 * np.maximum(x, 0) * dz[:, None] + 0.0  # -0 becomes 0
    sums = value.sum(0)
    assert np.abs(sums).max() < 2**24 and (rounded(value).sum(0) != sums).any()
    for mode in ("MXFP8_1D", "DELAYED_TENSOR"):
        q = quantizer(mode)
        dx, dbias = tex.quantize_dact_dbias(narrow(dz), narrow(x), ("squared_relu",), quantizer=q)
        same(dbias.astype(jnp.float32), rounded(sums))
        if mode == "MXFP8_1D":
            is_mxfp8_of(dx, rounded(value)[:, 0])
        else:
            is_scaled(dx.rowwise_tensor, np.clip(value, -448, 448))
            assert float(q.amax_history.max()) == np.abs(value).max()


def clamped() -> None:
    """Checks that a gradient passes if the value equals the limit, and not beyond the limit."""
    params = ActivationParams.create(
        ("clamped_silu", "clamped_linear"), limit=2.0, alpha=0.0, glu_linear_offset=1.0
    )
    x = np.float32([[[1, 2, 3, 1, 1, 1], [1, 1, 1, 2, -2, -3]]])
    # With alpha 0 the value is min(a, 2) / 2 * (clamp(b) + 1).
    y = tex.act_lu(x, ("clamped_silu", "clamped_linear"), act_params=params)
    same(y.data, np.float32([[1, 2, 2, 1.5, -0.5, -0.5]]))
    dx = tex.dact_lu(
        np.ones((1, 6), np.float32), x, ("clamped_silu", "clamped_linear"), act_params=params
    )
    same(dx.data, np.float32([[[1, 1, 0, 1.5, -0.5, -0.5], [0.5, 1, 1, 0.5, 0.5, 0]]]))


def softmaxes() -> None:
    """Checks that equal scores share 1, rounded once, and that a triangle must be square."""
    keys, factor = 32, 0.125
    ones = jnp.ones((1, 4, keys, keys), jnp.bfloat16)
    mask = np.zeros((1, 1, keys, keys), np.uint8)
    mask[0, 0, :, 21:] = 1
    mask[0, 0, 3] = 1
    seen = np.tri(keys, dtype=np.float32)
    shares = (1 - mask) / np.float32(21), seen / seen.sum(-1, keepdims=True)
    for found, expected in (
        (tex.scaled_softmax_fwd(ones, factor), np.full((keys, keys), 1 / np.float32(keys))),
        (tex.scaled_masked_softmax_fwd(ones, mask, factor), shares[0]),
        (tex.scaled_upper_triang_masked_softmax_fwd(ones, factor), shares[1]),
    ):
        assert found.dtype == jnp.bfloat16
        same(found.astype(jnp.float32)[:, :1], rounded(expected).reshape(1, 1, keys, keys))
    y, dz = np.full(ones.shape, 1 / 32, np.float32), integers(*ones.shape)
    assert (rounded(dz - dz.mean(-1, keepdims=True)) != dz - dz.mean(-1, keepdims=True)).any()
    for gradient, inputs in (
        (tex.scaled_softmax_bwd, ()),
        (tex.scaled_masked_softmax_bwd, (mask,)),
        (tex.scaled_upper_triang_masked_softmax_bwd, ()),
    ):
        found = gradient(narrow(dz), narrow(y), ones, *inputs, factor)
        expected = (dz - dz.mean(-1, keepdims=True)) * factor / 32
        same(found.astype(jnp.float32), rounded(expected))
    try:
        tex.scaled_upper_triang_masked_softmax_fwd(ones[..., :8, :], factor)
    except AssertionError:
        return
    raise ValueError("a triangle with other numbers of queries and keys was computed")


def sharded_fused() -> None:
    """Checks that rows on several devices have one device's codes, and the amax and sums of all."""
    x, gamma, beta = normalizable(), parameter(), parameter()
    # Sums of 32 and of 128 rows are below 256, so that bfloat16 represents them.
    both = RANDOM.integers(-1, 2, (ROWS, 1, COLUMNS)).astype(np.float32)
    dz = RANDOM.choice([-0.5, 0.5], (ROWS, COLUMNS))
    both[100, 0, 5] = 9  # the largest value is on one device
    mesh = jax.make_mesh((4,), ("dp",))
    spec = jax.sharding.PartitionSpec("dp")
    onto = jax.sharding.NamedSharding(mesh, spec)

    for mode in ("MXFP8_1D", "DELAYED_TENSOR"):

        @jax.jit
        def run(x: jax.Array, both: jax.Array, dz: jax.Array, mode: str = mode) -> tuple:
            layout = Both if mode == "MXFP8_1D" else te.QuantizeLayout.ROWWISE
            q = [quantizer(mode, layout) for _ in range(3)]
            made = [
                tex.layernorm_fwd(x, narrow(gamma), narrow(beta), False, 0.0, q[0])[0],
                tex.act_lu(both, ("squared_relu",), q[1]),
                *tex.quantize_dact_dbias(dz, both, ("squared_relu",), quantizer=q[2]),
            ]
            return made, [getattr(of, "amax_history", None) for of in q]

        given = [narrow(of) for of in (x, both, dz)]
        with global_shard_guard(MeshResource()):
            alone = run(*given)
        with mesh, global_shard_guard(MeshResource(dp_resource="dp")):
            given = [jax.device_put(of, onto) for of in given]
            with warnings.catch_warnings():
                warnings.simplefilter("error", DeprecationWarning)
                together = run(*given)
        leaves = jax.tree.leaves(together)
        assert max(len(of.sharding.device_set) for of in leaves) == 4
        for one, of in zip(jax.tree.leaves(alone), leaves, strict=True):
            same(jnp.asarray(np.asarray(of)).view(jnp.uint8), np.asarray(one).view(np.uint8))


CHECKS = {
    check.__name__: check
    for check in (
        *(norms, norm_gradients, activations, gradients, clamped, softmaxes, sharded_fused),
    )
}
for name in sys.argv[1:]:
    CHECKS[name]()
    print(name)
