# SPDX-License-Identifier: Apache-2.0
"""Keeps operands for the backward passes of layers, and returns the states of quantizers."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from narrowfloat.jax.fake_quantize import zero_cotangents
from narrowfloat.jax.primitives.array_types import vary_over, varying_axes
from narrowfloat.jax.quantize.factory import QuantizerSet
from narrowfloat.jax.quantize.scaling_modes import TensorUsage
from narrowfloat.jax.quantize.tensor import (
    AbstractBaseTensor,
    ScaledTensor,
)


def vary_with(quantizer_set: QuantizerSet, *operands: jax.Array | None) -> list[Any]:
    """Returns operands typed as varying over the axes of all of them and the set, as the result
    does. JAX sums the gradient of each operand over the added axes.
    """
    axes = varying_axes(jax.tree.leaves((operands, quantizer_set)))
    return [operand if operand is None else vary_over(operand, axes) for operand in operands]


def kept_for_backward(
    tensor: AbstractBaseTensor, usage: TensorUsage, quantizer: object
) -> AbstractBaseTensor | _Bits | _Missing:
    """Returns the direction that the backward pass reads, or a _Missing; read_kept() returns the
    tensor.
    """
    try:
        found = tensor.get_tensor(usage)
    except ValueError as missing:
        return _Missing(str(missing))
    if not isinstance(found, ScaledTensor):
        return found.checkpoint(quantizer)
    bits = jax.tree.map(_bits_of, found)
    return _Bits(bits.checkpoint(quantizer), tuple(x.dtype for x in jax.tree.leaves(found)))


def _bits_of(x: jax.Array) -> jax.Array:
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return x
    return jax.lax.bitcast_convert_type(x, f"uint{jnp.finfo(x.dtype).bits}")


@functools.partial(jax.tree_util.register_dataclass, data_fields=["tensor"], meta_fields=["dtypes"])
@dataclass(frozen=True)
class _Bits:
    """Holds a quantized tensor whose floats are kept as integers of the same bits.

    dtypes: of the leaves before the conversion. jax.checkpoint applies reduce_precision to floats
    that its policy saves and the forward pass reads. For E4M3 XLA rounds to an IEEE type of 4
    exponent bits: the largest codes become infinity and NaN, and the smallest become 0.
    """

    tensor: ScaledTensor
    dtypes: tuple[DTypeLike, ...]

    def restore(self) -> ScaledTensor:
        leaves, structure = jax.tree.flatten(self.tensor)
        restored = map(jax.lax.bitcast_convert_type, leaves, self.dtypes)
        return jax.tree.unflatten(structure, restored)


@jax.tree_util.register_static
class _Missing(str):
    """The reason why a direction is absent."""


def read_kept(verb: str, *kept: object) -> list[Any]:
    """Returns the tensors of kept_for_backward(). Errors: ValueError if a direction is absent."""
    for tensor in kept:
        if isinstance(tensor, _Missing):
            raise ValueError(f"{verb}: {tensor}")
    return [tensor.restore() if isinstance(tensor, _Bits) else tensor for tensor in kept]


def states_of(quantizer_set: QuantizerSet) -> object:
    """Returns the gradient of a set: the state after the step, and zeros for other leaves."""
    return jax.tree.map(
        lambda zero, state: state if zero.dtype == state.dtype else zero,
        zero_cotangents(quantizer_set),
        quantizer_set,
    )
