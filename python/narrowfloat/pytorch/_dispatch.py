# SPDX-License-Identifier: Apache-2.0
"""The table of torch operators that quantized tensors have a meaning for, and what all others do.

A row is a function under @implements(operator, class). It takes the operator's arguments, and may
return NotImplemented: then, as for operators without a row, quantized arguments are dequantized,
the operator runs on plain tensors, and what its schema marks as written is quantized back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map

Row = Callable[..., Any]

_table: dict[tuple[Any, type], Row] = {}

# Operators that see the wrappers themselves.
_quantized_tensor_passthrough_ops: set[Any] = set()


def implements(operator: Any, *classes: type) -> Callable[[Row], Row]:
    """Puts the decorated function in the table for tensors of these classes and those derived."""

    def register(row: Row) -> Row:
        for cls in classes:
            _table[operator, cls] = row
        return row

    return register


def find_row(operator: Any, cls: type) -> Row | None:
    """The row of the closest class."""
    for base in cls.__mro__:
        row = _table.get((operator, base))
        if row is not None:
            return row
    return None


def _is_quantized(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and hasattr(value, "_plain")


def _subject(args: tuple[Any, ...], kwargs: dict[str, Any]) -> type | None:
    """Class of the first quantized tensor among the arguments."""
    if args and _is_quantized(args[0]):
        return type(args[0])
    for leaf in tree_flatten((args, kwargs))[0]:
        if _is_quantized(leaf):
            return type(leaf)
    return None


def dispatch(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Runs an operator that at least one quantized tensor takes part in."""
    if func in _quantized_tensor_passthrough_ops:
        with torch._C._DisableTorchDispatch():
            return func(*args, **kwargs)
    cls = _subject(args, kwargs)
    row = None if cls is None else find_row(func, cls)
    if row is not None:
        result = row(*args, **kwargs)
        if result is not NotImplemented:
            return result
    return run_dequantized(func, args, kwargs)


def _dequantize(value: Any) -> Any:
    return value._plain() if _is_quantized(value) else value


def _quantize_back(old: Any, new: Any) -> None:
    if _is_quantized(old):
        old.quantize_(new)
    elif isinstance(old, (list, tuple)):
        for old_item, new_item in zip(old, new, strict=True):
            _quantize_back(old_item, new_item)


def run_dequantized(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The operator on plain tensors; what it wrote is quantized back. None if it writes."""
    schema = func._schema
    plain_args = tree_map(_dequantize, args)
    plain_kwargs = tree_map(_dequantize, kwargs)
    result = func(*plain_args, **plain_kwargs)
    if not schema.is_mutable:
        return result
    for position, argument in enumerate(schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        # By name: arguments behind a star, such as out=, are given as keywords.
        if argument.name in kwargs:
            _quantize_back(kwargs[argument.name], plain_kwargs[argument.name])
        elif position < len(args):
            _quantize_back(args[position], plain_args[position])
    return None
