# SPDX-License-Identifier: Apache-2.0
"""TransformerEngine's products for JAX: codes by narrowfloat's handlers, values by XLA.

The top-k of rows is here too. Each function implements a call of a GPU library on one device, with
that device's part of the operands; TransformerEngine's partitioning is unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import Enum
from typing import Protocol

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from narrowfloat import _core
from narrowfloat.jax.cpp_extensions.gemm import multiply_factors
from narrowfloat.jax.cpp_extensions.grouped_gemm import Part, multiply_group_values
from narrowfloat.jax.primitives.gemm import Factor, GroupedFactor, Side, multiply_groups
from narrowfloat.jax.primitives.grouped import at_own_index
from narrowfloat.jax.quantize.dequantizer import spec_text
from narrowfloat.te.jax.enums import JAXX_Scaling_Mode as Mode

Dims = tuple[int, ...]
_OF_TENSORS = (Mode.DELAYED_TENSOR_SCALING, Mode.CURRENT_TENSOR_SCALING)
_UNDER_AMAX = (Mode.NVFP4_1D_SCALING, Mode.NVFP4_2D_SCALING)


class CollectiveOp(Protocol):
    """TransformerEngine's enum of a product's communication."""

    name: str
    is_none: bool


def gemm(
    lhs: jax.Array,
    lhs_scale_inv: jax.Array,
    rhs: jax.Array,
    rhs_scale_inv: jax.Array,
    bias: jax.Array,
    alpha: jax.Array,
    beta: jax.Array,
    *,
    out_dtype: DTypeLike,
    contracting_dims: tuple[Sequence[int], Sequence[int]],
    scaling_mode: Enum,
    collective_op: CollectiveOp,
    narrowfloat_product_mode: str,
    **others: object,
) -> jax.Array:
    """Implements te_gemm_v2_ffi.

    bias: in the shape of rhs's kept dimensions, or empty. alpha: the factor from the amaxes of
    NVFP4; other modes have no factor except their scales.
    narrowfloat_product_mode: the parameter of call_mode.py.
    Errors: NotImplementedError for a product that communicates.
    """
    if not collective_op.is_none:
        raise NotImplementedError(
            "narrowfloat.te: a product that communicates needs a GPU, got collective_op="
            f"{collective_op.name}"
        )
    lhs_dims, rhs_dims = (
        tuple(dim % operand.ndim for dim in own)
        for operand, own in zip((lhs, rhs), contracting_dims, strict=True)
    )
    out_shape = (*_kept(lhs.shape, lhs_dims), *_kept(rhs.shape, rhs_dims))
    addend = bias if bias.size else None
    mode = Mode(int(scaling_mode.value))
    if mode == Mode.NO_SCALING:
        dims = (lhs_dims, rhs_dims), ((), ())
        product = jax.lax.dot_general(lhs, rhs, dims, preferred_element_type=jnp.float32)
        return _plus(product, addend).astype(out_dtype)
    left = _factor(lhs, lhs_scale_inv, lhs_dims, mode)
    right = _factor(rhs, rhs_scale_inv, rhs_dims, mode)
    flat = None if addend is None else addend.reshape(-1)
    if mode in _UNDER_AMAX:
        dtype = jnp.dtype(jnp.float32)
        product = multiply_factors(left, right, None, dtype, narrowfloat_product_mode)
        product = _plus(product * alpha, flat)
    else:
        dtype = jnp.dtype(out_dtype)
        product = multiply_factors(left, right, flat, dtype, narrowfloat_product_mode)
    return product.reshape(out_shape).astype(out_dtype)


def _kept(shape: Sequence[int], dims: Dims) -> list[int]:
    return [size for dim, size in enumerate(shape) if dim not in dims]


def _plus(product: jax.Array, bias: jax.Array | None) -> jax.Array:
    return product if bias is None else product + bias.astype(jnp.float32)


def _factor(data: jax.Array, scale_inv: jax.Array, dims: Dims, mode: Mode) -> Factor:
    """Returns an operand as a matrix; `dims` become its rows or its columns."""
    by_columns = data.ndim - 1 not in dims
    axis = max(dims) + 1 if by_columns else min(dims)
    matrix = data.reshape(math.prod(data.shape[:axis]), -1)
    # With this amax the factor of NVFP4 is 1; alpha contains the operands' amaxes.
    amax = math.prod(float(jnp.finfo(of).max) for of in (data.dtype, scale_inv.dtype))
    above = jnp.full((1,), amax if mode in _UNDER_AMAX else 0, jnp.float32)
    return Factor(matrix, scale_inv.reshape(-1), above, _side(data.dtype, by_columns, mode))


def _side(dtype: DTypeLike, by_columns: bool, mode: Mode) -> Side:
    """Returns the layout of a matrix of codes: blocks along its columns or along its rows.

    Before a product, tiles' scales are repeated for each line, and MXFP8's scales swizzled.
    """
    mode = Mode.NVFP4_1D_SCALING if mode in _UNDER_AMAX else mode
    scheme = _core.scheme_of_mode(int(mode), jnp.dtype(dtype).name)
    spec = spec_text(scheme, by_columns, is_swizzled=mode == Mode.MXFP8_1D_SCALING)
    return Side(spec, 1, is_turned=by_columns and mode in _OF_TENSORS)


def grouped_gemm(
    lhs: jax.Array,
    lhs_scale_inv: jax.Array,
    rhs: jax.Array,
    rhs_scale_inv: jax.Array,
    bias: jax.Array,
    *sizes_and_others: jax.Array,
    lhs_is_trans: bool,
    rhs_is_trans: bool,
    scaling_mode: int,
    out_dtype: DTypeLike,
    out_shape: Sequence[int],
    has_bias: bool,
    lhs_left_size: int,
    lhs_right_size: int,
    rhs_left_size: int,
    rhs_right_size: int,
    **others: object,
) -> jax.Array:
    """Implements te_grouped_gemm_ffi.

    sizes_and_others: first the groups' sizes along the first and the last dimension of lhs, then
    the same of rhs; empty where groups do not divide it. bias: (groups, columns), if has_bias.
    """
    of_lhs, of_rhs = sizes_and_others[0:2], sizes_and_others[2:4]
    sizes = next(given for given in (*of_lhs, *of_rhs) if given.size)
    lhs_matrix, rhs_matrix = (-1, lhs_right_size), (rhs_left_size // sizes.size, rhs_right_size)
    if any(given.size for given in of_rhs):  # sums over the groups' rows
        lhs_matrix = (-1, lhs_right_size) if lhs_is_trans else (lhs_left_size, -1)
        rhs_matrix = (rhs_left_size, -1) if rhs_is_trans else (-1, rhs_right_size)
    addend = bias if has_bias else None
    mode = Mode(scaling_mode)
    if mode == Mode.NO_SCALING:
        left = _part(lhs_is_trans, lhs_matrix)
        right = _part(not rhs_is_trans, rhs_matrix)
        product = multiply_group_values(lhs, rhs, left, right, sizes, addend)
        return product.reshape(out_shape).astype(out_dtype)

    def factor(
        data: jax.Array,
        scale_inv: jax.Array,
        by_columns: bool,
        own: Sequence[jax.Array],
        matrix: tuple[int, int],
    ) -> GroupedFactor:
        if mode in _OF_TENSORS and any(given.size for given in own):
            scale_inv = at_own_index(scale_inv, sizes)
        side = _side(data.dtype, by_columns, mode)
        amax = jnp.zeros(sizes.shape, jnp.float32)
        return GroupedFactor(data.reshape(-1), scale_inv.reshape(-1), amax, side, matrix)

    return multiply_groups(
        factor(lhs, lhs_scale_inv, lhs_is_trans, of_lhs, lhs_matrix),
        factor(rhs, rhs_scale_inv, not rhs_is_trans, of_rhs, rhs_matrix),
        addend,
        sizes,
        out_shape,
        jnp.dtype(out_dtype),
    )


def _part(by_columns: bool, matrix: tuple[int, int]) -> Part:
    rows, cols = matrix
    return Part(by_columns, None if rows < 0 else rows, cols)


def topk(keys: jax.Array, lengths: jax.Array, *, k_value: int) -> tuple[jax.Array, jax.Array]:
    """Implements te_topk_ffi.

    Returns the values and columns of the k_value largest of each row's first `lengths` entries.
    """
    columns = jnp.arange(keys.shape[1])
    values, places = jax.lax.top_k(jnp.where(columns < lengths[:, None], keys, -jnp.inf), k_value)
    return values, places.astype(jnp.int32)
