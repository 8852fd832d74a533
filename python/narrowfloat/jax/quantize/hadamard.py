# SPDX-License-Identifier: Apache-2.0
"""The random Hadamard transform of groups along the last axis, as a product with a matrix."""

import functools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from narrowfloat import _core


@functools.cache
def _matrix() -> np.ndarray:
    identity = np.eye(_core.HADAMARD_SIZE, dtype=ml_dtypes.bfloat16)
    return np.ascontiguousarray(_core.hadamard_transform(identity).T)


def get_rht_matrix() -> jax.Array:
    """Returns, in bfloat16, a diagonal of signs times Sylvester's matrix over its size's root."""
    return jnp.asarray(_matrix())


def _multiply(x: jax.Array, matrix: jax.Array) -> jax.Array:
    size = _core.HADAMARD_SIZE
    if x.shape[-1] % size:
        raise ValueError(f"rht: the last axis must be a multiple of {size}, got {x.shape[-1]}")
    groups = x.astype(jnp.bfloat16).reshape(*x.shape[:-1], -1, size)
    product = jnp.matmul(groups, matrix, preferred_element_type=jnp.float32)
    return product.astype(x.dtype).reshape(x.shape)


def apply_rht(x: jax.Array) -> jax.Array:
    """Transforms each group of items of the last axis, in bfloat16 with float32 sums.

    Errors: ValueError if the axis is not a multiple of the group.
    """
    return _multiply(x, get_rht_matrix())


def invert_rht(x: jax.Array) -> jax.Array:
    """Inverts apply_rht() with the transpose: the matrix is orthogonal. Errors: as there."""
    return _multiply(x, get_rht_matrix().T)
