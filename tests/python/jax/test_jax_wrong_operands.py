# SPDX-License-Identifier: Apache-2.0
"""Tests that products refuse operands of unequal sizes, and wrong quantizers or sets."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from narrowfloat.jax import dense, grouped_dense
from narrowfloat.jax.cpp_extensions.gemm import gemm, grouped_gemm
from narrowfloat.jax.cpp_extensions.quantization import quantize
from narrowfloat.jax.quantize import GroupedNoScaleTensor, ScalingMode
from test_jax_arguments import refused
from test_jax_wrong_quantizers import KERNEL, KERNELS, MATRICES, ROWS, SIZES, X, set_of

MXFP8 = ScalingMode.MXFP8_1D_SCALING


def test_arguments_of_other_kinds() -> None:
    sets = set_of(MXFP8)
    for call, message in (
        (lambda: gemm(X, KERNEL, lhs_quantizer="mxfp8_e4m3"),
         "gemm: lhs_quantizer must be a Quantizer or None, got 'mxfp8_e4m3'"),
        (lambda: gemm(X, KERNEL, rhs_quantizer=X),
         "gemm: rhs_quantizer must be a Quantizer or None, got an array of shape (64, 32)"),
        (lambda: dense(X, KERNEL, quantizer_set=None),
         "dense: quantizer_set must be a QuantizerSet, got None"),
        (lambda: dense(X, KERNEL, quantizer_set=sets.x),
         "dense: quantizer_set must be a QuantizerSet, got BlockScaleQuantizer"),
        (lambda: grouped_dense(X, KERNELS, SIZES, quantizer_set=None),
         "grouped_dense: quantizer_set must be a QuantizerSet, got None"),
        (lambda: grouped_gemm(ROWS, MATRICES, ((1,), (1,)), quantizer_set=None),
         "grouped_gemm: quantizer_set must be a QuantizerSet, got None"),
        (lambda: grouped_dense(X, KERNELS, SIZES, jnp.ones((2, 96))),
         "grouped_dense: contracting_dims must be two sequences of ints, got an array of shape "
         "(2, 96)"),
    ):  # fmt: skip
        refused(call, TypeError, message)


@pytest.mark.parametrize("quantized", [False, True])
def test_contracted_dimensions_of_unequal_sizes(quantized: bool) -> None:
    turned, sets, groups = KERNEL.T, set_of(MXFP8), set_of(MXFP8, n_groups=2)
    operands = [quantize(a, sets.x) for a in (X, turned)] if quantized else [X, turned]
    given = {"quantizer_set": sets} if quantized else {}
    of_groups = {"quantizer_set": groups} if quantized else {}
    rows = GroupedNoScaleTensor(turned, None, SIZES, None, turned.shape)
    text = "must have the same sizes, got"
    for call, message in (
        (lambda: dense(X, turned, **given),
         f"dense: contracted dimensions of x and kernel {text} (32,) and (96,)"),
        (lambda: gemm(*operands),
         f"gemm: contracted dimensions of lhs and rhs {text} (32,) and (96,)"),
        (lambda: grouped_dense(X, KERNELS.swapaxes(1, 2), SIZES, **of_groups),
         f"grouped_gemm: contracted dimensions of lhs and rhs {text} (32,) and (96,)"),
        (lambda: grouped_gemm(ROWS, rows, ((0,), (0,))),
         f"grouped_gemm: contracted dimensions of lhs and rhs {text} (64,) and (96,)"),
    ):  # fmt: skip
        refused(call, ValueError, message)
        refused(jax.jit(call).lower, ValueError, message)
