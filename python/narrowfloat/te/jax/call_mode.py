# SPDX-License-Identifier: Apache-2.0
"""The product mode as a parameter of TransformerEngine's product, set when a call is traced.

XLA partitions a program on threads of its own. There, the tracing thread's context has no effect,
so each call has the mode as a parameter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jax.experimental.custom_partitioning import custom_partitioning
from jax.interpreters import batching

from narrowfloat.jax.product_mode import get_product_mode, mode_of_this_thread

PARAMETER = "narrowfloat_product_mode"


def add_mode(primitive: type[Any]) -> None:
    """Adds the parameter to both JAX primitives of one of TransformerEngine's classes.

    Their other rules run in that mode and do not get the parameter. Requires: the inner primitive
    has its lowering for CPUs, which gets the parameter.
    """
    outer, inner = primitive.outer_primitive, primitive.inner_primitive
    for one in (outer, inner):
        one.bind = _with_parameter(one.bind)
        one.abstract_eval = _in_its_mode(one.abstract_eval)
    outer.impl = _in_its_mode(outer.impl)
    batching.primitive_batchers[outer] = _in_its_mode(primitive.batcher)


def _with_parameter(bind: Callable[..., Any]) -> Callable[..., Any]:
    def call(*operands: Any, **static: Any) -> object:
        static.setdefault(PARAMETER, get_product_mode())
        return bind(*operands, **static)

    return call


def _in_its_mode(rule: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **static: Any) -> object:
        with mode_of_this_thread(static.pop(PARAMETER)):
            return rule(*arguments, **static)

    return call


def partition_in_mode(function: custom_partitioning, mode: str) -> custom_partitioning:
    """Returns a copy; its rule, and the function per device, use `mode` on any thread."""
    copied = custom_partitioning(function.fun, function.static_argnums)
    vars(copied).update(vars(function))

    def rule(*arguments: Any) -> tuple:
        def run(*operands: Any) -> object:
            with mode_of_this_thread(mode):
                return of_each_device(*operands)

        with mode_of_this_thread(mode):
            mesh, of_each_device, out, into = function.partition(*arguments)
        return mesh, run, out, into

    copied.partition = rule
    return copied
