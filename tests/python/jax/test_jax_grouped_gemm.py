# SPDX-License-Identifier: Apache-2.0
"""Compares products of groups of rows with nf.grouped_qgemm, and tests the layer over them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hostile import FLOATS, hostile
from narrowfloat.jax import grouped_dense
from narrowfloat.jax.cpp_extensions import grouped_gemm, grouped_quantize
from narrowfloat.jax.quantize import (
    GroupedNoScaleTensor,
    QuantizerFactory,
    QuantizerSet,
    ScalingMode,
    TensorUsage,
)

import narrowfloat as nf

SIZES = [[32, 0, 64, 32], [0, 0, 128, 0], [96, 32], [128]]
K, N = 64, 96
MODES = [
    (ScalingMode.CURRENT_TENSOR_SCALING, "float8_e4m3fn"),
    (ScalingMode.CURRENT_TENSOR_SCALING, "float8_e5m2"),
    (ScalingMode.DELAYED_TENSOR_SCALING, "float8_e4m3fn"),
    (ScalingMode.MXFP8_1D_SCALING, "float8_e4m3fn"),
    (ScalingMode.MXFP8_1D_SCALING, "float8_e5m2"),
    (ScalingMode.NVFP4_1D_SCALING, "float4_e2m1fn"),
    (ScalingMode.NVFP4_2D_SCALING, "float4_e2m1fn"),
]
modes = pytest.mark.parametrize(("mode", "dtype"), MODES, ids=[f"{m.name}-{d}" for m, d in MODES])
every_sizes = pytest.mark.parametrize("sizes", SIZES, ids=str)


def sets_of(mode: ScalingMode, dtype: str, groups: int) -> QuantizerSet:
    return QuantizerFactory.create_set(1, mode, dtype, dtype, is_2x2x=True, n_groups=groups)


def in_numpy(matrices: list[np.ndarray], mode: ScalingMode, dtype: str) -> list:
    options = {"scale": 1.0} if mode is ScalingMode.DELAYED_TENSOR_SCALING else {}
    return [nf.quantize(x, mode.get_scheme(dtype), True, True, **options) for x in matrices]


def split(x: np.ndarray, sizes: list[int]) -> list[np.ndarray]:
    return np.split(x, np.cumsum(sizes)[:-1])


def assert_bytes(got: jax.Array, want: np.ndarray) -> None:
    found = np.asarray(got)
    assert found.dtype == want.dtype and found.shape == want.shape
    np.testing.assert_array_equal(found.view(np.uint8), np.ascontiguousarray(want).view(np.uint8))


def operands(sizes: list[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns rows, weights and incoming gradients."""
    groups = len(sizes)
    weights = hostile((groups, K, N), "float32", 1)
    return hostile((128, K), "float32"), weights, hostile((128, N), "float32", 2)


@every_sizes
@modes
def test_the_three_products_of_a_layer(mode: ScalingMode, dtype: str, sizes: list[int]) -> None:
    x, w, dy = operands(sizes)
    sets, counts = sets_of(mode, dtype, len(sizes)), jnp.asarray(sizes, jnp.int32)
    bias = hostile((4, N), "float32", 3)[: len(sizes)]
    y, pull = jax.vjp(
        lambda a, k, b: grouped_dense(a, k, counts, bias=b, quantizer_set=sets), x, w, bias
    )
    dx, dw, dbias = pull(jnp.asarray(dy))
    xs, ws, dys = (in_numpy(m, mode, dtype) for m in (split(x, sizes), list(w), split(dy, sizes)))
    forward = nf.grouped_qgemm(xs, ws, layout="NN", bias=list(bias))
    assert_bytes(y, np.concatenate(forward))
    assert_bytes(dx, np.concatenate(nf.grouped_qgemm(dys, ws, layout="TN")))
    assert_bytes(dw, np.stack(nf.grouped_qgemm(xs, dys, layout="NT")))
    want = np.stack([part.sum(0, dtype=np.float64) for part in split(dy, sizes)])
    most = np.stack([np.abs(part).sum(0, dtype=np.float64) for part in split(dy, sizes)])
    # At most 128 float32 sums in any order; XLA flushes subnormals to zero.
    bound = 128 * 2.0**-24 * most + 128 * 2.0**-126
    assert (np.abs(np.asarray(dbias, np.float64) - want) <= bound).all()


@pytest.mark.parametrize("pair", [(0, 1), (1, 2), (3, 4), (5, 6), (6, 5)], ids=str)
def test_pairs_of_schemes(pair: tuple[int, int]) -> None:
    """Multiplies x and weights whose modes or codes differ within one family."""
    sizes = SIZES[0]
    x, w, _ = operands(sizes)
    own, other = (MODES[i] for i in pair)
    left = grouped_quantize(x, sets_of(*own, 4).x, jnp.asarray(sizes, jnp.int32))
    right = grouped_quantize(w, sets_of(*other, 4).kernel)
    halves = [t.get_tensor(u) for t, u in ((left, TensorUsage.LHS), (right, TensorUsage.RHS))]
    found = grouped_gemm(*halves, ((1,), (1,)))
    rows, weights = in_numpy(split(x, sizes), *own), in_numpy(list(w), *other)
    assert_bytes(found, np.concatenate(nf.grouped_qgemm(rows, weights, layout="NN")))


@pytest.mark.parametrize("out", list(FLOATS))
def test_types_and_jit(out: str) -> None:
    sizes = SIZES[0]
    x, w, _ = operands(sizes)
    sets, counts = sets_of(*MODES[3], len(sizes)), jnp.asarray(sizes, jnp.int32)

    @jax.jit
    def product(x: jax.Array, w: jax.Array, counts: jax.Array) -> jax.Array:
        left = GroupedNoScaleTensor(x, None, counts, None, x.shape)
        right = GroupedNoScaleTensor(w, None, None, None, w.shape)
        return grouped_gemm(
            left, right, ((1,), (1,)), preferred_element_type=out, quantizer_set=sets
        )

    xs, ws = in_numpy(split(x, sizes), *MODES[3]), in_numpy(list(w), *MODES[3])
    want = nf.grouped_qgemm(xs, ws, layout="NN", dtype=FLOATS[out])
    assert_bytes(product(x, w, counts), np.concatenate(want))


def test_slices_of_several_rows() -> None:
    """Checks that sizes count slices of the first dimension, here of 32 rows."""
    sizes = [2, 0, 1, 1]
    x, w, _ = operands(sizes)
    sets, counts = sets_of(*MODES[3], 4), jnp.asarray(sizes, jnp.int32)
    left = grouped_quantize(jnp.asarray(x).reshape(4, 32, K), sets.x, counts)
    right = grouped_quantize(jnp.asarray(w), sets.kernel)
    found = grouped_gemm(left.rowwise_tensor, right.colwise_tensor, ((2,), (1,)))
    rows = in_numpy(split(x, [64, 0, 32, 32]), *MODES[3])
    want = np.concatenate(nf.grouped_qgemm(rows, in_numpy(list(w), *MODES[3]), layout="NN"))
    assert_bytes(found, want.reshape(4, 32, N))


@every_sizes
def test_plain_groups(sizes: list[int]) -> None:
    rng = np.random.default_rng(0)
    shapes = ((128, K), (len(sizes), K, N), (len(sizes), N), (128, N))
    x, w, bias, dy = (jnp.asarray(rng.standard_normal(s), jnp.float32) for s in shapes)
    counts = jnp.asarray(sizes, jnp.int32)

    def by_group(x: jax.Array, w: jax.Array, bias: jax.Array) -> jax.Array:
        group = np.repeat(np.arange(len(sizes)), sizes)
        return jnp.einsum("mk,mkn->mn", x, w[group]) + bias[group]

    y, pull = jax.vjp(lambda *a: grouped_dense(*a[:2], counts, bias=a[2]), x, w, bias)
    want, pull_wanted = jax.vjp(by_group, x, w, bias)
    for got, exact in zip((y, *pull(dy)), (want, *pull_wanted(dy)), strict=True):
        # Two float32 sums of up to 128 products below 25, in different orders.
        np.testing.assert_allclose(got, exact, atol=2 * 128 * 2.0**-24 * 128 * 25)


def test_each_of_a_batch_is_alone() -> None:
    sizes = SIZES[0]
    x, w, _ = operands(sizes)
    counts, stack = jnp.asarray(sizes, jnp.int32), jnp.stack([x, 3 * x])
    sets = sets_of(*MODES[3], len(sizes))
    layer = lambda a: grouped_dense(a, w, counts, quantizer_set=sets)  # noqa: E731
    for got, alone in zip(jax.vmap(layer)(stack), stack, strict=True):
        np.testing.assert_array_equal(got, layer(alone))


def test_states_come_back() -> None:
    sizes = [96, 32]
    x, w, _ = operands(sizes)
    sets = sets_of(*MODES[2], 2)

    def loss(w: jax.Array, sets: QuantizerSet) -> jax.Array:
        return jnp.sum(grouped_dense(x, w, jnp.asarray(sizes, jnp.int32), quantizer_set=sets))

    after = jax.jit(jax.grad(loss, 1))(w, sets)
    found = [float(q.amax_history[-1]) for q in after.x.quantizers]
    assert found == [float(np.abs(part).max()) for part in split(x, sizes)]


def grouped(x: np.ndarray, sizes: list[int] | None) -> GroupedNoScaleTensor:
    counts = None if sizes is None else jnp.asarray(sizes, jnp.int32)
    return GroupedNoScaleTensor(jnp.asarray(x), None, counts, None, x.shape)


X, W, DY = operands([96, 32])
ROWS, WEIGHTS = grouped(X, [96, 32]), grouped(W, None)
REFUSED = {
    "grouped_gemm: group_offset is not supported": lambda: grouped_gemm(
        ROWS, WEIGHTS, ((1,), (1,)), group_offset=jnp.zeros(1)
    ),
    "grouped_gemm: contracted dimensions of rhs must be (2,) or (1,), got (0,)": lambda: (
        grouped_gemm(ROWS, WEIGHTS, ((1,), (0,)))
    ),
    "grouped_gemm: lhs needs group sizes, and both operands must be contracted over their rows "
    "exactly if rhs has group sizes too": lambda: grouped_gemm(ROWS, WEIGHTS, ((0,), (1,))),
    "grouped_gemm: lhs and rhs must have the same number of groups, 1 or more, got 1 and "
    "2": lambda: (
        grouped_gemm(grouped(X, [128]), WEIGHTS, ((1,), (1,)))
    ),
    "grouped_gemm: bias must have shape (2, 96), got (96,)": lambda: grouped_gemm(
        ROWS, WEIGHTS, ((1,), (1,)), jnp.zeros(96)
    ),
    "grouped_gemm: lhs and rhs must both be quantized or both plain, got GroupedScaledTensor1x and "
    "GroupedNoScaleTensor": lambda: grouped_gemm(
        ROWS, WEIGHTS, ((1,), (1,)),
        quantizer_set=QuantizerSet(sets_of(*MODES[3], 2).x, None, None),
    ),
    "grouped_gemm: rhs of MXFP8_1D_SCALING needs COLWISE data": lambda: grouped_gemm(
        grouped_quantize(jnp.asarray(X), sets_of(*MODES[3], 2).x, ROWS.first_dims).rowwise_tensor,
        grouped_quantize(jnp.asarray(W), sets_of(*MODES[3], 2).kernel).rowwise_tensor,
        ((1,), (1,)),
    ),
    "grouped_dense: contracting_dims must be ((1,), (1,)), got ((1,), (2,))": lambda: (
        grouped_dense(X, W, ROWS.first_dims, ((1,), (2,)))
    ),
    "grouped_dense: group_offset and kernel_fsdp_info are not supported": lambda: grouped_dense(
        X, W, ROWS.first_dims, kernel_fsdp_info=("data", 0)
    ),
}  # fmt: skip


@pytest.mark.parametrize("message", list(REFUSED))
def test_refusals(message: str) -> None:
    with pytest.raises((ValueError, NotImplementedError)) as raised:
        REFUSED[message]()
    assert raised.value.args == (message,)


def test_sizes_that_do_not_add_up() -> None:
    sets = sets_of(*MODES[3], 2)
    left = grouped_quantize(X, sets.x, jnp.asarray([96, 32], jnp.int32)).rowwise_tensor
    right = grouped_quantize(W, sets.kernel).colwise_tensor
    left.first_dims = jnp.asarray([96, 0], jnp.int32)
    with pytest.raises(jax.errors.JaxRuntimeError, match="gemm: lhs must have 6144 items, got"):
        grouped_gemm(left, right, ((1,), (1,))).block_until_ready()


@pytest.mark.parametrize("quantized", [False, True])
def test_groups_of_lhs_and_rhs_correspond(quantized: bool) -> None:
    quantizer = sets_of(*MODES[3], 2).x if quantized else None
    both = QuantizerSet(quantizer, quantizer, None)

    def product(first: jax.Array, second: jax.Array, shape: tuple = (128, 64)) -> jax.Array:
        lhs = GroupedNoScaleTensor(jnp.ones(shape), None, first, None, shape)
        rhs = GroupedNoScaleTensor(jnp.ones((128, 96)), None, second, None, (128, 96))
        dims = (tuple(range(len(shape) - 1)), (0,))
        return grouped_gemm(lhs, rhs, dims, quantizer_set=both)

    first, second, half = (jnp.asarray(n, jnp.int32) for n in ([96, 32], [32, 96], [48, 16]))
    with pytest.raises(ValueError) as raised:
        product(first, second)
    assert raised.value.args == (
        "grouped_gemm: lhs and rhs must have groups of the same numbers of rows, got [96, 32] and "
        "[32, 96]",
    )
    with pytest.raises(jax.errors.JaxRuntimeError, match="group 0 must have 0 rows or more"):
        jax.jit(product)(first, second).block_until_ready()
    slices = [] if quantized else [product(half, first, (64, 2, 64))]
    for found in (product(first, first + 0), jax.jit(product)(first, first), *slices):
        np.testing.assert_array_equal(found[:, 0, 0], [96, 32])


@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ([64, -32, 96], "group 1 must have 0 rows or more, got -32"),
        ([64, 32, 0], "group_sizes must add up to .* 128 rows, got a sum of 96"),
        ([64, 32, 64], "group_sizes must add up to .* 128 rows, got a sum of 160"),
    ],
)
def test_a_layer_refuses_wrong_sizes(sizes: list[int], message: str, quantized: bool) -> None:
    x, w, _ = (jnp.asarray(each) for each in operands(sizes))
    sets = sets_of(*MODES[3], 3) if quantized else QuantizerSet(None, None, None)
    layer = jax.jit(lambda counts: grouped_dense(x, w, counts, quantizer_set=sets))
    with pytest.raises(jax.errors.JaxRuntimeError, match=message):
        layer(jnp.asarray(sizes, jnp.int32)).block_until_ready()
