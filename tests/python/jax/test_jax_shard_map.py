# SPDX-License-Identifier: Apache-2.0
"""Tests shard_map with its check of types: results vary over the axes of their operands."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import narrowfloat.jax as nfj
import numpy as np
import pytest
from hostile import MODE_IDS, MODES, hostile, make
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P
from narrowfloat.jax import dense, fake_quantize, grouped_dense
from narrowfloat.jax.cpp_extensions.gemm import gemm
from narrowfloat.jax.cpp_extensions.quantization import grouped_quantize, quantize
from narrowfloat.jax.primitives.array_types import axes_of_type
from narrowfloat.jax.quantize import (
    DelayedScaleQuantizer,
    NVFP4Quantizer,
    QuantizeLayout,
    QuantizerFactory,
    ScalingMode,
    compute_scale_from_amax,
)

BOTH = QuantizeLayout.ROWWISE_COLWISE
E4M3 = jnp.float8_e4m3fn
MXFP8, DELAYED = ScalingMode.MXFP8_1D_SCALING, ScalingMode.DELAYED_TENSOR_SCALING
MODE_CASES = pytest.mark.parametrize(("mode", "dtype"), MODES, ids=MODE_IDS)
BY_QUANTIZER_OR_TEXT = pytest.mark.parametrize("by", ["quantizer", "text"])


def mesh_of(*names: str) -> Mesh:
    shape = {1: (4,), 2: (2, 2)}[len(names)]
    return Mesh(
        np.array(jax.devices()[:4]).reshape(shape), names, axis_types=(AxisType.Auto,) * len(names)
    )


def mapped(
    function: Callable,
    ins: object = P("a"),
    outs: object = P("a"),
    names: str = "a",
    **options: object,
) -> Callable:
    return jax.jit(
        jax.shard_map(function, mesh=mesh_of(*names), in_specs=ins, out_specs=outs, **options)
    )


def varies_over(value: object) -> set[str]:
    """Returns the axes that every array of `value` varies over."""
    axes = {axes_of_type(jax.typeof(leaf)) for leaf in jax.tree.leaves(value)}
    assert len(axes) == 1
    return set(axes.pop())


def tried(by: str) -> Callable[[jax.Array], jax.Array]:
    if by == "text":
        return lambda a: fake_quantize(a, "mxfp8_e4m3")
    return lambda a: fake_quantize(a, make(MXFP8, "float8_e4m3fn", BOTH))


@MODE_CASES
def test_a_value_of_one_device_is_not_taken_for_that_of_all(mode: ScalingMode, dtype: str) -> None:
    x = hostile((128, 64), "float32")

    def mean(a: jax.Array) -> jax.Array:
        return quantize(a, make(mode, dtype, BOTH)).dequantize().mean()

    with pytest.raises(ValueError, match="out_specs which require replication"):
        mapped(mean, outs=P())(x)
    together = mapped(lambda a: jax.lax.pmean(mean(a), "a"), outs=P())(x)
    parts = [np.float32(mean(jnp.asarray(part))) for part in np.split(x, 4)]
    np.testing.assert_allclose(together, np.mean(parts), rtol=2**-20)


@MODE_CASES
def test_results_vary_as_their_operands(mode: ScalingMode, dtype: str) -> None:
    def look(a: jax.Array) -> jax.Array:
        tensor, quantizer = quantize(a, make(mode, dtype, BOTH)), make(mode, dtype, BOTH)
        kernel = quantize(jnp.ones((64, 32)), make(mode, dtype, BOTH))
        assert varies_over(kernel) == set()
        assert varies_over(tensor) == {"a"}
        assert varies_over(tensor.dequantize()) == {"a"}
        assert varies_over(fake_quantize(a, quantizer)) == {"a"}
        assert varies_over(fake_quantize(a, "nvfp4")) == {"a"}
        assert varies_over(gemm(tensor, kernel)) == {"a"}
        with nfj.product_mode("fast"):
            assert varies_over(gemm(tensor, kernel)) == {"a"}
        return a

    mapped(look)(jnp.ones((128, 64)))


def test_amaxes_and_groups_vary_too() -> None:
    def look(a: jax.Array) -> jax.Array:
        amax = jnp.max(jnp.abs(a), keepdims=True).reshape(1)
        assert varies_over(compute_scale_from_amax(amax, E4M3, 0.0)) == {"a"}
        for mode in (MXFP8, ScalingMode.CURRENT_TENSOR_SCALING, DELAYED):
            quantizer = QuantizerFactory.create(1, mode, E4M3, BOTH, n_groups=2)
            tensor = grouped_quantize(a, quantizer, jnp.asarray([32, 0], jnp.int32))
            halves = (tensor.rowwise_tensor, tensor.colwise_tensor)
            for half in halves:
                assert varies_over((half.data, half.scale_inv, half.amax)) == {"a"}
        transformed = NVFP4Quantizer(use_rht=True)
        assert varies_over(quantize(a.astype(jnp.bfloat16), transformed)) == {"a"}
        return a

    mapped(look)(jnp.ones((128, 64)))


def products(a: jax.Array) -> jax.Array:
    kernel = quantize(jnp.eye(64, 32), make(MXFP8, "float8_e4m3fn", BOTH))
    with nfj.product_mode("fast"):
        return gemm(quantize(a, make(MXFP8, "float8_e4m3fn", BOTH)), kernel)


def columns(a: jax.Array) -> jax.Array:
    transformed = NVFP4Quantizer(use_rht=True)
    return quantize(a, transformed).colwise_tensor.dequantize()


def groups(a: jax.Array) -> jax.Array:
    sizes = jnp.asarray([32, 0], jnp.int32)
    quantizer = QuantizerFactory.create(
        1, ScalingMode.CURRENT_TENSOR_SCALING, E4M3, BOTH, n_groups=2
    )
    tensor = grouped_quantize(a, quantizer, sizes).rowwise_tensor
    return tensor.data.astype(jnp.float32) * tensor.scale_inv[0]


@pytest.mark.parametrize("run", [products, columns, groups], ids=lambda run: run.__name__)
def test_each_device_runs_its_part(run: Callable) -> None:
    x = hostile((128, 64), "float32")
    together = np.asarray(mapped(run)(x))
    parts = [np.asarray(run(jnp.asarray(part))) for part in np.split(x, 4)]
    assert together.tobytes() == np.concatenate(parts).tobytes()


def test_operands_that_vary_over_different_axes() -> None:
    x, kernel = (jnp.asarray(hostile((64, 64), "float32", seed)) for seed in (0, 1))

    def run(a: jax.Array, k: jax.Array) -> jax.Array:
        return gemm(
            quantize(a, make(MXFP8, "float8_e4m3fn", BOTH)),
            quantize(k, make(MXFP8, "float8_e4m3fn", BOTH)),
        )

    ins, outs = (P("a"), P(None, "b")), P("a", "b")
    together = mapped(run, ins, outs, "ab")(x, kernel)
    assert np.asarray(together).tobytes() == np.asarray(run(x, kernel)).tobytes()


def test_a_mesh_of_which_one_axis_is_manual() -> None:
    x = hostile((64, 64), "float32")

    def run(a: jax.Array) -> jax.Array:
        return quantize(a, make(MXFP8, "float8_e4m3fn", BOTH)).dequantize()

    together = mapped(run, P("a"), P("a"), "ab", axis_names={"a"})(x)
    assert np.asarray(together).tobytes() == np.asarray(run(jnp.asarray(x))).tobytes()
    with pytest.raises(ValueError, match="out_specs which require replication"):
        mapped(run, P("a"), P(), "ab", axis_names={"a"})(x)


@BY_QUANTIZER_OR_TEXT
def test_loops_and_branches(by: str) -> None:
    x, run = hostile((128, 64), "float32"), tried(by)

    def loop(a: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda carry, _: (run(carry), None), a, None, length=2)[0]

    def branch(a: jax.Array) -> jax.Array:
        return jax.lax.cond(a.shape[0] > 1, run, lambda b: b, a)

    expected = np.asarray(run(jnp.asarray(x))).tobytes()
    for function in (loop, branch, lambda a: jax.vmap(run)(a.reshape(2, 16, 64)).reshape(32, 64)):
        assert np.asarray(mapped(function)(x)).tobytes() == expected


@BY_QUANTIZER_OR_TEXT
def test_gradients_of_fake_quantize(by: str) -> None:
    x, run = hostile((128, 64), "float32"), tried(by)

    def gradient(a: jax.Array) -> jax.Array:
        return jax.grad(lambda b: jax.lax.psum(jnp.sum(run(b) * 3), "a"))(a)

    np.testing.assert_array_equal(mapped(gradient)(x), np.full_like(x, 3))


@pytest.mark.parametrize("mode", [MXFP8, DELAYED])
def test_gradients_of_a_layer_add_up_over_devices(mode: ScalingMode) -> None:
    random = np.random.default_rng(3)
    # Integers that E4M3 represents under any power-of-two scale, and whose sums are exact.
    x, kernel = (random.integers(-2, 3, s).astype(np.float32) for s in ((128, 64), (64, 32)))
    weights = random.integers(-2, 3, (128, 32)).astype(np.float32)
    sets = QuantizerFactory.create_set(1, mode, E4M3, E4M3)
    bias = jnp.zeros((32,))

    def gradients(a: jax.Array, k: jax.Array, b: jax.Array, w: jax.Array, s: object) -> tuple:
        def loss(*operands: jax.Array) -> jax.Array:
            *of_layer, own = operands
            return jnp.sum(dense(*of_layer, quantizer_set=own) * w)

        return jax.grad(loss, (0, 1, 2, 3))(a, k, b, s)

    ins = (P("a"), P(), P(), P("a"), P())
    together = mapped(gradients, ins, (P("a"), P(), P(), P()))(x, kernel, bias, weights, sets)
    alone = gradients(*map(jnp.asarray, (x, kernel, bias, weights)), sets)
    assert jax.tree.structure(together) == jax.tree.structure(alone)
    for a, b in zip(jax.tree.leaves(together), jax.tree.leaves(alone), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def test_gradients_of_grouped_layers() -> None:
    random = np.random.default_rng(4)
    x, kernel, weights = (
        random.integers(-2, 3, s).astype(np.float32) for s in ((256, 32), (2, 32, 64), (256, 64))
    )
    sizes = jnp.asarray([32, 32], jnp.int32)
    sets = QuantizerFactory.create_set(1, MXFP8, E4M3, E4M3, n_groups=2)

    def gradients(a: jax.Array, k: jax.Array, w: jax.Array) -> tuple:
        def loss(p: jax.Array, q: jax.Array) -> jax.Array:
            return jnp.sum(grouped_dense(p, q, sizes, quantizer_set=sets) * w)

        return jax.grad(loss, (0, 1))(a, k)

    ins, outs = (P("a"), P(), P("a")), (P("a"), P())
    dx, dkernel = mapped(gradients, ins, outs)(x, kernel, weights)
    parts = [
        gradients(jnp.asarray(a), jnp.asarray(kernel), jnp.asarray(w))
        for a, w in zip(np.split(x, 4), np.split(weights, 4), strict=True)
    ]
    np.testing.assert_array_equal(dx, np.concatenate([part[0] for part in parts]))
    np.testing.assert_array_equal(dkernel, sum(np.asarray(part[1]) for part in parts))


def test_devices_share_the_state_that_they_have_alike() -> None:
    x = hostile((128, 64), "float32")
    x[0, 0], x[40, 0] = np.nan, np.float32(2**-140)

    def fresh() -> DelayedScaleQuantizer:
        return DelayedScaleQuantizer(E4M3, amax_history=jnp.zeros((4,)))

    def step(a: jax.Array, quantizer: DelayedScaleQuantizer) -> DelayedScaleQuantizer:
        def body(carry: DelayedScaleQuantizer, _: None) -> tuple[DelayedScaleQuantizer, None]:
            quantize(a, carry)
            return carry, None

        return jax.lax.scan(body, quantizer, None, length=2)[0]

    def own(a: jax.Array) -> tuple[jax.Array, jax.Array]:
        quantizer = jax.tree.map(lambda leaf: jax.lax.pcast(leaf, "a", to="varying"), fresh())
        after = step(a, quantizer)
        return after.scale, after.amax_history

    for magnitudes in (x, x * np.float32(2**-132)):
        shared = mapped(step, (P("a"), P()), P())(magnitudes, fresh())
        alone = step(jnp.asarray(magnitudes), fresh())
        for a, b in zip(jax.tree.leaves(shared), jax.tree.leaves(alone), strict=True):
            assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
        scales, histories = mapped(own, outs=(P("a"), P("a")))(magnitudes)
        for device, part in enumerate(np.split(magnitudes, 4)):
            after = step(jnp.asarray(part), fresh())
            assert np.asarray(scales)[device] == np.asarray(after.scale)[0]
            np.testing.assert_array_equal(
                np.asarray(histories)[4 * device : 4 * device + 4], after.amax_history
            )


def test_a_varying_random_state_makes_the_result_vary() -> None:
    x = jnp.asarray(hostile((32, 64), "float32"))
    state = jnp.arange(16, dtype=jnp.uint32).reshape(4, 4)

    def values(words: jax.Array) -> jax.Array:
        return fake_quantize(x, NVFP4Quantizer(stochastic_rounding_rng_state=words.reshape(4)))

    def gradient(words: jax.Array) -> jax.Array:
        quantizer = NVFP4Quantizer(stochastic_rounding_rng_state=words.reshape(4))
        return jax.grad(lambda a: jnp.sum(fake_quantize(a, quantizer)))(x)

    together = np.asarray(mapped(values)(state)).reshape(4, 32, 64)
    for device in range(4):
        assert together[device].tobytes() == np.asarray(values(state[device])).tobytes()
    # x is the same on all devices, so that its gradient is the sum of the devices' gradients.
    np.testing.assert_array_equal(mapped(gradient, outs=P())(state), np.full((32, 64), 4))


@MODE_CASES
def test_outside_of_jit(mode: ScalingMode, dtype: str) -> None:
    x = hostile((128, 64), "float32")

    def run(a: jax.Array) -> jax.Array:
        return quantize(a, make(mode, dtype, BOTH)).dequantize()

    eager = jax.shard_map(run, mesh=mesh_of("a"), in_specs=P("a"), out_specs=P("a"))
    parts = [np.asarray(run(jnp.asarray(part))) for part in np.split(x, 4)]
    assert np.asarray(eager(jnp.asarray(x))).tobytes() == np.concatenate(parts).tobytes()
