# SPDX-License-Identifier: Apache-2.0
"""Products of quantized tensors: exact values of codes, sums in float32."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from narrowfloat.jax.quantize.dequantizer import dequantize_tensor
from narrowfloat.jax.quantize.quantizer import Quantizer
from narrowfloat.jax.quantize.scaling_modes import TensorUsage
from narrowfloat.jax.quantize.tensor import AbstractBaseTensor, NoScaleTensor, ScaledTensor1x

Operand = jax.Array | AbstractBaseTensor


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
) -> jax.Array:
    """lhs times rhs over the contracted dimensions, which stand at one end of each.

    contracting_dims: of the tensors as they were before they were quantized. Of a tensor with two
    directions the one is read whose blocks run along the contraction.
    lhs_quantizer, rhs_quantizer: of operands that are arrays yet.
    fuse_bias: whether bias, where there is one, is added.
    dtype: of the result, that of lhs if None; sums are float32.
    Errors: ValueError if a direction that is read is not there.
    """
    dims = [
        tuple(dim % operand.ndim for dim in given)
        for given, operand in zip(contracting_dims, (lhs, rhs), strict=True)
    ]
    left = _pick(lhs, dims[0], TensorUsage.LHS, TensorUsage.LHS_TRANS, lhs_quantizer)
    right = _pick(rhs, dims[1], TensorUsage.RHS_TRANS, TensorUsage.RHS, rhs_quantizer)
    # Of two transformed operands the transform cancels along the contraction.
    cancel = all(getattr(operand, "has_rht_applied", False) for operand in (left, right))
    product = jax.lax.dot_general(
        _values(left, keep_rht=cancel),
        _values(right, keep_rht=cancel),
        ((dims[0], dims[1]), ((), ())),
        preferred_element_type=jnp.float32,
    )
    if bias is not None and fuse_bias:
        product += bias.astype(jnp.float32)
    return product.astype(_dtype_of(left) if dtype is None else dtype)


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
    return operand.get_tensor(usage)


def _values(operand: NoScaleTensor | ScaledTensor1x, keep_rht: bool) -> jax.Array:
    """float32 values, in the layout of what was quantized."""
    if isinstance(operand, NoScaleTensor):
        return operand.data.astype(jnp.float32)
    values = dequantize_tensor(operand, jnp.float32, keep_rht)
    if operand.data_layout == "N":
        return values
    axis = operand.flatten_axis
    return jnp.transpose(values, (*range(axis, values.ndim), *range(axis)))


def _dtype_of(operand: NoScaleTensor | ScaledTensor1x) -> DTypeLike:
    return operand.data.dtype if isinstance(operand, NoScaleTensor) else operand.dq_dtype
