# SPDX-License-Identifier: Apache-2.0
"""Products of quantized tensors, with the bytes of narrowfloat.qgemm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.typing import DTypeLike

from narrowfloat import _core
from narrowfloat.jax._arguments import FLOAT_NAMES, check_kind
from narrowfloat.jax.cpp_extensions.grouped_gemm import grouped_gemm
from narrowfloat.jax.primitives.dequantize import is_columnwise
from narrowfloat.jax.primitives.gemm import (
    Factor,
    Side,
    add_bias,
    multiply_codes,
    multiply_expanded,
)
from narrowfloat.jax.product_mode import FAST, get_product_mode
from narrowfloat.jax.quantize.dequantizer import dequantize_tensor, spec_of_data, spec_text
from narrowfloat.jax.quantize.quantizer import Quantizer
from narrowfloat.jax.quantize.scaling_modes import (
    ScalingMode,
    TensorUsage,
    check_contracted,
    check_static,
    normalize_dims,
    rotate,
    split_dims,
)
from narrowfloat.jax.quantize.tensor import (
    AbstractBaseTensor,
    NoScaleTensor,
    ScaledTensor1x,
    value_dtype,
)

Operand = jax.Array | AbstractBaseTensor
Dims = tuple[int, ...]


def gemm(
    lhs: Operand,
    rhs: Operand,
    bias: jax.Array | None = None,
    contracting_dims: tuple[Sequence[int], Sequence[int]] = ((-1,), (0,)),
    lhs_quantizer: Quantizer | None = None,
    rhs_quantizer: Quantizer | None = None,
    *,
    fuse_bias: bool = True,
    dtype: DTypeLike | None = None,
    out_sharding: NamedSharding | None = None,
) -> jax.Array:
    """Multiplies lhs and rhs over the contracted dimensions, the first or the last ones of each.

    Multiplies the codes of two quantized tensors of one family, with the bytes of narrowfloat.qgemm
    on any number of devices, or in the mode of product_mode. Else XLA multiplies values, with
    float32 sums.
    contracting_dims: dimensions of the tensors before they were quantized. If a tensor has two
    directions, the one with blocks along the contraction is read.
    lhs_quantizer, rhs_quantizer: quantize operands that are plain arrays.
    fuse_bias: whether bias, if given, is added. bias has the shape of the other dimensions of rhs,
    or one that broadcasts to it.
    dtype: of the result; None is the dtype of lhs. Sums are float32.
    out_sharding: of the result on a mesh of explicit axes, if XLA multiplies values, as in
    jax.lax.dot_general.
    Errors: TypeError unless contracting_dims are two sequences of ints, and for another quantizer;
    ValueError if a required direction is absent, or if contracting_dims, the sizes of these
    dimensions or the shape of bias do not fit.
    """
    for name, own in (("lhs_quantizer", lhs_quantizer), ("rhs_quantizer", rhs_quantizer)):
        if own is not None:
            check_kind("gemm", name, own, Quantizer, " or None")
    of_lhs, of_rhs = split_dims("gemm", contracting_dims)
    dims = [
        normalize_dims("gemm", "lhs", of_lhs, lhs.ndim),
        normalize_dims("gemm", "rhs", of_rhs, rhs.ndim),
    ]
    left = _pick(lhs, dims[0], TensorUsage.LHS, TensorUsage.LHS_TRANS, lhs_quantizer)
    right = _pick(rhs, dims[1], TensorUsage.RHS_TRANS, TensorUsage.RHS, rhs_quantizer)
    out_dtype = jnp.dtype(value_dtype(left) if dtype is None else dtype)
    addend = bias if fuse_bias else None
    check_contracted("gemm", ("lhs", "rhs"), _sizes(left, dims[0]), _sizes(right, dims[1]))
    if addend is not None:
        _check_bias(addend, _sizes(right, [dim for dim in range(right.ndim) if dim not in dims[1]]))
    factors = _factors(left, right, dims)
    if factors is None:
        product = _multiply_values(left, right, dims, addend, out_sharding)
    else:
        product = multiply_factors(*factors, addend, out_dtype, get_product_mode())
    return product.astype(out_dtype)


def _sizes(operand: NoScaleTensor | ScaledTensor1x, dims: Sequence[int]) -> tuple[int, ...]:
    """Returns the sizes of dimensions of the tensor before it was quantized."""
    if isinstance(operand, ScaledTensor1x):
        dims = [_place(operand, dim) for dim in dims]
    return tuple(operand.data.shape[dim] for dim in dims)


def _check_bias(bias: jax.Array, kept: tuple[int, ...]) -> None:
    if bias.ndim > len(kept) or any(
        extent not in (1, of) for extent, of in zip(bias.shape[::-1], kept[::-1], strict=False)
    ):
        raise ValueError(
            f"gemm: bias must have the shape {kept} of the other dimensions of rhs, or one that "
            f"broadcasts to it, got {bias.shape}"
        )


def _multiply_values(
    left: NoScaleTensor | ScaledTensor1x,
    right: NoScaleTensor | ScaledTensor1x,
    dims: Sequence[Dims],
    bias: jax.Array | None,
    out_sharding: NamedSharding | None,
) -> jax.Array:
    # Transforms are inverted: they do not cancel if only a part of the transformed dimensions is
    # contracted.
    product = jax.lax.dot_general(
        _values(left),
        _values(right),
        ((dims[0], dims[1]), ((), ())),
        preferred_element_type=jnp.float32,
        out_sharding=out_sharding,
    )
    return add_bias(product, bias)


def multiply_factors(
    left: Factor, right: Factor, bias: jax.Array | None, dtype: jnp.dtype, mode: str
) -> jax.Array:
    """Multiplies the codes of two operands in one of the product modes.

    Returns `dtype`, or float32 if products are not rounded to `dtype` or columnwise codes are on
    the left of rowwise codes. The result has the kept dimensions of left, then of right; bias
    broadcasts to the latter.
    """
    if dtype.name not in FLOAT_NAMES:  # the core rounds products to no other type
        dtype = jnp.dtype(jnp.float32)
    multiply = multiply_expanded if mode == FAST else multiply_codes
    if is_columnwise(left.side.spec) and not is_columnwise(right.side.spec):
        # The core multiplies columnwise codes on the left only by columnwise codes. Exchanging the
        # operands changes no bit: blocks with both layouts have scales that are powers of two, and
        # the scales of two tensors are one factor of the sums.
        turned = multiply(right, left, None, jnp.float32 if bias is not None else dtype)
        kept = right.side.axis
        product = jnp.transpose(turned, rotate(range(turned.ndim), kept))
        return add_bias(product, bias)
    if bias is not None:
        if jnp.dtype(bias.dtype).name not in FLOAT_NAMES:
            bias = bias.astype(jnp.float32)
        bias = jnp.broadcast_to(bias, right.side.kept(right.data.shape))
    return multiply(left, right, bias, dtype)


def _factors(
    left: NoScaleTensor | ScaledTensor1x,
    right: NoScaleTensor | ScaledTensor1x,
    dims: Sequence[Dims],
) -> tuple[Factor, Factor] | None:
    """Returns the operands of a product of codes; None if only values can be multiplied."""
    if isinstance(left, NoScaleTensor) or isinstance(right, NoScaleTensor):
        return None
    if not _are_of_one_family(left, right) or left.has_rht_applied != right.has_rht_applied:
        return None
    for operand in (left, right):
        check_static("gemm", operand.data.shape)
    if 0 in (*left.data.shape, *right.data.shape):
        return None
    lhs, rhs = (_factor(of, own) for of, own in zip((left, right), dims, strict=True))
    if lhs is None or rhs is None:
        return None
    if lhs.side.is_turned and not is_columnwise(rhs.side.spec):
        lhs = _with_sums_last(left, spec_of_data(left), dims[0])
    return lhs, rhs


def _are_of_one_family(left: ScaledTensor1x, right: ScaledTensor1x) -> bool:
    if ScalingMode.NO_SCALING in (left.scaling_mode, right.scaling_mode):
        return False
    first, second = (x.scaling_mode.get_scheme(x.data.dtype) for x in (left, right))
    return _core.are_of_one_family(first, second)


def _place(operand: ScaledTensor1x, dim: int) -> int:
    """Returns the position, in the codes, of a dimension of the tensor before it was quantized."""
    shift = operand.flatten_axis if operand.data_layout == "T" else 0
    return (dim + shift) % operand.ndim


def _factor(operand: ScaledTensor1x, dims: Dims) -> Factor | None:
    """Returns the operand of a product of codes; None if blocks do not extend along `dims`."""
    data, spec = operand.data, spec_of_data(operand)
    summed = tuple(_place(operand, dim) for dim in dims)
    if operand.scaling_mode.is_block_scaling:
        side = Side(spec, operand.flatten_axis)
        fits = summed == tuple(
            dim for dim in range(data.ndim) if dim not in side.kept_dims(data.ndim)
        )
        return Factor(data, operand.scale_inv, operand.amax, side) if fits else None
    # One scale covers the tensor, in any order of its dimensions.
    if summed == tuple(range(len(summed))) and len(summed) < data.ndim:
        side = Side(spec_text(spec, is_columnwise=True), len(summed), is_turned=True)
        return Factor(data, operand.scale_inv, operand.amax, side)
    return _with_sums_last(operand, spec, dims)


def _with_sums_last(operand: ScaledTensor1x, spec: str, dims: Dims) -> Factor:
    """Returns an operand with one scale, and moves its codes so that `dims` are the last ones."""
    summed = [_place(operand, dim) for dim in dims]
    kept = [_place(operand, dim) for dim in range(operand.ndim) if dim not in dims]
    data, order = operand.data, (*kept, *summed)
    if order != tuple(range(data.ndim)):
        data = jnp.transpose(data, order)
    return Factor(data, operand.scale_inv, operand.amax, Side(spec, len(kept)))


def _pick(
    operand: Operand,
    dims: tuple[int, ...],
    trailing: TensorUsage,
    leading: TensorUsage,
    quantizer: Quantizer | None,
) -> NoScaleTensor | ScaledTensor1x:
    last = dims[-1] == operand.ndim - 1
    usage = trailing if last else leading
    if not isinstance(operand, AbstractBaseTensor):
        operand = NoScaleTensor(operand)
    if isinstance(operand, NoScaleTensor) and quantizer is not None:
        layout = quantizer.scaling_mode.get_quantize_layout(usage)
        axis = operand.ndim - len(dims) if last else len(dims)
        operand = quantizer.quantize(
            operand, layout.has_rowwise, layout.has_colwise, flatten_axis=axis
        )
    return cast(NoScaleTensor | ScaledTensor1x, operand.get_tensor(usage))


def _values(operand: NoScaleTensor | ScaledTensor1x) -> jax.Array:
    """Returns float32 values in the layout of the tensor before it was quantized."""
    if isinstance(operand, NoScaleTensor):
        return operand.data.astype(jnp.float32)
    values = dequantize_tensor(operand, jnp.float32)
    if operand.data_layout == "N":
        return values
    return jnp.transpose(values, rotate(range(values.ndim), operand.flatten_axis))


__all__ = ["gemm", "grouped_gemm", "multiply_factors"]
