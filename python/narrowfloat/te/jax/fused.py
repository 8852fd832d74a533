# SPDX-License-Identifier: Apache-2.0
"""TransformerEngine's norms and activations for JAX, each with the quantization of its result.

Arithmetic is in float32. Results are rounded where TransformerEngine's kernels round: without
quantization, and activations before MXFP8. Norms before MXFP8, and both with a given scale, are
quantized from float32. Sums have XLA's order, so the last bits differ from a GPU's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from narrowfloat.jax.primitives.amax import AmaxCalculationPrimitive
from narrowfloat.jax.primitives.quantize import (
    DBiasQuantizePrimitive,
    cut_padding,
    layout_of,
    mode_of,
)
from narrowfloat.te.jax.enums import JAXX_Scaling_Mode as Mode
from narrowfloat.te.jax.enums import NVTE_Activation_Type as Activation
from narrowfloat.te.jax.enums import NVTE_Norm_Type

Array = jax.Array


class Clamped(Protocol):
    """TransformerEngine's parameters of the clamped SwiGLU."""

    limit: float
    alpha: float
    glu_linear_offset: float


class ActivationParams(Protocol):
    """TransformerEngine's parameters of activations."""

    clamped_swiglu: Clamped


Results = tuple[Any, ...]  # arrays, or None if absent


def norm(
    x: Array,
    scale: Array,
    amax: Array,
    gamma: Array,
    beta: Array,
    *,
    norm_type: NVTE_Norm_Type,
    zero_centered_gamma: bool,
    epsilon: float,
    **static: Any,
) -> Results:
    """Implements te_norm_forward_ffi.

    Returns codes and scales by rows and by columns, the amax, means (None for RMSNorm) and
    reciprocal deviations. Scales of blocks are at the start of their buffers, without gaps, the
    layout of cuDNN that TransformerEngine reads.
    """
    is_centered = norm_type == NVTE_Norm_Type.LayerNorm
    rows = x.astype(jnp.float32)
    mean = jnp.mean(rows, -1, keepdims=True) if is_centered else None
    centered = rows if mean is None else rows - mean
    deviation = jax.lax.rsqrt(jnp.mean(jnp.square(centered), -1, keepdims=True) + epsilon)
    value = centered * deviation * (gamma.astype(jnp.float32) + zero_centered_gamma)
    if is_centered:
        value += beta.astype(jnp.float32)
    mode = Mode(int(static["scaling_mode"]))
    if mode == Mode.NO_SCALING:
        value = value.astype(static["out_dtype"])  # amax: of the rounded values
    made = _quantized(value, scale, amax, -1, static)
    if mode == Mode.MXFP8_1D_SCALING:
        made = (*made[:2], *_without_gaps(made[2:4], x.shape, static), made[4])
    statistics = (None if mean is None else mean[..., 0], deviation[..., 0])
    return (*made, *statistics)


def norm_gradient(
    dz: Array,
    x: Array,
    mean: Array,
    deviation: Array,
    gamma: Array,
    *,
    norm_type: NVTE_Norm_Type,
    zero_centered_gamma: bool,
) -> Results:
    """Implements te_norm_backward_ffi.

    Returns the gradients of the input, of gamma and of beta (None for RMSNorm). deviation:
    reciprocal. Sums over a device's rows are rounded before they are added over devices.
    """
    is_centered = norm_type == NVTE_Norm_Type.LayerNorm
    rows, grad = x.astype(jnp.float32), dz.astype(jnp.float32)
    normalized = (rows - mean[..., None] if is_centered else rows) * deviation[..., None]
    of_normalized = grad * (gamma.astype(jnp.float32) + zero_centered_gamma)
    dx = of_normalized - normalized * jnp.mean(of_normalized * normalized, -1, keepdims=True)
    if is_centered:
        dx -= jnp.mean(of_normalized, -1, keepdims=True)
    over = range(x.ndim - 1)
    dgamma = jnp.sum(grad * normalized, over).astype(gamma.dtype)
    dbeta = jnp.sum(grad, over).astype(gamma.dtype) if is_centered else None
    return (dx * deviation[..., None]).astype(dz.dtype), dgamma, dbeta


def activation(
    x: Array, scale: Array, amax: Array, *, act_params: ActivationParams, **static: Any
) -> Results:
    """Implements te_act_lu_ffi: returns codes and scales by rows and by columns, and the amax.

    Shapes: x is (..., 1 or 2, columns), with the gated half before the linear one.
    """
    value = _activated(x.astype(jnp.float32), static["act_enum"], act_params.clamped_swiglu)
    return _quantized(_before_blocks(value, x.dtype, static), scale, amax, -1, static)


def activation_gradient(
    dz: Array,
    x: Array,
    scale: Array,
    amax: Array,
    *,
    is_dbias: bool,
    act_params: ActivationParams,
    **static: Any,
) -> Results:
    """Implements te_dact_dbias_quantize_ffi: results as activation(), and the bias's gradient.

    The bias's gradient is the sum of the float32 values.
    """

    def activated(argument: Array) -> Array:
        return _activated(argument, static["act_enum"], act_params.clamped_swiglu)

    (dx,) = jax.vjp(activated, x.astype(jnp.float32))[1](dz.astype(jnp.float32))
    dbias = jnp.sum(dx, range(dx.ndim - 2)).astype(dz.dtype) if is_dbias else None
    return (*_quantized(_before_blocks(dx, x.dtype, static), scale, amax, -2, static), dbias)


def _before_blocks(value: Array, dtype: DTypeLike, static: dict[str, Any]) -> Array:
    """Returns the values to quantize; for MXFP8, rounded to the input's type."""
    is_mxfp8 = int(static["scaling_mode"]) == Mode.MXFP8_1D_SCALING
    return value.astype(dtype) if is_mxfp8 else value


def _quantized(
    value: Array, scale: Array, amax: Array, flatten_axis: int, static: dict[str, Any]
) -> Results:
    """Returns codes and scales by rows and by columns, and the amax; None for absent results."""
    if int(static["scaling_mode"]) == Mode.NO_SCALING:
        if static["output_amax_when_no_scaling"]:
            (amax,) = AmaxCalculationPrimitive.inner_primitive.bind(value)
        return value.astype(static["out_dtype"]), None, None, None, amax
    nothing = (jnp.zeros((0,), jnp.uint32), jnp.zeros((1,)), jnp.zeros((1, 1), jnp.bfloat16))
    return tuple(
        DBiasQuantizePrimitive.inner_primitive.bind(
            value,
            scale,
            amax,
            *nothing,
            out_dtype=static["out_dtype"],
            **_own(static),
            flatten_axis=flatten_axis,
            scale_dtype=static["scale_dtype"],
            is_dbias=False,
            is_outer=False,
            stochastic_rounding=False,
            use_rht=False,
        )[:5]
    )


def _own(static: dict[str, Any]) -> dict[str, int]:
    """Returns the mode and the layout as parameters of narrowfloat's primitive."""
    layout = static["quantize_layout"].value.value
    return {"scaling_mode": int(static["scaling_mode"]), "q_layout": int(layout)}


def _without_gaps(scales: Results, shape: tuple[int, ...], static: dict[str, Any]) -> Results:
    """Returns scales in buffers of the same shapes, with all padding moved to the end."""
    own = _own(static)
    mode, layout = mode_of(own), layout_of(own)
    packed = []
    for colwise, padded in enumerate(scales):
        values = cut_padding(padded, mode, layout, shape, -1, colwise).reshape(-1)
        packed.append(jnp.pad(values, (0, padded.size - values.size)).reshape(padded.shape))
    return tuple(packed)


def _swish(x: Array, alpha: float) -> Array:
    return x * jax.nn.sigmoid(alpha * x)


def _quick_gelu(x: Array) -> Array:
    return _swish(x, 1.702)


def _squared_relu(x: Array) -> Array:
    return jnp.square(jax.nn.relu(x))


_FUNCTIONS: dict[Activation, Callable[[Array], Array]] = {
    Activation.GELU: jax.nn.gelu,
    Activation.GEGLU: jax.nn.gelu,
    Activation.GLU: jax.nn.sigmoid,
    Activation.SILU: jax.nn.silu,
    Activation.SWIGLU: jax.nn.silu,
    Activation.RELU: jax.nn.relu,
    Activation.REGLU: jax.nn.relu,
    Activation.QGELU: _quick_gelu,
    Activation.QGEGLU: _quick_gelu,
    Activation.SRELU: _squared_relu,
    Activation.SREGLU: _squared_relu,
}


def _activated(x: Array, kind: int, clamped: Clamped) -> Array:
    """Returns the activation of float32 values of shape (..., 1 or 2, columns)."""
    first, *linear = (x[..., half, :] for half in range(x.shape[-2]))
    if Activation(kind) == Activation.CLAMPED_SWIGLU:
        # Selects, not minimums: they pass the gradient of a value that equals the limit.
        limit = clamped.limit
        value = _swish(jnp.where(first <= limit, first, limit), clamped.alpha)
        bounded = jnp.where(jnp.abs(linear[0]) > limit, limit * jnp.sign(linear[0]), linear[0])
        return value * (bounded + clamped.glu_linear_offset)
    value = _FUNCTIONS[Activation(kind)](first)
    return value * linear[0] if linear else value
