# SPDX-License-Identifier: Apache-2.0
"""Imports JAX; its error message says how to install it. The package imports this module first."""

try:
    import jax  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "jax":
        raise
    raise ModuleNotFoundError(
        "narrowfloat.jax needs JAX: pip install 'narrowfloat[jax]'", name="jax"
    ) from error
