# SPDX-License-Identifier: Apache-2.0
"""Tests that quantizers of a wrong kind or mode, or without their state, are refused."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from narrowfloat.jax import dense, fake_quantize, grouped_dense
from narrowfloat.jax.cpp_extensions.gemm import gemm, grouped_gemm
from narrowfloat.jax.cpp_extensions.quantization import grouped_quantize, quantize, quantize_dbias
from narrowfloat.jax.quantize import (
    BlockScaleQuantizer,
    CurrentScaleQuantizer,
    DelayedScaleQuantizer,
    GroupedNoScaleTensor,
    GroupedQuantizer,
    NVFP4Quantizer,
    QuantizeLayout,
    Quantizer,
    QuantizerFactory,
    QuantizerSet,
    ScalingMode,
)
from test_jax_arguments import refused

E4M3 = jnp.float8_e4m3fn
MXFP8, CURRENT = ScalingMode.MXFP8_1D_SCALING, ScalingMode.CURRENT_TENSOR_SCALING
SCALING = [mode for mode in ScalingMode if mode is not ScalingMode.NO_SCALING]
NVFP4 = [mode for mode in SCALING if mode.is_nvfp4_scaling]
X, KERNEL = jnp.ones((64, 32)), jnp.ones((32, 96))
KERNELS, SIZES = jnp.ones((2, 32, 96)), jnp.asarray([32, 32], jnp.int32)
ROWS = GroupedNoScaleTensor(X, None, SIZES, None, X.shape)
MATRICES = GroupedNoScaleTensor(KERNELS, None, None, None, KERNELS.shape)
modes = pytest.mark.parametrize("mode", SCALING, ids=lambda mode: mode.name)


def set_of(mode: ScalingMode, n_groups: int | None = None) -> QuantizerSet:
    dtype = mode.get_compatible_q_dtypes()[0]
    return QuantizerFactory.create_set(1, mode, dtype, dtype, n_groups=n_groups)


@modes
def test_quantizers_of_groups_do_not_quantize_one_tensor(mode: ScalingMode) -> None:
    sets, plain = set_of(mode, n_groups=2), set_of(mode)
    of_gradient = QuantizerSet(plain.x, plain.kernel, sets.dgrad)
    for call in (
        lambda: quantize(X, sets.x),
        lambda: quantize_dbias(X, sets.x),
        lambda: sets.x.quantize(X),
        lambda: fake_quantize(X, sets.x),
        lambda: dense(X, KERNEL, quantizer_set=sets),
        lambda: gemm(X, KERNEL, lhs_quantizer=sets.x, rhs_quantizer=plain.kernel),
        lambda: jax.jit(quantize)(X, sets.x),
        lambda: jax.grad(lambda x: dense(x, KERNEL, quantizer_set=of_gradient).sum())(X),
    ):
        message = (
            "quantize: quantizer must be for one tensor, got GroupedQuantizer, which "
            "grouped_quantize() and grouped_dense() take"
        )
        refused(call, TypeError, message)


@modes
def test_quantizers_of_one_tensor_do_not_quantize_groups(mode: ScalingMode) -> None:
    sets, groups = set_of(mode), set_of(mode, n_groups=2)
    of_gradient = QuantizerSet(groups.x, groups.kernel, sets.dgrad)

    def gradient() -> object:
        layer = lambda x: grouped_dense(x, KERNELS, SIZES, quantizer_set=of_gradient).sum()  # noqa: E731
        return jax.grad(layer)(X)

    for call in (
        lambda: grouped_quantize(X, sets.x, SIZES),
        lambda: grouped_dense(X, KERNELS, SIZES, quantizer_set=sets),
        lambda: grouped_gemm(ROWS, MATRICES, ((1,), (1,)), quantizer_set=sets),
        gradient,
    ):
        message = (
            "grouped_quantize: quantizer must be a GroupedQuantizer, which QuantizerFactory makes "
            f"with n_groups, or None, got {type(sets.x).__name__}"
        )
        refused(call, TypeError, message)


# The modes of each class. A class serves the modes whose scales and amaxes it computes.
SERVED = {
    Quantizer: [MXFP8],
    BlockScaleQuantizer: [MXFP8],
    CurrentScaleQuantizer: SCALING,
    DelayedScaleQuantizer: [mode for mode in SCALING if mode not in NVFP4],
    NVFP4Quantizer: NVFP4,
    GroupedQuantizer: SCALING,
}


@modes
@pytest.mark.parametrize("cls", SERVED, ids=lambda cls: cls.__name__)
def test_a_class_refuses_modes_that_it_has_no_scales_for(
    cls: type[Quantizer], mode: ScalingMode
) -> None:
    def make() -> Quantizer:
        dtype = mode.get_compatible_q_dtypes()[0]
        layout = QuantizeLayout.ROWWISE
        fields = {"data_layout": "NN"} if cls is Quantizer else {}
        return cls(q_dtype=dtype, scaling_mode=mode, q_layout=layout, **fields)

    if mode not in SERVED[cls]:
        served = " or ".join(of.name for of in SERVED[cls])
        message = f"quantizer: scaling_mode of {cls.__name__} must be {served}, got {mode.name}"
        refused(make, ValueError, message)
    elif cls is not GroupedQuantizer:
        np.testing.assert_array_equal(make().quantize(3 * X).dequantize(), 3 * X)


def test_arguments_that_are_no_quantizers() -> None:
    sets = set_of(MXFP8)
    for call, message in (
        (lambda: quantize(X, "mxfp8_e4m3"),
         "quantize: quantizer must be a Quantizer or None, got 'mxfp8_e4m3'"),
        (lambda: quantize_dbias(X, sets),
         "quantize: quantizer must be a Quantizer or None, got QuantizerSet"),
        (lambda: quantize(X, BlockScaleQuantizer),
         f"quantize: quantizer must be a Quantizer or None, got {BlockScaleQuantizer!r}"),
        (lambda: fake_quantize(X, sets),
         "fake_quantize: quantizer must be a Quantizer, a spec's text or None, got QuantizerSet"),
        (lambda: quantize(X, X),
         "quantize: quantizer must be a Quantizer or None, got an array of shape (64, 32)"),
        (lambda: grouped_quantize(X, (SIZES, 1), SIZES),
         "grouped_quantize: quantizer must be a GroupedQuantizer, which QuantizerFactory makes "
         "with n_groups, or None, got tuple"),
    ):  # fmt: skip
        refused(call, TypeError, message)


def test_numbers_and_dtypes_that_factories_refuse() -> None:
    create, create_set = QuantizerFactory.create, QuantizerFactory.create_set
    for call, error, message in (
        (lambda: create(1, MXFP8, E4M3, n_groups=0), ValueError,
         "quantizer: n_groups must be 1 or more, got 0"),
        (lambda: create_set(1, MXFP8, E4M3, E4M3, n_groups=-1), ValueError,
         "quantizer: n_groups must be 1 or more, got -1"),
        (lambda: GroupedQuantizer(E4M3, MXFP8, n_groups=0), ValueError,
         "quantizer: n_groups must be 1 or more, got 0"),
        (lambda: create(1, MXFP8, E4M3, n_groups=2.0), TypeError,
         "quantizer: n_groups must be an int, got 2.0"),
        (lambda: create(-1, MXFP8, E4M3), ValueError,
         "quantizer: n_quantizers must be 0 or more, got -1"),
        (lambda: create_set(-1, MXFP8, E4M3, E4M3), ValueError,
         "quantizer: n_quantizer_sets must be 0 or more, got -1"),
        (lambda: create(1, MXFP8), ValueError,
         "quantizer: q_dtype of MXFP8_1D_SCALING must be float8_e4m3fn or float8_e5m2, got None"),
        (lambda: create_set(1, NVFP4[0]), ValueError,
         "quantizer: q_dtype of NVFP4_1D_SCALING must be float4_e2m1fn, got None"),
    ):  # fmt: skip
        refused(call, error, message)
    assert create(0, MXFP8, E4M3) == () and len(create(np.int64(2), CURRENT, E4M3)) == 2
    assert create(1, MXFP8, E4M3, n_groups=np.int64(2)).n_groups == 2


def test_quantizers_of_a_group_that_do_not_fit_together() -> None:
    own, other = BlockScaleQuantizer(E4M3), BlockScaleQuantizer(jnp.float8_e5m2)
    current, delayed = CurrentScaleQuantizer(E4M3), DelayedScaleQuantizer(E4M3, CURRENT)
    groups, nothing = set_of(MXFP8, n_groups=1).x, ()

    def grouped(mode: ScalingMode, *quantizers: Quantizer, n_groups: int) -> GroupedQuantizer:
        return GroupedQuantizer(E4M3, mode, n_groups=n_groups, quantizers=quantizers)

    assert grouped(MXFP8, own, own, n_groups=2).quantizers == (own, own)
    for quantizers, count in ((nothing, 1), ((own, own), 3), ((own, own), 1), ((None, None), 1)):
        message = f"quantizer: quantizers must be one per group, {count}, got {len(quantizers)}"
        refused(partial(grouped, MXFP8, *quantizers, n_groups=count), ValueError, message)
    for mode, quantizers, got in (
        (MXFP8, (own, other), "a BlockScaleQuantizer of MXFP8_1D_SCALING and float8_e5m2"),
        (MXFP8, (own, current), "a CurrentScaleQuantizer of CURRENT_TENSOR_SCALING and "
         "float8_e4m3fn"),
        (CURRENT, (current, delayed), "a DelayedScaleQuantizer of CURRENT_TENSOR_SCALING and "
         "float8_e4m3fn"),
        (MXFP8, (own, groups), "a GroupedQuantizer of MXFP8_1D_SCALING and float8_e4m3fn"),
        (MXFP8, (own, "mxfp8_e4m3"), "'mxfp8_e4m3'"),
    ):  # fmt: skip
        message = (
            f"quantizer: quantizers must be for one tensor, of one class, {mode.name} and "
            f"float8_e4m3fn, got {got} for group 1"
        )
        refused(partial(grouped, mode, *quantizers, n_groups=2), ValueError, message)
