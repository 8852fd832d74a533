# SPDX-License-Identifier: Apache-2.0
"""A linear layer with one weight per group of rows, for experts."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, cast

import jax
from jax.typing import DTypeLike

from narrowfloat.jax._arguments import check_array, check_kind
from narrowfloat.jax.backward import (
    kept_for_backward,
    read_kept,
    states_of,
    vary_with,
)
from narrowfloat.jax.cpp_extensions.grouped_gemm import GroupedTensor, grouped_gemm
from narrowfloat.jax.cpp_extensions.quantization import grouped_dbias, grouped_quantize
from narrowfloat.jax.primitives.array_types import Placement
from narrowfloat.jax.quantize.factory import QuantizerSet, noop_quantizer_set
from narrowfloat.jax.quantize.quantizer import GroupedQuantizer
from narrowfloat.jax.quantize.scaling_modes import TensorUsage, split_dims
from narrowfloat.jax.quantize.tensor import value_dtype

ROWS, COLUMNS = (0,), (1,)
_Quantizer = GroupedQuantizer | None


def grouped_dense(
    x: jax.Array,
    kernel: jax.Array,
    group_sizes: jax.Array,
    contracting_dims: tuple[Sequence[int], Sequence[int]] = ((1,), (1,)),
    bias: jax.Array | None = None,
    precision: jax.lax.Precision = jax.lax.Precision.DEFAULT,
    preferred_element_type: DTypeLike | None = None,
    group_offset: jax.Array | None = None,
    quantizer_set: QuantizerSet = noop_quantizer_set,
    kernel_fsdp_info: tuple[str | None, int] = (None, -1),
) -> jax.Array:
    """Multiplies each group's rows of x by the group's kernel, and adds its bias.

    Shapes: x (M, K), kernel (G, K, N), bias (G, N), group_sizes int32 (G,), which add up to M and
    may be 0; the result is (M, N), of preferred_element_type or the type of x. In differentiation
    the products of the gradients are quantized too. Else as dense(), with grouped quantizers.
    precision: sums are float32 in any case.
    Errors: TypeError if group_sizes is not an array, contracting_dims are not two sequences of
    ints, or for another quantizer_set; ValueError for other contracted dimensions;
    NotImplementedError for group_offset or kernel_fsdp_info; JaxRuntimeError for sizes that are
    negative or do not add up; as grouped_quantize() and grouped_gemm().
    """
    check_array("grouped_dense", "group_sizes", group_sizes)
    check_kind("grouped_dense", "quantizer_set", quantizer_set, QuantizerSet)
    dims = split_dims("grouped_dense", contracting_dims)
    if dims != (COLUMNS, COLUMNS):
        raise ValueError(f"grouped_dense: contracting_dims must be ((1,), (1,)), got {dims}")
    if group_offset is not None or kernel_fsdp_info[0] is not None:
        raise NotImplementedError(
            "grouped_dense: group_offset and kernel_fsdp_info are not supported"
        )
    dtype = jax.numpy.dtype(x.dtype if preferred_element_type is None else preferred_element_type)
    operands = vary_with(quantizer_set, x, kernel, group_sizes, bias)
    return _grouped_dense(dtype, *operands, quantizer_set)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _grouped_dense(
    dtype: DTypeLike,
    x: jax.Array,
    kernel: jax.Array,
    group_sizes: jax.Array,
    bias: jax.Array | None,
    quantizer_set: QuantizerSet,
) -> jax.Array:
    return _forward(dtype, x, kernel, group_sizes, bias, quantizer_set)[0]


def _forward(
    dtype: DTypeLike,
    x: jax.Array,
    kernel: jax.Array,
    group_sizes: jax.Array,
    bias: jax.Array | None,
    quantizer_set: QuantizerSet,
) -> tuple[jax.Array, tuple[Any, ...]]:
    of_x, of_kernel = (cast(_Quantizer, q) for q in (quantizer_set.x, quantizer_set.kernel))
    x_tensor = grouped_quantize(x, of_x, group_sizes)
    kernel_tensor = grouped_quantize(kernel, of_kernel)
    product = grouped_gemm(
        cast(GroupedTensor, x_tensor.get_tensor(TensorUsage.LHS)),
        cast(GroupedTensor, kernel_tensor.get_tensor(TensorUsage.RHS)),
        (COLUMNS, (1,)),
        bias,
        preferred_element_type=dtype,
    )
    kept = (
        kept_for_backward(x_tensor, TensorUsage.LHS_TRANS, quantizer_set.x),
        kept_for_backward(kernel_tensor, TensorUsage.RHS_TRANS, quantizer_set.kernel),
        group_sizes,
        bias,
        quantizer_set,
        (Placement.of(x), Placement.of(kernel)),
    )
    return product, kept


def _backward(dtype: DTypeLike, kept: tuple[Any, ...], gradient: jax.Array) -> tuple[Any, ...]:
    x_tensor, kernel_tensor, group_sizes, bias, quantizer_set, places = kept
    x_tensor, kernel_tensor = read_kept("grouped_dense", x_tensor, kernel_tensor)
    # The sizes of x are the same; as one array they need no comparison in grouped_gemm().
    dy = grouped_quantize(gradient, quantizer_set.dgrad, x_tensor.first_dims)
    dx = grouped_gemm(
        cast(GroupedTensor, dy.get_tensor(TensorUsage.LHS)),
        kernel_tensor,
        (COLUMNS, (2,)),
        preferred_element_type=value_dtype(x_tensor),
    )
    dkernel = grouped_gemm(
        x_tensor,
        cast(GroupedTensor, dy.get_tensor(TensorUsage.RHS)),
        (ROWS, ROWS),
        preferred_element_type=value_dtype(kernel_tensor),
    )
    dbias = None
    if bias is not None:
        dbias = grouped_dbias(gradient, group_sizes).astype(bias.dtype)
        dbias = Placement.of(bias).place(dbias)
    dx, dkernel = map(Placement.place, places, (dx, dkernel))
    return dx, dkernel, None, dbias, states_of(quantizer_set)


_grouped_dense.defvjp(_forward, _backward)
