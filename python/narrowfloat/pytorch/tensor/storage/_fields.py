# SPDX-License-Identifier: Apache-2.0
"""The table of a family's fields; constructors, payloads and flattening follow from it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

REQUIRED: Any = inspect.Parameter.empty  # the default of an argument that has none


class Buffer(NamedTuple):
    """A field that holds a tensor: its name, the constructor's argument, the planner's roles."""

    name: str
    keyword: str
    roles: tuple[str, ...]
    default: Any = REQUIRED


class Setting(NamedTuple):
    """A field that holds no tensor.

    mismatch: its name in the message that refuses a copy between tensors with different values.
    convert: makes the stored value of the argument. keyword_only: has no place among positional
    arguments.
    """

    name: str
    keyword: str
    mismatch: str
    default: Any = REQUIRED
    convert: Callable[[Any], Any] | None = None
    keyword_only: bool = False


def _direction_rank(buffer: Buffer) -> int:
    """Returns 0 for row-wise codes and scales, 1 for column-wise ones, 2 for all others."""
    if len(buffer.roles) > 1:
        return 2
    return next((i for i, d in enumerate(("row", "col")) if buffer.roles[0].startswith(d)), 2)


def in_flatten_order(buffers: Sequence[Buffer]) -> tuple[Buffer, ...]:
    """Returns the buffers direction by direction, then those of both directions and the amaxes."""
    return tuple(sorted(buffers, key=_direction_rank))


def positional_keywords(buffers: Sequence[Buffer], settings: Sequence[Setting]) -> tuple[str, ...]:
    """Returns TransformerEngine's order of arguments: buffers, element type, quantizer, modes."""
    first, *modes = settings
    return (
        *(buffer.keyword for buffer in in_flatten_order(buffers)),
        first.keyword,
        "quantizer",
        *(mode.keyword for mode in modes if not mode.keyword_only),
    )


def payload_keywords(
    sections: Sequence[str], buffers: Sequence[Buffer], settings: Sequence[Setting]
) -> tuple[str, ...]:
    """Returns the arguments in a pickle, in order.

    sections: "buffers", "element" (the first setting) and "modes" (the others) expand; any other
    entry is an argument.
    """
    expanded = {
        "buffers": [buffer.keyword for buffer in in_flatten_order(buffers)],
        "element": [setting.keyword for setting in settings[:1]],
        "modes": [setting.keyword for setting in settings[1:]],
    }
    return tuple(name for section in sections for name in expanded.get(section, [section]))


def take_positional(
    cls: type, keywords: Sequence[str], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, ...]:
    """Moves positional arguments to `kwargs` by name; returns those that are left.

    Errors: TypeError for an argument that is given twice.
    """
    for keyword, value in zip(keywords, args, strict=False):
        if keyword in kwargs:
            raise TypeError(f"{cls.__name__} got multiple values for argument {keyword!r}")
        kwargs[keyword] = value
    return args[len(keywords) :]


def signature_of(
    buffers: Sequence[Buffer], settings: Sequence[Setting], positional: Sequence[str]
) -> inspect.Signature:
    """Returns the constructor's signature, for help() and editors."""
    kinds = inspect.Parameter
    defaults = {field.keyword: field.default for field in (*buffers, *settings)}
    defaults |= {"quantizer": None, "fake_dtype": None}
    named = [kinds(k, kinds.POSITIONAL_OR_KEYWORD, default=defaults.pop(k)) for k in positional]
    rest = [kinds(k, kinds.KEYWORD_ONLY, default=value) for k, value in defaults.items()]
    outer = [kinds("args", kinds.VAR_POSITIONAL)]
    return inspect.Signature([*named, *outer, *rest, kinds("kwargs", kinds.VAR_KEYWORD)])
