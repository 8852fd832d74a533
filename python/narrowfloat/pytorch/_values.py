# SPDX-License-Identifier: Apache-2.0
"""Quantizers with value semantics: equal if their configuration is, constants of a graph."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import torch
from torch._C._dynamo import eval_frame
from torch._compile import _disable_dynamo
from torch._library import opaque_object

Function = TypeVar("Function", bound=Callable[..., Any])
Value = TypeVar("Value")


def never_traced(function: Function) -> Function:
    """Marks `function` so that Dynamo compiles neither a running call of it nor calls within it.

    Does the same as torch._dynamo.eval_frame.skip_code_recursive(), without importing the compiler.
    """
    action = eval_frame._FrameAction
    strategy = eval_frame._FrameExecStrategy(action.SKIP, action.SKIP)
    eval_frame.set_code_exec_strategy(function.__code__, strategy)
    return function


def constant_of_graphs(function: Function) -> Function:
    """Marks `function` so that a tracer calls it and uses the result as a constant.

    Requires: arguments with value semantics.

    Does the same as torch.compiler.assume_constant_result(), without importing the compiler.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]  # a mark of the compiler
    return function


def is_called_by_tracer(depth: int = 2) -> bool:
    """Returns whether a tracer calls the caller on an object that it holds as a constant.

    depth: the number of frames from this one to the tracer's.

    Such a call becomes a node without being traced, so that the fields it reads have no guards.
    """
    return sys._getframe(depth).f_globals.get("__name__") == "torch._dynamo.utils"


def is_written_by_tracer(depth: int) -> bool:
    """Returns whether a tracer calls the caller for an assignment to a constant's field.

    depth: the number of frames from this one to the tracer's.
    """
    return sys._getframe(depth).f_globals.get("__name__") == "torch._dynamo.variables.script_object"


def run_without_graph(rule: str) -> None:
    """Ends the tracing of a function, which then runs uncompiled; fullgraph raises the rule.

    Requires: a tracer runs.
    """
    from torch._dynamo.exc import UserError, UserErrorType

    raise UserError(UserErrorType.ANTI_PATTERN, rule)


def node_of_copy(value: object, first: object, *args: Any) -> Any:  # noqa: ANN401  # stands for a result
    """Returns the node that calls `value` while torch.fx copies a graph; else None.

    To copy a graph, torch.fx runs it with proxies, and calls its constants with them.
    first: one of the tensors of the call.
    """
    if not isinstance(first, torch.fx.Proxy):
        return None
    return first.tracer.create_proxy("call_method", "__call__", (value, *args), {})


def guard_fields(value: ValueSemantics) -> None:
    """Adds guards, so that the compiled function is valid only while these fields are the same.

    Requires: is_called_by_tracer(). The tracer's own guard compares an object with itself.
    """
    from torch._dynamo.guards import GuardBuilder, install_guard
    from torch._dynamo.source import AttrSource, GlobalSource
    from torch._dynamo.symbolic_convert import InstructionTranslator

    output = InstructionTranslator.current_tx().output
    owner = GlobalSource(output.install_global_by_id("value", value))
    for name in value.VALUE_FIELDS:
        install_guard(AttrSource(owner, name).make_guard(GuardBuilder.CONSTANT_MATCH))


@_disable_dynamo
def copy_outside(copy: Callable[[Value], Value], value: Value) -> Value:
    """Breaks the graph and returns a copy, an argument of the rest of the function."""
    return copy(value)


@_disable_dynamo
def write_outside(value: object, **fields: Any) -> None:
    """Breaks the graph and sets the fields, because a graph holds a copy of them."""
    for name, field in fields.items():
        setattr(value, name, field)


class ValueSemantics:
    """Equality by VALUE_FIELDS for classes that are registered, by identity for all others.

    A subclass of a registered class may have fields that its base does not compare, so it has no
    value semantics until it is registered itself.
    """

    VALUE_FIELDS: tuple[str, ...] = ()
    # Fields that hold tensors, which a graph takes as arguments.
    STATE_FIELDS: tuple[str, ...] = ()
    _value_classes: ClassVar[set[type]] = set()
    _node_classes: ClassVar[set[type]] = set()

    @classmethod
    def register_value_class(cls, *fields: str) -> None:
        """Makes objects of exactly this class compare by the base's fields and the given ones.

        They can then be constants of graphs, and arguments of custom operators.
        """
        cls.VALUE_FIELDS = cls.VALUE_FIELDS + fields
        ValueSemantics._value_classes.add(cls)
        ValueSemantics._node_classes.add(cls)
        by_tracer = {"__setattr__": opaque_object.MemberType.USE_REAL}
        opaque_object.register_custom_class(cls, typ="constant", members=by_tracer)
        for name in ("__init__", "__setstate__", "_rebuild_derived_state"):
            if hasattr(getattr(cls, name, None), "__code__"):
                never_traced(getattr(cls, name))

    @classmethod
    def register_node_class(cls, *fields: str, state: tuple[str, ...] = ()) -> None:
        """Makes a call of a quantizer of exactly this class one node of a graph.

        fields: those that affect the bytes, besides the base's. state: fields that hold tensors.
        """
        cls.VALUE_FIELDS = cls.VALUE_FIELDS + fields
        cls.STATE_FIELDS = state
        ValueSemantics._node_classes.add(cls)

    @never_traced
    def __setattr__(self, name: str, value: object) -> None:
        self._write_field(name, value)

    @never_traced  # a tracer would read fields that the object may not have yet
    def _write_field(self, name: str, value: object) -> None:
        # A tracer would write only once, at compile time.
        if not torch.compiler.is_dynamo_compiling() and is_written_by_tracer(3):
            run_without_graph(
                f"{type(self).__name__}.{name} must be set outside of a graph, or by set_usage(), "
                "which breaks the graph"
            )
        object.__setattr__(self, name, value)

    def _is_value(self) -> bool:
        return type(self) in ValueSemantics._value_classes

    def _value_key(self) -> tuple[Any, ...]:
        if self.__dict__.get("amax_reduction_group") is not None:
            raise TypeError(
                f"{type(self).__name__} with a process group cannot be compared or hashed"
            )
        return tuple(self.__dict__[name] for name in self.VALUE_FIELDS)

    def _fields(self) -> tuple[tuple[str, Any], ...]:
        """Returns the names and values of the fields that equality compares."""
        return tuple(zip(self.VALUE_FIELDS, self._value_key(), strict=True))

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if type(self) is not type(other) or not self._is_value():
            return False
        return self._value_key() == other._value_key()

    def __hash__(self) -> int:
        if not self._is_value():
            return object.__hash__(self)
        return hash((type(self), self._value_key()))

    def _rebuild_derived_state(self) -> None:
        """Sets the fields that are computed from VALUE_FIELDS."""

    def __fx_repr__(self) -> tuple[str, dict[str, Any]]:
        """Returns an expression that rebuilds this value, and the names in it."""
        fields = self._fields()
        name = f"_rebuild_{type(self).__name__}"
        items = ", ".join(f"({field!r}, {_literal(value)})" for field, value in fields)
        return f"{name}(({items},))", {name: _Rebuild(type(self))}


def _literal(value: object) -> str:
    return (
        repr(int(value)) if isinstance(value, int) and not isinstance(value, bool) else repr(value)
    )


def same_configuration(first: object, second: object) -> bool:
    """Returns whether two quantizers, or None, make the same bytes if their state is equal."""
    if type(first) is not type(second):
        return False
    if not isinstance(first, ValueSemantics):
        return first == second
    pairs = [(getattr(first, n), getattr(second, n)) for n in first.VALUE_FIELDS]
    return all(same_configuration(own, other) for own, other in pairs)


class _Rebuild:
    """Builds a value of a class from its fields, without calling its constructor."""

    def __init__(self, cls: type) -> None:
        self.cls = cls

    def __call__(self, fields: tuple[tuple[str, Any], ...]) -> object:
        return rebuild_value(self.cls, fields)


def rebuild_value(cls: type[Value], fields: tuple[tuple[str, Any], ...]) -> Value:
    """Builds a value of a class from its fields, without calling its constructor."""
    value: Any = object.__new__(cls)
    value.__dict__.update(fields)
    value._rebuild_derived_state()
    return value
