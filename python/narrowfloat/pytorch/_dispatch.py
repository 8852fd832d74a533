# SPDX-License-Identifier: Apache-2.0
"""The table of torch operators of quantized tensors, and the treatment of all other operators.

A row is a function under @implements(operator, class). It takes the operator's arguments, and may
return NotImplemented. Then, and for operators without a row, quantized arguments are dequantized,
the operator runs on plain tensors, and arguments that it writes are quantized again. A result that
its schema marks as a view of an argument cannot be written. A collective has a row or raises,
because its schema marks nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_flatten, tree_map
from typing_extensions import TypeIs

from narrowfloat.pytorch._autograd import count_write
from narrowfloat.pytorch._inference import run_in_inference_mode
from narrowfloat.pytorch._native import in_float32_if_double
from narrowfloat.pytorch._overlaps import Overlaps
from narrowfloat.pytorch._read_only import (
    Effect,
    arguments_of,
    effect_of,
    effect_of_call,
    read_only,
    refuse_writes,
    unwrapped,
)
from narrowfloat.pytorch._types import Operator

if TYPE_CHECKING:
    from narrowfloat.pytorch.quantized_tensor import QuantizedTensor

Row = Callable[..., Any]

_table: dict[tuple[Any, type], Row] = {}

_COLLECTIVES = ("c10d", "_c10d_functional", "_c10d_functional_autograd")
_ADDS = "codes under different scales do not add up"
_MOVES = "it moves one buffer, which would part codes from their scales"


def implements(operator: Operator, *classes: type) -> Callable[[Row], Row]:
    """Adds the decorated function to the table, for tensors of these classes and subclasses."""

    def register(row: Row) -> Row:
        for cls in classes:
            _table[operator, cls] = row
        return row

    return register


def find_row(operator: Operator, cls: type) -> Row | None:
    """Returns the row of the closest base class, or None."""
    for base in cls.__mro__:
        row = _table.get((operator, base))
        if row is not None:
            return row
    return None


def _is_quantized(value: object) -> TypeIs[QuantizedTensor]:
    return isinstance(value, torch.Tensor) and hasattr(value, "_plain")


def _subject(args: tuple[Any, ...], kwargs: dict[str, Any]) -> type | None:
    """Returns the class of the first quantized tensor among the arguments."""
    if args and _is_quantized(args[0]):
        return type(args[0])
    for leaf in tree_flatten((args, kwargs))[0]:
        if _is_quantized(leaf):
            return type(leaf)
    return None


class WriteTarget:
    """Lists the methods that dispatch() calls on a quantized tensor that an operator writes."""

    if TYPE_CHECKING:

        @property
        def HOLDS_VALUES(self) -> bool: ...

        def _plain(self) -> torch.Tensor: ...

        def quantize_(self, tensor: torch.Tensor) -> object: ...

    def _plain_copy(self) -> torch.Tensor:
        """Returns the values as a plain tensor that shares no memory with this one."""
        return self._plain()

    def _requantize(self, tensor: torch.Tensor, noop_flag: torch.Tensor | None = None) -> None:
        """Implements quantize_() within an operator, which increments the version itself."""
        self.quantize_(tensor)

    def _check_write(self, values: torch.Tensor) -> None:
        """Raises the errors of quantize_() that do not depend on the values."""

    def _is_part(self) -> bool:
        """Returns whether a write may be refused because other parts share the scale."""
        return False

    def _live_buffers(self) -> list[torch.Tensor]:
        """Returns the buffers that are present."""
        return []

    def _code_buffers(self) -> list[torch.Tensor]:
        """Returns the present buffers of codes or values, the one for decoding first."""
        return []


def dispatch(func: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
    """Runs an operator with at least one quantized argument."""
    if torch.is_inference_mode_enabled():
        return run_in_inference_mode(_run, func, args, kwargs, effect_of(func).aliases)
    return _run(func, args, kwargs)


def _run(func: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
    cls = _subject(args, kwargs)
    row = None if cls is None else find_row(func, cls)
    if row is not None:
        result = row(*args, **kwargs)
        if result is not NotImplemented:
            return result
    return run_dequantized(func, args, kwargs)


def _plain(value: object) -> object:
    return value._plain() if _is_quantized(value) else unwrapped(value)


def _name_of(cls: type | None) -> str:
    return "a quantized tensor" if cls is None else f"a {cls.__name__}"


def run_dequantized(func: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
    """Runs the operator on plain tensors and quantizes the written arguments again.

    A result that is a view of an argument cannot be written.
    Errors: NotImplementedError for a collective, and for an operator that changes the shape of a
    quantized tensor in place; RuntimeError for a write to read-only values.
    """
    if func.namespace in _COLLECTIVES:
        why = _ADDS if "reduce" in func._schema.name else _MOVES
        raise NotImplementedError(
            f"{func}: {_name_of(_subject(args, kwargs))} is not supported in this collective, "
            f"because {why}; communicate dequantize(), or its buffers"
        )
    effect = effect_of_call(func, args, kwargs)
    if effect.written:
        return _run_writing(func, args, kwargs, effect)
    result = func(*tree_map(_plain, args), **tree_map(_plain, kwargs))
    if not effect.aliases:
        return result
    return read_only(result, f"{func} gave of {_name_of(_subject(args, kwargs))}")


def _run_writing(
    func: Operator, args: tuple[Any, ...], kwargs: dict[str, Any], effect: Effect
) -> object:
    """Runs an operator that writes arguments. Writes all of them, or none if one raises."""
    written = arguments_of(effect.written, args, kwargs)
    refuse_writes(func, written)
    targets = [leaf for leaf in tree_flatten(written)[0] if _is_quantized(leaf)]
    if targets and torch.Tag.inplace_view in func.tags:
        raise NotImplementedError(
            f"{func}: changing the shape of {_name_of(type(targets[0]))} in place is not supported"
        )
    beside = [leaf for leaf in tree_flatten(written)[0] if type(leaf) is torch.Tensor]
    plain = _plain_of_aliases(targets, Overlaps(func, targets, beside))
    plain_args, plain_kwargs = tree_map(plain, args), tree_map(plain, kwargs)
    plain_written = arguments_of(effect.written, plain_args, plain_kwargs)
    leaves = list(zip(tree_flatten(written)[0], tree_flatten(plain_written)[0], strict=True))
    undo = _Undo(leaves)
    result = func(*plain_args, **plain_kwargs)
    try:
        for old, new in leaves:
            if _is_quantized(old):
                _quantize_back(func, old, new)
    except BaseException:
        undo.run()
        raise
    if effect.counted and not _counts_writes(func):
        for target in targets:
            count_write(target)
    return _returned(effect, written, result)


@cache
def _counts_writes(func: Operator) -> bool:
    """Returns whether autograd's kernel of an operator increments versions.

    Operators on lists have no such kernel: the operators that they call do it.
    """
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "ADInplaceOrView")


def _plain_of_aliases(
    targets: list[QuantizedTensor], overlaps: Overlaps
) -> Callable[[object], object]:
    """Returns the function that converts an argument to plain values.

    A target has one copy of its values. Its aliases share the copy, and so all writes.
    """
    own: dict[int, torch.Tensor] = {}

    def plain(value: object) -> object:
        if not _is_quantized(value):
            return unwrapped(value)
        if id(value) not in own:
            first = overlaps.first(value)
            if first is None or id(first) not in own:
                return value._plain()
            own[id(value)] = own[id(first)].view(value.shape)
        return own[id(value)]

    for target in targets:
        first = overlaps.first(target)
        if first is None or first is target:
            own[id(target)] = target._plain_copy()
    return plain


def _quantize_back(func: Operator, old: QuantizedTensor, new: torch.Tensor) -> None:
    if old.shape != new.shape:
        raise ValueError(
            f"{func}: {_name_of(type(old))} of shape {tuple(old.shape)} cannot become "
            f"{tuple(new.shape)} in place"
        )
    old._requantize(new if old.HOLDS_VALUES else in_float32_if_double(new))


def _returned(effect: Effect, written: list[Any], result: object) -> object:
    """Returns the operator's result; written arguments replace their plain copies in it."""
    if not effect.returned:
        return None
    results: Any = (result,) if len(effect.returned) == 1 else result
    final = tuple(
        value if index is None else written[index]
        for value, index in zip(results, effect.returned, strict=True)
    )
    return final[0] if len(final) == 1 else final


class _Undo:
    """Restores written arguments if one of several raises.

    A single tensor raises before it is written. Copies are made if an error depends on the values,
    which is so for parts under the scale of a whole tensor; other errors are raised earlier.
    """

    def __init__(self, leaves: list[tuple[Any, Any]]) -> None:
        self.saved: list[tuple[torch.Tensor, torch.Tensor]] = []
        if len(leaves) < 2:
            return
        quantized = [(old, new) for old, new in leaves if _is_quantized(old)]
        for old, new in quantized:
            old._check_write(new)
        if not any(old._is_part() for old, _ in quantized):
            return
        for old, _ in leaves:
            buffers = old._live_buffers() if _is_quantized(old) else [old]
            self.saved += [(buffer, buffer.clone()) for buffer in buffers]

    def run(self) -> None:
        """Restores the old values."""
        for buffer, copy in self.saved:
            buffer.copy_(copy)
