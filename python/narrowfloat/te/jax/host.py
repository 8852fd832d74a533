# SPDX-License-Identifier: Apache-2.0
"""Switches off the primitives of TransformerEngine for JAX that have no handler on the CPU."""

from collections.abc import Callable
from types import ModuleType


def run_primitives(module: ModuleType, run: Callable[[], None]) -> None:
    """Runs transformer_engine.jax.cpp_extensions and leaves on what the CPU has a handler for.

    TransformerEngine takes its own JAX code for the others, unless NVTE_JAX_CUSTOM_CALLS asks for
    them by name. A name without the prefix is of a primitive that is written in JAX.
    """
    run()
    from narrowfloat.te.jax import native

    handled = native.registrations()
    for primitive in module.base._primitive_registry.values():
        if primitive.name.startswith("te_") and primitive.name not in handled:
            primitive.set_enabled(False)
