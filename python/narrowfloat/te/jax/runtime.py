# SPDX-License-Identifier: Apache-2.0
"""Functions that rewritten modules call at run time, in place of JAX's that need a GPU."""

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike


def reduce_precision(operand: jax.Array, exponent_bits: int, mantissa_bits: int) -> jax.Array:
    """Returns jax.lax.reduce_precision(...); an operand that has E4M3 already, as it is.

    The compiler for CPUs makes NaN of its largest values and 0 of its smallest.
    """
    if operand.dtype == jnp.float8_e4m3fn and (exponent_bits, mantissa_bits) == (4, 3):
        return jax.lax.optimization_barrier(operand)  # keeps the cast before it, as is meant
    return jax.lax.reduce_precision(operand, exponent_bits, mantissa_bits)


def scaled_matmul(
    lhs: jax.Array,
    rhs: jax.Array,
    lhs_scales: jax.Array,
    rhs_scales: jax.Array,
    preferred_element_type: DTypeLike = jnp.float32,
) -> jax.Array:
    """Returns jax.nn.scaled_matmul(...), which has no lowering for CPUs, as a product in fp32.

    Requires: shapes (B, M, K) and (B, N, K), scales of K's blocks.
    """
    product = jnp.einsum(
        "bmk,bnk->bmn",
        _decoded(lhs, lhs_scales),
        _decoded(rhs, rhs_scales),
        precision=jax.lax.Precision.HIGHEST,
    )
    return product.astype(preferred_element_type)


def _decoded(codes: jax.Array, scales: jax.Array) -> jax.Array:
    """Returns the values of codes, whose last dimension has one scale per block."""
    blocks = codes.reshape(*scales.shape, -1).astype(jnp.float32)
    return (blocks * scales[..., None].astype(jnp.float32)).reshape(codes.shape)
