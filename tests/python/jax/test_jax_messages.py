# SPDX-License-Identifier: Apache-2.0
"""Compares whole messages that no other test of narrowfloat.jax reaches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from narrowfloat.jax import _library
from narrowfloat.jax.primitives.amax import calculate_post_rht_amax
from narrowfloat.jax.quantize import (
    AmaxComputeAlgo,
    CurrentScaleQuantizer,
    DelayedScaleQuantizer,
    NoScaleTensor,
    QuantizeLayout,
    QuantizerFactory,
    ScaledTensorFactory,
    ScalingMode,
    compute_scale_from_amax,
)
from narrowfloat.jax.quantize.dequantizer import dequantize_grouped
from narrowfloat.jax.quantize.hadamard import apply_rht
from narrowfloat.jax.quantize.quantizer import NVFP4Quantizer
from narrowfloat.jax.quantize.scale_padding import remove_padding_from_scale_inv

E4M3 = jnp.float8_e4m3fn
MXFP8 = ScalingMode.MXFP8_1D_SCALING
CURRENT = ScalingMode.CURRENT_TENSOR_SCALING
X = jnp.ones((64, 64))
CODES, SCALES = jnp.zeros((64, 64), E4M3), jnp.zeros((64, 2), jnp.uint8)


def grouped(scale_dtype: str = "uint8", **more: object) -> object:
    return ScaledTensorFactory.create_1x(
        jnp.zeros((128, 64), E4M3).ravel(), jnp.zeros((128 * 4,), scale_dtype), scaling_mode=MXFP8,
        first_dims=jnp.array([64, 64]), **more,
    )  # fmt: skip


def quantize_with(**state: object) -> object:
    """Quantizes with a delayed scale of a wrong state; checks that no state is written."""
    quantizer = DelayedScaleQuantizer(E4M3, **state)
    before = vars(quantizer).copy()
    try:
        return quantizer.quantize(X)
    finally:
        assert all(vars(quantizer)[name] is value for name, value in before.items())


def sizes_of(sizes: jax.Array) -> object:
    tensor = grouped(original_shape=(128, 64))
    tensor.first_dims = sizes
    return dequantize_grouped(tensor)


CASES: list[tuple[Callable[[], object], type[Exception], str]] = [
    (lambda: QuantizerFactory.create(2, MXFP8, E4M3, n_groups=3), ValueError,
     "quantizer: n_quantizers must be 1 for a grouped quantizer, got 2"),
    (grouped, ValueError, "quantize: a grouped tensor needs original_shape"),
    (lambda: ScaledTensorFactory.create(
        CODES, SCALES, None, None, QuantizeLayout.ROWWISE, rowwise_has_rht_applied=True),
     ValueError, "quantize: rowwise_has_rht_applied must be False"),
    (lambda: NoScaleTensor(data=CODES, amax=None).checkpoint("quantizer"), ValueError,
     "checkpoint: quantizer must be None for a tensor that is not quantized, got str"),
    (lambda: ScaledTensorFactory.create_1x(CODES, jnp.zeros((3, 3), jnp.uint8), scaling_mode=MXFP8),
     ValueError,
     "quantize: scale_inv of MXFP8_1D_SCALING data of shape (64, 64) must have shape (64, 2), "
     "got (3, 3)"),
    (lambda: ScaledTensorFactory.create_1x(
        CODES, jnp.zeros((64, 2), jnp.float32), scaling_mode=MXFP8),
     TypeError,
     "quantize: scale_inv of MXFP8_1D_SCALING must be float8_e8m0fnu or uint8, got float32"),
    (lambda: jax.jit(lambda scales: ScaledTensorFactory.create_1x(
        CODES, scales, scaling_mode=CURRENT))(jnp.zeros((1,), jnp.bfloat16)),
     TypeError, "quantize: scale_inv of CURRENT_TENSOR_SCALING must be float32, got bfloat16"),
    (lambda: ScaledTensorFactory.create_1x(CODES, [1.0], scaling_mode=CURRENT), TypeError,
     "quantize: scale_inv of CURRENT_TENSOR_SCALING must be an array, got list"),
    (lambda: ScaledTensorFactory.create_1x([1.0], SCALES, scaling_mode=MXFP8), TypeError,
     "quantize: data must be an array, got list"),
    (lambda: ScaledTensorFactory.create_1x(CODES, SCALES, scaling_mode="MXFP8"), TypeError,
     "quantize: scaling_mode must be a ScalingMode, got 'MXFP8'"),
    (lambda: grouped("float32", original_shape=(128, 64)), TypeError,
     "quantize: scale_inv of MXFP8_1D_SCALING must be float8_e8m0fnu or uint8, got float32"),
    (lambda: QuantizerFactory.create(1, "MXFP8", E4M3), TypeError,
     "quantizer: scaling_mode must be a ScalingMode, got 'MXFP8'"),
    (lambda: QuantizerFactory.create_set(1, "MXFP8", E4M3, E4M3), TypeError,
     "quantizer: scaling_mode must be a ScalingMode, got 'MXFP8'"),
    (lambda: CurrentScaleQuantizer(E4M3, "CURRENT"), TypeError,
     "quantizer: scaling_mode must be a ScalingMode, got 'CURRENT'"),
    (lambda: CurrentScaleQuantizer(E4M3, CURRENT, "ROWWISE"), TypeError,
     "quantizer: q_layout must be a QuantizeLayout, got 'ROWWISE'"),
    (lambda: DelayedScaleQuantizer(E4M3, amax_compute_algo="mean"), ValueError,
     "quantizer: amax_compute_algo must be 'max' or 'most_recent', got 'mean'"),
    (lambda: DelayedScaleQuantizer(E4M3, margin="1"), TypeError,
     "quantizer: margin must be a number, got '1'"),
    (lambda: DelayedScaleQuantizer(E4M3, margin=True), TypeError,
     "quantizer: margin must be a number, got True"),
    (lambda: compute_scale_from_amax(jnp.ones(1), E4M3, "1"), TypeError,
     "compute_scale_from_amax: margin must be a number, got '1'"),
    (lambda: quantize_with(scale=jnp.ones(1, jnp.bfloat16)), TypeError,
     "quantize: scale must be float32, got bfloat16"),
    (lambda: quantize_with(scale=2.0), TypeError, "quantize: scale must be an array, got float"),
    (lambda: quantize_with(scale=jnp.ones(2)), ValueError,
     "quantize: scale must have shape (1,), got (2,)"),
    (lambda: quantize_with(amax_history=jnp.ones(4, jnp.float16)), TypeError,
     "quantize: amax_history must be float32, got float16"),
    (lambda: quantize_with(amax_history=jnp.zeros((4, 2))), ValueError,
     "quantize: amax_history must have one dimension and one or more items, got shape (4, 2)"),
    (lambda: quantize_with(amax_history=jnp.zeros(0)), ValueError,
     "quantize: amax_history must have one dimension and one or more items, got shape (0,)"),
    (lambda: CurrentScaleQuantizer(E4M3).quantize(NoScaleTensor(X, jnp.ones(2))), ValueError,
     "quantize: amax must have one item, got shape (2,)"),
    (lambda: CurrentScaleQuantizer(E4M3).quantize(NoScaleTensor(X, 1.0)), TypeError,
     "quantize: amax must be an array, got float"),
    (lambda: jax.jit(sizes_of)(jnp.array([64, 64])), ValueError,
     "dequantize: the sizes of groups must be concrete, got a traced array"),
    (lambda: compute_scale_from_amax(jnp.zeros(2), E4M3, 0.0), ValueError,
     "compute_scale_from_amax: amax must have shape (1,), got (2,)"),
    (lambda: calculate_post_rht_amax(jnp.ones((16, 32), jnp.bfloat16), 3, False), ValueError,
     "quantize: flatten_axis must split the dimensions in two, got 3 for 2 dimensions"),
    (lambda: calculate_post_rht_amax(jnp.ones((8, 32), jnp.bfloat16), -1, False), ValueError,
     "rht: the number of rows must be a multiple of 16, got 8"),
    (lambda: apply_rht(jnp.ones((2, 24), jnp.bfloat16)), ValueError,
     "rht: the last axis must be a multiple of 16, got 24"),
    (lambda: NVFP4Quantizer(
        q_dtype=jnp.float4_e2m1fn, scaling_mode=ScalingMode.NVFP4_2D_SCALING,
        q_layout=QuantizeLayout.ROWWISE, use_rht=True),
     ValueError, "quantize: use_rht is not supported in NVFP4_2D_SCALING"),
    (lambda: remove_padding_from_scale_inv(jnp.zeros((3, 3), jnp.uint8), MXFP8, (64, 64), False),
     ValueError, "quantize: scale_inv must have shape (64, 2) or (128, 4), got (3, 3)"),
    (lambda: ScalingMode.CURRENT_TENSOR_SCALING.get_block(), ValueError,
     "get_block: the mode must have blocks, got CURRENT_TENSOR_SCALING"),
    (lambda: MXFP8.get_scale_shape((64, 64), "T", False), ValueError,
     "quantize: rowwise data of MXFP8_1D_SCALING must have layout N, got T"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), CASES, ids=[case[2][:80] for case in CASES])
def test_messages(call: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error) as raised:
        call()
    assert str(raised.value.args[0]) == message  # JAX appends a note to traced functions' text


def test_a_build_without_handlers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(_library, "__file__", str(tmp_path / "_library.py"))
    with pytest.raises(FileNotFoundError) as raised:
        _library.ffi_library()
    missing = tmp_path / "libnarrowfloat_ffi.so"
    assert str(raised.value) == f"ffi_library: this build has no XLA handlers ({missing})"


def test_codes_have_no_derivative() -> None:
    quantizer = QuantizerFactory.create(1, MXFP8, E4M3, QuantizeLayout.ROWWISE)
    with pytest.raises(NotImplementedError) as raised:
        jax.grad(lambda x: quantizer.quantize(x).dequantize().sum())(jnp.ones((64, 64)))
    assert str(raised.value.args[0]).split("\n")[0] == (
        "te_dbias_quantize_ffi: codes have no derivative; narrowfloat.jax.fake_quantize() passes "
        "gradients straight through"
    )


def test_leaves_are_not_checked_where_a_tree_is_put_together() -> None:
    tensor = ScaledTensorFactory.create_1x(CODES, SCALES, scaling_mode=MXFP8)
    quantizer = DelayedScaleQuantizer(E4M3)
    for tree in (tensor, quantizer, grouped(original_shape=(128, 64)), NoScaleTensor(X)):
        names = jax.tree.map(lambda leaf: str(leaf.shape), tree)
        assert jax.tree.structure(names) == jax.tree.structure(tree)
    stacked = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), (tensor, quantizer))
    values = jax.vmap(lambda of, by: by.quantize(of.dequantize(), True, False).scale_inv)(*stacked)
    assert values.shape == (2, 1)
    cast = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), tensor)
    cast.data = CODES
    with pytest.raises(jax.errors.JaxRuntimeError) as raised:
        cast.dequantize().block_until_ready()
    assert str(raised.value).split("\n")[0] == (
        "INVALID_ARGUMENT: dequantize: scale_inv must be float8_e8m0fnu, got float32"
    )


def test_an_algorithm_by_its_value() -> None:
    for algorithm in AmaxComputeAlgo:
        assert (
            DelayedScaleQuantizer(E4M3, amax_compute_algo=algorithm.value).amax_compute_algo
            is algorithm
        )
