# SPDX-License-Identifier: Apache-2.0
"""Adds and removes the padding of scales that handlers and products need."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from narrowfloat import _core
from narrowfloat.jax.quantize.scaling_modes import (
    ScalingMode,
    Shape,
    normalize_axis,
    split_shape,
)

Matrix = tuple[int, int]


def pad_scales(scale_inv: jax.Array, content: Matrix, stored: Matrix) -> jax.Array:
    """Returns scales of shape `content`, padded with zeros to the shape `stored`.

    Takes any dtype, so that the handler can name a wrong one.
    """
    if content == stored:
        return scale_inv.reshape(stored)
    word = np.dtype(f"u{scale_inv.dtype.itemsize}")
    bits = jax.lax.bitcast_convert_type(scale_inv.reshape(content), word)
    margins = [(0, size - used) for size, used in zip(stored, content, strict=True)]
    return jax.lax.bitcast_convert_type(jnp.pad(bits, margins), scale_inv.dtype)


def cut_scales(scale_inv: jax.Array, content: Matrix, stored: Matrix) -> jax.Array:
    """Returns scales of shape `content`, cut from the beginning of those of shape `stored`."""
    return scale_inv.reshape(stored)[: content[0], : content[1]]


def apply_padding_to_scale_inv(
    scale_inv: jax.Array,
    scaling_mode: ScalingMode,
    data_shape: Sequence[int],
    is_colwise: bool = False,
    flatten_axis: int = -1,
) -> jax.Array:
    """Returns `scale_inv` with zeros at the end of its matrix.

    data_shape: of the data in its layout; flatten_axis: of the input. Padded scales and scales of
    whole tensors are returned unchanged. Errors: ValueError if scale_inv has neither shape.
    """
    plain, padded = _shapes(scaling_mode, data_shape, is_colwise, flatten_axis)
    if _has_shape(scale_inv, padded, plain):
        return scale_inv
    matrices = _matrices(scaling_mode, data_shape, is_colwise, flatten_axis)
    return pad_scales(scale_inv, *matrices).reshape(padded)


def remove_padding_from_scale_inv(
    scale_inv: jax.Array,
    scaling_mode: ScalingMode,
    data_shape: Sequence[int],
    is_colwise: bool = False,
    flatten_axis: int = -1,
) -> jax.Array:
    """Returns scales without the zeros that apply_padding_to_scale_inv() adds. Errors: as there."""
    plain, padded = _shapes(scaling_mode, data_shape, is_colwise, flatten_axis)
    if _has_shape(scale_inv, plain, padded):
        return scale_inv
    matrices = _matrices(scaling_mode, data_shape, is_colwise, flatten_axis)
    return cut_scales(scale_inv, *matrices).reshape(plain)


def _has_shape(scale_inv: jax.Array, wanted: Shape, other: Shape) -> bool:
    if scale_inv.shape in (wanted, other):
        return scale_inv.shape == wanted
    raise ValueError(
        f"quantize: scale_inv must have shape {wanted} or {other}, got {scale_inv.shape}"
    )


def _shapes(
    mode: ScalingMode, data_shape: Sequence[int], is_colwise: bool, flatten_axis: int
) -> tuple[Shape, Shape]:
    layout = mode.get_data_layout()[is_colwise]
    plain, padded = (
        mode.get_scale_shape(data_shape, layout, is_colwise, padded, flatten_axis, True)
        for padded in (False, True)
    )
    return plain, padded


def _matrices(
    mode: ScalingMode, data_shape: Sequence[int], is_colwise: bool, flatten_axis: int
) -> tuple[Matrix, Matrix]:
    axis = normalize_axis(flatten_axis, len(data_shape))
    turned = is_colwise and mode.is_colwise_transposed
    rows, cols = split_shape(data_shape, len(data_shape) - axis if turned else axis)
    return _core.scale_shapes(mode.get_scheme(), rows, cols, is_colwise and not turned)
