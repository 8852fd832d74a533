# SPDX-License-Identifier: Apache-2.0
"""Names of mesh axes, for programs that place arrays by name.

Quantizing does not use them: it reads the devices from the array.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass

import jax
from jax.sharding import NamedSharding, PartitionSpec


@dataclass(frozen=True)
class MeshResource:
    """Names the mesh axis of each kind of parallelism; None: not used.

    dp_resource: data. tp_resource: tensor. tpsp_resource: tensor and sequence. fsdp_resource:
    sharded parameters. pp_resource: pipeline. cp_resource: context.
    """

    dp_resource: str | None = None
    tp_resource: str | None = None
    tpsp_resource: str | None = None
    fsdp_resource: str | None = None
    pp_resource: str | None = None
    cp_resource: str | None = None


_resource: ContextVar[MeshResource | None] = ContextVar("narrowfloat_jax_mesh", default=None)


def global_mesh_resource() -> MeshResource:
    """Returns the MeshResource of the enclosing global_shard_guard.

    Errors: RuntimeError outside of one.
    """
    found = _resource.get()
    if found is None:
        raise RuntimeError("global_mesh_resource: must be called within global_shard_guard")
    return found


@contextlib.contextmanager
def global_shard_guard(resource: MeshResource) -> Iterator[None]:
    """Makes `resource` the global one in this context."""
    token = _resource.set(resource)
    try:
        yield
    finally:
        _resource.reset(token)


def with_sharding_constraint_by_logical_axes(
    x: jax.Array, logical_axis_names: Sequence[str | None] | None
) -> jax.Array:
    """Returns `x` with a sharding constraint given by the names of its dimensions.

    Flax's logical axis rules resolve a name if the program imports Flax; else it is the name of a
    mesh axis. There is no constraint on a dimension without a name, with a name of no mesh axis, or
    with a size that the axis does not divide; on a mesh of explicit axes it keeps its sharding.
    Without names or a mesh, returns `x`.
    Errors: ValueError unless there is one name, or None, per dimension.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if not logical_axis_names or mesh.empty:
        return x
    if len(logical_axis_names) != x.ndim:
        raise ValueError(
            "with_sharding_constraint_by_logical_axes: x needs one name per dimension, got "
            f"{len(logical_axis_names)} names for {x.ndim} dimensions"
        )
    linen = sys.modules.get("flax.linen")
    spec = linen.logical_to_mesh_axes(logical_axis_names) if linen else logical_axis_names
    explicit = jax.sharding.AxisType.Auto not in mesh.axis_types
    free = jax.typeof(x).sharding.spec if explicit else [PartitionSpec.UNCONSTRAINED] * x.ndim
    kept = []
    for extent, entry, otherwise in zip(x.shape, spec, free, strict=True):
        names = () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)
        known = all(name in mesh.shape for name in names)
        fits = known and extent % math.prod(mesh.shape[name] for name in names) == 0
        kept.append(names if names and fits else otherwise)
    if explicit:
        return jax.sharding.reshard(x, PartitionSpec(*kept))
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, PartitionSpec(*kept)))
