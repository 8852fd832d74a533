# SPDX-License-Identifier: Apache-2.0
"""Tests quantizing arrays on several devices: same bytes, and sharded where blocks allow it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hostile import MODE_IDS, MODES, assert_numpy_bytes, halves, hostile, make
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from narrowfloat.jax import dense, fake_quantize, grouped_dense
from narrowfloat.jax.cpp_extensions.quantization import (
    grouped_quantize,
    quantize,
    quantize_dbias,
)
from narrowfloat.jax.quantize import (
    NVFP4Quantizer,
    QuantizeLayout,
    QuantizerFactory,
    ScalingMode,
)

MESHES = {4: (2, 2), 8: (4, 2)}
BOTH = QuantizeLayout.ROWWISE_COLWISE


def mesh_of(devices: int) -> Mesh:
    return Mesh(np.array(jax.devices()[:devices]).reshape(MESHES[devices]), ("data", "model"))


def put(x: np.ndarray, mesh: Mesh, spec: P) -> jax.Array:
    return jax.device_put(jnp.asarray(x), NamedSharding(mesh, spec))


def spread(array: jax.Array) -> tuple[int, ...]:
    """Returns the shape of the part on one device."""
    return array.sharding.shard_shape(array.shape)


@pytest.mark.parametrize("devices", [4, 8])
@pytest.mark.parametrize("spec", [P("data"), P(None, "model"), P("data", "model")], ids=str)
@pytest.mark.parametrize(("mode", "dtype"), MODES, ids=MODE_IDS)
def test_same_bytes_and_still_spread(mode: ScalingMode, dtype: str, spec: P, devices: int) -> None:
    mesh = mesh_of(devices)
    x = hostile((256, 128))
    quantizer = make(mode, dtype, BOTH)
    sharded = put(x, mesh, spec)
    tensor = jax.jit(lambda a: quantize(a, make(mode, dtype, BOTH)))(sharded)
    assert_numpy_bytes(tensor, x, quantizer)
    found = halves(tensor)
    assert spread(found["rowwise"].data) == spread(sharded)
    turned = spread(sharded) if mode.is_mxfp8_scaling else spread(sharded)[::-1]
    assert spread(found["columnwise"].data) == turned
    if mode.is_block_scaling:
        for half in found.values():
            parts = [n // m for n, m in zip(half.data.shape, spread(half.data), strict=True)]
            scales = zip(half.scale_inv.shape, spread(half.scale_inv), strict=True)
            assert [n // m for n, m in scales] == parts
    values = jax.jit(lambda t: t.dequantize())(tensor)
    assert spread(values) == spread(sharded)
    alone = quantize(jnp.asarray(x), make(mode, dtype, BOTH)).dequantize()
    assert np.asarray(values).tobytes() == np.asarray(alone).tobytes()


@pytest.mark.parametrize(("mode", "dtype"), MODES, ids=MODE_IDS)
def test_without_jit_too(mode: ScalingMode, dtype: str) -> None:
    x = hostile((64, 128), "float32")
    sharded = put(x, mesh_of(4), P("data", "model"))
    tensor = quantize(sharded, make(mode, dtype, BOTH))
    assert_numpy_bytes(tensor, x, make(mode, dtype, BOTH))
    assert spread(halves(tensor)["rowwise"].data) == spread(sharded)


@pytest.mark.parametrize(("mode", "dtype"), MODES, ids=MODE_IDS)
def test_what_would_cut_a_block_is_gathered(mode: ScalingMode, dtype: str) -> None:
    x = hostile((64, 96))  # 8 devices: 8 rows and 12 columns each, less than any block
    mesh = Mesh(np.array(jax.devices()), ("all",))
    for spec in (P("all"), P(None, "all")):
        tensor = jax.jit(lambda a: quantize(a, make(mode, dtype, BOTH)))(put(x, mesh, spec))
        assert_numpy_bytes(tensor, x, make(mode, dtype, BOTH))


def test_three_dimensions_on_two_axes() -> None:
    mesh = mesh_of(8)
    x = hostile((8, 64, 128))
    for mode, dtype in MODES:
        sharded = put(x, mesh, P("data", None, "model"))
        tensor = jax.jit(lambda a, m=mode, d=dtype: quantize(a, make(m, d, BOTH)))(sharded)
        assert_numpy_bytes(tensor, x, make(mode, dtype, BOTH))
        assert spread(halves(tensor)["rowwise"].data) == (2, 64, 64)


@pytest.mark.parametrize("devices", [4, 8])
def test_the_transform(devices: int) -> None:
    x = hostile((128, 128))
    quantizer = make(ScalingMode.NVFP4_1D_SCALING, "float4_e2m1fn", BOTH, use_rht=True)
    sharded = put(x, mesh_of(devices), P("data", "model"))
    tensor = jax.jit(
        lambda a: quantize(
            a, make(ScalingMode.NVFP4_1D_SCALING, "float4_e2m1fn", BOTH, use_rht=True)
        )
    )(sharded)
    assert_numpy_bytes(tensor, x, quantizer)


@pytest.mark.parametrize("spec", [P("data"), P(None, "model"), P("data", "model")], ids=str)
def test_dbias_adds_up_over_devices(spec: P) -> None:
    x = np.random.default_rng(0).integers(-8, 9, (256, 128)).astype(np.float32)
    run = jax.jit(
        lambda a: quantize_dbias(a, make(ScalingMode.MXFP8_1D_SCALING, "float8_e4m3fn", BOTH))
    )
    tensor, dbias = run(put(x, mesh_of(8), spec))
    # Sums of integers below 2^24 are exact in float32 in any order.
    np.testing.assert_array_equal(np.asarray(dbias), x.sum(0))
    assert spread(dbias) == ((64,) if "model" in spec else (128,))
    assert_numpy_bytes(tensor, x, make(ScalingMode.MXFP8_1D_SCALING, "float8_e4m3fn", BOTH))


def test_delayed_state_sees_the_whole_tensor() -> None:
    x = hostile((64, 64), "float32")

    @jax.jit
    def step(a: jax.Array) -> object:
        quantizer = make(ScalingMode.DELAYED_TENSOR_SCALING, "float8_e4m3fn", BOTH)
        quantize(a, quantizer)
        return quantizer

    after = step(put(x, mesh_of(4), P("data", "model")))
    largest = np.abs(x).max()
    assert float(after.amax_history[-1]) == largest
    assert float(after.scale[0]) == np.float32(448) / largest


def test_devices_round_by_their_own_random_numbers() -> None:
    x = np.tile(np.random.default_rng(2).uniform(-6, 6, (16, 64)).astype(np.float32), (4, 1))
    state = np.arange(16, dtype=np.uint32).reshape(4, 4)
    mesh = Mesh(np.array(jax.devices()[:4]), ("data",))
    run = jax.jit(lambda a, s: quantize(a, NVFP4Quantizer(stochastic_rounding_rng_state=s)))
    tensor = run(put(x, mesh, P("data")), jnp.asarray(state))
    codes = np.asarray(halves(tensor)["rowwise"].data).view(np.uint8).reshape(4, -1)
    for device in range(4):
        alone = NVFP4Quantizer(stochastic_rounding_rng_state=jnp.asarray(state[device]))
        want = np.asarray(quantize(jnp.asarray(x[:16]), alone).rowwise_tensor.data)
        np.testing.assert_array_equal(codes[device], want.view(np.uint8).reshape(-1))
    assert (codes[0] != codes[1]).any()


@pytest.mark.parametrize("mode", [ScalingMode.CURRENT_TENSOR_SCALING, ScalingMode.MXFP8_1D_SCALING])
def test_groups_of_a_sharded_array(mode: ScalingMode) -> None:
    x = hostile((128, 64))
    sizes = jnp.asarray([32, 0, 64, 32], jnp.int32)

    def run(a: jax.Array) -> object:
        quantizer = QuantizerFactory.create(1, mode, jnp.float8_e4m3fn, BOTH, n_groups=4)
        return grouped_quantize(a, quantizer, sizes)

    alone, together = run(jnp.asarray(x)), jax.jit(run)(put(x, mesh_of(4), P("data")))
    for a, b in zip(jax.tree.leaves(alone), jax.tree.leaves(together), strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


@pytest.mark.parametrize(("mode", "dtype"), MODES, ids=MODE_IDS)
def test_shard_map_sees_its_own_part(mode: ScalingMode, dtype: str) -> None:
    x = hostile((128, 64))
    mesh = Mesh(np.array(jax.devices()[:4]), ("data",))

    def run(a: jax.Array) -> jax.Array:
        return quantize(a, make(mode, dtype, QuantizeLayout.ROWWISE)).dequantize()

    mapped = jax.shard_map(run, mesh=mesh, in_specs=P("data"), out_specs=P("data"), check_vma=False)
    parts = [np.asarray(run(jnp.asarray(part))) for part in np.split(x, 4)]
    together = np.asarray(jax.jit(mapped)(jnp.asarray(x)))
    assert together.tobytes() == np.concatenate(parts).tobytes()


def test_a_mesh_in_the_context_changes_nothing() -> None:
    x = hostile((64, 128))
    mesh = mesh_of(4)
    with jax.set_mesh(mesh):
        run = jax.jit(
            lambda a: quantize(a, make(ScalingMode.NVFP4_2D_SCALING, "float4_e2m1fn", BOTH))
        )
        tensor = run(put(x, mesh, P("data", "model")))
    assert_numpy_bytes(tensor, x, make(ScalingMode.NVFP4_2D_SCALING, "float4_e2m1fn", BOTH))


def test_axes_of_explicit_type() -> None:
    x = hostile((64, 128))
    mesh = jax.make_mesh((2, 2), ("data", "model"), devices=jax.devices()[:4])
    sharded = put(x, mesh, P("data", "model"))
    for mode, dtype in MODES[-3:]:
        tensor = jax.jit(lambda a, m=mode, d=dtype: quantize(a, make(m, d, BOTH)))(sharded)
        assert_numpy_bytes(tensor, x, make(mode, dtype, BOTH))
        assert spread(halves(tensor)["rowwise"].data) == spread(sharded)


@pytest.mark.parametrize("spec", [P("data"), P("data", "model"), P(None, "data")], ids=str)
@pytest.mark.parametrize("mode", [ScalingMode.MXFP8_1D_SCALING, ScalingMode.DELAYED_TENSOR_SCALING])
def test_batches_on_axes_of_explicit_type(mode: ScalingMode, spec: P) -> None:
    x, dtype = hostile((4, 64, 128), "float32"), "float8_e4m3fn"
    kernel = jnp.asarray(hostile((128, 32), "float32"))
    mesh = jax.make_mesh((2, 2), ("data", "model"), devices=jax.devices()[:4])
    sets = QuantizerFactory.create_set(1, mode, dtype, dtype)

    def layer(a: jax.Array) -> jax.Array:
        return dense(a, kernel, quantizer_set=sets)

    functions = [
        lambda a: quantize(a, make(mode, dtype, BOTH)).dequantize(),
        lambda a: fake_quantize(a, make(mode, dtype, BOTH)),
        lambda a: fake_quantize(a, "nvfp4"),
        layer,
    ]
    gradients = [jax.grad(lambda a, f=f: jnp.sum(f(a) ** 2)) for f in functions[1:]]
    for function in (*functions, *gradients):
        batched = jax.jit(jax.vmap(function))
        found, alone = batched(put(x, mesh, spec)), batched(jnp.asarray(x))
        assert np.asarray(found).tobytes() == np.asarray(alone).tobytes()
        if spec[0] is not None:
            assert spread(found)[0] == 2
    outside = jax.vmap(functions[0])(put(x, mesh, spec))
    assert np.asarray(outside).tobytes() == np.asarray(jax.vmap(functions[0])(x)).tobytes()


@pytest.mark.parametrize("mode", [ScalingMode.MXFP8_1D_SCALING, ScalingMode.CURRENT_TENSOR_SCALING])
def test_a_layer_on_data_and_model_axes(mode: ScalingMode) -> None:
    random = np.random.default_rng(7)
    x, kernel, gradient = (
        random.integers(-3, 4, shape).astype(np.float32)
        for shape in ((256, 128), (128, 128), (256, 128))
    )

    def run(a: jax.Array, k: jax.Array, g: jax.Array) -> tuple:
        sets = QuantizerFactory.create_set(1, mode, "float8_e4m3fn", "float8_e4m3fn")
        out, pull = jax.vjp(lambda p, q: dense(p, q, quantizer_set=sets), a, k)
        return out, *pull(g)

    mesh = mesh_of(8)
    specs = (P("data"), P(None, "model"), P("data", "model"))
    together = jax.jit(run)(
        *(put(a, mesh, spec) for a, spec in zip((x, kernel, gradient), specs, strict=True))
    )
    alone = run(*map(jnp.asarray, (x, kernel, gradient)))
    for a, b in zip(together, alone, strict=True):
        # Float32 additions in another order: up to 256 products of at most 9, and two more
        # roundings for values under scales that are not powers of two.
        bound = (256 + 2) * 2**-24 * 9 * 256
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=0, atol=bound)
    assert spread(together[0]) == (64, 64)


@pytest.mark.parametrize("specs", [(P("data"), P(None, "model")), (P("data", "model"), P("model"))])
@pytest.mark.parametrize("mode", [ScalingMode.NO_SCALING, ScalingMode.MXFP8_1D_SCALING])
def test_gradients_lie_as_what_they_are_of(mode: ScalingMode, specs: tuple[P, P]) -> None:
    mesh = mesh_of(4)
    sets = QuantizerFactory.create_set(1, mode, jnp.float8_e4m3fn, jnp.float8_e4m3fn)
    x, kernel = put(hostile((256, 128)), mesh, specs[0]), put(hostile((128, 128)), mesh, specs[1])

    def loss(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.sum(dense(a, b, quantizer_set=sets) ** 2)

    function = jax.jit(jax.grad(loss, (0, 1)))
    for gradient, array in zip(function(x, kernel), (x, kernel), strict=True):
        assert spread(gradient) == spread(array)


def bias_loss(
    x: jax.Array, kernel: jax.Array, bias: jax.Array, mode: ScalingMode, layer: str
) -> jax.Array:
    dtype = None if mode is ScalingMode.NO_SCALING else jnp.float8_e4m3fn
    if layer == "dense":
        sets = QuantizerFactory.create_set(1, mode, dtype, dtype)
        return jnp.sum(dense(x, kernel, bias, quantizer_set=sets) ** 2)
    sets = QuantizerFactory.create_set(1, mode, dtype, dtype, n_groups=2)
    sizes = jnp.asarray([32, 32], jnp.int32)
    return jnp.sum(grouped_dense(x, kernel, sizes, bias=bias, quantizer_set=sets) ** 2)


@pytest.mark.parametrize(
    ("layer", "mode", "bias"),
    [
        ("dense", ScalingMode.NO_SCALING, P("model")),
        ("dense", ScalingMode.MXFP8_1D_SCALING, P("model")),
        ("dense", ScalingMode.MXFP8_1D_SCALING, P("data")),
        ("grouped", ScalingMode.MXFP8_1D_SCALING, P(None, "model")),
    ],
)
def test_gradients_on_axes_of_explicit_type(layer: str, mode: ScalingMode, bias: P) -> None:
    mesh = jax.make_mesh((2, 2), ("data", "model"), devices=jax.devices()[:4])
    experts = () if layer == "dense" else (2,)
    shapes = (64, 128), (*experts, 128, 96), (*experts, 96)
    specs = P("data", None), P(*[None] * len(experts), None, "model"), bias
    random = np.random.default_rng(1)
    alone = [jnp.asarray(random.integers(-1, 2, of), jnp.float32) for of in shapes]
    gradient = jax.grad(functools.partial(bias_loss, mode=mode, layer=layer), (0, 1, 2))
    want = gradient(*alone)
    lone = put(np.ones((32, 32), np.float32), mesh, P("data"))
    straight = jax.jit(jax.grad(lambda a: jnp.sum(fake_quantize(a, "mxfp8_e4m3"))))
    np.testing.assert_array_equal(straight(lone), np.ones((32, 32)))  # outside of the context
    with jax.set_mesh(mesh):
        spread_out = [put(x, mesh, spec) for x, spec in zip(alone, specs, strict=True)]
        for run in (gradient, jax.jit(gradient)):
            for found, x, spec in zip(run(*spread_out), want, specs, strict=True):
                np.testing.assert_array_equal(found, x)
                assert spread(found) == NamedSharding(mesh, spec).shard_shape(found.shape)
