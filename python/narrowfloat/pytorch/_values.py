# SPDX-License-Identifier: Apache-2.0
"""Quantizers that are values: equal if their configuration is, usable as constants of a graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

from torch._library import opaque_object

Function = TypeVar("Function", bound=Callable[..., Any])


def constant_of_graphs(function: Function) -> Function:
    """A tracer calls `function`, whose arguments must be values, and keeps the result.

    What torch.compiler.assume_constant_result() does, without importing the compiler.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


class ValueSemantics:
    """Equality by VALUE_FIELDS for classes that are registered, by identity for all others.

    A subclass of a registered class may hold more than its base compares, so it is not a value
    until it is registered itself.
    """

    VALUE_FIELDS: tuple[str, ...] = ()
    # Tensors that an object holds beside its fields, and that a graph takes as arguments.
    STATE_FIELDS: tuple[str, ...] = ()
    _value_classes: ClassVar[set[type]] = set()
    _node_classes: ClassVar[set[type]] = set()

    @classmethod
    def register_value_class(cls, *fields: str) -> None:
        """From now on objects of this very class compare by the base's fields and these.

        They are constants of graphs then, and arguments of custom operators.
        """
        cls.VALUE_FIELDS = cls.VALUE_FIELDS + fields
        ValueSemantics._value_classes.add(cls)
        ValueSemantics._node_classes.add(cls)
        opaque_object.register_custom_class(cls, typ="constant")

    @classmethod
    def register_node_class(cls, *fields: str, state: tuple[str, ...] = ()) -> None:
        """From now on graphs hold calls of quantizers of this very class as one node.

        fields: beside the base's, what decides the bytes. state: fields that hold tensors.
        """
        cls.VALUE_FIELDS = cls.VALUE_FIELDS + fields
        cls.STATE_FIELDS = state
        ValueSemantics._node_classes.add(cls)

    def _is_value(self) -> bool:
        return type(self) in ValueSemantics._value_classes

    def _value_key(self) -> tuple[Any, ...]:
        if self.__dict__.get("amax_reduction_group") is not None:
            raise TypeError(
                f"{type(self).__name__} holds a process group and so is no value to compare or hash"
            )
        return tuple(self.__dict__[name] for name in self.VALUE_FIELDS)

    def _fields(self) -> tuple[tuple[str, Any], ...]:
        """Names and values of what decides equality."""
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
        """Makes the fields that follow from VALUE_FIELDS."""

    def __fx_repr__(self) -> tuple[str, dict[str, Any]]:
        """An expression that builds this value again, and the names in it."""
        fields = self._fields()
        name = f"_rebuild_{type(self).__name__}"
        items = ", ".join(f"({field!r}, {_literal(value)})" for field, value in fields)
        return f"{name}(({items},))", {name: _Rebuild(type(self))}


def _literal(value: Any) -> str:
    return (
        repr(int(value)) if isinstance(value, int) and not isinstance(value, bool) else repr(value)
    )


def same_configuration(first: Any, second: Any) -> bool:
    """Returns whether two quantizers, or None, make the same bytes of equal state."""
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

    def __call__(self, fields: tuple[tuple[str, Any], ...]) -> Any:
        return rebuild_value(self.cls, fields)


def rebuild_value(cls: type, fields: tuple[tuple[str, Any], ...]) -> Any:
    """Builds a value of a class from its fields, without calling its constructor."""
    value = object.__new__(cls)
    value.__dict__.update(fields)
    value._rebuild_derived_state()
    return value
