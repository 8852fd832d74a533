# SPDX-License-Identifier: Apache-2.0
"""Represents a quantizer in torch.compile: guarded fields, and one node that quantizes.

The tracer reads every field, so that a compiled function is valid only while the fields are the
same, and the node holds a copy. A quantizer with value semantics changes outside of graphs only.
Tensors of a quantizer, such as the scale of delayed scaling, are arguments of the node.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from narrowfloat.pytorch._autograd import _QuantizeFunc
from narrowfloat.pytorch._types import Quantized
from narrowfloat.pytorch._values import (
    ValueSemantics,
    constant_of_graphs,
    guard_fields,
    node_of_copy,
    rebuild_value,
)

if TYPE_CHECKING:
    from narrowfloat.pytorch.quantized_tensor import Quantizer

# The type of tensors that a quantizer makes.
Made = TypeVar("Made", bound="Quantized")

# AOTAutograd's function that gets the class of gradients from outputs.
_TANGENT_FUNCTION = "coerce_tangent_and_suggest_memory_format"

# Fields that hold quantizers.
CHILDREN = ("rowwise_quantizer", "columnwise_quantizer")


class QuantizeNode(ValueSemantics):
    """A call of a quantizer of class `cls` with the given fields; a constant of graphs."""

    VALUE_FIELDS = ("cls", "fields")

    def __init__(self, cls: type[Quantizer], fields: tuple[tuple[str, Any], ...]) -> None:
        self.cls = cls
        self.fields = fields

    def __call__(
        self, tensor: torch.Tensor, out: Quantized | None, state: tuple[torch.Tensor, ...]
    ) -> torch.Tensor:
        """Returns `tensor` quantized, in `out` if it is given."""
        if (node := node_of_copy(self, tensor, tensor, out, state)) is not None:
            return node
        quantizer = self.build(state)
        if out is not None:
            quantizer.update_quantized(tensor, out)
            return tensor.detach()
        made: Any = quantize_as_node(quantizer, tensor)
        if state:
            made._quantizer = None  # the graph's tensors must not be used outside of it
        return made

    def build(self, state: tuple[torch.Tensor, ...] = ()) -> Quantizer:
        """Returns a quantizer with these fields and this state; children are nodes too."""
        fields = [(n, v.build() if isinstance(v, QuantizeNode) else v) for n, v in self.fields]
        return rebuild_value(self.cls, (*fields, *zip(self.cls.STATE_FIELDS, state, strict=True)))

    def __fx_repr__(self) -> tuple[str, dict[str, Any]]:
        name = f"quantize_node_{abs(hash(self))}"
        return name, {name: self}


QuantizeNode.register_value_class()


def is_asked_for_tangent() -> bool:
    """Returns whether AOTAutograd calls the caller, to find the class of an output's gradient.

    It expects gradients of the output's class, and a class cannot declare another one. Only the
    frame distinguishes its call from a program's. Gradients of quantized tensors are plain.
    """
    return called_method_of(_TANGENT_FUNCTION) is not None


def called_method_of(function: str) -> str | None:
    """Returns the module of the caller of the running method if its name is `function`, else None.

    Requires: the running method calls the caller of this function directly.
    """
    if torch.compiler.is_dynamo_compiling():
        return None
    caller = sys._getframe(2).f_back  # None if native code calls the method
    if caller is None or caller.f_code.co_name != function:
        return None
    return str(caller.f_globals.get("__name__"))


def quantize_as_node(quantizer: Quantizer[Made], tensor: torch.Tensor) -> Made:
    """Quantizes within a node, whose result must be a tensor.

    Returns a tensor of the family without a gradient instead of a bare storage.
    """
    if not quantizer.internal and torch.is_grad_enabled():
        return _QuantizeFunc.apply(tensor, quantizer.quantize_impl)
    quantizer = quantizer.copy()
    quantizer.internal = False
    return quantizer.quantize_impl(tensor.detach())


def refuse_jit_trace() -> None:
    """Raises NotImplementedError within torch.jit.trace, which records only PyTorch's operators.

    Its program would have the codes of the example as constants.
    """
    if torch.jit.is_tracing():
        raise NotImplementedError(
            "quantize: torch.jit.trace is not supported, because its program would keep the codes "
            "of the example input; use torch.export"
        )


def has_node(quantizer: Quantizer) -> bool:
    """Returns whether a graph can hold a call of the quantizer as one node."""
    if type(quantizer) not in ValueSemantics._node_classes:
        return False
    if getattr(quantizer, "with_amax_reduction", False):  # all ranks must call it
        return False
    children = [getattr(quantizer, name) for name in CHILDREN if hasattr(quantizer, name)]
    return all(has_node(child) and not child.STATE_FIELDS for child in children)


def node_of(quantizer: Quantizer) -> QuantizeNode:
    """Returns the node of a quantizer. Requires: has_node(). The tracer reads every field here."""
    if torch.compiler.is_dynamo_compiling() and quantizer._is_value():
        return QuantizeNode(type(quantizer), _guarded_fields(quantizer))
    fields = []
    for name in quantizer.VALUE_FIELDS:
        value = getattr(quantizer, name)
        fields.append((name, node_of(value) if name in CHILDREN else value))
    return QuantizeNode(type(quantizer), tuple(fields))


@constant_of_graphs
def _guarded_fields(quantizer: Quantizer) -> tuple[tuple[str, Any], ...]:
    """Returns the fields of a quantizer with value semantics as constants, and guards them.

    The tracer converts floats that it reads itself to symbols, which a node cannot hold.
    """
    guard_fields(quantizer)
    return quantizer._fields()


def quantize_in_graph(
    quantizer: Quantizer[Made], tensor: torch.Tensor, out: Quantized | None
) -> Made:
    """Quantizes with one node of the graph. The tracer traces into this function."""
    node = node_of(quantizer)
    state = tuple([getattr(quantizer, name) for name in quantizer.STATE_FIELDS])
    made: Any = node(tensor, out, state)
    if out is not None:
        filled: Any = out
        return filled
    if state:
        made._quantizer = quantizer.copy()
    return made
