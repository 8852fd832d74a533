# SPDX-License-Identifier: Apache-2.0
"""Products of codes, with the sums and the bytes of narrowfloat.qgemm."""

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

from narrowfloat.jax.primitives.base import (
    Arrays,
    BasePrimitive,
    refuse_derivative,
    register_primitive,
)
from narrowfloat.jax.primitives.dequantize import is_columnwise, pad_scales_of
from narrowfloat.jax.primitives.sharding import Axes, Factors, axes_of, spec_of, whole_blocks
from narrowfloat.jax.quantize.scaling_modes import split_shape

NO_BIAS = (0,)


class Side(NamedTuple):
    """The layout of an operand: its matrix is split before dimension `axis`.

    Sums run over the columns, or over the rows if `spec` is columnwise. is_turned: columnwise codes
    are stored as rows, although the scheme transposes them.
    """

    spec: str
    axis: int
    is_turned: bool = False

    def kept_dims(self, ndim: int) -> range:
        """Returns the dimensions that are not summed over."""
        return range(self.axis, ndim) if is_columnwise(self.spec) else range(self.axis)

    def kept(self, items: Sequence[Any]) -> list[Any]:
        """Returns the items of the kept dimensions; `items` has one item per dimension."""
        return [items[dim] for dim in self.kept_dims(len(items))]

    def items_shape(self, shape: Sequence[int]) -> tuple[int, int]:
        """Returns the shape of the matrix that an operand expands to."""
        rows, cols = split_shape(shape, self.axis)
        return (cols, rows) if self.is_turned else (rows, cols)

    @property
    def items_sums(self) -> int:
        """The dimension that is summed over in the matrix of items_shape()."""
        return 0 if is_columnwise(self.spec) and not self.is_turned else 1

    def axes(
        self, operand: jax.ShapeDtypeStruct, scales: jax.ShapeDtypeStruct, mesh: Mesh
    ) -> list[Axes]:
        """Returns the mesh axes of the kept dimensions; summed dimensions are gathered.

        An operand with flat scales is gathered too: they cannot have the sharding of the codes.
        """
        shape = operand.shape
        if len(scales.shape) != len(shape) and math.prod(scales.shape) > 1:
            return [()] * len(shape)
        whole = whole_blocks(axes_of(operand), shape, [1] * len(shape), mesh)
        kept = self.kept_dims(len(shape))
        return [names if dim in kept else () for dim, names in enumerate(whole)]

    def factors(self, factors: Factors, data: Sequence[int], scales: Sequence[int]) -> tuple:
        """Returns the factor names of codes and of scales, which are equal for kept dimensions."""
        names, others = factors.unrelated(data), list(factors.unrelated(scales))
        if len(scales) == len(data) > 1:
            for dim in self.kept_dims(len(data)):
                others[dim] = names[dim]
        return names, tuple(others)


class Factor(NamedTuple):
    """An operand of a product."""

    data: jax.Array
    scale_inv: jax.Array
    amax: jax.Array
    side: Side


def _pad_scales(
    operands: Sequence[jax.Array], left: Side, right: Side
) -> tuple[list[jax.Array], dict[str, tuple[int, int]]]:
    """Returns the operands with padded scales, and the shapes of both matrices as arguments."""
    lhs, lhs_scale, lhs_amax, rhs, rhs_scale, rhs_amax, *others = operands
    lhs_matrix, rhs_matrix = split_shape(lhs.shape, left.axis), split_shape(rhs.shape, right.axis)
    lhs_scale = pad_scales_of(lhs_scale, left.spec, lhs_matrix)
    rhs_scale = pad_scales_of(rhs_scale, right.spec, rhs_matrix)
    padded = [lhs, lhs_scale, lhs_amax, rhs, rhs_scale, rhs_amax, *others]
    return padded, {"lhs_matrix": lhs_matrix, "rhs_matrix": rhs_matrix}


class ProductPrimitive(BasePrimitive):
    """A handler that multiplies two operands of codes. static: a Side and a matrix of each."""

    @staticmethod
    def attributes(**static: Any) -> dict[str, object]:
        """Returns the handler's attributes; -1 in a matrix is the size of a group."""
        attributes: dict[str, object] = {}
        for name in ("lhs", "rhs"):
            side: Side = static[name]
            rows, cols = map(int, static[f"{name}_matrix"])
            attributes |= {
                f"{name}_spec": str(side.spec),
                f"{name}_rows": rows,
                f"{name}_cols": cols,
                f"{name}_turned": bool(side.is_turned),
            }
        return attributes


@register_primitive
class GemmPrimitive(ProductPrimitive):
    """nf_gemm_ffi of two matrices.

    Operands: codes, scale_inv without padding and amax of lhs, the same of rhs; bias, in the shape
    of rhs's kept dimensions, or of no items; group_sizes, of no items.
    Result: the kept dimensions of lhs and of rhs. On several devices summed dimensions are
    gathered, so that the bytes are the same as on one device.
    """

    name = "nf_gemm_ffi"
    static_args = ("lhs", "rhs", "out_dtype")

    @staticmethod
    def abstract(*operands: ShapedArray, **static: Any) -> Sequence[ShapedArray]:
        left, right = static["lhs"], static["rhs"]
        shape = (*left.kept(operands[0].shape), *right.kept(operands[3].shape))
        return [ShapedArray(shape, static["out_dtype"])]

    @classmethod
    def impl(cls, *operands: jax.Array, **static: Any) -> Arrays:
        padded, matrices = _pad_scales(operands, static["lhs"], static["rhs"])
        return cls.inner_primitive.bind(*padded, **static, **matrices)

    @classmethod
    def partition(
        cls, static: dict[str, Any], mesh: Mesh, operands: Sequence, results: Sequence
    ) -> tuple[Callable[..., Arrays], list[PartitionSpec], list[PartitionSpec]]:
        left, right = static["lhs"], static["rhs"]
        lhs_axes = left.axes(operands[0], operands[1], mesh)
        rhs_axes = right.axes(operands[3], operands[4], mesh)
        taken = {name for names in lhs_axes for name in names}
        rhs_axes = [() if taken.intersection(names) else names for names in rhs_axes]
        nothing = PartitionSpec()
        places = []
        for axes, scale in ((lhs_axes, operands[1]), (rhs_axes, operands[4])):
            place = spec_of(axes)
            places += [place, place if len(scale.shape) == len(axes) > 1 else nothing, nothing]
        kept = right.kept(rhs_axes)
        *_, bias, _ = operands
        place_of_bias = nothing if bias.shape == NO_BIAS else spec_of(kept)
        out = spec_of([*left.kept(lhs_axes), *kept])
        return functools.partial(cls.impl, **static), [*places, place_of_bias, nothing], [out]

    @classmethod
    def sharding_rule(
        cls,
        static: dict[str, Any],
        mesh: Mesh,
        operands: Sequence[tuple],
        results: Sequence[tuple],
    ) -> SdyShardingRule:
        factors, left, right = Factors(mesh), static["lhs"], static["rhs"]
        lhs = left.factors(factors, operands[0], operands[1])
        rhs = right.factors(factors, operands[3], operands[4])
        kept = tuple(right.kept(rhs[0]))
        _, _, lhs_amax, _, _, rhs_amax, bias, sizes = operands
        place_of_bias = factors.unrelated(bias) if bias == NO_BIAS else kept
        amaxes = [factors.unrelated(amax) for amax in (lhs_amax, rhs_amax)]
        names = [*lhs, amaxes[0], *rhs, amaxes[1], place_of_bias, factors.unrelated(sizes)]
        return factors.rule(names, [(*left.kept(lhs[0]), *kept)])


def _differentiate(
    primals: Sequence[jax.Array], tangents: Sequence[Any], **static: Any
) -> tuple[Arrays, list]:
    """Returns the product and its tangent, the tangent of the bias in every row.

    Errors: NotImplementedError for tangents of other operands: codes have no derivative.
    """
    *of_codes, bias, _ = tangents
    if not all(type(tangent) is ad.Zero for tangent in of_codes):
        refuse_derivative(GemmPrimitive.name)
    out = GemmPrimitive.outer_primitive.bind(*primals, **static)
    return out, [jnp.broadcast_to(bias.astype(out[0].dtype), out[0].shape)]


ad.primitive_jvps[GemmPrimitive.outer_primitive] = _differentiate


def add_bias(product: jax.Array, bias: jax.Array | None) -> jax.Array:
    """Returns a float32 product plus bias, if there is one.

    bias: of any dtype; its dimensions are the last ones of product, or broadcast to them.
    """
    if bias is None:
        return product
    # JAX's option jax_numpy_rank_promotion="raise" refuses to broadcast without broadcast_to().
    return product + jnp.broadcast_to(bias.astype(jnp.float32), product.shape)


def multiply_codes(
    lhs: Factor, rhs: Factor, bias: jax.Array | None, out_dtype: np.dtype
) -> jax.Array:
    """Returns the product, with the bytes of narrowfloat.qgemm.

    bias: in the shape of the kept dimensions of rhs. Requires: lhs is rowwise or rhs is columnwise.
    """
    empty = jnp.zeros(NO_BIAS, jnp.float32)
    return GemmPrimitive.outer_primitive.bind(
        lhs.data,
        lhs.scale_inv,
        lhs.amax,
        rhs.data,
        rhs.scale_inv,
        rhs.amax,
        empty if bias is None else bias,
        jnp.zeros((0,), jnp.int32),
        lhs=lhs.side,
        rhs=rhs.side,
        out_dtype=np.dtype(out_dtype),
    )[0]


@register_primitive
class GroupedGemmPrimitive(ProductPrimitive):
    """nf_gemm_ffi with one pair of matrices per group.

    Operands, group after group: flat codes and scale_inv and the amaxes (G,) of lhs, the same of
    rhs; bias (G, N), or of no items; group_sizes: int32 (G,). Result: the groups' products, one
    after another, in `out_shape`. lhs_matrix, rhs_matrix: as GroupedFactor has them.
    """

    name = "nf_grouped_gemm"
    target = "nf_gemm_ffi"
    static_args = ("lhs", "lhs_matrix", "rhs", "rhs_matrix", "out_shape", "out_dtype")

    @staticmethod
    def abstract(*operands: ShapedArray, **static: Any) -> Sequence[ShapedArray]:
        return [ShapedArray(static["out_shape"], static["out_dtype"])]

    @classmethod
    def impl(cls, *operands: jax.Array, **static: Any) -> Arrays:
        if math.prod(static["out_shape"]) == 0:
            return [jnp.zeros(static["out_shape"], static["out_dtype"])]
        return cls.inner_primitive.bind(*operands, **static)


class GroupedFactor(NamedTuple):
    """An operand of groups: flat codes and scales, amaxes, and the layout of each matrix.

    matrix: rows and columns of each; -1 is the size of the group.
    """

    data: jax.Array
    scale_inv: jax.Array
    amax: jax.Array
    side: Side
    matrix: tuple[int, int]


def multiply_groups(
    lhs: GroupedFactor,
    rhs: GroupedFactor,
    bias: jax.Array | None,
    sizes: jax.Array,
    out_shape: Sequence[int],
    out_dtype: np.dtype,
) -> jax.Array:
    """Returns the products of all groups, one after another, with the bytes of
    narrowfloat.grouped_qgemm.

    sizes: int32 (G,), with one group or more.
    """
    return GroupedGemmPrimitive.outer_primitive.bind(
        *lhs[:3],
        *rhs[:3],
        jnp.zeros(NO_BIAS, jnp.float32) if bias is None else bias,
        sizes,
        lhs=lhs.side,
        lhs_matrix=lhs.matrix,
        rhs=rhs.side,
        rhs_matrix=rhs.matrix,
        out_shape=tuple(out_shape),
        out_dtype=np.dtype(out_dtype),
    )[0]


@register_primitive
class ExpandProductPrimitive(ProductPrimitive):
    """nf_expand_product_ffi: both operands of a product as bfloat16, if the conversion is exact.

    Operands: codes, scale_inv without padding and amax of lhs, the same of rhs.
    Results: the items of lhs and of rhs, matrices as Side.items_shape() has them; the factor of
    their product, float32 (1,); whether the conversion is exact, bool (1,), else all other results
    are 0. Every device expands the whole operands.
    """

    name = "nf_expand_product_ffi"
    static_args = ("lhs", "rhs")

    @staticmethod
    def abstract(*operands: ShapedArray, **static: Any) -> Sequence[ShapedArray]:
        bfloat16 = np.dtype(jnp.bfloat16)
        return [
            ShapedArray(static["lhs"].items_shape(operands[0].shape), bfloat16),
            ShapedArray(static["rhs"].items_shape(operands[3].shape), bfloat16),
            ShapedArray((1,), np.dtype(np.float32)),
            ShapedArray((1,), np.dtype(np.bool_)),
        ]

    @classmethod
    def impl(cls, *operands: jax.Array, **static: Any) -> Arrays:
        padded, matrices = _pad_scales(operands, static["lhs"], static["rhs"])
        return cls.inner_primitive.bind(*padded, **static, **matrices)


def multiply_expanded(
    lhs: Factor, rhs: Factor, bias: jax.Array | None, out_dtype: np.dtype
) -> jax.Array:
    """Returns multiply_codes() computed by XLA in bfloat16 if the conversion is exact.

    The float32 sums have XLA's order; then follow the factor, the bias and one rounding.
    """
    left, right, factor, is_lossless = ExpandProductPrimitive.outer_primitive.bind(
        *lhs[:3], *rhs[:3], lhs=lhs.side, rhs=rhs.side
    )
    shape = (*lhs.side.kept(lhs.data.shape), *rhs.side.kept(rhs.data.shape))
    dims = ((lhs.side.items_sums,), (rhs.side.items_sums,)), ((), ())

    def by_xla() -> jax.Array:
        sums = jax.lax.dot_general(left, right, dims, preferred_element_type=jnp.float32)
        product = (sums * factor.reshape(())).reshape(shape)
        return add_bias(product, bias).astype(out_dtype)

    return jax.lax.cond(is_lossless[0], by_xla, lambda: multiply_codes(lhs, rhs, bias, out_dtype))
