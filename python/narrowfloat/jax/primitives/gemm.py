# SPDX-License-Identifier: Apache-2.0
"""Products of codes: sums in the order of narrowfloat.qgemm, and its bytes."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.experimental.custom_partitioning import SdyShardingRule
from jax.interpreters import ad
from jax.sharding import Mesh, PartitionSpec

from narrowfloat.jax.primitives.base import Arrays, BasePrimitive, register_primitive
from narrowfloat.jax.primitives.dequantize import is_columnwise, pad_scales_of
from narrowfloat.jax.primitives.sharding import Axes, Factors, axes_of, spec_of, whole_blocks
from narrowfloat.jax.quantize.scaling_modes import split_shape

NO_BIAS = (0,)


class Factor(NamedTuple):
    """An operand of a product as it lies: what is summed over are the dimensions from `axis` on,
    or those before it where `spec` is of columns."""

    data: jax.Array
    scale_inv: jax.Array
    amax: jax.Array
    spec: str
    axis: int


def _kept(spec: str, axis: int, ndim: int) -> range:
    """The dimensions that are not summed over."""
    return range(axis, ndim) if is_columnwise(spec) else range(axis)


class _Side(NamedTuple):
    """Static parameters of an operand."""

    spec: str
    axis: int

    def kept(self, shape: Sequence[int]) -> tuple[int, ...]:
        return tuple(shape[dim] for dim in _kept(self.spec, self.axis, len(shape)))

    def axes(self, operand: jax.ShapeDtypeStruct, mesh: Mesh) -> list[Axes]:
        """Mesh axes of the kept dimensions; what is summed over is gathered."""
        shape = operand.shape
        whole = whole_blocks(axes_of(operand), shape, [1] * len(shape), mesh)
        kept = _kept(self.spec, self.axis, len(shape))
        return [names if dim in kept else () for dim, names in enumerate(whole)]

    def of_kept(self, items: Sequence[Any]) -> list[Any]:
        return [items[dim] for dim in _kept(self.spec, self.axis, len(items))]

    def factors(self, factors: Factors, data: Sequence[int], scales: Sequence[int]) -> tuple:
        """Names of the dimensions of codes and of scales, which share those that are kept."""
        names, others = factors.unrelated(data), list(factors.unrelated(scales))
        if len(scales) == len(data) > 1:
            for dim in _kept(self.spec, self.axis, len(data)):
                others[dim] = names[dim]
        return names, tuple(others)


def _sides(static: dict[str, Any]) -> tuple[_Side, _Side]:
    return (
        _Side(static["lhs_spec"], static["lhs_axis"]),
        _Side(static["rhs_spec"], static["rhs_axis"]),
    )


@register_primitive
class GemmPrimitive(BasePrimitive):
    """nf_gemm_ffi of two matrices.

    Operands: codes, scale_inv without padding and amax of lhs, the same of rhs; bias, in the shape
    of rhs's kept dimensions, or of no items; group_sizes, of no items.
    Result: lhs's kept dimensions and rhs's. On several devices what is summed over is gathered, so
    that the bytes are those of one device.
    """

    name = "nf_gemm_ffi"
    static_args = ("lhs_spec", "lhs_axis", "rhs_spec", "rhs_axis", "out_dtype")

    @staticmethod
    def abstract(*operands: ShapedArray, **static: Any) -> Sequence[ShapedArray]:
        left, right = _sides(static)
        shape = (*left.kept(operands[0].shape), *right.kept(operands[3].shape))
        return [ShapedArray(shape, static["out_dtype"])]

    @staticmethod
    def attributes(**static: Any) -> dict[str, object]:
        return gemm_attributes(
            static["lhs_spec"], static["lhs_matrix"], static["rhs_spec"], static["rhs_matrix"]
        )

    @classmethod
    def impl(cls, *operands: jax.Array, **static: Any) -> Arrays:
        lhs, lhs_scale, lhs_amax, rhs, rhs_scale, rhs_amax, bias, sizes = operands
        matrices = {}
        for name, data in (("lhs", lhs), ("rhs", rhs)):
            matrices[f"{name}_matrix"] = split_shape(data.shape, static[f"{name}_axis"])
        lhs_scale = pad_scales_of(lhs_scale, static["lhs_spec"], matrices["lhs_matrix"])
        rhs_scale = pad_scales_of(rhs_scale, static["rhs_spec"], matrices["rhs_matrix"])
        return cls.inner_primitive.bind(
            lhs, lhs_scale, lhs_amax, rhs, rhs_scale, rhs_amax, bias, sizes, **static, **matrices
        )

    @classmethod
    def partition(
        cls, static: dict[str, Any], mesh: Mesh, operands: Sequence, results: Sequence
    ) -> tuple[Callable[..., Arrays], list[PartitionSpec], list[PartitionSpec]]:
        left, right = _sides(static)
        lhs_axes, rhs_axes = left.axes(operands[0], mesh), right.axes(operands[3], mesh)
        taken = {name for names in lhs_axes for name in names}
        rhs_axes = [() if taken.intersection(names) else names for names in rhs_axes]
        nothing = PartitionSpec()
        places = []
        for axes, scale in ((lhs_axes, operands[1]), (rhs_axes, operands[4])):
            place = spec_of(axes)
            places += [place, place if len(scale.shape) == len(axes) > 1 else nothing, nothing]
        kept = right.of_kept(rhs_axes)
        bias = nothing if operands[6].shape == NO_BIAS else spec_of(kept)
        out = spec_of([*left.of_kept(lhs_axes), *kept])
        return functools.partial(cls.impl, **static), [*places, bias, nothing], [out]

    @classmethod
    def sharding_rule(
        cls,
        static: dict[str, Any],
        mesh: Mesh,
        operands: Sequence[tuple],
        results: Sequence[tuple],
    ) -> SdyShardingRule:
        factors, (left, right) = Factors(mesh), _sides(static)
        lhs = left.factors(factors, operands[0], operands[1])
        rhs = right.factors(factors, operands[3], operands[4])
        kept = tuple(right.of_kept(rhs[0]))
        bias = factors.unrelated(operands[6]) if operands[6] == NO_BIAS else kept
        amaxes, sizes = [factors.unrelated(operands[i]) for i in (2, 5)], operands[7]
        names = [*lhs, amaxes[0], *rhs, amaxes[1], bias, factors.unrelated(sizes)]
        return factors.rule(names, [(*left.of_kept(lhs[0]), *kept)])


def gemm_attributes(
    lhs_spec: str, lhs_matrix: Sequence[int], rhs_spec: str, rhs_matrix: Sequence[int]
) -> dict[str, object]:
    """The handler's attributes; -1 in a matrix is the size of a group."""
    rows_and_cols = {
        f"{name}_{part}": int(extent)
        for name, matrix in (("lhs", lhs_matrix), ("rhs", rhs_matrix))
        for part, extent in zip(("rows", "cols"), matrix, strict=True)
    }
    return {"lhs_spec": str(lhs_spec), "rhs_spec": str(rhs_spec), **rows_and_cols}


def _differentiate(
    primals: Sequence[jax.Array], tangents: Sequence[Any], **static: Any
) -> tuple[Arrays, list]:
    """Codes have no tangents; that of the bias goes to every row."""
    out = GemmPrimitive.outer_primitive.bind(*primals, **static)
    bias = tangents[6]
    if type(bias) is ad.Zero or primals[6].shape == NO_BIAS:
        return out, [ad.Zero.from_primal_value(out[0])]
    return out, [jnp.broadcast_to(bias.astype(out[0].dtype), out[0].shape)]


ad.primitive_jvps[GemmPrimitive.outer_primitive] = _differentiate


def multiply_codes(
    lhs: Factor, rhs: Factor, bias: jax.Array | None, out_dtype: np.dtype
) -> jax.Array:
    """The product, with the bytes of narrowfloat.qgemm.

    bias: in the shape of the dimensions of rhs that are kept. Requires: not lhs by columns and rhs
    by rows.
    """
    empty = jnp.zeros(NO_BIAS, jnp.float32)
    return GemmPrimitive.outer_primitive.bind(
        *lhs[:3],
        *rhs[:3],
        empty if bias is None else bias,
        jnp.zeros((0,), jnp.int32),
        lhs_spec=lhs.spec,
        lhs_axis=lhs.axis,
        rhs_spec=rhs.spec,
        rhs_axis=rhs.axis,
        out_dtype=np.dtype(out_dtype),
    )[0]


@register_primitive
class GroupedGemmPrimitive(BasePrimitive):
    """nf_gemm_ffi of a pair of matrices for each group.

    Operands, flat, group after group: codes and scale_inv of lhs, the same of rhs; bias (G, N), or
    of no items; group_sizes: int32 (G,). Result: the groups' products, one after another, in
    `out_shape`. lhs_matrix, rhs_matrix: rows and columns of each matrix, -1 the size of the group.
    """

    name = "nf_grouped_gemm"
    target = "nf_gemm_ffi"
    static_args = ("lhs_spec", "lhs_matrix", "rhs_spec", "rhs_matrix", "out_shape", "out_dtype")

    @staticmethod
    def abstract(*operands: ShapedArray, **static: Any) -> Sequence[ShapedArray]:
        return [ShapedArray(static["out_shape"], static["out_dtype"])]

    @staticmethod
    def attributes(**static: Any) -> dict[str, object]:
        return gemm_attributes(
            static["lhs_spec"], static["lhs_matrix"], static["rhs_spec"], static["rhs_matrix"]
        )

    @classmethod
    def impl(cls, *operands: jax.Array, **static: Any) -> Arrays:
        lhs, lhs_scale, rhs, rhs_scale, bias, sizes = operands
        if math.prod(static["out_shape"]) == 0:
            return [jnp.zeros(static["out_shape"], static["out_dtype"])]
        amax = jnp.zeros((sizes.size,), jnp.float32)
        return cls.inner_primitive.bind(
            lhs, lhs_scale, amax, rhs, rhs_scale, amax, bias, sizes, **static
        )
