# SPDX-License-Identifier: Apache-2.0
"""Checks arguments before their attributes are read.

Reads only the shape and dtype of arrays, which may be traced or have no values. Fields of pytrees
are checked where they are constructed by hand or used, not where they are unflattened.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import is_dataclass
from numbers import Real
from typing import SupportsIndex, cast

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

# The names of the types of arrays that are quantized, and of values that are decoded.
FLOAT_NAMES = ("float32", "float16", "bfloat16")


def text_of(value: object) -> str:
    """Returns the text of an argument in messages.

    Prints arrays by their shape, because they have many items or are traced. Prints dataclass
    objects and containers of arrays by their class.
    """
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"an array of shape {value.shape}"
    has_fields = is_dataclass(value) and not isinstance(value, type)
    if has_fields or any(hasattr(leaf, "dtype") for leaf in jax.tree.leaves(value)):
        return type(value).__name__
    return repr(value)


def check_kind(verb: str, name: str, value: object, kind: type, others: str = "") -> None:
    """Raises TypeError unless `value` is of the class `kind`.

    others: text of the message that names further values the caller accepts.
    """
    if not isinstance(value, kind):
        raise TypeError(f"{verb}: {name} must be a {kind.__name__}{others}, got {text_of(value)}")


def check_number(verb: str, name: str, value: object) -> None:
    """Raises TypeError unless `value` is a real number of Python or NumPy and not a bool."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{verb}: {name} must be a number, got {value!r}")


def integer_of(verb: str, name: str, value: object) -> int:
    """Returns an int of Python or NumPy. Errors: TypeError for anything else, and for a bool."""
    try:
        return operator.index(cast(SupportsIndex, None if isinstance(value, bool) else value))
    except TypeError:
        raise TypeError(f"{verb}: {name} must be an int, got {value!r}") from None


def count_of(verb: str, name: str, value: object, least: int) -> int:
    """Returns an int of Python or NumPy. Errors: as integer_of(); ValueError if below `least`."""
    count = integer_of(verb, name, value)
    if count < least:
        raise ValueError(f"{verb}: {name} must be {least} or more, got {count}")
    return count


def check_array(verb: str, name: str, value: object, dtypes: Sequence[DTypeLike] = ()) -> None:
    """Raises TypeError unless `value` is an array, of one of `dtypes` if any are given."""
    if not (hasattr(value, "shape") and hasattr(value, "dtype")):
        raise TypeError(f"{verb}: {name} must be an array, got {type(value).__name__}")
    allowed = [jnp.dtype(dtype) for dtype in dtypes]
    if allowed and value.dtype not in allowed:
        names = " or ".join(dtype.name for dtype in allowed)
        raise TypeError(f"{verb}: {name} must be {names}, got {value.dtype.name}")
