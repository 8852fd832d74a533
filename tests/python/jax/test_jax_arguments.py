# SPDX-License-Identifier: Apache-2.0
"""Tests unsuitable arguments: dimensions, dtypes, shapes of biases and of random states."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.export
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hostile import MODE_IDS, MODES, make
from narrowfloat.jax import dense, fake_quantize, grouped_dense
from narrowfloat.jax._library import TARGETS
from narrowfloat.jax.cpp_extensions.amax import calculate_amax, calculate_post_rht_amax
from narrowfloat.jax.cpp_extensions.gemm import gemm
from narrowfloat.jax.cpp_extensions.grouped_gemm import grouped_gemm
from narrowfloat.jax.cpp_extensions.quantization import grouped_quantize, quantize, quantize_dbias
from narrowfloat.jax.primitives.amax import grouped_amax
from narrowfloat.jax.quantize import (
    GroupedNoScaleTensor,
    NVFP4Quantizer,
    QuantizeLayout,
    QuantizerFactory,
    ScalingMode,
)

BOTH = QuantizeLayout.ROWWISE_COLWISE
MXFP8 = ScalingMode.MXFP8_1D_SCALING
A, B = jnp.ones((64, 32)), jnp.ones((32, 96))
SIZES = jnp.asarray([32, 32], jnp.int32)
OF_GROUPS = GroupedNoScaleTensor(A, None, SIZES, None, A.shape)
WEIGHTS = GroupedNoScaleTensor(jnp.ones((2, 32, 96)), None, None, None, (2, 32, 96))
WRONG_DTYPES = ("int32", "int8", "bool", "complex64", "int4", "float8_e4m3fn")


def refused(call: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error) as raised:
        call()
    # JAX appends a note to the text of errors in functions that it traces.
    assert str(raised.value.args[0]).split("\n")[0] == message


@pytest.mark.parametrize(
    ("operand", "dims", "got"),
    [
        ("lhs", ((7,), (0,)), "(7,)"),
        ("lhs", ((-3,), (0,)), "(-3,)"),
        ("rhs", ((1,), (2,)), "(2,)"),
        ("lhs", ((), ()), "()"),
        ("lhs", ((1, 1), (0, 0)), "(1, 1)"),
        ("lhs", ((1, -1), (0, 0)), "(1, -1)"),
    ],
)
@pytest.mark.parametrize("quantized", [False, True])
def test_dimensions_of_products(operand: str, dims: tuple, got: str, quantized: bool) -> None:
    a, b = A, B
    if quantized:
        a, b = (quantize(x, make(MXFP8, "float8_e4m3fn", BOTH)) for x in (a, b))
    text = f"contracting_dims of {operand} must be one or more of its 2 dimensions, each once, got "
    refused(lambda: gemm(a, b, contracting_dims=dims), ValueError, f"gemm: {text}{got}")
    if not quantized:
        name = text.replace("of lhs", "of x").replace("of rhs", "of kernel")
        refused(lambda: dense(a, b, contracting_dims=dims), ValueError, f"dense: {name}{got}")


def test_dimensions_of_grouped_products() -> None:
    for dims, operand, count, got in (
        (((3,), (1,)), "lhs", 2, (3,)),
        (((1,), (4,)), "rhs", 3, (4,)),
        (((), (1,)), "lhs", 2, ()),
    ):
        message = (
            f"grouped_gemm: contracting_dims of {operand} must be one or more of its {count} "
            f"dimensions, each once, got {got}"
        )
        refused(lambda dims=dims: grouped_gemm(OF_GROUPS, WEIGHTS, dims), ValueError, message)
    assert grouped_gemm(OF_GROUPS, WEIGHTS, ((-1,), (-2,))).shape == (64, 96)


@pytest.mark.parametrize("dims", [(1, 0), ((1,),), ((1,), "0"), ((1.0,), (0,)), ((True,), (0,)), 1])
def test_dimensions_of_products_are_sequences_of_ints(dims: object) -> None:
    calls: dict[str, Callable] = {
        "gemm": lambda: gemm(A, B, contracting_dims=dims),
        "dense": lambda: dense(A, B, contracting_dims=dims),
        "grouped_gemm": lambda: grouped_gemm(OF_GROUPS, WEIGHTS, dims),
        "grouped_dense": lambda: grouped_dense(A, WEIGHTS.data, SIZES, dims),
    }
    for verb, call in calls.items():
        message = f"{verb}: contracting_dims must be two sequences of ints, got {dims!r}"
        refused(call, TypeError, message)


@pytest.mark.parametrize("axis", ["a", True, 1.0, None])
def test_an_axis_is_an_int(axis: object) -> None:
    message = f"quantize: flatten_axis must be an int, got {axis!r}"
    quantizer = make(MXFP8, "float8_e4m3fn", BOTH)
    for call in (
        lambda: quantize(A, quantizer, axis),
        lambda: fake_quantize(A, quantizer, axis),
        lambda: fake_quantize(A, "mxfp8_e4m3", axis),
        lambda: grouped_quantize(A, None, SIZES, axis),
    ):
        refused(call, TypeError, message)
    by_int, by_numpy = (quantize(A, quantizer, of) for of in (1, np.int64(1)))
    assert by_int.rowwise_tensor.flatten_axis == by_numpy.rowwise_tensor.flatten_axis == 1


@pytest.mark.parametrize("by", ["quantizer", "text"])
def test_inputs_are_arrays(by: str) -> None:
    quantizer = "mxfp8_e4m3" if by == "text" else make(MXFP8, "float8_e4m3fn", BOTH)
    for x, got in ((2.0, "float"), ([[1.0, 2.0]], "list"), (None, "NoneType")):
        message = f"fake_quantize: x must be an array, got {got}"
        refused(lambda x=x: fake_quantize(x, quantizer), TypeError, message)
        message = f"grouped_quantize: x must be an array, got {got}"
        refused(lambda x=x: grouped_quantize(x, of_groups(MXFP8), SIZES), TypeError, message)
    host = np.asarray(A) * 3
    np.testing.assert_array_equal(fake_quantize(host, quantizer), host)  # E4M3 codes represent 3


def test_sizes_are_arrays() -> None:
    for sizes, got in (([32, 32], "list"), ((32, 32), "tuple"), (5, "int")):
        message = f"grouped_quantize: group_sizes must be an array, got {got}"
        for quantizer in (of_groups(MXFP8), None):
            call = lambda sizes=sizes, by=quantizer: grouped_quantize(A, by, sizes)  # noqa: E731
            refused(call, TypeError, message)
        message = f"grouped_dense: group_sizes must be an array, got {got}"
        refused(lambda sizes=sizes: grouped_dense(A, WEIGHTS.data, sizes), TypeError, message)


@pytest.mark.parametrize("by", ["quantizer", "text"])
def test_where_fake_quantize_splits(by: str) -> None:
    quantizer = "mxfp8_e4m3" if by == "text" else make(MXFP8, "float8_e4m3fn", BOTH)
    text = "quantize: flatten_axis must split the dimensions in two, got "
    for x, axis in ((A, 5), (A, -3), (A, 0), (A, 2)):
        message = f"{text}{axis} for 2 dimensions"
        refused(lambda x=x, axis=axis: fake_quantize(x, quantizer, axis), ValueError, message)
    for x in (jnp.float32(1), jnp.ones(32)):
        message = f"{text}-1 for {x.ndim} dimensions"
        refused(lambda x=x: fake_quantize(x, quantizer), ValueError, message)


@pytest.mark.parametrize("wrong", WRONG_DTYPES)
@pytest.mark.parametrize("compiled", [False, True])
def test_dtypes_of_inputs(wrong: str, compiled: bool) -> None:
    x = jnp.ones((32, 32), wrong)
    calls: list[tuple[str, Callable]] = [
        ("quantize", lambda a, m=mode, d=dtype: quantize(a, make(m, d, BOTH)).dequantize())
        for mode, dtype in MODES
    ]
    calls += [
        ("quantize", lambda a: quantize(a, NVFP4Quantizer(use_rht=True)).dequantize()),
        ("quantize", lambda a: fake_quantize(a, make(*MODES[0], BOTH))),
        ("fake_quantize", lambda a: fake_quantize(a, "mxfp8_e4m3")),
        ("amax", calculate_amax),
        ("rht_amax", lambda a: calculate_post_rht_amax(a, 1, True)),
        ("grouped_amax", lambda a: grouped_amax(a, SIZES)),
        ("grouped_quantize", lambda a: grouped_quantize(a, of_groups(MXFP8), SIZES).data),
        ("grouped_quantize", lambda a: grouped_quantize(a, of_groups(MODES[0][0]), SIZES).data),
    ]
    for verb, call in calls:
        run = jax.jit(call) if compiled else call
        message = f"{verb}: the input must be float32, float16 or bfloat16, got {wrong}"
        refused(lambda run=run: run(x), TypeError, message)


def of_groups(mode: ScalingMode) -> object:
    layout = QuantizeLayout.ROWWISE
    return QuantizerFactory.create(1, mode, jnp.float8_e4m3fn, layout, n_groups=2)


@pytest.mark.parametrize("mode", [MXFP8, ScalingMode.CURRENT_TENSOR_SCALING])
def test_dtypes_of_sizes(mode: ScalingMode) -> None:
    sizes = SIZES.astype(jnp.int8)
    message = "grouped_quantize: group_sizes must be int32, got int8"
    refused(lambda: grouped_quantize(A, of_groups(mode), sizes), TypeError, message)
    refused(lambda: grouped_quantize(A, None, sizes), TypeError, message)
    refused(lambda: grouped_dense(A, WEIGHTS.data, sizes), TypeError, message)
    message = "grouped_amax: group_sizes must be int32, got int8"
    refused(lambda: grouped_amax(A, sizes), TypeError, message)


@pytest.mark.parametrize("shape", [(5,), (1, 5), (3, 3), (0, 4), (0,), (), (1, 1, 4), (3,), (8,)])
def test_shapes_of_random_states(shape: tuple[int, ...]) -> None:
    quantizer = NVFP4Quantizer(stochastic_rounding_rng_state=jnp.zeros(shape, jnp.uint32))
    message = (
        "quantize: stochastic_rounding_rng_state must have shape (4,), or (n, 4) for n devices, "
        f"got {shape}"
    )
    refused(lambda: quantize(A, quantizer), ValueError, message)


def test_types_of_random_states() -> None:
    for state, got in (
        (jnp.zeros((4,), jnp.int32), "uint32, got int32"),
        (jnp.zeros((4,), jnp.float32), "uint32, got float32"),
        ([1, 2, 3, 4], "a JAX array, got list"),
    ):
        quantizer = NVFP4Quantizer(stochastic_rounding_rng_state=state)
        message = f"quantize: stochastic_rounding_rng_state must be {got}"
        refused(lambda quantizer=quantizer: quantize(A, quantizer), TypeError, message)


def test_random_states_that_fit() -> None:
    words = np.asarray([[7, 0, 3, 0], [1, 2, 3, 4]], np.uint32)
    x = jnp.asarray(np.random.default_rng(0).uniform(-6, 6, (32, 64)), jnp.float32)
    found = [
        np.asarray(quantize(x, NVFP4Quantizer(stochastic_rounding_rng_state=state)).dequantize())
        for state in (words[0], jnp.asarray(words[0]), jnp.asarray(words[:1]), jnp.asarray(words))
    ]
    assert all(values.tobytes() == found[0].tobytes() for values in found)
    assert (found[0] != np.asarray(quantize(x, NVFP4Quantizer()).dequantize())).any()


@pytest.mark.parametrize("shape", [(1,), (), (32,), (1, 96), (64, 96)])
def test_the_bias_of_a_layer(shape: tuple[int, ...]) -> None:
    sets = QuantizerFactory.create_set(1, MXFP8, "float8_e4m3fn", "float8_e4m3fn")
    for call in (
        lambda b: dense(A, B, b),
        lambda b: dense(A, B, b, quantizer_set=sets),
        jax.grad(lambda b: jnp.sum(dense(A, B, b, quantizer_set=sets))),
    ):
        message = f"dense: bias must have shape (96,), got {shape}"
        refused(lambda call=call: call(jnp.zeros(shape)), ValueError, message)


@pytest.mark.parametrize("shape", [(64, 96), (1, 96), (95,), (2,)])
@pytest.mark.parametrize(("mode", "dtype"), [(None, ""), *MODES], ids=["plain", *MODE_IDS])
def test_the_bias_of_a_product(
    shape: tuple[int, ...], mode: ScalingMode | None, dtype: str
) -> None:
    a, b = A, B
    if mode is not None:
        a, b = (quantize(x, make(mode, dtype, BOTH)) for x in (A, B))
    message = (
        "gemm: bias must have the shape (96,) of the other dimensions of rhs, or one that "
        f"broadcasts to it, got {shape}"
    )
    refused(lambda: gemm(a, b, jnp.zeros(shape)), ValueError, message)
    product = gemm(a, b, dtype=jnp.float32)
    for fits in ((96,), (1,), ()):
        added = gemm(a, b, jnp.ones(fits, ml_dtypes.bfloat16), dtype=jnp.float32)
        np.testing.assert_array_equal(added, product + 1)


def test_the_bias_of_a_product_with_rows_of_rhs_kept() -> None:
    a, b = jnp.ones((64, 32)), jnp.ones((96, 2, 32))
    dims = ((1,), (2,))
    sets = [quantize(x, make(*MODES[0], BOTH)) for x in (a, b)]
    for operands in ((a, b), sets):
        added = gemm(*operands, jnp.ones((96, 1)), dims, dtype=jnp.float32)
        np.testing.assert_array_equal(added, gemm(*operands, None, dims, dtype=jnp.float32) + 1)
        message = (
            "gemm: bias must have the shape (96, 2) of the other dimensions of rhs, or one that "
            "broadcasts to it, got (96,)"
        )
        call = lambda operands=operands: gemm(*operands, jnp.ones(96), dims)  # noqa: E731
        refused(call, ValueError, message)


def exported(call: Callable, like: object | None = None) -> jax.export.Exported:
    """Exports `call` of one operand whose first dimension is the symbol n."""
    (symbol,) = jax.export.symbolic_shape("n")
    leaves, structure = jax.tree.flatten(jnp.ones((32, 64)) if like is None else like)
    symbolic = [
        jax.ShapeDtypeStruct((symbol, *leaf.shape[1:]) if leaf.ndim > 1 else leaf.shape, leaf.dtype)
        for leaf in leaves
    ]
    checks = [jax.export.DisabledSafetyCheck.custom_call(name) for name in TARGETS]
    export = jax.export.export(jax.jit(call), disabled_checks=checks)
    return export(jax.tree.unflatten(structure, symbolic))


def test_symbolic_shapes() -> None:
    e4m3 = "float8_e4m3fn"
    current = ScalingMode.CURRENT_TENSOR_SCALING

    def layer(mode: ScalingMode) -> Callable:
        sets = QuantizerFactory.create_set(1, mode, e4m3, e4m3)
        return lambda x: dense(x, jnp.ones((64, 32)), quantizer_set=sets)

    def groups(x: jax.Array) -> jax.Array:
        sets = QuantizerFactory.create_set(1, current, e4m3, e4m3, n_groups=2)
        return grouped_dense(x, jnp.ones((2, 64, 32)), SIZES, quantizer_set=sets)

    codes = quantize(jnp.ones((32, 64)), make(MXFP8, e4m3, QuantizeLayout.ROWWISE))
    cases: list[tuple[str, Callable, object]] = [
        ("quantize", lambda x: quantize(x, make(MXFP8, e4m3, BOTH)).dequantize(), None),
        ("quantize", lambda x: fake_quantize(x, make(MXFP8, e4m3, BOTH)), None),
        ("quantize", lambda x: quantize_dbias(x, make(MXFP8, e4m3, BOTH))[1], None),
        ("quantize", layer(MXFP8), None),
        ("rht", lambda x: quantize(x, NVFP4Quantizer(use_rht=True)).dequantize(), None),
        ("gemm", layer(current), None),
        ("grouped_gemm", groups, None),
        ("grouped_quantize", lambda x: grouped_quantize(x, of_groups(MXFP8), SIZES).data, None),
        ("dequantize", lambda tensor: tensor.dequantize(), codes),
    ]
    for verb, call, like in cases:
        message = f"{verb}: shapes must be static, got (n, 64)"
        refused(lambda call=call, like=like: exported(call, like), ValueError, message)
    # Symbolic shapes work for one scale, which has no blocks, and for the text of a spec, which the
    # handler reads. Their small workspace does not change the bytes of column sums.
    for rows in (5, 1000):
        x = jnp.asarray(np.random.default_rng(0).standard_normal((rows, 64)), jnp.float32)
        for call in (
            lambda x: quantize(x, make(current, e4m3, BOTH)).dequantize(),
            lambda x: quantize_dbias(x, make(current, e4m3, BOTH))[1],
            lambda x: quantize_dbias(x.T, make(current, e4m3, BOTH))[1],
            lambda x: quantize_dbias(x, make(current, e4m3, BOTH))[0].colwise_tensor.data,
            lambda x: fake_quantize(x, "mxfp8_e4m3"),
        ):
            np.testing.assert_array_equal(exported(call).call(x), call(x))
