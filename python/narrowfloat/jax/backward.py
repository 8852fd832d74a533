# SPDX-License-Identifier: Apache-2.0
"""Keeps operands for the backward passes of layers, and returns the states of quantizers."""

from __future__ import annotations

from typing import Any

import jax
from jax.typing import DTypeLike

from narrowfloat.jax.fake_quantize import zero_cotangents
from narrowfloat.jax.primitives.array_types import vary_over, varying_axes
from narrowfloat.jax.quantize.factory import QuantizerSet
from narrowfloat.jax.quantize.scaling_modes import TensorUsage
from narrowfloat.jax.quantize.tensor import (
    AbstractBaseTensor,
    GroupedNoScaleTensor,
    GroupedScaledTensor1x,
    NoScaleTensor,
    ScaledTensor1x,
)


def vary_with(quantizer_set: QuantizerSet, *operands: jax.Array | None) -> list[Any]:
    """Returns the operands of a layer, varying over the axes that any of them or the set varies
    over: so does its result. JAX sums the gradient of each over the axes that it gained.
    """
    axes = varying_axes(jax.tree.leaves((operands, quantizer_set)))
    return [operand if operand is None else vary_over(operand, axes) for operand in operands]


def kept_for_backward(
    tensor: AbstractBaseTensor, usage: TensorUsage, quantizer: object
) -> AbstractBaseTensor | _Missing:
    """Returns the direction that the backward pass reads, if it is present: inference may have
    none.
    """
    try:
        return tensor.get_tensor(usage).checkpoint(quantizer)
    except ValueError as missing:
        return _Missing(str(missing))


@jax.tree_util.register_static
class _Missing(str):
    """The reason why a direction is absent."""


def refuse_missing(verb: str, *tensors: object) -> None:
    """Raises ValueError if a direction that the backward pass reads is not there."""
    for tensor in tensors:
        if isinstance(tensor, _Missing):
            raise ValueError(f"{verb}: {tensor}")


def states_of(quantizer_set: QuantizerSet) -> object:
    """Returns the gradient of a set: its state after the step, where it has one."""
    return jax.tree.map(
        lambda zero, state: state if zero.dtype == state.dtype else zero,
        zero_cotangents(quantizer_set),
        quantizer_set,
    )


def value_dtype(
    tensor: NoScaleTensor | ScaledTensor1x | GroupedNoScaleTensor | GroupedScaledTensor1x,
) -> DTypeLike:
    """Returns the type of the values of a tensor, quantized or not."""
    return getattr(tensor, "dq_dtype", None) or tensor.data.dtype
