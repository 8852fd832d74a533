# SPDX-License-Identifier: Apache-2.0
"""Codes and scales of a tensor, and the sums of its columns."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.experimental.custom_partitioning import SdyShardingRule
from jax.sharding import Mesh, PartitionSpec

from narrowfloat import _core
from narrowfloat.jax.primitives.amax import largest_over
from narrowfloat.jax.primitives.array_types import check_float
from narrowfloat.jax.primitives.base import Arrays, BasePrimitive, register_primitive
from narrowfloat.jax.primitives.sharding import (
    Axes,
    Factors,
    axes_of,
    flat_axes,
    spec_of,
    whole_blocks,
)
from narrowfloat.jax.quantize.scale_padding import cut_scales
from narrowfloat.jax.quantize.scaling_modes import (
    JAXX_Scaling_Mode,
    QuantizeLayout,
    ScalingMode,
    Shape,
    is_static,
    normalize_axis,
    rotate,
    split_shape,
)

STATE_WORDS = 4
NOTHING: Shape = (1,)  # the shape of an absent result


def mode_of(static: dict[str, Any]) -> ScalingMode:
    return ScalingMode(JAXX_Scaling_Mode(static["scaling_mode"]))


def layout_of(static: dict[str, Any]) -> QuantizeLayout:
    return next(q for q in QuantizeLayout if int(q.value) == static["q_layout"])


def block_multiples(mode: ScalingMode, layout: QuantizeLayout, ndim: int, axis: int) -> list[int]:
    """Returns the number that each dimension of a part must be a multiple of, to cut no block."""
    multiples = [1] * ndim
    if not mode.is_block_scaling:
        return multiples
    across, along = mode.get_block()
    multiples[-1] = along if layout.has_rowwise or across > 1 else 1
    multiples[axis - 1] = along if layout.has_colwise or across > 1 else 1
    return multiples


@register_primitive
class DBiasQuantizePrimitive(BasePrimitive):
    """te_dbias_quantize_ffi.

    Operands: x; scale, amax: float32 (1,); sr_rng_state: uint32, four words per device, or (0,);
    post_rht_amax: float32 (1,); rht_matrix: bfloat16; an empty one stands for get_rht_matrix().
    Results: rowwise and colwise data, rowwise and colwise scale_inv, updated amax, dbias, and from
    the inner primitive the workspace. Only the inner primitive pads scales. Results that are not
    requested have shape (1,).
    """

    name = "te_dbias_quantize_ffi"
    static_args = (
        "out_dtype",
        "scaling_mode",
        "q_layout",
        "flatten_axis",
        "scale_dtype",
        "is_dbias",
        "is_outer",
        "stochastic_rounding",
        "use_rht",
    )
    aliases = {2: 4}  # noqa: RUF012  (amax becomes the updated one)
    makes_codes = True

    @staticmethod
    def abstract(
        x: ShapedArray, scale: ShapedArray, amax: ShapedArray, *state: ShapedArray, **static: Any
    ) -> Sequence[ShapedArray]:
        mode, layout, axis = mode_of(static), layout_of(static), static["flatten_axis"]
        _check(x, mode, static)
        shapes = result_shapes(mode, layout, x.shape, axis, padded=not static["is_outer"])
        columns = x.shape[normalize_axis(axis, x.ndim) :] if static["is_dbias"] else NOTHING
        results = [
            *(ShapedArray(shape, static["out_dtype"]) for shape in shapes[:2]),
            *(ShapedArray(shape, static["scale_dtype"]) for shape in shapes[2:]),
            ShapedArray(amax.shape, amax.dtype),
            ShapedArray(columns, x.dtype),
        ]
        if static["is_outer"]:
            return results
        return [*results, ShapedArray(_workspace(x.shape, static), np.dtype(np.float32))]

    @staticmethod
    def attributes(**static: Any) -> dict[str, object]:
        return {
            "scaling_mode": int(static["scaling_mode"]),
            "q_layout": int(static["q_layout"]),
            "is_dbias": bool(static["is_dbias"]),
            "flatten_axis": int(static["flatten_axis"]),
            "stochastic_rounding": bool(static["stochastic_rounding"]),
            "use_rht": bool(static["use_rht"]),
        }

    @classmethod
    def impl(cls, *operands: jax.Array, **static: Any) -> Arrays:
        x, scale, amax, state, *rht = operands
        mode, layout = mode_of(static), layout_of(static)
        if static["stochastic_rounding"]:
            state = state.reshape(-1)[:STATE_WORDS]
        inner = {**static, "is_outer": False}
        *data, scale_inv, colwise_scale_inv, amax, dbias, _ = cls.inner_primitive.bind(
            x, scale, amax, state, *rht, **inner
        )
        scales = [
            cut_padding(padded, mode, layout, x.shape, static["flatten_axis"], colwise)
            for colwise, padded in enumerate((scale_inv, colwise_scale_inv))
        ]
        return [*data, *scales, amax, dbias]

    @classmethod
    def partition(
        cls, static: dict[str, Any], mesh: Mesh, operands: Sequence, results: Sequence
    ) -> tuple[Callable[..., Arrays], list[PartitionSpec], list[PartitionSpec]]:
        mode, layout = mode_of(static), layout_of(static)
        shape = operands[0].shape
        axis = normalize_axis(static["flatten_axis"], len(shape))
        multiples = block_multiples(mode, layout, len(shape), axis)
        axes = whole_blocks(axes_of(operands[0]), shape, multiples, mesh)
        local = functools.partial(cls._local, static, mode, mesh, axes, axis)
        ins = [spec_of(axes)] + [PartitionSpec()] * (len(operands) - 1)
        return local, ins, _result_specs(mode, layout, axes, axis, static["is_dbias"])

    @classmethod
    def _local(
        cls,
        static: dict[str, Any],
        mode: ScalingMode,
        mesh: Mesh,
        axes: list[Axes],
        axis: int,
        *operands: jax.Array,
    ) -> Arrays:
        """Runs on the part of each device."""
        x, scale, amax, state, *rht = operands
        if static["stochastic_rounding"] and state.ndim > 1:
            state = state[_device_number(mesh, flat_axes(axes)) % state.shape[0]]
        *made, amax, dbias = cls.impl(x, scale, amax, state, *rht, **static)
        if mode.is_tensor_scaling():
            amax = largest_over(amax, flat_axes(axes))
        over = flat_axes(axes[:axis])
        if static["is_dbias"] and over:
            dbias = jax.lax.psum(dbias.astype(jnp.float32), over).astype(dbias.dtype)
        return [*made, amax, dbias]

    @classmethod
    def sharding_rule(
        cls,
        static: dict[str, Any],
        mesh: Mesh,
        operands: Sequence[tuple],
        results: Sequence[tuple],
    ) -> SdyShardingRule:
        mode, layout = mode_of(static), layout_of(static)
        factors, shape = Factors(mesh), operands[0]
        axis = normalize_axis(static["flatten_axis"], len(shape))
        multiples = block_multiples(mode, layout, len(shape), axis)
        pairs = [factors.blocks(n, m) for n, m in zip(shape, multiples, strict=True)]
        of_data, of_scales = ([pair[i] for pair in pairs] for i in (0, 1))
        rows, columns = list(of_data), list(of_data)
        if mode.is_block_scaling:  # block scales of a direction are divided along the block only
            rows[-1], columns[axis - 1] = of_scales[-1], of_scales[axis - 1]
        turn = (lambda items: rotate(items, axis)) if mode.is_colwise_transposed else list
        wanted = [
            of_data if layout.has_rowwise else None,
            turn(of_data) if layout.has_colwise else None,
            rows if layout.has_rowwise and mode.is_block_scaling else None,
            turn(columns) if layout.has_colwise and mode.is_block_scaling else None,
            None,
            of_data[axis:] if static["is_dbias"] else None,
        ]
        outs = [
            factors.unrelated(found) if names is None else tuple(names)
            for names, found in zip(wanted, results, strict=True)
        ]
        others = [factors.unrelated(operand) for operand in operands[1:]]
        return factors.rule([tuple(of_data), *others], outs)


def result_shapes(
    mode: ScalingMode, layout: QuantizeLayout, shape: Sequence[int], flatten_axis: int, padded: bool
) -> list[Shape]:
    """Returns the shapes of rowwise and colwise data and of rowwise and colwise scales."""
    axis = normalize_axis(flatten_axis, len(shape))
    turned = rotate(shape, axis) if mode.is_colwise_transposed else tuple(shape)
    scales = [
        mode.get_scale_shape(data, letter, bool(colwise), padded, axis, True)
        if wanted or not mode.is_block_scaling
        else NOTHING
        for colwise, (data, letter, wanted) in enumerate(
            zip(
                (tuple(shape), turned),
                mode.get_data_layout(),
                (layout.has_rowwise, layout.has_colwise),
                strict=True,
            )
        )
    ]
    return [
        tuple(shape) if layout.has_rowwise else NOTHING,
        turned if layout.has_colwise else NOTHING,
        *scales,
    ]


def _check(x: ShapedArray, mode: ScalingMode, static: dict[str, Any]) -> None:
    check_float("quantize", x.dtype)
    mode.get_scheme(static["out_dtype"])
    if not mode.is_nvfp4_scaling:
        for option in ("stochastic_rounding", "use_rht"):
            if static[option]:
                raise ValueError(f"quantize: {option} is not supported in {mode.name}")


def _workspace(shape: Shape, static: dict[str, Any]) -> Shape:
    """Returns the shape of the workspace of partial sums; (1,) for symbolic dimensions."""
    if not static["is_dbias"] or not is_static(shape):
        return NOTHING
    nothing_said = 0  # types do not change the result
    ((size, _),) = _core.get_dbias_quantize_workspace_sizes(
        *split_shape(shape, static["flatten_axis"]),
        nothing_said,
        nothing_said,
        nothing_said,
        static["scaling_mode"],
        static["q_layout"],
    )
    return tuple(size)


def cut_padding(
    found: jax.Array,
    mode: ScalingMode,
    layout: QuantizeLayout,
    of: Shape,
    flatten_axis: int,
    colwise: int,
) -> jax.Array:
    """Returns scales without padding, in the shape that corresponds to the tensor's dimensions."""
    shape = result_shapes(mode, layout, of, flatten_axis, padded=False)[2 + colwise]
    if found.shape == shape or math.prod(found.shape) == 0:
        return found.reshape(shape)
    sizes = split_shape(of, flatten_axis)
    content, stored = _core.scale_shapes(mode.get_scheme(), *sizes, bool(colwise))
    return cut_scales(found, content, stored).reshape(shape)


def _result_specs(
    mode: ScalingMode, layout: QuantizeLayout, axes: list[Axes], axis: int, is_dbias: bool
) -> list[PartitionSpec]:
    nowhere, as_input = PartitionSpec(), spec_of(axes)
    turned = spec_of(rotate(axes, axis)) if mode.is_colwise_transposed else as_input
    rowwise = as_input if layout.has_rowwise else nowhere
    colwise = turned if layout.has_colwise else nowhere
    blocks = mode.is_block_scaling
    return [
        rowwise,
        colwise,
        rowwise if blocks else nowhere,
        colwise if blocks else nowhere,
        nowhere,
        spec_of(axes[axis:]) if is_dbias else nowhere,
    ]


def _device_number(mesh: Mesh, names: Axes) -> jax.Array | int:
    """Returns the index of a device among the devices that the axes spread the tensor over."""
    number = 0
    for name in names:
        number = number * mesh.shape[name] + jax.lax.axis_index(name)
    return number
