# SPDX-License-Identifier: Apache-2.0
"""Compares products of codes in JAX with nf.qgemm, in every mode, layout and type."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hostile import FLOATS, MODE_IDS, MODES, hostile, make
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from narrowfloat.jax import product_mode
from narrowfloat.jax.cpp_extensions import gemm, quantize
from narrowfloat.jax.quantize import (
    QuantizeLayout,
    QuantizerFactory,
    ScaledTensor,
    ScalingMode,
)

import narrowfloat as nf

BOTH = QuantizeLayout.ROWWISE_COLWISE
M, N, K = 64, 96, 128
# By layout of nf.qgemm: the contracted dimensions that read the same directions.
LAYOUTS = {"TN": ((1,), (1,)), "NN": ((1,), (0,)), "NT": ((0,), (0,))}
modes = pytest.mark.parametrize(("mode", "dtype"), MODES, ids=MODE_IDS)


def shapes(dims: tuple[tuple[int], tuple[int]]) -> tuple[tuple[int, int], tuple[int, int]]:
    lhs, rhs = dims
    return ((M, K) if lhs == (1,) else (K, M)), ((K, N) if rhs == (0,) else (N, K))


def inputs(dims: tuple, dtype: str = "bfloat16") -> list[np.ndarray]:
    return [hostile(shape, dtype, seed) for seed, shape in enumerate(shapes(dims))]


def tensor(x: np.ndarray, mode: ScalingMode, dtype: str, **options: object) -> ScaledTensor:
    return quantize(jnp.asarray(x), make(mode, dtype, BOTH, **options))


def in_numpy(x: np.ndarray, mode: ScalingMode, dtype: str) -> nf.QuantizedTensor:
    given = mode is ScalingMode.DELAYED_TENSOR_SCALING
    return nf.quantize(x, mode.get_scheme(dtype), True, True, **({"scale": 1.0} if given else {}))


def assert_bytes(got: jax.Array, want: np.ndarray) -> None:
    found = np.asarray(got)
    assert found.dtype == want.dtype and found.shape == want.shape
    np.testing.assert_array_equal(found.view(np.uint8), want.view(np.uint8))


@pytest.mark.parametrize("layout", list(LAYOUTS))
@modes
def test_bytes_of_numpy(mode: ScalingMode, dtype: str, layout: str) -> None:
    dims = LAYOUTS[layout]
    plain = inputs(dims)
    left, right = (tensor(x, mode, dtype) for x in plain)
    operands = [in_numpy(x, mode, dtype) for x in plain]
    for out in FLOATS.values():
        want = nf.qgemm(*operands, layout=layout, dtype=out)
        assert_bytes(gemm(left, right, None, dims, dtype=out), want)
        bias = hostile((2, N), np.dtype(out).name, 7)[0].astype(out)
        added = nf.qgemm(*operands, layout=layout, dtype=out, bias=bias)
        assert_bytes(gemm(left, right, jnp.asarray(bias), dims, dtype=out), added)
    jitted = jax.jit(lambda a, b: gemm(a, b, None, dims, dtype=jnp.float32))(left, right)
    assert_bytes(jitted, nf.qgemm(*operands, layout=layout))


# Pairs of indices into MODES: modes or codes differ within one family.
PAIRS = [(0, 1), (1, 2), (2, 0), (3, 4), (4, 3), (5, 6), (6, 5)]


@pytest.mark.parametrize("layout", list(LAYOUTS))
@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: "-".join(MODE_IDS[i] for i in pair))
def test_pairs_of_schemes(pair: tuple[int, int], layout: str) -> None:
    plain = inputs(LAYOUTS[layout])
    left, right = (tensor(x, *MODES[i]) for x, i in zip(plain, pair, strict=True))
    operands = [in_numpy(x, *MODES[i]) for x, i in zip(plain, pair, strict=True)]
    found = gemm(left, right, None, LAYOUTS[layout], dtype=jnp.float32)
    assert_bytes(found, nf.qgemm(*operands, layout=layout))


@modes
def test_columns_times_rows(mode: ScalingMode, dtype: str) -> None:
    """Compares with the transpose of nf.qgemm's product of the operands in the other order."""
    dims = ((0,), (1,))
    plain = inputs(dims)
    left, right = (in_numpy(x, mode, dtype) for x in plain)
    want = nf.qgemm(right, left, layout="NN").T
    found = gemm(*(tensor(x, mode, dtype) for x in plain), None, dims, dtype=jnp.float32)
    np.testing.assert_array_equal(np.asarray(found), want)
    bias = np.arange(N, dtype=np.float32)
    added = gemm(*(tensor(x, mode, dtype) for x in plain), bias, dims, dtype=jnp.float32)
    np.testing.assert_array_equal(np.asarray(added), want + bias)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("sizes", [(1, 1, 1), (3, 5, 7), (17, 1, 129), (1, 33, 300)], ids=str)
def test_odd_sizes(sizes: tuple[int, int, int], dtype: str) -> None:
    mode, (rows, cols, inner) = ScalingMode.CURRENT_TENSOR_SCALING, sizes
    rng = np.random.default_rng(rows)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((rows, inner), (cols, inner)))
    want = nf.qgemm(in_numpy(x, mode, dtype), in_numpy(w, mode, "float8_e4m3fn"))
    left, right = tensor(x, mode, dtype), tensor(w, mode, "float8_e4m3fn")
    assert_bytes(gemm(left, right, None, ((1,), (1,)), dtype=jnp.float32), want)


def test_nan_and_infinity() -> None:
    mode, dtype = ScalingMode.MXFP8_1D_SCALING, "float8_e5m2"
    x, w = inputs(LAYOUTS["TN"], "float32")
    x[3, 5], x[4, 7], w[2, 1] = np.nan, np.inf, -np.inf
    want = nf.qgemm(in_numpy(x, mode, dtype), in_numpy(w, mode, dtype))
    found = gemm(tensor(x, mode, dtype), tensor(w, mode, dtype), None, ((1,), (1,)))
    assert_bytes(found, want)
    assert np.isnan(want).any()


@pytest.mark.parametrize(("mode", "dtype"), MODES[::3], ids=MODE_IDS[::3])
def test_dimensions_on_both_sides(mode: ScalingMode, dtype: str) -> None:
    x, w = inputs(LAYOUTS["NN"], "float32")
    left = quantize(jnp.asarray(x).reshape(2, 32, 4, 32), make(mode, dtype, BOTH), -2)
    right = quantize(jnp.asarray(w).reshape(4, 32, 3, 32), make(mode, dtype, BOTH), 2)
    bias = np.arange(N, dtype=np.float32).reshape(3, 32)
    found = gemm(left, right, bias, ((-2, -1), (0, 1)), dtype=jnp.float32)
    operands = [in_numpy(a, mode, dtype) for a in (x, w)]
    want = nf.qgemm(*operands, layout="NN", bias=bias.reshape(-1))
    assert_bytes(found, want.reshape(2, 32, 3, 32))


@modes
def test_each_of_a_batch_is_alone(mode: ScalingMode, dtype: str) -> None:
    dims = LAYOUTS["NN"]
    x, w = inputs(dims, "float32")
    stack = np.stack([x, 3 * x, -x[::-1]])
    right = tensor(w, mode, dtype)
    lefts = jax.vmap(lambda a: tensor(a, mode, dtype))(jnp.asarray(stack))
    found = jax.vmap(lambda a: gemm(a, right, None, dims, dtype=jnp.float32))(lefts)
    for got, alone in zip(found, stack, strict=True):
        operands = in_numpy(alone, mode, dtype), in_numpy(w, mode, dtype)
        assert_bytes(got, nf.qgemm(*operands, layout="NN"))


@pytest.mark.parametrize(
    "specs", [(P("data"), P()), (P("data"), P(None, "model")), (P(None, "model"), P("model"))],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize(("mode", "dtype"), MODES[::3], ids=MODE_IDS[::3])
def test_same_bytes_on_several_devices(mode: ScalingMode, dtype: str, specs: tuple[P, P]) -> None:
    """Checks that kept dimensions stay sharded; summed dimensions are gathered."""
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("data", "model"))
    x, w = inputs(LAYOUTS["NN"], "float32")
    placed = [
        jax.device_put(jnp.asarray(a), NamedSharding(mesh, spec))
        for a, spec in zip((x, w), specs, strict=True)
    ]
    bias = jnp.arange(N, dtype=jnp.float32)

    @jax.jit
    def product(a: jax.Array, b: jax.Array) -> jax.Array:
        operands = tensor(a, mode, dtype), tensor(b, mode, dtype)
        return gemm(*operands, bias, LAYOUTS["NN"], dtype=jnp.float32)

    found = product(*placed)
    operands = [in_numpy(a, mode, dtype) for a in (x, w)]
    assert_bytes(found, nf.qgemm(*operands, layout="NN", bias=np.asarray(bias)))
    rows = 32 if specs[0] == P("data") else 64
    cols = 48 if specs[1] == P(None, "model") else 96
    assert found.sharding.shard_shape(found.shape) == (rows, cols)


def test_a_bias_has_a_gradient_and_codes_have_none() -> None:
    mode, dtype = MODES[3]
    left, right = (tensor(x, mode, dtype) for x in inputs(LAYOUTS["NN"], "float32"))
    weights = jnp.arange(M * N, dtype=jnp.float32).reshape(M, N)

    def loss(bias: jax.Array) -> jax.Array:
        return jnp.sum(gemm(left, right, bias, LAYOUTS["NN"], dtype=jnp.float32) * weights)

    # Integers below 2^24: exact in any order.
    np.testing.assert_array_equal(jax.grad(loss)(jnp.ones(N)), weights.sum(0))


@pytest.mark.parametrize("case", ["families", "plain", "blocks"])
def test_other_pairs_are_products_of_values(case: str) -> None:
    rng = np.random.default_rng(3)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in shapes(LAYOUTS["NN"]))
    left = tensor(x, *MODES[3]).rowwise_tensor
    right, dims = jnp.asarray(w), LAYOUTS["NN"]
    if case == "families":
        right = tensor(w, ScalingMode.NVFP4_1D_SCALING, "float4_e2m1fn").colwise_tensor
    elif case == "blocks":  # blocks extend along the last of two contracted dimensions
        rows = make(*MODES[3], QuantizeLayout.ROWWISE)
        left = quantize(jnp.asarray(x).reshape(M, 4, 32), rows)
        right, dims = jnp.asarray(w).reshape(4, 32, N), ((1, 2), (0, 1))
    found = gemm(left, right, None, dims, dtype=jnp.float32)
    values = [np.asarray(a.dequantize() if isinstance(a, ScaledTensor) else a, np.float64)
              for a in (left, right)]  # fmt: skip
    if case == "families":
        values[1] = values[1].T  # NVFP4's columnwise values are transposed
    exact, sums = (np.tensordot(f(values[0]), f(values[1]), dims) for f in (np.positive, np.abs))
    # K float32 products and their sums, in any order.
    assert (np.abs(np.asarray(found, np.float64) - exact) <= (K + 1) * 2.0**-24 * sums).all()


def test_transforms_are_inverted_where_a_part_of_their_groups_is_contracted() -> None:
    rng = np.random.default_rng(4)
    quantizer = make(*MODES[5], QuantizeLayout.COLWISE, use_rht=True)
    inputs = (rng.standard_normal((2, 16, 32), np.float32) for _ in range(2))
    left, right = (quantize(jnp.asarray(x), quantizer, flatten_axis=2) for x in inputs)
    assert left.has_rht_applied and right.has_rht_applied
    found = gemm(left, right, None, ((0,), (0,)), dtype=jnp.float32)
    # Columnwise values have the last dimension first.
    values = [np.moveaxis(np.asarray(a.dequantize(), np.float64), 0, 2) for a in (left, right)]
    exact, sums = (np.tensordot(f(values[0]), f(values[1]), (0, 0)) for f in (np.positive, np.abs))
    # Two float32 products and their sum.
    assert (np.abs(np.asarray(found, np.float64) - exact) <= 3 * 2.0**-24 * sums).all()


def call(**changes: object) -> jax.Array:
    """Calls the handler itself on a product of 32 x 32 MXFP8 matrices, with some changes."""
    codes = jnp.zeros((32, 32), jnp.float8_e4m3fn)
    scales = jnp.zeros((128, 4), jnp.float8_e8m0fnu)
    no_items = jnp.zeros((0,), jnp.float32)
    arguments = {"lhs": codes, "lhs_scale": scales, "rhs": codes, "rhs_scale": scales,
                 "bias": no_items, "sizes": jnp.zeros((0,), jnp.int32), "out": (32, 32),
                 "lhs_spec": "mxfp8_e4m3", "rhs_spec": "mxfp8_e4m3"} | changes  # fmt: skip
    attributes = {name: arguments[name] for name in ("lhs_spec", "rhs_spec")}
    extents = {f"{side}_{part}": 32 for side in ("lhs", "rhs") for part in ("rows", "cols")}
    extents |= {"lhs_turned": False, "rhs_turned": False}
    return jax.ffi.ffi_call("nf_gemm_ffi", jax.ShapeDtypeStruct(arguments["out"], jnp.float32))(
        arguments["lhs"], arguments["lhs_scale"], no_items, arguments["rhs"],
        arguments["rhs_scale"], no_items, arguments["bias"], arguments["sizes"],
        **attributes, **(extents | changes.get("extents", {})),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lhs": jnp.zeros((32, 31), jnp.float8_e4m3fn)},
         "gemm: lhs must have 1024 items, got shape 32x31"),
        ({"rhs": jnp.zeros((33, 32), jnp.float8_e4m3fn)},
         "gemm: rhs must have 1024 items, got shape 33x32"),
        ({"rhs_scale": jnp.zeros((128, 3), jnp.float8_e8m0fnu)},
         "gemm: scale_inv of rhs must have 512 items, got shape 128x3"),
        ({"lhs_scale": jnp.zeros((129, 4), jnp.float8_e8m0fnu)},
         "gemm: scale_inv of lhs must have 512 items, got shape 129x4"),
        ({"lhs_scale": jnp.zeros((128, 4), jnp.float32)},
         "gemm: scale_inv of lhs must be float8_e8m0fnu, got float32"),
        ({"bias": jnp.zeros((31,), jnp.float32)}, "gemm: bias must have 32 items, got shape 31"),
        ({"out": (32, 31)}, "gemm: the output must have 1024 items, got shape 32x31"),
        ({"lhs_spec": "mxfp8_e4m3:columnwise=1"},
         "gemm: spec must name one direction, the one that data holds, got "
         "'mxfp8_e4m3:columnwise=1'"),
        ({"lhs_spec": "mxfp8_e4m3:columnwise=1,rowwise=0",
          "lhs_scale": jnp.zeros((4, 128), jnp.float8_e8m0fnu)},
         "gemm: columnwise lhs needs columnwise rhs, got rowwise"),
        ({"rhs_spec": "fp8_e4m3"}, "gemm: scale_inv of rhs must be float32, got float8_e8m0fnu"),
        ({"sizes": jnp.asarray([-1], jnp.int32)},
         "gemm: group 0 must have 0 rows or more, got -1"),
        ({"extents": {"rhs_turned": True}},
         "gemm: codes of rhs must be columnwise and have one scale to be "
         "transposed, got mxfp8_e4m3"),
        ({"extents": {"lhs_cols": 64}}, "gemm: lhs must have 2048 items, got shape 32x32"),
    ],
)  # fmt: skip
def test_the_handler_refuses(changes: dict[str, object], message: str) -> None:
    with pytest.raises(jax.errors.JaxRuntimeError) as raised:
        call(**changes).block_until_ready()
    assert str(raised.value).splitlines()[0] == f"INVALID_ARGUMENT: {message}"


def test_other_types_of_results_come_from_float32() -> None:
    left, right = (tensor(x, *MODES[3]) for x in inputs(LAYOUTS["NN"]))
    found = gemm(left, right, None, LAYOUTS["NN"], dtype=ml_dtypes.float8_e4m3fn)
    product = gemm(left, right, None, LAYOUTS["NN"], dtype=jnp.float32)
    want = np.asarray(product.astype(found.dtype)).astype(np.float32)
    np.testing.assert_array_equal(np.asarray(found).astype(np.float32), want)


def test_quantizers_of_arrays() -> None:
    x, w = inputs(LAYOUTS["NN"])
    quantizers = [QuantizerFactory.create(1, *MODES[3]) for _ in range(2)]
    found = gemm(jnp.asarray(x), jnp.asarray(w), None, LAYOUTS["NN"], *quantizers)
    operands = [in_numpy(a, *MODES[3]) for a in (x, w)]
    assert_bytes(found, nf.qgemm(*operands, layout="NN", dtype=ml_dtypes.bfloat16))


@pytest.mark.parametrize("dims", [((1,), (0,)), ((0,), (1,))], ids=str)
@pytest.mark.parametrize("bias", [(N,), (1,), ()], ids=str)
def test_nothing_is_broadcast_implicitly(bias: tuple[int, ...], dims: tuple) -> None:
    """Sets JAX's option that refuses operands of unequal ranks, as programs may."""
    plain = [jnp.asarray(x) for x in inputs(dims)]
    for operands in (plain, [tensor(x, *MODES[3]) for x in plain]):
        for mode in ("reproducible", "fast"):
            with product_mode(mode), jax.numpy_rank_promotion("raise"):
                found = gemm(*operands, jnp.ones(bias), dims, dtype=jnp.float32)
                product = gemm(*operands, None, dims, dtype=jnp.float32)
            np.testing.assert_array_equal(found, np.asarray(product) + np.float32(1))


def test_codes_have_no_derivative_and_the_bias_has_one() -> None:
    left, right = (tensor(x, *MODES[3]) for x in inputs(LAYOUTS["NN"]))
    bias = jnp.ones(N)

    def loss(right: ScaledTensor, bias: jax.Array | None = None) -> jax.Array:
        return jnp.sum(gemm(left, right, bias, LAYOUTS["NN"], dtype=jnp.float32))

    np.testing.assert_array_equal(jax.grad(loss, 1)(right, bias), np.full(N, M))
    for gradient in (jax.grad(loss), lambda right: jax.grad(loss, (0, 1))(right, bias)):
        for run in (gradient, jax.jit(gradient)):
            with pytest.raises(NotImplementedError) as raised:
                run(right)
            assert str(raised.value) == (
                "nf_gemm_ffi: codes have no derivative; narrowfloat.jax.fake_quantize() passes "
                "gradients straight through"
            )
