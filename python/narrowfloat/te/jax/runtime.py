# SPDX-License-Identifier: Apache-2.0
"""Functions that rewritten modules call at run time, in place of JAX's that need a GPU."""

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike


def reduce_precision(operand: jax.Array, exponent_bits: int, mantissa_bits: int) -> jax.Array:
    """Returns jax.lax.reduce_precision(...); an operand that is E4M3 already stays unchanged.

    The compiler for CPUs turns its largest values into NaN and its smallest into 0.
    """
    if operand.dtype == jnp.float8_e4m3fn and (exponent_bits, mantissa_bits) == (4, 3):
        return jax.lax.optimization_barrier(operand)  # keeps the preceding cast
    return jax.lax.reduce_precision(operand, exponent_bits, mantissa_bits)


def scaled_matmul(
    lhs: jax.Array,
    rhs: jax.Array,
    lhs_scales: jax.Array,
    rhs_scales: jax.Array,
    preferred_element_type: DTypeLike = jnp.float32,
) -> jax.Array:
    """Replaces jax.nn.scaled_matmul(...), which has no lowering for CPUs, by a product in fp32.

    Requires: shapes (B, M, K) and (B, N, K), scales per block of K.
    """
    product = jnp.einsum(
        "bmk,bnk->bmn",
        _decoded(lhs, lhs_scales),
        _decoded(rhs, rhs_scales),
        precision=jax.lax.Precision.HIGHEST,
    )
    return product.astype(preferred_element_type)


def _decoded(codes: jax.Array, scales: jax.Array) -> jax.Array:
    """Returns the values of codes, which have one scale per block of the last dimension."""
    blocks = codes.reshape(*scales.shape, -1).astype(jnp.float32)
    return (blocks * scales[..., None].astype(jnp.float32)).reshape(codes.shape)
