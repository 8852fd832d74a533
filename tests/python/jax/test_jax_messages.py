# SPDX-License-Identifier: Apache-2.0
"""Whole texts of messages that no other test of narrowfloat.jax reaches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from narrowfloat.jax import _library
from narrowfloat.jax.primitives.amax import calculate_post_rht_amax
from narrowfloat.jax.quantize import (
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
CODES, SCALES = jnp.zeros((64, 64), E4M3), jnp.zeros((64, 2), jnp.uint8)


def grouped(**more: object) -> object:
    return ScaledTensorFactory.create_1x(
        jnp.zeros((128, 64), E4M3).ravel(), jnp.zeros((128 * 4,), jnp.uint8), scaling_mode=MXFP8,
        first_dims=jnp.array([64, 64]), **more,
    )  # fmt: skip


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
    (lambda: jax.jit(sizes_of)(jnp.array([64, 64])), ValueError,
     "dequantize: the sizes of groups must be concrete, got a traced array"),
    (lambda: compute_scale_from_amax(jnp.zeros(2), E4M3, 0.0), ValueError,
     "compute_scale_from_amax: amax must have shape (1,), got (2,)"),
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


@pytest.mark.parametrize(("call", "error", "message"), CASES, ids=[case[2][:40] for case in CASES])
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
