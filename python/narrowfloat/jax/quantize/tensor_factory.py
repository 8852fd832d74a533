# SPDX-License-Identifier: Apache-2.0
"""Makes quantized tensors with the library's functions to dequantize them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from narrowfloat.jax._arguments import check_array
from narrowfloat.jax.quantize.dequantizer import dequantize_grouped, dequantize_tensor
from narrowfloat.jax.quantize.scaling_modes import (
    QuantizeLayout,
    ScalingMode,
    normalize_axis,
    rotate,
)
from narrowfloat.jax.quantize.tensor import (
    GroupedScaledTensor1x,
    ScaledTensor,
    ScaledTensor1x,
    ScaledTensor2x,
    refuse_last_dims,
)


class ScaledTensorFactory:
    """Makes the tensor classes from arrays and a description."""

    @staticmethod
    def create_1x(
        data: jax.Array,
        scale_inv: jax.Array,
        amax: jax.Array | None = None,
        scaling_mode: ScalingMode = ScalingMode.NO_SCALING,
        dq_dtype: DTypeLike = jnp.bfloat16,
        is_colwise: bool = False,
        data_layout: str = "N",
        flatten_axis: int = -1,
        first_dims: jax.Array | None = None,
        last_dims: jax.Array | None = None,
        original_shape: Sequence[int] | None = None,
        has_rht_applied: bool = False,
        pre_swizzled: bool = False,
    ) -> ScaledTensor1x | GroupedScaledTensor1x:
        """Returns a tensor of one direction, grouped if first_dims or original_shape is given.

        `flatten_axis` and `original_shape` describe the input; an amax of None is zero.
        Errors: TypeError if data is not an array, or scale_inv does not have the mode's dtype;
        ValueError for groups without original_shape, or scale_inv has another shape;
        NotImplementedError for last_dims.
        """
        refuse_last_dims(last_dims)
        check_array("quantize", "data", data)
        dq_dtype = jnp.dtype(dq_dtype)
        if first_dims is None and original_shape is None:
            axis = normalize_axis(flatten_axis, data.ndim)
            if data_layout == "T":
                axis = data.ndim - axis
            amax = jnp.zeros((1,), jnp.float32) if amax is None else amax
            return ScaledTensor1x(
                data, amax, scale_inv, scaling_mode, dq_dtype, dequantize_tensor, is_colwise,
                data_layout, axis, has_rht_applied,
            )  # fmt: skip
        if original_shape is None:
            raise ValueError("quantize: a grouped tensor needs original_shape")
        shape, axis = tuple(original_shape), normalize_axis(flatten_axis, len(original_shape))
        n_groups = shape[0] if first_dims is None else first_dims.size
        if data_layout == "T" and first_dims is None:
            shape = shape[:1] + shape[axis:] + shape[1:axis]
            axis = len(shape) - axis + 1
        elif data_layout == "T":
            shape, axis = rotate(shape, axis), len(shape) - axis
        amax = jnp.zeros((n_groups,), jnp.float32) if amax is None else amax
        return GroupedScaledTensor1x(
            data, scale_inv, amax, first_dims, last_dims, scaling_mode, dq_dtype,
            dequantize_grouped, is_colwise, data_layout, axis, shape, pre_swizzled,
        )  # fmt: skip

    @staticmethod
    def create_2x(
        data: jax.Array,
        scale_inv: jax.Array,
        colwise_data: jax.Array,
        colwise_scale_inv: jax.Array,
        amax: jax.Array | None = None,
        colwise_amax: jax.Array | None = None,
        data_layout: str = "NN",
        rowwise_has_rht_applied: bool = False,
        colwise_has_rht_applied: bool = False,
        **description: Any,
    ) -> ScaledTensor2x:
        """Returns a tensor of both directions; `description` and errors are those of create_1x."""
        create = ScaledTensorFactory.create_1x
        colwise_amax = amax if colwise_amax is None else colwise_amax
        rowwise = create(
            data, scale_inv, amax, is_colwise=False, data_layout=data_layout[0],
            has_rht_applied=rowwise_has_rht_applied, **description,
        )  # fmt: skip
        colwise = create(
            colwise_data, colwise_scale_inv, colwise_amax, is_colwise=True,
            data_layout=data_layout[1], has_rht_applied=colwise_has_rht_applied, **description,
        )  # fmt: skip
        return ScaledTensor2x(rowwise, colwise)

    @staticmethod
    def create(
        data: jax.Array | None,
        scale_inv: jax.Array | None,
        colwise_data: jax.Array | None,
        colwise_scale_inv: jax.Array | None,
        q_layout: QuantizeLayout = QuantizeLayout.ROWWISE,
        amax: jax.Array | None = None,
        colwise_amax: jax.Array | None = None,
        data_layout: str = "NN",
        rowwise_has_rht_applied: bool = False,
        colwise_has_rht_applied: bool = False,
        **description: Any,
    ) -> ScaledTensor:
        """Returns a tensor of the layout's directions; `data_layout` has one letter per direction.

        Requires: arrays in these directions. Arrays of the other direction are not read.
        Errors: ValueError for rowwise_has_rht_applied; else as create_1x.
        """
        if rowwise_has_rht_applied:
            raise ValueError("quantize: rowwise_has_rht_applied must be False")
        rowwise: tuple[Any, Any] = data, scale_inv
        columns: tuple[Any, Any] = colwise_data, colwise_scale_inv
        if q_layout.is_rowwise_colwise:
            return ScaledTensorFactory.create_2x(
                *rowwise, *columns, amax, colwise_amax, data_layout,
                rowwise_has_rht_applied, colwise_has_rht_applied, **description,
            )  # fmt: skip
        colwise = q_layout.is_colwise_only
        return ScaledTensorFactory.create_1x(
            *(columns if colwise else rowwise),
            colwise_amax if colwise and colwise_amax is not None else amax,
            is_colwise=colwise,
            data_layout=data_layout[0],
            has_rht_applied=colwise and colwise_has_rht_applied,
            **description,
        )
