# SPDX-License-Identifier: Apache-2.0
"""Writes the structure of tensors and quantizers to exported programs, and reads it from them.

The file of a program is untrusted. The structure is JSON, and a table lists the legal values of
each field. Importing this module registers the classes with jax.export.
"""

from __future__ import annotations

import functools
import json
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

import jax.export
import jax.numpy as jnp

from narrowfloat.jax._arguments import FLOAT_NAMES
from narrowfloat.jax.quantize import quantizer, tensor
from narrowfloat.jax.quantize.dequantizer import dequantize_grouped, dequantize_tensor
from narrowfloat.jax.quantize.factory import QuantizerSet
from narrowfloat.jax.quantize.scaling_modes import QuantizeLayout, ScalingMode

MAX_BYTES = 65536  # of a structure; the longest fields are a shape and a name


class _Field(NamedTuple):
    """Functions that convert a field's value to JSON and back.

    Errors: KeyError, TypeError or ValueError for an illegal value of the field.
    """

    write: Callable[[Any], Any]
    read: Callable[[Any], Any]


def _one_of(values: Mapping[str, Any]) -> _Field:
    names = {value: name for name, value in values.items()}
    return _Field(names.__getitem__, values.__getitem__)


def _member_of(enum: type[Enum]) -> _Field:
    return _one_of({member.name: member for member in enum})


def _checked(is_legal: Callable[[Any], bool], write: Callable[[Any], Any]) -> _Field:
    def read(value: object) -> object:
        if not is_legal(value):
            raise ValueError
        return value

    return _Field(write, read)


def _integers(values: Sequence[Any]) -> list[int]:
    """Returns the numbers of a shape. Errors: TypeError for symbolic dimensions."""
    return [operator.index(value) for value in values]


def _is_integer(value: object) -> bool:
    return type(value) is int and abs(value) < 2**63


def _read_shape(found: object) -> tuple[int, ...]:
    if not isinstance(found, list) or not all(_is_integer(n) and n >= 0 for n in found):
        raise ValueError
    return tuple(found)


_DTYPES = {
    jnp.dtype(name).name: jnp.dtype(name)
    for name in FLOAT_NAMES
    + tuple({code.name for mode in ScalingMode for code in mode.get_compatible_q_dtypes()})
}
_BOOL = _checked(lambda value: type(value) is bool, bool)
_INTEGER = _checked(_is_integer, operator.index)
_FIELDS = {
    "amax_compute_algo": _member_of(quantizer.AmaxComputeAlgo),
    "checkpoint_name": _checked(
        lambda value: value is None or type(value) is str, lambda value: value
    ),
    "data_layout": _one_of({letters: letters for letters in ("N", "T", "NN", "NT")}),
    "dq_dtype": _one_of(_DTYPES),
    "flatten_axis": _INTEGER,
    "has_rht_applied": _BOOL,
    "is_colwise": _BOOL,
    "margin": _checked(lambda value: type(value) is float and math.isfinite(value), float),
    "n_groups": _INTEGER,
    "original_shape": _Field(_integers, _read_shape),
    "pre_swizzled": _BOOL,
    "q_dtype": _one_of(_DTYPES),
    "q_layout": _member_of(QuantizeLayout),
    "scaling_mode": _member_of(ScalingMode),
    "use_rht": _BOOL,
    # The dequantizing function belongs to the class, in the program that reads.
    "_dq_func": _one_of({"tensor": dequantize_tensor, "groups": dequantize_grouped}),
}


def _write(cls: type, aux: tuple) -> bytes:
    """Returns the structure as JSON.

    Errors: ValueError for a value without a JSON form, such as a caller's dequantizing function.
    """
    found = {}
    for name, value in zip(tensor.structure_of(cls), aux, strict=True):
        try:
            found[name] = _FIELDS[name].write(value)
        except (KeyError, TypeError):
            raise ValueError(
                f"export: {name} of {cls.__name__} must be one of narrowfloat's own values, got "
                f"{value!r}"
            ) from None
    return json.dumps(found).encode()


def _read(cls: type, text: bytes) -> tuple:
    """Returns the structure that _write() wrote. Errors: ValueError for any other bytes."""
    try:
        found = json.loads(text) if len(text) <= MAX_BYTES else None
        names = tensor.structure_of(cls)
        if not isinstance(found, dict) or {*found} != {*names}:
            raise ValueError
        return tuple(_FIELDS[name].read(found[name]) for name in names)
    except (KeyError, TypeError, ValueError, RecursionError):
        raise ValueError(
            f"export: the structure of {cls.__name__} must be as this version writes it, got "
            f"{text[:100]!r}"
        ) from None


for _cls in (
    tensor.NoScaleTensor,
    tensor.ScaledTensor1x,
    tensor.ScaledTensor2x,
    tensor.GroupedScaledTensor1x,
    tensor.GroupedNoScaleTensor,
    quantizer.Quantizer,
    quantizer.CurrentScaleQuantizer,
    quantizer.DelayedScaleQuantizer,
    quantizer.BlockScaleQuantizer,
    quantizer.NVFP4Quantizer,
    quantizer.GroupedQuantizer,
    QuantizerSet,
):
    jax.export.register_pytree_node_serialization(
        _cls,
        serialized_name=f"narrowfloat.jax.{_cls.__name__}",
        serialize_auxdata=functools.partial(_write, _cls),
        deserialize_auxdata=functools.partial(_read, _cls),
    )
