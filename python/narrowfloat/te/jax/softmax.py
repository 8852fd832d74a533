# SPDX-License-Identifier: Apache-2.0
"""TransformerEngine's softmax for JAX: scaled, masked, causal, and their gradient.

Arithmetic is in float32; results are rounded once.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from narrowfloat.common.constants import MASKED_SCORE

Array = jax.Array


def _scaled(logits: Array, factor: float) -> Array:
    return logits.astype(jnp.float32) * factor


def scaled(logits: Array, *, scale_factor: float) -> Array:
    """Implements te_scaled_softmax_forward_ffi."""
    return jax.nn.softmax(_scaled(logits, scale_factor)).astype(logits.dtype)


def masked(logits: Array, mask: Array, *, scale_factor: float) -> Array:
    """Implements te_scaled_masked_softmax_forward_ffi: keys with mask 1 get 0.

    A row with only such keys is 0.
    """
    scores = jnp.where(mask == 1, MASKED_SCORE, _scaled(logits, scale_factor))
    is_empty = jnp.max(scores, -1, keepdims=True) == MASKED_SCORE
    return jnp.where(is_empty, 0, jax.nn.softmax(scores)).astype(logits.dtype)


def causal(logits: Array, *, scale_factor: float) -> Array:
    """Implements te_scaled_upper_triang_masked_softmax_forward_ffi: keys after the query get 0."""
    queries, keys = logits.shape[-2:]
    seen = jnp.tri(queries, keys, dtype=bool)
    scores = jnp.where(seen, _scaled(logits, scale_factor), -jnp.inf)
    return jax.nn.softmax(scores).astype(logits.dtype)


def gradient(dz: Array, softmax_out: Array, *, scale_factor: float) -> Array:
    """Implements the three backward entries: the gradient of the logits from the results."""
    y = softmax_out.astype(jnp.float32)
    weighted = dz.astype(jnp.float32) * y
    dx = weighted - y * jnp.sum(weighted, -1, keepdims=True)
    return (dx * scale_factor).astype(dz.dtype)
