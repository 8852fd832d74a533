# SPDX-License-Identifier: Apache-2.0
"""Quantizes and dequantizes, under the names of TransformerEngine's JAX package."""

from __future__ import annotations

from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from narrowfloat._core import get_dbias_quantize_workspace_sizes
from narrowfloat.jax._arguments import check_array, check_kind
from narrowfloat.jax.cpp_extensions.amax import AmaxScope
from narrowfloat.jax.primitives.amax import grouped_amax, scale_from_amax
from narrowfloat.jax.primitives.array_types import check_float, check_sizes
from narrowfloat.jax.primitives.dequantize import DequantizePrimitive
from narrowfloat.jax.primitives.grouped import GroupedQuantizePrimitive, at_own_index
from narrowfloat.jax.primitives.quantize import DBiasQuantizePrimitive
from narrowfloat.jax.quantize.quantizer import (
    DelayedScaleQuantizer,
    GroupedQuantizer,
    NVFP4Quantizer,
    Quantizer,
)
from narrowfloat.jax.quantize.scaling_modes import normalize_axis
from narrowfloat.jax.quantize.tensor import (
    AbstractBaseTensor,
    GroupedNoScaleTensor,
    NoScaleTensor,
    ScaledTensor,
)
from narrowfloat.jax.quantize.tensor_factory import ScaledTensorFactory

QuantizePrimitive = BaseDBiasQuantizePrimitive = DBiasQuantizePrimitive


def quantize(
    x: jax.Array | NoScaleTensor,
    quantizer: Quantizer | None = None,
    flatten_axis: int = -1,
    amax_scope: AmaxScope = AmaxScope.LOCAL,
    transpose_batch_sequence: bool = False,
) -> ScaledTensor | NoScaleTensor:
    """Returns `x` quantized and updates the quantizer's state; returns `x` without a quantizer.

    Shapes: rank 2 and more, split into rows and columns at flatten_axis. The amax covers the whole
    array on all devices, so amax_scope and transpose_batch_sequence change nothing; inside
    shard_map it covers the part.
    Errors: TypeError for an input that is not float32, float16 or bfloat16, or a quantizer that is
    not for one tensor; ValueError if blocks do not fill a dimension; JaxRuntimeError for errors
    that are found at run time.
    Source: TransformerEngine's transformer_engine.jax.cpp_extensions.quantization.
    """
    return quantize_dbias(x, quantizer, False, flatten_axis)[0]


def quantize_dbias(
    dz: jax.Array | NoScaleTensor,
    quantizer: Quantizer | None = None,
    is_dbias: bool = True,
    flatten_axis: int = -1,
    amax_scope: AmaxScope = AmaxScope.LOCAL,
    transpose_batch_sequence: bool = False,
) -> tuple[ScaledTensor | NoScaleTensor, jax.Array | None]:
    """Returns quantize() and the sums of the columns, in float32, rounded to the dtype of dz.

    On several devices the sums of each device are rounded, added and rounded again.
    Shapes: the sums have the dimensions from flatten_axis on; None unless is_dbias. Errors: as
    quantize().
    """
    dz = dz if isinstance(dz, NoScaleTensor) else NoScaleTensor(dz)
    if quantizer is not None:
        check_kind("quantize", "quantizer", quantizer, Quantizer, " or None")
        return quantizer.quantize_dbias(dz, flatten_axis=flatten_axis, is_dbias=is_dbias)
    return dz, _jax_dbias(dz, None, flatten_axis) if is_dbias else None


def _jax_dbias(
    dx: jax.Array | NoScaleTensor, dtype: DTypeLike | None = None, flatten_axis: int = -1
) -> jax.Array:
    """Returns the float32 sums of the columns in `dtype`; None is the dtype of dx."""
    data = dx.data if isinstance(dx, NoScaleTensor) else dx
    over = tuple(range(normalize_axis(flatten_axis, data.ndim)))
    return jnp.sum(data, over, jnp.float32).astype(data.dtype if dtype is None else dtype)


def _jax_quantize(
    x: jax.Array | NoScaleTensor,
    quantizer: Quantizer | None = None,
    dq_dtype: DTypeLike | None = None,
    flatten_axis: int = -1,
) -> ScaledTensor | NoScaleTensor:
    """Returns quantize() with values of type `dq_dtype`; None is the type of x."""
    if quantizer is None:
        return x if isinstance(x, NoScaleTensor) else NoScaleTensor(x)
    return quantizer.quantize(x, dq_dtype=dq_dtype, flatten_axis=flatten_axis)


def _jax_quantize_dbias(
    x: jax.Array | NoScaleTensor,
    quantizer: Quantizer | None = None,
    dq_dtype: DTypeLike | None = None,
    flatten_axis: int = -1,
) -> tuple[ScaledTensor | NoScaleTensor, jax.Array | None]:
    """Returns _jax_quantize(), and the float32 sums of the columns, rounded once to `dq_dtype`.

    The sums are None without a quantizer, as in TransformerEngine.
    """
    dbias = None if quantizer is None else _jax_dbias(x, dq_dtype, flatten_axis)
    return _jax_quantize(x, quantizer, dq_dtype, flatten_axis), dbias


def dequantize(x: AbstractBaseTensor) -> jax.Array | list:
    """Returns the values of a tensor in the layout of its data; a list for groups."""
    return x.dequantize()


def _grouped_scales(x: jax.Array, quantizer: GroupedQuantizer, sizes: jax.Array) -> jax.Array:
    """Returns float32 (G,): the scale of each group; ones for block scaling."""
    ones = jnp.ones(sizes.shape, jnp.float32)
    if quantizer.scaling_mode.is_block_scaling:
        return ones
    if isinstance(quantizer.quantizers[0], DelayedScaleQuantizer):
        own = cast(tuple[DelayedScaleQuantizer, ...], quantizer.quantizers)
        return jnp.concatenate([q.scale_in_use for q in own])
    return scale_from_amax(grouped_amax(x, sizes), quantizer.q_dtype, 0.0, ones)


def _of_every_group(packed: jax.Array, scales: jax.Array, sizes: jax.Array) -> jax.Array:
    """Returns scale_inv of every group, from the entries of groups with rows."""
    return jnp.where(sizes > 0, at_own_index(packed, sizes), 1 / scales)


def grouped_quantize(
    x: jax.Array,
    quantizer: GroupedQuantizer | None = None,
    group_sizes: jax.Array | None = None,
    flatten_axis: int = -1,
) -> ScaledTensor | GroupedNoScaleTensor:
    """Quantizes each group of slices of axis 0 as a tensor of its own.

    Shapes: group_sizes is int32 (G,), may contain 0, and adds up to the first dimension; None: each
    slice is a group. Data and scales of the result are flat. A scale of a whole group is at the
    group's index. Every group's quantizer is updated with the group's amax.
    In modes with blocks there may be fewer groups than quantizers.
    Errors: ValueError for another flatten_axis than the last, or another number of groups than of
    quantizers; NotImplementedError for stochastic rounding or use_rht; TypeError for an input that
    is not an array of float32, float16 or bfloat16, group_sizes that are not an array of int32, or
    another quantizer; JaxRuntimeError if sizes do not add up.
    """
    check_array("grouped_quantize", "x", x)
    if normalize_axis(flatten_axis, x.ndim) != x.ndim - 1:
        raise ValueError(
            f"grouped_quantize: flatten_axis must be the last axis, got {flatten_axis} for "
            f"{x.ndim} dimensions"
        )
    if group_sizes is not None:
        check_sizes("grouped_quantize", group_sizes)
    if quantizer is None:
        return GroupedNoScaleTensor(x, None, group_sizes, None, x.shape)
    others = ", which QuantizerFactory makes with n_groups, or None"
    check_kind("grouped_quantize", "quantizer", quantizer, GroupedQuantizer, others)
    sizes = jnp.ones((x.shape[0],), jnp.int32) if group_sizes is None else group_sizes
    check_float("grouped_quantize", x.dtype)
    count = len(quantizer.quantizers)
    # Without state of its own, a set for all experts also quantizes the experts of one device.
    if sizes.size != count and not (quantizer.scaling_mode.is_block_scaling and sizes.size < count):
        raise ValueError(
            f"grouped_quantize: group_sizes must have one size per quantizer, {count}, got "
            f"{sizes.size}"
        )
    for own in quantizer.quantizers:
        if isinstance(own, NVFP4Quantizer) and not own.rounds_plainly:
            raise NotImplementedError(
                "grouped_quantize: use_rht and stochastic rounding are not supported for groups"
            )
    mode, layout = quantizer.scaling_mode, quantizer.q_layout
    scales = _grouped_scales(x, quantizer, sizes)
    data, colwise_data, scale_inv, colwise_scale_inv, amax, _ = (
        GroupedQuantizePrimitive.outer_primitive.bind(
            x,
            scales,
            sizes,
            out_dtype=quantizer.q_dtype,
            scaling_mode=int(mode.value),
            q_layout=int(layout.value),
            flatten_axis=x.ndim - 1,
            scale_dtype=np.dtype(quantizer.get_scale_dtype()),
        )
    )
    if mode.is_tensor_scaling():
        if layout.has_rowwise:
            scale_inv = _of_every_group(scale_inv, scales, sizes)
        if layout.has_colwise:
            colwise_scale_inv = _of_every_group(colwise_scale_inv, scales, sizes)
        quantizer.update(amax)
    letters = mode.get_data_layout()
    return ScaledTensorFactory.create(
        data,
        scale_inv,
        colwise_data,
        colwise_scale_inv,
        q_layout=layout,
        amax=amax,
        data_layout=letters if layout.is_rowwise_colwise else letters[layout.is_colwise_only],
        scaling_mode=mode,
        dq_dtype=x.dtype,
        flatten_axis=flatten_axis,
        first_dims=group_sizes,
        original_shape=x.shape,
        pre_swizzled=mode.is_block_scaling,
    )


def grouped_dbias(grad: jax.Array, group_sizes: jax.Array) -> jax.Array:
    """Returns the float32 sums of each group's rows: grad is (M, N), the result (G, N) in its
    dtype.
    """
    groups = jnp.repeat(
        jnp.arange(group_sizes.size), group_sizes, total_repeat_length=grad.shape[0]
    )
    sums = jax.ops.segment_sum(grad.astype(jnp.float32), groups, group_sizes.size)
    return sums.astype(grad.dtype)


__all__ = [
    "BaseDBiasQuantizePrimitive",
    "DBiasQuantizePrimitive",
    "DequantizePrimitive",
    "GroupedQuantizePrimitive",
    "QuantizePrimitive",
    "dequantize",
    "get_dbias_quantize_workspace_sizes",
    "grouped_dbias",
    "grouped_quantize",
    "quantize",
    "quantize_dbias",
]
