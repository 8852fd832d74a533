# SPDX-License-Identifier: Apache-2.0
"""Types of arrays: dtypes that handlers take, manual axes of shard_map, placements on a mesh.

Inside shard_map a type names the manual axes that an array varies over. JAX uses them to check that
a result is the same on all devices, where a program declares this. On a mesh of explicit axes it
names the placement of each dimension.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import jax
from jax.core import ShapedArray
from jax.sharding import NamedSharding, PartitionSpec
from jax.typing import DTypeLike

from narrowfloat.jax._arguments import FLOAT_NAMES, check_array
from narrowfloat.jax.quantize.scaling_modes import Shape


def axes_of_type(aval: ShapedArray) -> frozenset[str]:
    """Returns the axes that values of a type vary over; none outside of shard_map, or without its
    checks.
    """
    manual = getattr(aval, "manual_axis_type", None)  # before JAX 0.10 `vma` is a field of the type
    return getattr(aval, "vma", frozenset()) if manual is None else manual.varying


def varying_axes(values: Iterable[jax.Array]) -> frozenset[str]:
    """Returns the axes that any of `values` varies over; none for arrays that are not traced."""
    traced = (value for value in values if isinstance(value, jax.core.Tracer))
    return frozenset().union(*(axes_of_type(jax.typeof(value)) for value in traced))


def vary_over(value: jax.Array, axes: frozenset[str]) -> jax.Array:
    """Returns `value` typed as varying over `axes` too; JAX sums its cotangent over them."""
    missing = axes - varying_axes([value])
    return jax.lax.pcast(value, tuple(sorted(missing)), to="varying") if missing else value


def vary_alike(values: Sequence[jax.Array]) -> list[jax.Array]:
    """Returns `values` typed as varying over the same axes, as JAX types operands of its
    primitives.
    """
    axes = varying_axes(values)
    return [vary_over(value, axes) for value in values] if axes else list(values)


def result_type(shape: Shape, dtype: DTypeLike, operands: Sequence[ShapedArray]) -> ShapedArray:
    """Returns the type of a result that varies over the same axes as the operands.

    operands: the types of the operands, which vary over the same axes.
    """
    widest = max(operands, key=lambda operand: len(axes_of_type(operand)), default=None)
    if widest is None or not axes_of_type(widest):
        return ShapedArray(shape, dtype)
    everywhere = NamedSharding(widest.sharding.mesh, PartitionSpec())
    return widest.update(shape=shape, dtype=dtype, weak_type=False, sharding=everywhere)


def check_float(verb: str, dtype: DTypeLike) -> None:
    """Raises TypeError for an input of a dtype that handlers do not quantize."""
    name = jax.numpy.dtype(dtype).name
    if name not in FLOAT_NAMES:
        raise TypeError(f"{verb}: the input must be float32, float16 or bfloat16, got {name}")


def check_sizes(verb: str, group_sizes: jax.Array | ShapedArray) -> None:
    """Raises TypeError for sizes of groups that are not an int32 array."""
    check_array(verb, "group_sizes", group_sizes, [jax.numpy.int32])


@jax.tree_util.register_static
@dataclass(frozen=True)
class Placement:
    """The sharding of an array, for the cotangent that a backward pass returns."""

    sharding: NamedSharding

    @staticmethod
    def of(x: jax.Array) -> Placement:
        return Placement(jax.typeof(x).sharding)

    def place(self, cotangent: jax.Array) -> jax.Array:
        """Returns `cotangent` with the sharding of the array, which JAX needs for explicit axes."""
        found, wanted = jax.typeof(cotangent).sharding, self.explicit
        if found == wanted or wanted is None:
            return cotangent
        # The results of handlers have no mesh in their types under jit. JAX compiles for one device
        # if neither an operand nor the context has a mesh.
        if found.mesh.empty and jax.sharding.get_abstract_mesh().empty:
            return cotangent
        return jax.sharding.reshard(cotangent, wanted)

    @property
    def explicit(self) -> NamedSharding | None:
        """The sharding if the mesh has explicit axes, else None."""
        is_explicit = jax.sharding.AxisType.Explicit in self.sharding.mesh.axis_types
        return self.sharding if is_explicit else None
