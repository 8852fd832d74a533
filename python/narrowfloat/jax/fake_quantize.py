# SPDX-License-Identifier: Apache-2.0
"""Quantized values with straight-through gradients."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray

from narrowfloat import _core
from narrowfloat.jax._arguments import check_array, check_kind
from narrowfloat.jax.primitives.array_types import Placement, check_float, vary_over, varying_axes
from narrowfloat.jax.primitives.base import BasePrimitive, register_whole
from narrowfloat.jax.quantize.quantizer import Quantizer
from narrowfloat.jax.quantize.scaling_modes import normalize_axis, rotate


def zero_cotangents(tree: object) -> object:
    """Returns zero cotangents for arguments without gradients; for integers of type float0."""

    def zero(leaf: jax.Array) -> jax.Array | np.ndarray:
        if jnp.issubdtype(leaf.dtype, jnp.inexact):
            return jnp.zeros_like(leaf)
        return np.zeros(leaf.shape, jax.dtypes.float0)

    return jax.tree.map(zero, tree)


@register_whole
class FakeQuantizePrimitive(BasePrimitive):
    """nf_fake_quantize_ffi: the quantized and dequantized values of x under a spec."""

    name = "nf_fake_quantize_ffi"
    static_args = ("spec", "flatten_axis")

    @staticmethod
    def abstract(x: ShapedArray, **static: object) -> Sequence[ShapedArray]:
        check_float("fake_quantize", x.dtype)
        return [ShapedArray(x.shape, x.dtype)]


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _straight_through(
    x: jax.Array, quantizer: Quantizer, flatten_axis: int
) -> tuple[jax.Array, Quantizer]:
    layout = quantizer.q_layout
    rowwise = layout.has_rowwise
    quantized = quantizer.quantize(x, rowwise, not rowwise, flatten_axis=flatten_axis)
    values = cast(jax.Array, quantized.dequantize())
    if not rowwise and quantizer.scaling_mode.is_colwise_transposed:
        axis = values.ndim - flatten_axis % values.ndim
        values = jnp.transpose(values, rotate(range(values.ndim), axis))
    return values, quantizer


def _forward(
    x: jax.Array, quantizer: Quantizer, flatten_axis: int
) -> tuple[tuple[jax.Array, Quantizer], tuple[Quantizer, Placement]]:
    return _straight_through(x, quantizer, flatten_axis), (quantizer, Placement.of(x))


def _backward(
    flatten_axis: int,
    kept: tuple[Quantizer, Placement],
    cotangents: tuple[jax.Array, Quantizer],
) -> tuple[jax.Array, object]:
    quantizer, placement = kept
    return placement.place(cotangents[0]), zero_cotangents(quantizer)


_straight_through.defvjp(_forward, _backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _by_spec(x: jax.Array, spec: str, flatten_axis: int) -> jax.Array:
    bind = FakeQuantizePrimitive.outer_primitive.bind
    return bind(x, spec=str(spec), flatten_axis=normalize_axis(flatten_axis, x.ndim))[0]


_by_spec.defvjp(
    lambda x, spec, flatten_axis: (_by_spec(x, spec, flatten_axis), Placement.of(x)),
    lambda spec, flatten_axis, placement, cotangent: (placement.place(cotangent),),
)


def fake_quantize(
    x: jax.Array, quantizer: Quantizer | str | None, flatten_axis: int = -1
) -> jax.Array:
    """Returns the values of `x` after quantizing and dequantizing, in its dtype and layout.

    quantizer: used rowwise, unless it is colwise only; its state is updated. Or the text form of
               any spec, "fp8_block1x128_e4m3" or "nvfp4:rht=1,...", as narrowfloat has it on NumPy:
               x is then gathered on one device. Or None, the quantizer of ScalingMode.NO_SCALING: x
               is returned. The gradient passes straight through. Errors: as Quantizer.quantize;
               TypeError if x is not an array, or for another quantizer; ValueError for an unknown
               scheme. Other errors of a spec are raised at run time.
    """
    check_array("fake_quantize", "x", x)
    if quantizer is None:
        return x
    if isinstance(quantizer, str):
        _core.block_of(quantizer.partition(":")[0])  # raises for an unknown scheme
        return _by_spec(x, quantizer, flatten_axis)
    check_kind("fake_quantize", "quantizer", quantizer, Quantizer, ", a spec's text or None")
    # custom_vjp wraps a NumPy array in its own class. The type varies over the same axes as the
    # values.
    x = vary_over(jnp.asarray(x), varying_axes(jax.tree.leaves(quantizer)))
    values, updated = _straight_through(x, quantizer, flatten_axis)
    vars(quantizer).update(vars(updated))
    return values
