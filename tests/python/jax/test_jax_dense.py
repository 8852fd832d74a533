# SPDX-License-Identifier: Apache-2.0
"""Tests products of quantized tensors, and the linear layer that uses them."""

from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden import Case, cases
from hostile import MODE_IDS, MODES
from narrowfloat.jax import dense
from narrowfloat.jax.cpp_extensions import gemm
from narrowfloat.jax.cpp_extensions.quantization import grouped_quantize, quantize
from narrowfloat.jax.quantize import (
    DelayedScaleQuantizer,
    GroupedQuantizer,
    NVFP4Quantizer,
    QuantizeLayout,
    QuantizerFactory,
    QuantizerSet,
    ScalingMode,
)

import narrowfloat as nf

BOTH = QuantizeLayout.ROWWISE_COLWISE
RNG = np.random.default_rng(5)
X = jnp.asarray(RNG.standard_normal((64, 96)), jnp.float32)
KERNEL = jnp.asarray(RNG.standard_normal((96, 32)), jnp.float32)
BIAS = jnp.asarray(RNG.standard_normal(32), jnp.float32)


def float32_bound(length: int, magnitudes: np.ndarray) -> np.ndarray:
    """Bounds sums of `length` float32 products in any order, and a bias: length + 2 roundings."""
    return (length + 2) * 2.0**-24 * magnitudes


def set_of(mode: ScalingMode, dtype: str) -> QuantizerSet:
    backward = "float8_e5m2" if mode.is_tensor_scaling() else dtype
    return QuantizerFactory.create_set(1, mode, dtype, backward)


def value(x: np.ndarray, scheme: str, columnwise: bool, **options: object) -> np.ndarray:
    q = nf.quantize(np.asarray(x), scheme, not columnwise, columnwise, **options)
    return q.dequantize(np.float32).astype(np.float64)


def assert_product(got: jax.Array, left: np.ndarray, right: np.ndarray, what: str) -> None:
    bound = float32_bound(left.shape[1], np.abs(left) @ np.abs(right))
    assert (np.abs(np.asarray(got, np.float64) - left @ right) <= bound).all(), what


def assert_same_sums(got: jax.Array, flat: jax.Array, left: np.ndarray, right: np.ndarray) -> None:
    """Checks two float32 products of the same operands that may add in different orders.

    Each is within float32_bound() of the exact product, so they differ by at most twice that.
    """
    bound = 2 * float32_bound(left.shape[1], np.abs(left) @ np.abs(right))
    assert (np.abs(np.asarray(got, np.float64) - np.asarray(flat, np.float64)) <= bound).all()


@pytest.mark.parametrize(("mode", "dtype"), MODES, ids=MODE_IDS)
def test_three_products_of_a_layer(mode: ScalingMode, dtype: str) -> None:
    sets = set_of(mode, dtype)
    forward = mode.get_scheme(dtype)
    backward = mode.get_scheme(sets.dgrad.q_dtype)
    options = {"scale": 1.0} if mode is ScalingMode.DELAYED_TENSOR_SCALING else {}
    blocks = mode.is_block_scaling
    out, pull = jax.vjp(lambda x, k, b: dense(x, k, b, quantizer_set=sets), X, KERNEL, BIAS)
    gradient = jnp.asarray(RNG.standard_normal(out.shape), jnp.float32)
    dx, dkernel, dbias = pull(gradient)
    x = value(X, forward, False, **options)
    kernel = value(KERNEL, forward, blocks, **options)
    product = x @ kernel + np.asarray(BIAS, np.float64)
    bound = float32_bound(96, np.abs(x) @ np.abs(kernel) + np.abs(np.asarray(BIAS)))
    assert (np.abs(np.asarray(out, np.float64) - product) <= bound).all()
    dy = value(gradient, backward, False, **options)
    assert_product(dx, dy, value(KERNEL, forward, False, **options).T, "dx")
    x, dy = (value(a, s, blocks, **options) for a, s in ((X, forward), (gradient, backward)))
    assert_product(dkernel, x.T, dy, "dkernel")
    _, sums = nf.quantize_dbias(np.asarray(gradient), backward, **options)
    np.testing.assert_array_equal(np.asarray(dbias), sums)


def test_without_quantizers_it_is_a_product() -> None:
    def plain(x: jax.Array, k: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.sum(jnp.tanh(x @ k + b))

    def ours(x: jax.Array, k: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.sum(jnp.tanh(dense(x, k, b)))

    for a, b in zip(
        jax.grad(plain, (0, 1, 2))(X, KERNEL, BIAS),
        jax.grad(ours, (0, 1, 2))(X, KERNEL, BIAS),
        strict=True,
    ):
        # The arguments of tanh' add in another order: some roundings of numbers of order 10.
        np.testing.assert_allclose(a, b, atol=96 * 10 * 2**-24 * 4)


@pytest.mark.parametrize("mode", [ScalingMode.MXFP8_1D_SCALING, ScalingMode.NVFP4_1D_SCALING])
def test_dimensions_on_both_sides(mode: ScalingMode) -> None:
    x, kernel = X.reshape(2, 32, 3, 32), KERNEL.reshape(3, 32, 1, 32)
    dtype = str(mode.get_compatible_q_dtypes()[0])
    sets = QuantizerFactory.create_set(1, mode, dtype, dtype)
    # Arguments of value(): rowwise and columnwise values of the NumPy face.
    left, right = (mode.get_scheme(dtype), False), (mode.get_scheme(dtype), True)
    out, pull = jax.vjp(
        lambda a, k: dense(a, k, None, ((-2, -1), (0, 1)), quantizer_set=sets), x, kernel
    )
    flat, pull_flat = jax.vjp(lambda a, k: dense(a, k, quantizer_set=sets), X, KERNEL)
    assert out.shape == (2, 32, 1, 32)
    assert_same_sums(out.reshape(64, 32), flat, value(X, *left), value(KERNEL, *right))
    # Both get one cotangent, because codes may differ by a whole step where last bits differ.
    gradient = out.reshape(64, 32)
    dx, dkernel = pull(out)
    dx_flat, dkernel_flat = pull_flat(gradient)
    assert_same_sums(dx.reshape(64, 96), dx_flat, value(gradient, *left), value(KERNEL, *left).T)
    assert_same_sums(
        dkernel.reshape(96, 32), dkernel_flat, value(X, *right).T, value(gradient, *right)
    )


def test_the_transform_cancels_in_the_weights_gradient() -> None:
    def quantizer() -> NVFP4Quantizer:
        return NVFP4Quantizer(use_rht=True)

    x = jnp.asarray(RNG.standard_normal((64, 32)), jnp.bfloat16)
    dy = jnp.asarray(RNG.standard_normal((64, 48)), jnp.bfloat16)
    left, right = quantize(x, quantizer()), quantize(dy, quantizer())
    product = gemm(left, right, None, ((0,), (0,)), dtype=jnp.float32)
    operands = [
        nf.quantize(np.asarray(a), "nvfp4", False, True, rht=True).dequantize(np.float32)
        for a in (x, dy)
    ]
    assert_product(product, operands[0].T.astype(np.float64), operands[1].astype(np.float64), "rht")
    # If the other operand is not transformed, the product reads the inverse, in bfloat16.
    mixed = gemm(left, quantize(dy, NVFP4Quantizer()), None, ((0,), (0,)), dtype=jnp.float32)
    exact = np.asarray(x, np.float64).T @ np.asarray(dy, np.float64)
    assert np.linalg.norm(np.asarray(mixed) - exact) < 0.25 * np.linalg.norm(exact)


def test_state_comes_back_as_the_sets_gradient() -> None:
    sets = set_of(ScalingMode.DELAYED_TENSOR_SCALING, "float8_e4m3fn")

    def loss(kernel: jax.Array, quantizers: QuantizerSet) -> jax.Array:
        return jnp.sum(dense(X, kernel, BIAS, quantizer_set=quantizers))

    _, after = jax.jit(jax.grad(loss, (0, 1)))(KERNEL, sets)
    assert float(after.x.amax_history[-1]) == float(jnp.abs(X).max())
    assert float(after.kernel.amax_history[-1]) == float(jnp.abs(KERNEL).max())
    assert float(after.dgrad.amax_history[-1]) == 1.0
    assert float(after.dgrad.scale[0]) == 57344.0
    assert float(after.x.scale[0]) == np.float32(448) / np.float32(jnp.abs(X).max())


def test_inference_needs_one_direction_and_training_says_so() -> None:
    sets = QuantizerFactory.create_set(
        1, ScalingMode.MXFP8_1D_SCALING, "float8_e4m3fn", "float8_e4m3fn", is_2x2x=False
    )
    out = dense(X, KERNEL, BIAS, quantizer_set=sets)
    assert out.shape == (64, 32)
    with pytest.raises(ValueError) as raised:
        jax.grad(lambda k: dense(X, k, BIAS, quantizer_set=sets).sum())(KERNEL)
    message = "dense: get_tensor: LHS_TRANS of MXFP8_1D_SCALING needs COLWISE data, got ROWWISE"
    assert raised.value.args == (message,)


def recorded_set(case: Case) -> QuantizerSet:
    mode = case.params["mode"]
    if mode.startswith("current_scaling"):
        return set_of(ScalingMode.CURRENT_TENSOR_SCALING, "float8_e4m3fn")
    two = ScalingMode.NVFP4_2D_SCALING if "16x16" in mode else ScalingMode.NVFP4_1D_SCALING
    rht = "RHT" in mode
    return QuantizerSet(
        NVFP4Quantizer(use_rht=rht),
        NVFP4Quantizer(scaling_mode=two),
        NVFP4Quantizer(use_rht=rht),
    )


@pytest.mark.parametrize("case", list(cases("fl")), ids=lambda case: case.name)
def test_recorded_layer(case: Case) -> None:
    """Compares products of the recorded operands with exact sums, within a bound."""
    x, w, dy = (jnp.asarray(case[name]) for name in ("x", "w", "dy"))
    sets = recorded_set(case)
    out, pull = jax.vjp(lambda a, k: dense(a, k, quantizer_set=sets), x, w.T)
    dx, dw = pull(dy.astype(out.dtype))
    for name, got in (("y", out), ("dx", dx), ("dw", dw.T)):
        exact = case[f"exact_{name}.fp64"]
        size = max(x.size // x.shape[-1], *w.shape)
        # One rounding of the result, and float32 sums bounded by the matrix's largest product.
        bound = np.abs(exact) * 2.0**-8 + size * 2.0**-22 * np.abs(exact).max()
        error = np.abs(np.asarray(got, np.float64).reshape(exact.shape) - exact)
        assert (error <= bound).all(), f"{case.name} {name}"


@pytest.mark.parametrize(("mode", "dtype"), MODES, ids=MODE_IDS)
@pytest.mark.parametrize("dims", [((1,), (0,)), ((0,), (0,)), ((1,), (1,)), ((0,), (1,))])
def test_operands_are_quantized_where_the_product_reads(
    mode: ScalingMode, dtype: str, dims: tuple[tuple[int], tuple[int]]
) -> None:
    a, b = X[:, :64], KERNEL[:64].T @ KERNEL[:64, :32] @ KERNEL[:32, :].T[:, :32]
    b = jnp.tile(b, (2, 2))
    left, right = (QuantizerFactory.create(1, mode, dtype) for _ in range(2))
    found = gemm(a, b, None, dims, left, right, dtype=jnp.float32)
    both = [quantize(x, QuantizerFactory.create(1, mode, dtype)) for x in (a, b)]
    np.testing.assert_array_equal(found, gemm(*both, None, dims, dtype=jnp.float32))
    left, right = (QuantizerFactory.create(1, mode, dtype) for _ in range(2))
    one = gemm(a, both[1], None, dims, lhs_quantizer=left, rhs_quantizer=right, dtype=jnp.float32)
    np.testing.assert_array_equal(found, one)


def test_what_a_layer_contracts() -> None:
    with pytest.raises(
        ValueError,
        match=r"^dense: contracting_dims must be the last dimensions of x and the first "
        r"of kernel, got .* for .* and .* dimensions$",
    ):
        dense(X, KERNEL.T, contracting_dims=((1,), (1,)))
    with pytest.raises(ValueError, match=r"for 2 and 2 dimensions$"):
        dense(X.T, KERNEL, contracting_dims=((0,), (0,)))


@pytest.mark.parametrize(("mode", "dtype"), MODES, ids=MODE_IDS)
def test_products_of_a_batch(mode: ScalingMode, dtype: str) -> None:
    """Tests vmap over quantizing and multiplying, over quantized tensors, and over gradients."""
    xs = jnp.stack([X, 3 * X, -X[::-1]])
    sets = set_of(mode, dtype)

    def loss(x: jax.Array) -> jax.Array:
        y = dense(x, KERNEL, quantizer_set=sets)
        return jnp.sum(y * y) / 2  # so that the incoming gradient is y, without a rounding

    alone, found = jax.jit(loss), jax.jit(jax.vmap(loss))(xs)
    gradient, gradients = jax.jit(jax.grad(loss)), jax.jit(jax.vmap(jax.grad(loss)))(xs)
    for i, x in enumerate(xs):
        # Two sums of equally many squares, each with one rounding per square and one per addition.
        # Squares are not negative, so that the sum of magnitudes is the sum.
        bound = 2 * 2 * X.shape[0] * KERNEL.shape[1] * 2.0**-24
        np.testing.assert_allclose(found[i], alone(x), rtol=bound)
        np.testing.assert_array_equal(gradients[i], gradient(x))

    def make_tensor(x: jax.Array) -> object:
        return quantize(x, QuantizerFactory.create(1, mode, dtype))

    kernel = make_tensor(KERNEL)
    multiply = jax.jit(lambda tensor: gemm(tensor, kernel, dtype=jnp.float32))
    tensors = jax.vmap(make_tensor)(xs)
    products = jax.vmap(multiply)(tensors)
    for i, x in enumerate(xs):
        expected = multiply(make_tensor(x))
        np.testing.assert_array_equal(products[i], expected)


def next_state(loss: Callable, sets: QuantizerSet) -> DelayedScaleQuantizer:
    return jax.jit(jax.grad(loss))(sets).x


def test_the_state_of_a_set_that_a_step_does_not_use_is_a_new_one() -> None:
    sets = set_of(ScalingMode.DELAYED_TENSOR_SCALING, "float8_e4m3fn")
    sets = jax.grad(lambda s: jnp.sum(dense(X, KERNEL, quantizer_set=s)))(sets)

    def skipped(s: QuantizerSet) -> jax.Array:
        return jax.lax.cond(
            X.size == 0, lambda q: jnp.sum(dense(X, KERNEL, quantizer_set=q)), lambda q: 0.0, s
        )

    after = next_state(skipped, sets)
    assert float(after.scale[0]) == 0 and not after.amax_history.any()
    again = replace(after)
    fresh = DelayedScaleQuantizer(after.q_dtype, q_layout=after.q_layout)
    tensors = [quantize(X, own) for own in (again, fresh)]
    for found, wanted in zip(*map(jax.tree.leaves, tensors), strict=True):
        assert np.asarray(found).tobytes() == np.asarray(wanted).tobytes()
    assert np.asarray(again.scale).tobytes() == np.asarray(fresh.scale).tobytes()
    # An amax of 0 keeps the scale, here the scale 1 of a new state.
    again = replace(after)
    quantize(jnp.zeros_like(X), again)
    assert float(again.scale[0]) == 1
    # The smallest subnormal number is a valid scale, although XLA compares it as 0.
    tiny = jnp.asarray([1], jnp.uint32).view(jnp.float32)
    quantizer = replace(fresh, scale=tiny)
    assert np.asarray(jax.jit(lambda q: q.scale_in_use)(quantizer)).view(np.uint32)[0] == 1


def test_groups_of_a_state_of_zeros() -> None:
    def fresh() -> GroupedQuantizer:
        mode = ScalingMode.DELAYED_TENSOR_SCALING
        return QuantizerFactory.create(1, mode, jnp.float8_e4m3fn, n_groups=2)

    sizes = jnp.asarray([X.shape[0], 0], jnp.int32)
    zeros = jax.tree.map(jnp.zeros_like, fresh())
    found, wanted = (grouped_quantize(X, q, sizes) for q in (zeros, fresh()))
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def test_states_of_two_uses_add_up() -> None:
    """Checks that states add like gradients, as in TransformerEngine; docs/jax.md has the rules."""
    sets = set_of(ScalingMode.DELAYED_TENSOR_SCALING, "float8_e4m3fn")

    def once(s: QuantizerSet) -> jax.Array:
        return jnp.sum(dense(X, KERNEL, quantizer_set=s))

    alone = next_state(once, sets)
    twice = next_state(lambda s: once(s) + once(s), sets)
    layer = jax.vmap(lambda x, s: jnp.sum(dense(x, KERNEL, quantizer_set=s)), (0, None))
    batch = next_state(lambda s: jnp.sum(layer(jnp.stack([X, -X]), s)), sets)
    for both in (twice, batch):
        np.testing.assert_array_equal(both.scale, 2 * alone.scale)


def test_a_bias_that_is_added_elsewhere() -> None:
    bias = jnp.ones((KERNEL.shape[1],), X.dtype)
    left_out = gemm(X, KERNEL, bias, fuse_bias=False, dtype=jnp.float32)
    np.testing.assert_array_equal(left_out, gemm(X, KERNEL, dtype=jnp.float32))
    assert np.abs(gemm(X, KERNEL, bias, dtype=jnp.float32) - left_out).min() > 0
