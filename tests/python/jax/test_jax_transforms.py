# SPDX-License-Identifier: Apache-2.0
"""Tests JAX's transformations: jit, vmap, grad, scan, checkpoint, export."""

import jax
import jax.export
import jax.numpy as jnp
import narrowfloat.jax as nfj
import numpy as np
import pytest
from hostile import MODE_IDS, MODES, assert_numpy_bytes, code_bytes, halves, hostile, make
from narrowfloat.jax._library import TARGETS
from narrowfloat.jax.cpp_extensions.quantization import quantize, quantize_dbias
from narrowfloat.jax.quantize import (
    DelayedScaleQuantizer,
    NoScaleTensor,
    NVFP4Quantizer,
    QuantizeLayout,
    QuantizerFactory,
    ScaledTensor,
    ScalingMode,
)

BOTH = QuantizeLayout.ROWWISE_COLWISE
MODE_CASES = pytest.mark.parametrize(("mode", "dtype"), MODES, ids=MODE_IDS)


def same(a: object, b: object) -> None:
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for left, right in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert code_bytes(left).tobytes() == code_bytes(right).tobytes()


@MODE_CASES
def test_jit(mode: ScalingMode, dtype: str) -> None:
    x = jnp.asarray(hostile((64, 96)))

    def run(a: jax.Array) -> ScaledTensor:
        return quantize(a, make(mode, dtype, BOTH))

    same(jax.jit(run)(x), run(x))
    # The quantizer and an amax may be arguments too.
    jitted = jax.jit(lambda a, amax, q: quantize(NoScaleTensor(a, amax), q))
    amax = jnp.asarray([3.0], jnp.float32)
    same(
        jitted(x, amax, make(mode, dtype, BOTH)),
        quantize(NoScaleTensor(x, amax), make(mode, dtype, BOTH)),
    )


@MODE_CASES
def test_vmap_gives_each_item_its_own_scales(mode: ScalingMode, dtype: str) -> None:
    x = hostile((3, 64, 32), "float32")

    def run(a: jax.Array) -> tuple[ScaledTensor, jax.Array]:
        return quantize_dbias(a, make(mode, dtype, BOTH))

    axis = MODES.index((mode, dtype)) % 3  # some modes for each axis of the batch
    together = jax.jit(jax.vmap(run, axis))(jnp.asarray(np.moveaxis(x, 0, axis)))
    for i, item in enumerate(x):
        for whole, alone in zip(
            jax.tree.leaves(together), jax.tree.leaves(run(jnp.asarray(item))), strict=True
        ):
            assert code_bytes(whole)[i].tobytes() == code_bytes(alone).tobytes()


@pytest.mark.parametrize("is_mapped", [False, True])
def test_items_of_vmap_share_random_bits_unless_the_state_is_mapped(is_mapped: bool) -> None:
    x = jnp.broadcast_to(jnp.asarray(hostile((32, 64), "float32")), (2, 32, 64))
    words = jnp.asarray([[1, 2, 3, 4], [5, 6, 7, 8]], jnp.uint32)

    def codes(a: jax.Array, state: jax.Array) -> jax.Array:
        quantizer = make(*MODES[5], QuantizeLayout.ROWWISE, stochastic_rounding_rng_state=state)
        return quantize(a, quantizer).data

    mapped = jax.vmap(codes, (0, 0 if is_mapped else None))
    first, second = map(code_bytes, mapped(x, words if is_mapped else words[0]))
    assert (first != second).any() == is_mapped
    np.testing.assert_array_equal(second, code_bytes(codes(x[0], words[int(is_mapped)])))


def test_vmap_over_vmap_and_over_values() -> None:
    x = hostile((2, 2, 32, 32))

    def run(a: jax.Array) -> jax.Array:
        quantizer = make(ScalingMode.NVFP4_1D_SCALING, "float4_e2m1fn", BOTH)
        return quantize(a, quantizer).colwise_tensor.dequantize()

    together = np.asarray(jax.jit(jax.vmap(jax.vmap(run)))(jnp.asarray(x)))
    for i in range(2):
        for j in range(2):
            assert together[i, j].tobytes() == np.asarray(run(jnp.asarray(x[i, j]))).tobytes()


@MODE_CASES
@pytest.mark.parametrize("layout", list(QuantizeLayout), ids=lambda layout: layout.name)
def test_gradients_pass_straight_through(
    mode: ScalingMode, dtype: str, layout: QuantizeLayout
) -> None:
    x = jnp.asarray(hostile((64, 32), "float32"))
    weights = jnp.asarray(np.random.default_rng(0).standard_normal((64, 32)), jnp.float32)
    # Columnwise codes may be transposed; fake_quantize returns values in the layout of x.
    values = nfj.fake_quantize(x, make(mode, dtype, layout))
    whole = quantize(x, make(mode, dtype, BOTH))
    column = halves(whole)["columnwise"]
    if layout.has_rowwise:
        same(values, whole.dequantize())
    else:
        same(values, column.dequantize().T if column.data_layout == "T" else column.dequantize())

    def loss(a: jax.Array) -> jax.Array:
        return jnp.sum(nfj.fake_quantize(a, make(mode, dtype, layout)) * weights)

    np.testing.assert_array_equal(jax.jit(jax.grad(loss))(x), weights)
    if layout.is_rowwise_colwise:
        batch = jnp.stack([x, 2 * x])
        gradients = jax.jit(jax.vmap(jax.grad(loss)))(batch)
        np.testing.assert_array_equal(gradients, jnp.stack([weights, weights]))


def test_gradients_beside_integer_state() -> None:
    state = jnp.asarray([[1, 2, 3, 4]], jnp.uint32)
    x = jnp.ones((16, 32))
    quantizer = NVFP4Quantizer(stochastic_rounding_rng_state=state)
    gradient = jax.grad(lambda a: nfj.fake_quantize(a, quantizer).sum())(x)
    np.testing.assert_array_equal(gradient, np.ones((16, 32)))


def test_state_goes_through_scan() -> None:
    steps = jnp.asarray([1.0, 4.0, 2.0, 8.0])[:, None, None] * jnp.ones((4, 32, 32))

    def fresh() -> DelayedScaleQuantizer:
        return DelayedScaleQuantizer(jnp.float8_e4m3fn, amax_history=jnp.zeros((4,)))

    def body(quantizer: DelayedScaleQuantizer, x: jax.Array) -> tuple:
        scale = quantizer.scale
        values = nfj.fake_quantize(x, quantizer)
        return quantizer, (values, scale)

    last, scanned = jax.lax.scan(body, fresh(), steps)
    by_hand, seen = fresh(), []
    for x in steps:
        scale = by_hand.scale
        seen.append((nfj.fake_quantize(x, by_hand), scale))
    same(last, by_hand)
    same(scanned, jax.tree.map(lambda *parts: jnp.stack(parts), *seen))


@MODE_CASES
def test_checkpoint(mode: ScalingMode, dtype: str) -> None:
    x = jnp.asarray(hostile((32, 64), "float32"))

    def loss(a: jax.Array) -> jax.Array:
        return jnp.sum(nfj.fake_quantize(jnp.tanh(a), make(mode, dtype, BOTH)) ** 2)

    plain, again = jax.grad(loss)(x), jax.grad(jax.checkpoint(loss))(x)
    # tanh' is computed again by the same operations, perhaps fused differently: a rounding or two.
    np.testing.assert_allclose(plain, again, rtol=2**-21)


POLICIES = {
    "all": jax.checkpoint_policies.everything_saveable,
    "none": jax.checkpoint_policies.nothing_saveable,
    "other_names": jax.checkpoint_policies.save_anything_except_these_names("other"),
    "own_name": jax.checkpoint_policies.save_only_these_names("own_name"),
    "dots": jax.checkpoint_policies.dots_saveable,
    "codes": lambda primitive, *_, **__: "quantize" in primitive.name,
    "no_bits": lambda primitive, *_, **__: primitive.name != "bitcast_convert_type",
}


@pytest.mark.parametrize("policy", POLICIES)
@MODE_CASES
def test_gradients_do_not_depend_on_what_a_checkpoint_saves(
    mode: ScalingMode, dtype: str, policy: str
) -> None:
    rng = np.random.default_rng(0)
    x, kernel = (jnp.asarray(rng.standard_normal(of), jnp.float32) for of in ((32, 64), (64, 32)))
    name = policy if policy == "own_name" else None
    sets, grouped = (
        QuantizerFactory.create_set(1, mode, dtype, dtype, checkpoint_name=name, **groups)
        for groups in ({}, {"n_groups": 2})
    )
    sizes = jnp.asarray([16, 16] if "NVFP4" in mode.name else [0, 32], jnp.int32)

    def loss(x: jax.Array, kernel: jax.Array) -> jax.Array:
        y = nfj.dense(x, kernel, quantizer_set=sets)
        experts = jnp.stack([kernel, kernel])
        return jnp.sum(y) + jnp.sum(nfj.grouped_dense(x, experts, sizes, quantizer_set=grouped))

    plain = jax.grad(loss, (0, 1))
    saving = jax.grad(jax.checkpoint(loss, policy=POLICIES[policy]), (0, 1))
    same(saving(x, kernel), plain(x, kernel))
    same(jax.jit(saving)(x, kernel), jax.jit(plain)(x, kernel))


@MODE_CASES
def test_without_jit_at_all(mode: ScalingMode, dtype: str) -> None:
    x = jnp.asarray(hostile((2, 32, 64), "float32"))

    def run(a: jax.Array) -> tuple:
        quantizer = make(mode, dtype, BOTH)
        made = quantize_dbias(a[0], quantizer)
        return made, jax.vmap(lambda b: quantize(b, make(mode, dtype, BOTH)))(a), quantizer

    def loss(a: jax.Array) -> jax.Array:
        sets = QuantizerFactory.create_set(1, mode, dtype, dtype)
        return jnp.sum(nfj.dense(a, jnp.eye(64, 32), quantizer_set=sets))

    with jax.disable_jit():
        found = run(x), jax.grad(loss)(x[0]), nfj.fake_quantize(x[0], "nvfp4")
    same(found, (run(x), jax.grad(loss)(x[0]), nfj.fake_quantize(x[0], "nvfp4")))


def test_leaves_are_kept_under_the_checkpoint_name() -> None:
    quantizer = make(
        ScalingMode.MXFP8_1D_SCALING, "float8_e4m3fn", BOTH, checkpoint_name="quantized"
    )
    traced = jax.make_jaxpr(lambda a: quantize(a, quantizer).checkpoint(quantizer))(
        jnp.ones((32, 32))
    )
    names = [e.params["name"] for e in traced.eqns if e.primitive.name == "name"]
    assert names == ["quantized"] * 6
    tensor = quantize(jnp.ones((32, 32)), quantizer)
    quantizer.checkpoint_name = None
    assert tensor.checkpoint(quantizer) is tensor


@MODE_CASES
def test_export(mode: ScalingMode, dtype: str) -> None:
    x = hostile((64, 64))

    def run(a: jax.Array) -> jax.Array:
        return quantize(a, make(mode, dtype, BOTH)).dequantize()

    checks = [jax.export.DisabledSafetyCheck.custom_call(name) for name in TARGETS]
    exported = jax.export.export(jax.jit(run), disabled_checks=checks)(jnp.asarray(x))
    again = jax.export.deserialize(exported.serialize())
    same(again.call(jnp.asarray(x)), run(jnp.asarray(x)))


@MODE_CASES
def test_tensors_and_quantizers_are_pytrees(mode: ScalingMode, dtype: str) -> None:
    quantizer = make(mode, dtype, BOTH)
    tensor = quantize(jnp.asarray(hostile((32, 64))), quantizer)
    for tree in (tensor, quantizer, mode):
        leaves, structure = jax.tree.flatten(tree)
        again = jax.tree.unflatten(structure, leaves)
        same(again, tree)
        assert hash(structure) == hash(jax.tree.structure(again))
    assert len(jax.tree.leaves(tensor)) == 6
    assert jax.tree.leaves(mode) == []
    names = [str(path[-1]) for path, _ in jax.tree_util.tree_leaves_with_path(tensor)]
    assert names == [".data", ".amax", ".scale_inv"] * 2


def test_an_attribute_of_another_type_is_the_same_attribute() -> None:
    """Passes equal attributes of other types, which JAX finds in its cache: 1 == True."""
    x = hostile((32, 64))
    for axis, is_dbias in ((1, True), (np.int32(1), 1), (np.int64(1), np.True_)):
        quantizer = make(ScalingMode.MXFP8_1D_SCALING, "float8_e4m3fn", BOTH)
        found = quantizer.quantize_dbias(jnp.asarray(x), flatten_axis=axis, is_dbias=is_dbias)[0]
        assert_numpy_bytes(found, x, quantizer)


@pytest.mark.parametrize(
    ("message", "error", "call"),
    [
        (
            "quantize: MXFP8_1D_SCALING needs a dimension that is a multiple of its blocks of 32, "
            "got 33 in shape 32x33",
            ValueError,
            lambda: quantize(
                jnp.ones((32, 33)),
                make(ScalingMode.MXFP8_1D_SCALING, "float8_e4m3fn", QuantizeLayout.ROWWISE),
            ),
        ),
        (
            "quantize: the input must be float32, float16 or bfloat16, got int32",
            TypeError,
            lambda: quantize(
                jnp.ones((32, 32), jnp.int32),
                make(ScalingMode.MXFP8_1D_SCALING, "float8_e4m3fn", QuantizeLayout.ROWWISE),
            ),
        ),
        (
            "quantize: flatten_axis must split the dimensions in two, got 0 for 2 dimensions",
            ValueError,
            lambda: quantize(
                jnp.ones((32, 32)),
                make(ScalingMode.MXFP8_1D_SCALING, "float8_e4m3fn", QuantizeLayout.ROWWISE),
                0,
            ),
        ),
        (
            "quantize: MXFP8_1D_SCALING needs e4m3 or e5m2 codes, got e2m1",
            ValueError,
            lambda: make(ScalingMode.MXFP8_1D_SCALING, "float4_e2m1fn", BOTH),
        ),
        (
            "quantizer: scaling_mode of NVFP4Quantizer must be NVFP4_1D_SCALING or "
            "NVFP4_2D_SCALING, got MXFP8_1D_SCALING",
            ValueError,
            lambda: NVFP4Quantizer(
                q_dtype=jnp.float8_e4m3fn, scaling_mode=ScalingMode.MXFP8_1D_SCALING
            ),
        ),
        (
            "quantize: data must be a JAX array, got list",
            TypeError,
            lambda: quantize([1.0]),
        ),
        (
            "quantize: rowwise, colwise or both must be True, got neither",
            ValueError,
            lambda: make(ScalingMode.MXFP8_1D_SCALING, "float8_e4m3fn", BOTH).quantize(
                jnp.ones((32, 32)), False, False
            ),
        ),
    ],
)
def test_refused_when_traced(message: str, error: type[Exception], call: object) -> None:
    with pytest.raises(error) as raised:
        call()
    assert raised.value.args == (message,)
