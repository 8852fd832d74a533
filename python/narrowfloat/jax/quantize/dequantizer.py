# SPDX-License-Identifier: Apache-2.0
"""Dequantizes tensors, by the handler of all schemes."""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np
from jax.typing import DTypeLike

from narrowfloat import _core
from narrowfloat.jax.primitives.dequantize import dequantize_codes
from narrowfloat.jax.quantize.hadamard import invert_rht
from narrowfloat.jax.quantize.scaling_modes import ScalingMode, split_shape
from narrowfloat.jax.quantize.tensor import GroupedScaledTensor1x, ScaledTensor1x


def spec_of_data(tensor: ScaledTensor1x | GroupedScaledTensor1x, swizzled: bool = False) -> str:
    """Returns the text of a spec with the scheme and the direction of the data as stored.

    Columnwise data in layout T are stored as rows.
    """
    scheme = tensor.scaling_mode.get_scheme(tensor.data.dtype)
    return spec_text(scheme, tensor.is_colwise and tensor.data_layout == "N", swizzled)


def spec_text(scheme: str, is_columnwise: bool, is_swizzled: bool = False) -> str:
    """Returns the text of a spec with one direction."""
    options = ["columnwise=1", "rowwise=0"] if is_columnwise else []
    options += ["swizzled=1"] if is_swizzled else []
    return f"{scheme}:{','.join(options)}" if options else scheme


def dequantize_tensor(tensor: ScaledTensor1x, dtype: DTypeLike | None = None) -> jax.Array:
    """Returns the values in the layout of the data. dtype: None is the dtype of the tensor.

    Inverts the Hadamard transform if it was applied.
    """
    dtype = tensor.dq_dtype if dtype is None else dtype
    if tensor.scaling_mode is ScalingMode.NO_SCALING:
        return tensor.data.astype(dtype)
    values = dequantize_codes(
        tensor.data,
        tensor.scale_inv,
        tensor.amax,
        spec=spec_of_data(tensor),
        flatten_axis=tensor.flatten_axis,
        dtype=dtype,
    )
    return invert_rht(values) if tensor.has_rht_applied else values


def dequantize_grouped(tensor: GroupedScaledTensor1x) -> list:
    """Returns the values of each group, as a tensor of the group's shape; [] for an empty group."""
    if isinstance(tensor.group_sizes, jax.core.Tracer):
        raise ValueError("dequantize: the sizes of groups must be concrete, got a traced array")
    mode = tensor.scaling_mode
    values: list[Any] = []
    data_begin = scale_begin = 0
    for group, size in enumerate(np.asarray(tensor.group_sizes)):
        shape, axis = _group_shape(tensor, int(size))
        if math.prod(shape) == 0:
            values.append([])
            continue
        if mode.is_tensor_scaling():
            scales = tensor.scale_inv[group : group + 1]
        else:
            matrix = split_shape(shape, axis)
            by_columns = tensor.is_colwise and tensor.data_layout == "N"
            stored = _core.scale_shapes(mode.get_scheme(), *matrix, by_columns)[1]
            scales = tensor.scale_inv[scale_begin : scale_begin + math.prod(stored)]
            scale_begin += math.prod(stored)
        data = tensor.data[data_begin : data_begin + math.prod(shape)].reshape(shape)
        data_begin += data.size
        spec = spec_of_data(tensor, tensor.pre_swizzled)
        values.append(
            dequantize_codes(
                data,
                scales,
                tensor.amax[group : group + 1],
                spec=spec,
                flatten_axis=axis,
                dtype=tensor.dq_dtype,
                is_padded=True,
            )
        )
    return values


def _group_shape(tensor: GroupedScaledTensor1x, size: int) -> tuple[tuple[int, ...], int]:
    """Returns the shape and flatten axis of a group of `size` slices, in the layout of its data."""
    shape, axis = tensor.original_shape, tensor.flatten_axis
    if tensor.data_layout == "N":
        return (size, *shape[1:]), axis
    if tensor.first_dims is None:  # slices stay first; each is transposed by itself
        return (*shape[1:axis], size, *shape[axis:]), axis - 1
    return (*shape[:axis], size, *shape[axis + 1 :]), axis
