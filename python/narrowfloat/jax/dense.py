# SPDX-License-Identifier: Apache-2.0
"""A linear layer with three products of quantized tensors."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax

from narrowfloat.jax._arguments import check_kind
from narrowfloat.jax.backward import (
    kept_for_backward,
    read_kept,
    states_of,
    vary_with,
)
from narrowfloat.jax.cpp_extensions.gemm import gemm
from narrowfloat.jax.cpp_extensions.quantization import quantize, quantize_dbias
from narrowfloat.jax.grouped_dense import grouped_dense
from narrowfloat.jax.primitives.array_types import Placement
from narrowfloat.jax.quantize.factory import QuantizerSet, noop_quantizer_set
from narrowfloat.jax.quantize.scaling_modes import (
    TensorUsage,
    check_contracted,
    normalize_dims,
    split_dims,
)
from narrowfloat.jax.quantize.tensor import value_dtype


def dense(
    x: jax.Array,
    kernel: jax.Array,
    bias: jax.Array | None = None,
    contracting_dims: tuple[Sequence[int], Sequence[int]] = ((-1,), (0,)),
    *,
    quantizer_set: QuantizerSet = noop_quantizer_set,
) -> jax.Array:
    """Returns x times kernel plus bias; in differentiation dgrad and wgrad are quantized products
    too.

    Shapes: the contracted dimensions are the last ones of x and the first ones of kernel, in order;
    bias has the other dimensions of kernel. The result has the dtype of x.
    quantizer_set: quantizers of x, kernel and the incoming gradient. Its gradient is the set after
    the step. Replace the old set by it, so that delayed scales are updated.
    Errors: as quantize(); TypeError unless contracting_dims are two sequences of ints, and for
    another quantizer_set; ValueError for other contracted dimensions, unequal sizes, another shape
    of bias, or a direction that block scaling needs and that is not quantized.
    """
    check_kind("dense", "quantizer_set", quantizer_set, QuantizerSet)
    of_x, of_kernel = split_dims("dense", contracting_dims)
    count = len(of_x)
    found = (
        normalize_dims("dense", "x", of_x, x.ndim),
        normalize_dims("dense", "kernel", of_kernel, kernel.ndim),
    )
    if found != (tuple(range(x.ndim - count, x.ndim)), tuple(range(count))):
        raise ValueError(
            "dense: contracting_dims must be the last dimensions of x and the first of kernel, got "
            f"{(of_x, of_kernel)} for {x.ndim} and {kernel.ndim} dimensions"
        )
    summed = x.shape[x.ndim - count :], kernel.shape[:count]
    check_contracted("dense", ("x", "kernel"), *summed)
    if bias is not None and bias.shape != kernel.shape[count:]:
        raise ValueError(f"dense: bias must have shape {kernel.shape[count:]}, got {bias.shape}")
    operands = vary_with(quantizer_set, x, kernel, bias)
    return _dense(*operands, quantizer_set, count)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def _dense(
    x: jax.Array,
    kernel: jax.Array,
    bias: jax.Array | None,
    quantizer_set: QuantizerSet,
    n_contracting: int,
) -> jax.Array:
    return _forward(x, kernel, bias, quantizer_set, n_contracting)[0]


def _forward(
    x: jax.Array,
    kernel: jax.Array,
    bias: jax.Array | None,
    quantizer_set: QuantizerSet,
    n_contracting: int,
) -> tuple[jax.Array, tuple[Any, ...]]:
    x_tensor = quantize(x, quantizer_set.x, -n_contracting)
    kernel_tensor = quantize(kernel, quantizer_set.kernel, n_contracting)
    contracted = (tuple(range(-n_contracting, 0)), tuple(range(n_contracting)))
    product = gemm(x_tensor, kernel_tensor, bias, contracted, dtype=x.dtype)
    kept = (
        kept_for_backward(x_tensor, TensorUsage.LHS_TRANS, quantizer_set.x),
        kept_for_backward(kernel_tensor, TensorUsage.RHS_TRANS, quantizer_set.kernel),
        bias,
        quantizer_set,
        (Placement.of(x), Placement.of(kernel)),
    )
    return product, kept


def _backward(
    n_contracting: int, kept: tuple[Any, ...], gradient: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array | None, object]:
    x_tensor, kernel_tensor, bias, quantizer_set, places = kept
    x_tensor, kernel_tensor = read_kept("dense", x_tensor, kernel_tensor)
    columns = gradient.ndim - (x_tensor.ndim - n_contracting)
    dy, dbias = quantize_dbias(
        gradient, quantizer_set.dgrad, bias is not None, flatten_axis=-columns
    )
    trailing = tuple(range(-columns, 0))
    rows = tuple(range(gradient.ndim - columns))
    of_x, of_kernel = (place.explicit for place in places)
    dx = gemm(dy, kernel_tensor, None, (trailing,) * 2, dtype=gradient.dtype, out_sharding=of_x)
    dtype = value_dtype(kernel_tensor)
    dkernel = gemm(x_tensor, dy, None, (rows, rows), dtype=dtype, out_sharding=of_kernel)
    if bias is not None and dbias is not None:
        dbias = Placement.of(bias).place(dbias.astype(bias.dtype))
    dx, dkernel = map(Placement.place, places, (dx, dkernel))
    return dx, dkernel, dbias, states_of(quantizer_set)


_dense.defvjp(_forward, _backward)

__all__ = ["dense", "grouped_dense"]
