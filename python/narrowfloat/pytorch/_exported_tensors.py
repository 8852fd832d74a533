# SPDX-License-Identifier: Apache-2.0
"""Quantized tensors in the graphs of torch.export, as results of operators over their buffers.

When it traces without Dynamo, torch.export records operators before they reach the class of a
tensor. It accepts a tensor of a subclass only as an argument or the result of an operator. So the
buffers of a parameter are results of `narrowfloat::buffers`, and a tensor that Python code makes of
buffers is the result of `narrowfloat::tensor`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch

from narrowfloat.pytorch._native import mode_of_make_fx
from narrowfloat.pytorch._values import ValueSemantics, rebuild_value
from narrowfloat.pytorch.constants import DType

if TYPE_CHECKING:
    from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode

torch.library.define("narrowfloat::buffers", "(Tensor x) -> Tensor[]")
torch.library.define(
    "narrowfloat::tensor", "(Tensor[] buffers, SymInt[] shape, str structure) -> Tensor"
)

# The classes that a structure may contain, by their full names.
CLASSES: dict[str, type] = {}


def name_buffers(x: object) -> None:
    """Records the buffers of a quantized tensor in torch.export and make_fx; a bare storage has
    none.
    """
    mode = _recording_mode()
    if mode is None and not torch.compiler.is_dynamo_compiling():
        mode = mode_of_make_fx()
    if mode is None or not isinstance(x, torch.Tensor) or not _is_known(mode, x):
        return
    if not all(_is_known(mode, buffer) for buffer in _inner_tensors(x)):
        torch.ops.narrowfloat.buffers(x)


def name_tensor(x: object) -> None:
    """Records a quantized tensor in torch.export, as a tensor over its present buffers.

    Must be called again after buffers were replaced. Does nothing if the buffers are not recorded,
    or if no structure can describe the tensor, for example with a quantizer of a class of the
    program.
    """
    mode = _recording_mode()
    if mode is None or not isinstance(x, torch.Tensor):
        return
    buffers = _inner_tensors(x)
    if not buffers or not all(_is_known(mode, buffer) for buffer in buffers):
        return
    try:
        structure = json.dumps(_encode_tensor(x))
    except TypeError:
        return
    from torch.fx.experimental.proxy_tensor import get_proxy_slot, set_proxy_slot

    made = torch.ops.narrowfloat.tensor(buffers, x.shape, structure)
    set_proxy_slot(x, mode.tracer, get_proxy_slot(made, mode.tracer))


def is_recorded() -> bool:
    """Returns whether torch.export records operators now, with real tensors as constants."""
    return _recording_mode() is not None


def _recording_mode() -> ProxyTorchDispatchMode | None:
    """Returns the mode of torch.export that records operators of any class; None outside of an
    export, under Dynamo, and while the mode runs one of the operators.
    """
    if not torch.compiler.is_exporting() or torch.compiler.is_dynamo_compiling():
        return None
    return torch._ops._get_dispatch_mode_pre_dispatch(torch._C._TorchDispatchModeKey.PROXY)


def _is_known(mode: ProxyTorchDispatchMode, x: torch.Tensor) -> bool:
    from torch.fx.experimental.proxy_tensor import has_proxy_slot

    return has_proxy_slot(x, mode.tracer)


def _inner_tensors(x: Any) -> list[torch.Tensor]:  # noqa: ANN401  # a tensor or a bare storage
    """Returns the plain tensors in the order of flattening, including those of inner tensors."""
    found: list[torch.Tensor] = []
    for name in x.__tensor_flatten__()[0]:
        inner = getattr(x, name)
        found += _inner_tensors(inner) if hasattr(inner, "__tensor_flatten__") else [inner]
    return found


# A structure is JSON of known fields, because the file of a program is untrusted. A value of a type
# that JSON lacks is an object with one entry: its key is the type.


def _encode_tensor(x: Any) -> dict[str, Any]:  # noqa: ANN401  # a tensor or a bare storage
    """Returns the structure of a tensor. Errors: TypeError if it has none."""
    names, context = x.__tensor_flatten__()
    inner = {}
    for name in names:
        tensor = getattr(x, name)
        inner[name] = _encode_tensor(tensor) if hasattr(tensor, "__tensor_flatten__") else None
    if "requires_grad" in context:
        context = {**context, "requires_grad": False}  # gradients end at the codes
    return {"class": _name_of(type(x)), "inner": inner, "context": _encode(context)}


class _Structure:
    """A parsed structure, of a tensor or of a bare storage."""

    def __init__(self, encoded: dict[str, Any]) -> None:
        self.cls = _class_of(encoded["class"])
        self.inner = {n: None if t is None else _Structure(t) for n, t in encoded["inner"].items()}
        self.context = _decode(encoded["context"])

    def build(self, shape: torch.Size, buffers: Iterator[torch.Tensor]) -> Any:  # noqa: ANN401  # as above
        """Returns the tensor over the next of these buffers."""
        inner = {
            name: next(buffers) if child is None else child.build(shape, buffers)
            for name, child in self.inner.items()
        }
        return self.cls.__tensor_unflatten__(inner, self.context, shape, None)


@lru_cache
def _read(structure: str) -> _Structure:
    return _Structure(json.loads(structure))


def _encode(value: Any) -> Any:  # noqa: ANN401  # a field of any type
    """Returns a field as JSON. Errors: TypeError for a type that fields do not have."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, dict):
        # A tensor needs no quantizer here, and a structure cannot store a quantizer's tensors.
        kept = {n: None if getattr(v, "STATE_FIELDS", ()) else v for n, v in value.items()}
        return {"fields": {name: _encode(field) for name, field in kept.items()}}
    if isinstance(value, DType):
        return {"DType": int(value)}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if isinstance(value, type):
        return {"class": _name_of(value)}
    if not isinstance(value, ValueSemantics) or value.STATE_FIELDS:
        raise TypeError(value)
    fields = {name: _encode(getattr(value, name)) for name in value.VALUE_FIELDS}
    return {"value": [_name_of(type(value)), fields]}


def _decode(node: Any) -> Any:  # noqa: ANN401  # a field of any type
    if not isinstance(node, dict):
        return node
    ((kind, body),) = node.items()
    match kind:
        case "fields":
            return {name: _decode(field) for name, field in body.items()}
        case "DType":
            return DType(body)
        case "dtype":
            return _dtype_of(body)
        case "class":
            return _class_of(body)
    name, fields = body
    return rebuild_value(_class_of(name), tuple((n, _decode(v)) for n, v in fields.items()))


def _dtype_of(name: str) -> torch.dtype:
    dtype = getattr(torch, name)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"narrowfloat::tensor: the nominal type must be a dtype, got {name!r}")
    return dtype


def full_name(cls: type) -> str:
    """Returns the name of a class in CLASSES."""
    return f"{cls.__module__}.{cls.__name__}"


def _name_of(cls: type) -> str:
    """Returns the name of a class in CLASSES. Errors: TypeError for another class."""
    name = full_name(cls)
    if CLASSES.get(name) is not cls:
        raise TypeError(name)
    return name


def _class_of(name: str) -> Any:  # noqa: ANN401  # a class of tensors or of quantizers
    if name not in CLASSES:
        raise ValueError(
            f"narrowfloat::tensor: {name!r} must be a class that register_family() has registered "
            "before the program runs"
        )
    return CLASSES[name]


@torch.library.impl("narrowfloat::tensor", "CompositeImplicitAutograd")
def _tensor(buffers: Sequence[torch.Tensor], shape: Sequence[int], structure: str) -> torch.Tensor:
    """Returns the tensor over these buffers."""
    return _read(structure).build(torch.Size(shape), iter(buffers))
