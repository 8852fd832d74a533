# SPDX-License-Identifier: Apache-2.0
"""Quantizes groups of rows, each as a tensor of its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray

from narrowfloat.jax.primitives.array_types import check_float, check_sizes
from narrowfloat.jax.primitives.base import BasePrimitive, register_primitive
from narrowfloat.jax.primitives.quantize import NOTHING, layout_of, mode_of


@register_primitive
class GroupedQuantizePrimitive(BasePrimitive):
    """te_grouped_quantize_ffi.

    Operands: x; scale: float32 (G,); group_sizes: int32 (G,).
    Results, flat: rowwise and colwise data and scale_inv, amax (G,), and a byte array of no size.
    Tensor scales are stored for non-empty groups only, one after another.
    """

    name = "te_grouped_quantize_ffi"
    static_args = ("out_dtype", "scaling_mode", "q_layout", "flatten_axis", "scale_dtype")
    makes_codes = True

    @staticmethod
    def abstract(
        x: ShapedArray, scale: ShapedArray, group_sizes: ShapedArray, **static: Any
    ) -> Sequence[ShapedArray]:
        mode, layout, axis = mode_of(static), layout_of(static), static["flatten_axis"]
        check_sizes("grouped_quantize", group_sizes)
        check_float("grouped_quantize", x.dtype)
        mode.get_scheme(static["out_dtype"])
        scales = [
            mode.get_grouped_scale_room(x.shape, group_sizes.size, colwise, axis)
            for colwise in (False, True)
        ]
        wanted = layout.has_rowwise, layout.has_colwise
        flat = (math.prod(x.shape),)
        return [
            *(ShapedArray(flat if w else NOTHING, static["out_dtype"]) for w in wanted),
            *(
                ShapedArray(shape if w else NOTHING, static["scale_dtype"])
                for w, shape in zip(wanted, scales, strict=True)
            ),
            ShapedArray(group_sizes.shape, np.dtype(np.float32)),
            ShapedArray((0,), np.dtype(np.uint8)),
        ]

    @staticmethod
    def attributes(**static: Any) -> dict[str, object]:
        return {name: int(static[name]) for name in ("scaling_mode", "q_layout", "flatten_axis")}


def at_own_index(packed: jax.Array, sizes: jax.Array) -> jax.Array:
    """Returns the scale of each group from the scales of the groups with rows, which the handler
    stores one after another. The scale of an empty group is undefined.
    """
    return packed[jnp.maximum(jnp.cumsum(sizes > 0) - 1, 0)]
