# SPDX-License-Identifier: Apache-2.0
"""Multiplies each group of rows, with the bytes of narrowfloat.grouped_qgemm."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from narrowfloat.jax._arguments import check_kind
from narrowfloat.jax.cpp_extensions.quantization import grouped_quantize
from narrowfloat.jax.primitives.amax import grouped_amax
from narrowfloat.jax.primitives.gemm import GroupedFactor, Side, multiply_groups
from narrowfloat.jax.quantize.dequantizer import spec_text
from narrowfloat.jax.quantize.factory import QuantizerSet, noop_quantizer_set
from narrowfloat.jax.quantize.quantizer import GroupedQuantizer
from narrowfloat.jax.quantize.scaling_modes import (
    TensorUsage,
    check_contracted,
    check_static,
    normalize_dims,
    split_dims,
)
from narrowfloat.jax.quantize.tensor import (
    GroupedNoScaleTensor,
    GroupedScaledTensor1x,
    ScaledTensor2x,
    value_dtype,
)

GroupedTensor = GroupedNoScaleTensor | GroupedScaledTensor1x


def grouped_gemm(
    lhs: GroupedTensor,
    rhs: GroupedTensor,
    contracting_dims: tuple[Sequence[int], Sequence[int]] = ((1,), (2,)),
    bias: jax.Array | None = None,
    precision: jax.lax.Precision = jax.lax.Precision.DEFAULT,
    preferred_element_type: DTypeLike | None = None,
    group_offset: jax.Array | None = None,
    quantizer_set: QuantizerSet = noop_quantizer_set,
) -> jax.Array:
    """Multiplies each group's rows of lhs by the group's matrix of rhs.

    lhs (M, K) has groups of adjacent rows, and rhs (G, K, N) one matrix per group. Contracting over
    K or N gives (M, N) or (M, K). If rhs has groups of rows too, contracting both over the rows
    gives (G, K, N). More dimensions may precede the last one.
    bias: (G, N), added to the rows of each group. preferred_element_type: of the result; None is
    the type of lhs. quantizer_set: x and kernel quantize plain operands.
    precision: sums are float32 in any case. group_offset: must be None.
    Errors: TypeError unless contracting_dims are two sequences of ints, and for another
    quantizer_set; ValueError for other contracted dimensions or unequal sizes, or if only one
    operand is quantized; NotImplementedError for a group_offset; JaxRuntimeError if sizes do not
    add up, or if traced sizes of lhs and rhs differ.
    """
    if group_offset is not None:
        raise NotImplementedError("grouped_gemm: group_offset is not supported")
    check_kind("grouped_gemm", "quantizer_set", quantizer_set, QuantizerSet)
    of_lhs, of_rhs = (
        cast(GroupedQuantizer | None, q) for q in (quantizer_set.x, quantizer_set.kernel)
    )
    lhs_dims, rhs_dims = split_dims("grouped_gemm", contracting_dims)
    lhs_dims = normalize_dims("grouped_gemm", "lhs", lhs_dims, lhs.ndim)
    rhs_dims = normalize_dims("grouped_gemm", "rhs", rhs_dims, rhs.ndim)
    lhs = _quantized(lhs, of_lhs, lhs_dims, TensorUsage.LHS)
    rhs = _quantized(rhs, of_rhs, rhs_dims, TensorUsage.RHS_TRANS)
    left, right = Part.of("lhs", lhs, lhs_dims), Part.of("rhs", rhs, rhs_dims)
    sizes = _sizes(lhs, rhs, left, right)
    check_contracted("grouped_gemm", ("lhs", "rhs"), [left.sums], [right.sums])
    kept = (*left.kept, *right.kept)
    out_shape = kept if rhs.first_dims is None else (sizes.size, *kept)
    dtype = value_dtype(lhs) if preferred_element_type is None else preferred_element_type
    if bias is not None and bias.shape != (sizes.size, math.prod(right.kept)):
        raise ValueError(
            f"grouped_gemm: bias must have shape {(sizes.size, math.prod(right.kept))}, got "
            f"{bias.shape}"
        )
    if isinstance(lhs, GroupedNoScaleTensor) and isinstance(rhs, GroupedNoScaleTensor):
        sizes = _checked(sizes, math.prod(lhs.data.shape[:-1]))
        product = multiply_group_values(lhs.data, rhs.data, left, right, sizes, bias)
        return product.reshape(out_shape).astype(dtype)
    if isinstance(lhs, GroupedNoScaleTensor) or isinstance(rhs, GroupedNoScaleTensor):
        raise ValueError(
            "grouped_gemm: lhs and rhs must both be quantized or both plain, got "
            f"{type(lhs).__name__} and {type(rhs).__name__}"
        )
    return multiply_groups(
        _codes("lhs", lhs, left),
        _codes("rhs", rhs, right),
        bias,
        sizes,
        out_shape,
        jnp.dtype(dtype),
    )


class Part(NamedTuple):
    """An operand as matrices of rows and columns, one for each group.

    by_columns: sums run over the rows. rows: None if each group has a number of its own.
    """

    by_columns: bool
    rows: int | None
    cols: int
    rows_per_slice: int = 1  # rows per index of axis 0; sizes of groups count indices
    sums: int = 0  # length of the contraction, over all groups together
    kept: tuple[int, ...] = ()  # dimensions of the result

    @staticmethod
    def of(name: str, tensor: GroupedTensor, dims: Sequence[int]) -> Part:
        """Returns the Part of a tensor. Errors: ValueError for other contracted dimensions."""
        shape, is_ragged = _shape_of(tensor), tensor.first_dims is not None
        wanted = tuple(dim % len(shape) for dim in dims)
        by_rows, by_columns = (len(shape) - 1,), tuple(range(0 if is_ragged else 1, len(shape) - 1))
        if wanted not in (by_rows, by_columns):
            raise ValueError(
                f"grouped_gemm: contracted dimensions of {name} must be {by_rows} or {by_columns}, "
                f"got {wanted}"
            )
        inner = math.prod(shape[1:-1])
        rows = None if is_ragged else inner
        kept = shape[-1:] if wanted == by_columns else shape[0 if is_ragged else 1 : -1]
        sums = math.prod(shape[dim] for dim in wanted)
        slices = inner if is_ragged else 1
        return Part(wanted == by_columns, rows, shape[-1], slices, sums, tuple(kept))

    @property
    def matrix(self) -> tuple[int, int]:
        """Rows and columns as the handler's attributes; -1 rows is the size of the group."""
        return (-1 if self.rows is None else self.rows), self.cols


def _shape_of(tensor: GroupedTensor) -> tuple[int, ...]:
    """Returns the shape before quantizing; codes in layout T have the dimensions exchanged."""
    shape = tensor.original_shape
    if isinstance(tensor, GroupedNoScaleTensor) or tensor.data_layout == "N":
        return shape
    slices = int(tensor.first_dims is None)  # leading dimensions that stay in place
    return (*shape[:slices], *shape[tensor.flatten_axis :], *shape[slices : tensor.flatten_axis])


def _quantized(
    tensor: GroupedTensor,
    quantizer: GroupedQuantizer | None,
    dims: Sequence[int],
    by_rows: TensorUsage,
) -> GroupedTensor:
    if isinstance(tensor, GroupedNoScaleTensor):
        if quantizer is None:
            return tensor
        quantized = grouped_quantize(tensor.data, quantizer, tensor.first_dims)
    else:
        quantized = tensor
    if isinstance(quantized, ScaledTensor2x):
        is_last = dims[-1] == quantized.ndim - 1
        by_columns = TensorUsage.LHS_TRANS if by_rows is TensorUsage.LHS else TensorUsage.RHS
        quantized = quantized.get_tensor(by_rows if is_last else by_columns)
    return cast(GroupedTensor, quantized)


def _sizes(lhs: GroupedTensor, rhs: GroupedTensor, left: Part, right: Part) -> jax.Array:
    """Returns the rows of each group.

    Errors: ValueError if the groups of the operands do not correspond.
    """
    both = rhs.first_dims is not None
    if lhs.first_dims is None or left.by_columns != both or (both and not right.by_columns):
        raise ValueError(
            "grouped_gemm: lhs needs group sizes, and both operands must be contracted over their "
            "rows exactly if rhs has group sizes too"
        )
    sizes = _rows(lhs.first_dims, left)
    groups = rhs.original_shape[0] if rhs.first_dims is None else rhs.first_dims.size
    if sizes.size != groups or groups == 0:
        raise ValueError(
            f"grouped_gemm: lhs and rhs must have the same number of groups, 1 or more, got "
            f"{sizes.size} and {groups}"
        )
    if rhs.first_dims is None or rhs.first_dims is lhs.first_dims:
        return sizes
    return _equal(sizes, _rows(rhs.first_dims, right))


def _rows(first_dims: jax.Array, part: Part) -> jax.Array:
    return first_dims if part.rows_per_slice == 1 else first_dims * np.int32(part.rows_per_slice)


def _equal(sizes: jax.Array, others: jax.Array) -> jax.Array:
    """Returns `sizes` after a comparison with the sizes of the other operand.

    Traced sizes that differ become -1, which the handlers refuse at run time.
    Errors: ValueError for concrete sizes that differ.
    """
    if isinstance(sizes, jax.core.Tracer) or isinstance(others, jax.core.Tracer):
        return jnp.where(sizes == others, sizes, np.int32(-1))
    first, second = np.asarray(sizes), np.asarray(others)
    if not np.array_equal(first, second):
        raise ValueError(
            "grouped_gemm: lhs and rhs must have groups of the same numbers of rows, got "
            f"{first.tolist()} and {second.tolist()}"
        )
    return sizes


def _checked(sizes: jax.Array, rows: int) -> jax.Array:
    """Returns `sizes` after a check at run time, the same check as for quantized groups.

    XLA's products accept any sizes without an error. The handler of amaxes checks them. The result
    depends on the amaxes, because XLA removes a call whose result is not used.
    Errors: JaxRuntimeError for a negative size, or if the sum is not `rows`.
    """
    amaxes = grouped_amax(jnp.zeros((rows, 1), jnp.float32), sizes)
    return jnp.where(amaxes == 0, sizes, 0)


def _codes(name: str, tensor: GroupedScaledTensor1x, part: Part) -> GroupedFactor:
    """Returns the operand of the handler. Errors: ValueError if its direction is the other one."""
    check_static("grouped_gemm", tensor.original_shape)
    needs_columns = part.by_columns and tensor.scaling_mode.is_block_scaling
    if tensor.is_colwise != needs_columns:
        raise ValueError(
            f"grouped_gemm: {name} of {tensor.scaling_mode.name} needs "
            f"{'COLWISE' if needs_columns else 'ROWWISE'} data"
        )
    scheme = tensor.scaling_mode.get_scheme(tensor.data.dtype)
    side = Side(spec_text(scheme, part.by_columns, tensor.pre_swizzled), 1)
    if part.by_columns and not needs_columns:  # one scale: the handler transposes the rows
        side = Side(spec_text(scheme, is_columnwise=True), 1, is_turned=True)
    return GroupedFactor(tensor.data, tensor.scale_inv, tensor.amax, side, part.matrix)


def multiply_group_values(
    lhs: jax.Array,
    rhs: jax.Array,
    left: Part,
    right: Part,
    sizes: jax.Array,
    bias: jax.Array | None,
) -> jax.Array:
    """Returns the product of plain operands by XLA, in float32."""
    lhs = lhs.reshape(-1, left.cols).astype(jnp.float32)
    if right.rows is None:
        summed = jax.lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), (0,), ())
        rhs = rhs.reshape(-1, right.cols).astype(jnp.float32)
        product = jax.lax.ragged_dot_general(lhs, rhs, sizes, summed)
        return product if bias is None else product + bias[:, None].astype(jnp.float32)
    matrices = rhs.reshape(-1, right.rows, right.cols).astype(jnp.float32)
    if not right.by_columns:
        matrices = jnp.swapaxes(matrices, 1, 2)
    product = jax.lax.ragged_dot(lhs, matrices, sizes)
    if bias is None:
        return product
    rows = jnp.repeat(bias.astype(jnp.float32), sizes, axis=0, total_repeat_length=lhs.shape[0])
    return product + rows
