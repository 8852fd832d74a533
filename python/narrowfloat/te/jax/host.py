# SPDX-License-Identifier: Apache-2.0
"""Functions that run around modules of TransformerEngine for JAX, so that they run on a CPU."""

from __future__ import annotations

import contextlib
import functools
import itertools
import warnings
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jax.interpreters import mlir
    from jax.sharding import Mesh

# Primitives whose function takes a product mode as a parameter.
_MODAL = frozenset({"te_gemm_v2_ffi"})


def run_base(module: ModuleType, run: Callable[[], None]) -> None:
    """Runs transformer_engine.jax.cpp_extensions.base and sets the mesh in its partitioning.

    TransformerEngine's rules read the mesh of the context, but XLA calls them on a thread of its
    own when it compiles for CPUs. The mesh is one of the rule's arguments.
    """
    run()
    from jax.experimental.custom_partitioning import custom_partitioning

    from narrowfloat.te.jax.call_mode import PARAMETER, mode_of_this_thread, partition_in_mode

    class PartitioningWithMesh(custom_partitioning):
        def def_partition(self, partition: Callable, *more: Any, **others: Any) -> object:
            return super().def_partition(_with_mesh(partition), *more, **others)

        def __call__(self, *operands: Any, **static: Any) -> object:
            mode = static.pop(PARAMETER, None)
            if mode is None:
                return super().__call__(*operands, **static)
            with mode_of_this_thread(mode):
                return partition_in_mode(self, mode)(*operands, **static)

    vars(module)["custom_partitioning"] = PartitioningWithMesh


def _with_mesh(partition: Callable[..., tuple]) -> Callable[..., tuple]:
    """Returns a rule that sets the mesh, for itself and for its function per device."""

    def call(mesh: Mesh, function: Callable, *arguments: Any) -> tuple:
        with contextlib.ExitStack() as context:
            with warnings.catch_warnings():
                # Hides JAX's warning that this way to set a mesh is deprecated: TransformerEngine's
                # rules also read the new way, but older JAX has only this one.
                warnings.simplefilter("ignore", DeprecationWarning)
                context.enter_context(mesh)
            return function(*arguments)

    def rule(*arguments: Any) -> tuple:
        *_, mesh, _, _ = arguments
        same, function, out, into = call(mesh, partition, *arguments)
        return same, functools.partial(call, mesh, function), out, into

    return rule


def run_primitives(module: ModuleType, run: Callable[[], None]) -> None:
    """Runs transformer_engine.jax.cpp_extensions, then disables primitives without CPU code.

    For those, TransformerEngine uses its own JAX code, whatever NVTE_JAX_CUSTOM_CALLS says.
    Primitives without the prefix in their name are written in JAX.
    """
    run()
    from narrowfloat.te.jax import call_mode, native

    rules = _rules()
    for primitive in module.base._primitive_registry.values():
        if primitive.name in rules:
            _lower(primitive, rules[primitive.name])
            if primitive.name in _MODAL:
                call_mode.add_mode(primitive)
        elif primitive.name.startswith("te_") and primitive.name not in native.registrations():
            primitive.enabled = classmethod(lambda cls: False)


def _rules() -> dict[str, Callable[..., Any]]:
    """Returns the functions that implement primitives of TransformerEngine, by name."""
    from narrowfloat.te.jax import fused, products, softmax

    return {
        "te_act_lu_ffi": fused.activation,
        "te_dact_dbias_quantize_ffi": fused.activation_gradient,
        "te_gemm_v2_ffi": products.gemm,
        "te_grouped_gemm_ffi": products.grouped_gemm,
        "te_grouped_gemm_d2h_group_sizes_ffi": lambda sizes, num_gemms: sizes,
        "te_norm_backward_ffi": fused.norm_gradient,
        "te_norm_forward_ffi": fused.norm,
        "te_scaled_masked_softmax_backward_ffi": softmax.gradient,
        "te_scaled_masked_softmax_forward_ffi": softmax.masked,
        "te_scaled_softmax_backward_ffi": softmax.gradient,
        "te_scaled_softmax_forward_ffi": softmax.scaled,
        "te_scaled_upper_triang_masked_softmax_backward_ffi": softmax.gradient,
        "te_scaled_upper_triang_masked_softmax_forward_ffi": softmax.causal,
        "te_topk_ffi": products.topk,
    }


def _lower(primitive: type[Any], function: Callable[..., Any]) -> None:
    """Lowers a primitive to a function of JAX.

    Results that are None, and workspaces after the function's results, become zeros.
    """
    import jax.numpy as jnp
    from jax.interpreters import mlir

    def rule(context: mlir.LoweringRuleContext, *operands: Any, **static: Any) -> Sequence:
        def body(*arrays: Any) -> list:
            results = function(*arrays, **static)
            made = results if isinstance(results, tuple) else (results,)
            return [
                jnp.zeros(aval.shape, aval.dtype) if result is None else result
                for result, aval in itertools.zip_longest(made, context.avals_out)
            ]

        return mlir.lower_fun(body, multiple_results=True)(context, *operands)

    mlir.register_lowering(primitive.inner_primitive, rule, platform="cpu")
