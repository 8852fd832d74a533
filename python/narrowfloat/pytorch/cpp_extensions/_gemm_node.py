# SPDX-License-Identifier: Apache-2.0
"""Represents general_gemm() in torch.compile as one node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from narrowfloat.pytorch._product_mode import get_product_mode, mode_of_this_thread
from narrowfloat.pytorch._tracing import QuantizeNode, has_node, node_of
from narrowfloat.pytorch._values import ValueSemantics, node_of_copy
from narrowfloat.pytorch.quantized_tensor import Quantizer

# The results of general_gemm().
GemmResult = tuple[Any, torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]


class GemmNode(ValueSemantics):
    """A call of `function` with the given keyword arguments, in a mode of products.

    A constant of graphs.
    """

    VALUE_FIELDS = ("function", "options", "mode")

    def __init__(
        self, function: Callable[..., Any], options: tuple[tuple[str, Any], ...], mode: str
    ) -> None:
        self.function = function
        self.options = options
        self.mode = mode

    def __call__(
        self, names: tuple[str, ...], tensors: tuple[Any, ...], state: tuple[torch.Tensor, ...]
    ) -> GemmResult:
        """Returns the results for tensors with these names, and the state of the quantizer."""
        if (node := node_of_copy(self, tensors[0], names, tensors, state)) is not None:
            return node
        named = dict(zip(names, tensors, strict=True))
        options = dict(self.options)
        node = options["quantization_params"]
        if isinstance(node, QuantizeNode):
            options["quantization_params"] = node.build(state)
        with mode_of_this_thread(self.mode):
            return self.function(**named, **options)

    def __fx_repr__(self) -> tuple[str, dict[str, Any]]:
        name = f"gemm_node_{abs(hash(self))}"
        return name, {name: self}


GemmNode.register_value_class()


def gemm_has_node(tensors: dict[str, Any], quantizer: Quantizer | None) -> bool:
    """Returns whether a graph can hold a product of these operands as one node."""
    plain = all(t is None or isinstance(t, torch.Tensor) for t in tensors.values())
    return plain and (quantizer is None or has_node(quantizer))


def multiply_as_node(
    function: Callable[..., Any],
    tensors: dict[str, Any],
    quantizer: Quantizer | None,
    options: dict[str, Any],
) -> GemmResult:
    """Calls `function` as one node of the graph. The tracer traces into this function."""
    node, state = None, ()
    if quantizer is not None:
        node = node_of(quantizer)
        state = tuple([getattr(quantizer, name) for name in quantizer.STATE_FIELDS])
    items = (*options.items(), ("quantization_params", node))
    given = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    return GemmNode(function, items, get_product_mode())(tuple(given), tuple(given.values()), state)
