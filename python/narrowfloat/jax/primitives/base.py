# SPDX-License-Identifier: Apache-2.0
"""Makes JAX primitives of a handler.

Each handler has two primitives. The inner primitive is the call of the handler, with its padding
and workspaces. Users bind the outer primitive: it has a batching rule, is partitioned over devices,
and its body binds the inner primitive and removes the padding.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NoReturn

import jax
import jax.numpy as jnp
from jax._src import dispatch
from jax.core import ShapedArray
from jax.experimental.custom_partitioning import (
    ArrayMapping,
    SdyShardingRule,
    custom_partitioning,
)
from jax.extend.core import JaxprEqn, Primitive
from jax.interpreters import ad, batching, mlir
from jax.interpreters import partial_eval as pe
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from narrowfloat.jax import _library
from narrowfloat.jax.primitives.array_types import result_type, vary_alike

Arrays = Sequence[jax.Array]


class BasePrimitive:
    """The rules of a handler; subclasses define them, register_primitive() registers them.

    name: the primitive's name. target: the handler's name, if it differs.
    static_args: names of the static parameters, in order.
    aliases: for an operand's index, the index of the result that reuses its memory.
    makes_codes: whether results are codes, which jax.checkpoint computes again instead of saving.
    """

    name: ClassVar[str]
    target: ClassVar[str | None] = None
    static_args: ClassVar[tuple[str, ...]]
    aliases: ClassVar[dict[int, int]] = {}
    makes_codes: ClassVar[bool] = False
    inner_primitive: ClassVar[Primitive]
    outer_primitive: ClassVar[Primitive]

    @staticmethod
    def abstract(*operands: Any, **static: Any) -> Sequence[ShapedArray]:
        """Returns the shapes and dtypes of the handler's results."""
        raise NotImplementedError

    @classmethod
    def outer_abstract(cls, *operands: ShapedArray, **static: Any) -> Sequence[ShapedArray]:
        """Returns the shapes and dtypes of the results of impl()."""
        return cls.abstract(*operands, **static)

    @staticmethod
    def attributes(**static: Any) -> dict[str, object]:
        """Returns the handler's attributes, each of the one Python type that the handler reads."""
        return static

    @classmethod
    def impl(cls, *operands: jax.Array, **static: Any) -> Arrays:
        """Runs the body of the outer primitive."""
        return cls.inner_primitive.bind(*operands, **static)

    @classmethod
    def partition(
        cls,
        static: dict[str, Any],
        mesh: Mesh,
        operands: Sequence[jax.ShapeDtypeStruct],
        results: Sequence[jax.ShapeDtypeStruct],
    ) -> tuple[Callable[..., Arrays], list[PartitionSpec], list[PartitionSpec]]:
        """Returns the function for each device, and the placement of operands and results.

        This default replicates all arrays on every device.
        """
        body = functools.partial(cls.impl, **static)
        return body, [PartitionSpec()] * len(operands), [PartitionSpec()] * len(results)

    @classmethod
    def sharding_rule(
        cls,
        static: dict[str, Any],
        mesh: Mesh,
        operands: Sequence[tuple],
        results: Sequence[tuple],
    ) -> SdyShardingRule:
        """Returns which dimensions of operands and results correspond; by default, none."""
        names = iter(f"d{i}" for i in range(sum(map(len, (*operands, *results)))))
        take = [ArrayMapping(*(next(names) for _ in shape)) for shape in (*operands, *results)]
        return SdyShardingRule(tuple(take[: len(operands)]), tuple(take[len(operands) :]))


def register_primitive(cls: type[BasePrimitive]) -> type[BasePrimitive]:
    """Makes and registers the two primitives of `cls`."""
    _library.register()
    cls.inner_primitive = _make_primitive(cls.name, cls.abstract, _inner_lowering(cls))
    cls.outer_primitive = _make_primitive(
        f"{cls.name}_wrapper",
        cls.outer_abstract,
        mlir.lower_fun(_partitioned(cls), multiple_results=True),
    )
    _add_rules(cls)
    return cls


def register_whole(cls: type[BasePrimitive]) -> type[BasePrimitive]:
    """Makes and registers one primitive of `cls` that is the call of the handler itself.

    It has no partitioning rule: XLA gathers operands that are spread over several devices.
    """
    _library.register()
    cls.inner_primitive = _make_primitive(cls.name, cls.abstract, _inner_lowering(cls))
    cls.outer_primitive = cls.inner_primitive
    _add_rules(cls)
    return cls


def _add_rules(cls: type[BasePrimitive]) -> None:
    outer = cls.outer_primitive
    batching.primitive_batchers[outer] = functools.partial(_batch, outer)
    ad.primitive_jvps[outer] = functools.partial(refuse_derivative, cls.name)
    if cls.makes_codes:
        pe.partial_eval_jaxpr_custom_rules[outer] = _make_again


def _make_again(
    saveable: object, unknown: Sequence[bool], has_in_backward: Sequence[bool], eqn: JaxprEqn
) -> tuple:
    """Computes codes again in the backward pass of jax.checkpoint, under any policy.

    A rule of jax.interpreters.partial_eval. JAX applies reduce_precision to floats that it saves,
    which changes codes, as narrowfloat.jax.backward explains.
    """
    operands = zip(eqn.invars, has_in_backward, strict=True)
    needed = [operand for operand, has in operands if not has]
    count, is_unknown = len(eqn.outvars), any(unknown)
    return None if is_unknown else eqn, eqn, [is_unknown] * count, [True] * count, needed


def refuse_derivative(name: str, *_: Any, **__: Any) -> NoReturn:
    """Raises NotImplementedError, as the derivative rule of primitives without a derivative."""
    raise NotImplementedError(
        f"{name}: codes have no derivative; narrowfloat.jax.fake_quantize() passes gradients "
        "straight through"
    )


class _Primitive(Primitive):
    """A primitive that makes all its operands vary over the same manual axes, as its results do."""

    multiple_results = True

    def bind(self, *operands: Any, **static: Any) -> Arrays:
        return super().bind(*vary_alike(operands), **static)


def _make_primitive(name: str, abstract: Callable, lowering: Callable) -> Primitive:
    def typed(*operands: ShapedArray, **static: Any) -> list[ShapedArray]:
        made = abstract(*operands, **static)
        return [result_type(result.shape, result.dtype, operands) for result in made]

    primitive = _Primitive(name)
    primitive.def_abstract_eval(typed)
    primitive.def_impl(functools.partial(_run, primitive))
    mlir.register_lowering(primitive, lowering)
    # Partitioning needs the devices while it is lowered.
    dispatch.prim_requires_devices_during_lowering.add(primitive)
    return primitive


def _run(primitive: Primitive, *operands: jax.Array, **static: Any) -> Arrays:
    """Runs a primitive outside of jit, compiled too, so that sharded arrays stay sharded; under
    disable_jit as well, as JAX's own primitives are.
    """
    with jax.disable_jit(False):
        return _compiled(primitive, **static)(*operands)


@functools.cache
def _compiled(primitive: Primitive, **static: Any) -> Callable[..., Arrays]:
    return jax.jit(functools.partial(primitive.bind, **static))


def _inner_lowering(cls: type[BasePrimitive]) -> Callable:
    rule = jax.ffi.ffi_lowering(cls.target or cls.name, operand_output_aliases=cls.aliases)

    def lower(context: mlir.LoweringRuleContext, *operands: Any, **static: Any) -> Sequence[Any]:
        return rule(context, *operands, **cls.attributes(**static))

    return lower


def _batch(
    primitive: Primitive,
    operands: Arrays,
    dims: Sequence[int | None],
    **static: Any,
) -> tuple[Arrays, list[int]]:
    """Runs the primitive on each item of the batch in turn, so that each has its own scales."""
    batched = [
        jnp.moveaxis(x, dim, 0) for x, dim in zip(operands, dims, strict=True) if dim is not None
    ]
    # On a mesh of explicit axes a loop needs all items on each device. JAX expects results with the
    # sharding of the items.
    spread = [of for x in batched if (of := jax.typeof(x).sharding).spec[0] is not None]
    for i, x in enumerate(batched):
        of = jax.typeof(x).sharding
        if of in spread:
            whole = NamedSharding(of.mesh, PartitionSpec(None, *of.spec[1:]))
            batched[i] = jax.sharding.reshard(x, whole)

    def one(items: Arrays) -> Arrays:
        left = iter(items)
        full = [x if dim is None else next(left) for x, dim in zip(operands, dims, strict=True)]
        return primitive.bind(*full, **static)

    results = jax.lax.map(one, batched)
    if spread:
        place = NamedSharding(spread[0].mesh, PartitionSpec(spread[0].spec[0]))
        results = [jax.sharding.reshard(result, place) for result in results]
    return results, [0] * len(results)


def _partitioned(cls: type[BasePrimitive]) -> Callable[..., Arrays]:
    """Returns impl() with its partitioning rules, which take static parameters by position."""

    def named(values: Sequence[Any]) -> dict[str, Any]:
        return dict(zip(cls.static_args, values, strict=True))

    def call(*operands: jax.Array, **static: Any) -> Arrays:
        count = len(operands)
        values = [static[name] for name in cls.static_args]

        def body(*args: Any) -> Arrays:
            return tuple(cls.impl(*args[:count], **named(args[count:])))

        def partition(*args: Any) -> tuple:
            *fixed, mesh, operand_infos, result_infos = args
            local, ins, outs = cls.partition(named(fixed), mesh, operand_infos, result_infos)
            on = functools.partial(NamedSharding, mesh)
            return mesh, lambda *a: tuple(local(*a)), tuple(map(on, outs)), tuple(map(on, ins))

        def rule(*args: Any) -> SdyShardingRule:
            *fixed, mesh, operand_types, result_types = args
            shapes = [[tuple(t.shape) for t in types] for types in (operand_types, result_types)]
            return cls.sharding_rule(named(fixed), mesh, *shapes)

        places = tuple(range(count, count + len(values)))
        function = custom_partitioning(body, static_argnums=places)
        function.def_partition(partition=partition, sharding_rule=rule)
        return function(*operands, *values)

    return call
