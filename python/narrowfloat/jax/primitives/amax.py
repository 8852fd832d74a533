# SPDX-License-Identifier: Apache-2.0
"""Largest magnitudes and the scales that follow from them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.sharding import Mesh, PartitionSpec
from jax.typing import DTypeLike

from narrowfloat import _core
from narrowfloat.jax.primitives.array_types import (
    check_float,
    check_sizes,
    result_type,
    vary_alike,
    varying_axes,
)
from narrowfloat.jax.primitives.base import (
    Arrays,
    BasePrimitive,
    register_primitive,
    register_whole,
)
from narrowfloat.jax.primitives.sharding import (
    Axes,
    axes_of,
    flat_axes,
    spec_of,
    whole_blocks,
)
from narrowfloat.jax.quantize.scaling_modes import check_static, normalize_axis

ONE = ShapedArray((1,), np.dtype(np.float32))


def largest_over(amax: jax.Array, names: Axes) -> jax.Array:
    """Returns the largest amax of all devices, by the handler on gathered amaxes: it neither
    flushes subnormals to zero nor keeps a NaN.
    """
    if not names:
        return amax
    gathered = jax.lax.all_gather(amax, names)
    return AmaxCalculationPrimitive.inner_primitive.bind(gathered)[0]


def largest_for(state: Sequence[jax.Array], amax: jax.Array) -> jax.Array:
    """Returns the largest amax of the devices of shard_map that share `state`: the devices along
    the manual axes that `amax` varies over and `state` does not.
    """
    names = tuple(sorted(varying_axes([amax]) - varying_axes(state)))
    if not names:
        return amax
    # The bits of magnitudes have the same order as the magnitudes, and XLA flushes no integer.
    bits = jax.lax.bitcast_convert_type(amax, jnp.int32)
    return jax.lax.bitcast_convert_type(jax.lax.pmax(bits, names), jnp.float32)


class _OfInput(BasePrimitive):
    """Amaxes of one operand."""

    @staticmethod
    def multiples(shape: Sequence[int], **static: Any) -> list[int]:
        """Returns the number that a device's part of each dimension must be a multiple of."""
        return [1] * len(shape)

    @classmethod
    def partition(
        cls, static: dict[str, Any], mesh: Mesh, operands: Sequence, results: Sequence
    ) -> tuple[Callable[..., Arrays], list[PartitionSpec], list[PartitionSpec]]:
        shape = operands[0].shape
        axes = whole_blocks(axes_of(operands[0]), shape, cls.multiples(shape, **static), mesh)

        def local(x: jax.Array) -> Arrays:
            amaxes = cls.inner_primitive.bind(x, **static)
            return [largest_over(amax, flat_axes(axes)) for amax in amaxes]

        return local, [spec_of(axes)], [PartitionSpec()] * len(results)


@register_primitive
class AmaxCalculationPrimitive(_OfInput):
    """float32 (1,): the largest magnitude of an array, NaN ignored."""

    name = "nf_amax_ffi"
    static_args = ()

    @staticmethod
    def abstract(x: ShapedArray) -> Sequence[ShapedArray]:
        check_float("amax", x.dtype)
        return [ONE]


@register_primitive
class RHTAmaxCalculationPrimitive(_OfInput):
    """The amax of an array (0 unless requested), and the amax of its transformed columns."""

    name = "te_rht_amax_ffi"
    static_args = ("rht_matrix_random_sign_mask_t", "produce_regular_amax", "flatten_axis")

    @staticmethod
    def abstract(x: ShapedArray, **static: Any) -> Sequence[ShapedArray]:
        check_float("rht_amax", x.dtype)
        return [ONE, ONE]

    @staticmethod
    def multiples(shape: Sequence[int], **static: Any) -> list[int]:
        axis, size = static["flatten_axis"], _core.HADAMARD_SIZE
        if shape[axis - 1] % size:  # groups extend over several indices of the leading dimensions
            return [*shape[:axis], *[1] * len(shape[axis:])]
        return [1] * (axis - 1) + [size] + [1] * len(shape[axis:])


def calculate_amax(x: jax.Array) -> jax.Array:
    """Returns float32 (1,): the amax of `x` over all devices; 0 if it is empty. Errors: TypeError
    for an input that is not float32, float16 or bfloat16.
    """
    return AmaxCalculationPrimitive.outer_primitive.bind(x)[0]


def calculate_post_rht_amax(
    x: jax.Array, flatten_axis: int, produce_regular_amax: bool
) -> tuple[jax.Array, jax.Array]:
    """Returns the amax of `x` (0 unless produce_regular_amax) and the amax of its transformed
    columns.

    Shapes: float32 (1,). Errors: TypeError as calculate_amax(), or if flatten_axis is not an int;
    ValueError if flatten_axis does not split the dimensions, or the number of rows is not a
    multiple of the transform's size.
    """
    axis = normalize_axis(flatten_axis, x.ndim)
    check_static("rht", x.shape)
    rows = math.prod(x.shape[:axis])
    if rows % _core.HADAMARD_SIZE:
        raise ValueError(
            f"rht: the number of rows must be a multiple of {_core.HADAMARD_SIZE}, got {rows}"
        )
    amax, post_rht_amax = RHTAmaxCalculationPrimitive.outer_primitive.bind(
        x,
        rht_matrix_random_sign_mask_t=int(_core.HADAMARD_SIGN_MASK),
        produce_regular_amax=bool(produce_regular_amax),
        flatten_axis=axis,
    )
    return amax, post_rht_amax


@register_whole
class GroupedAmaxPrimitive(BasePrimitive):
    """float32 (G,): the largest magnitude of each group of slices of axis 0.

    Operands: x; group_sizes: int32 (G,).
    """

    name = "nf_grouped_amax_ffi"
    static_args = ()

    @staticmethod
    def abstract(x: ShapedArray, group_sizes: ShapedArray) -> Sequence[ShapedArray]:
        check_float("grouped_amax", x.dtype)
        check_sizes("grouped_amax", group_sizes)
        return [ShapedArray(group_sizes.shape, np.dtype(np.float32))]


@register_whole
class UpdateDelayedScalePrimitive(BasePrimitive):
    """The next history and scale. Operands: the history, the scale and the amax: float32."""

    name = "nf_update_delayed_scale_ffi"
    static_args = ("algo", "fp8_max", "margin")

    @staticmethod
    def abstract(
        history: ShapedArray, scale: ShapedArray, amax: ShapedArray, **static: Any
    ) -> Sequence[ShapedArray]:
        return [ShapedArray(of.shape, np.dtype(np.float32)) for of in (history, scale)]


def grouped_amax(x: jax.Array, group_sizes: jax.Array) -> jax.Array:
    """Returns float32 (G,): the amax of each group of slices of axis 0; 0 for an empty group."""
    return GroupedAmaxPrimitive.outer_primitive.bind(x, group_sizes)[0]


def largest_code(q_dtype: DTypeLike) -> np.float32:
    """Returns the largest finite value of a dtype."""
    return np.float32(jnp.finfo(q_dtype).max)


def scale_from_amax(
    amax: jax.Array, q_dtype: DTypeLike, margin: float, scale: jax.Array
) -> jax.Array:
    """Returns the scale that maps amax to the largest code over 2^margin; at most the largest
    float. Returns `scale` where amax is not above 0 or not finite. Shapes: all alike, float32.
    """
    amax, scale = vary_alike([amax, scale])
    call = jax.ffi.ffi_call(
        "nf_scale_from_amax_ffi",
        result_type(amax.shape, np.dtype(np.float32), [jax.typeof(amax)]),
        vmap_method="broadcast_all",
    )
    return call(amax, scale, fp8_max=largest_code(q_dtype), margin=np.float32(margin))


def update_delayed_scale(
    history: jax.Array,
    scale: jax.Array,
    amax: jax.Array,
    q_dtype: DTypeLike,
    margin: float,
    algo: str,
) -> tuple[jax.Array, jax.Array]:
    """Returns the history without its oldest amax, with `amax` at its end, and the next scale."""
    history, scale = UpdateDelayedScalePrimitive.outer_primitive.bind(
        history,
        scale,
        amax,
        algo=str(algo),
        fp8_max=largest_code(q_dtype),
        margin=np.float32(margin),
    )
    return history, scale
