# SPDX-License-Identifier: Apache-2.0
"""Checks arguments before their attributes are read.

Of arrays only shape and dtype are read: they may be traced, or descriptions without values. Fields
of pytrees are checked where they are constructed by hand or used, not where they are unflattened.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from numbers import Real
from typing import SupportsIndex, cast

import jax.numpy as jnp
from jax.typing import DTypeLike


def check_kind(verb: str, name: str, value: object, kind: type) -> None:
    """Raises TypeError unless `value` is of the class `kind`."""
    if not isinstance(value, kind):
        raise TypeError(f"{verb}: {name} must be a {kind.__name__}, got {value!r}")


def check_number(verb: str, name: str, value: object) -> None:
    """Raises TypeError unless `value` is a real number of Python or NumPy, and no bool."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{verb}: {name} must be a number, got {value!r}")


def integer_of(verb: str, name: str, value: object) -> int:
    """Returns an int of Python or NumPy. Errors: TypeError for anything else, and for a bool."""
    try:
        return operator.index(cast(SupportsIndex, None if isinstance(value, bool) else value))
    except TypeError:
        raise TypeError(f"{verb}: {name} must be an int, got {value!r}") from None


def check_array(verb: str, name: str, value: object, dtypes: Sequence[DTypeLike] = ()) -> None:
    """Raises TypeError unless `value` is an array, of one of `dtypes` if any are given."""
    if not (hasattr(value, "shape") and hasattr(value, "dtype")):
        raise TypeError(f"{verb}: {name} must be an array, got {type(value).__name__}")
    allowed = [jnp.dtype(dtype) for dtype in dtypes]
    if allowed and value.dtype not in allowed:
        names = " or ".join(dtype.name for dtype in allowed)
        raise TypeError(f"{verb}: {name} must be {names}, got {value.dtype.name}")
