# SPDX-License-Identifier: Apache-2.0
"""Quantized experts that are one parameter in transformers."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map

from narrowfloat.pytorch._read_only import arguments_of, effect_of_call, read_only
from narrowfloat.pytorch._types import Operator
from narrowfloat.pytorch.quantized_tensor import QuantizedTensor

Parts = Sequence[Sequence[QuantizedTensor]]

_ORIGIN = "an ExpertStack gives"


class ExpertStack(torch.Tensor):
    """A parameter [experts, outputs, inputs] with separately quantized experts.

    Every expert has its own codes, scales and amax; the parts of an expert (its gate and up
    projection) are concatenated along the outputs. Selecting an expert dequantizes only that
    expert; any other operation dequantizes all of them. The stack has no gradients. The stack, its
    experts and its views are read-only; `dequantize()` returns writable values.
    """

    _parts: Parts

    @staticmethod
    def __new__(cls: type[ExpertStack], parts: Parts, dtype: torch.dtype) -> ExpertStack:
        """parts: by expert; all experts have parts of the same shapes."""
        first = parts[0]
        shape = (len(parts), sum(part.shape[0] for part in first), first[0].shape[1])
        stack: ExpertStack = torch.Tensor._make_wrapper_subclass(
            cls, shape, dtype=dtype, device=first[0].device, requires_grad=False
        )
        stack._parts = parts
        return stack

    def expert(self, index: int) -> torch.Tensor:
        """Returns the values of one expert."""
        return torch.cat([part.dequantize(dtype=self.dtype) for part in self._parts[index]])

    def dequantize(self, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Returns the values of all experts."""
        kind = self.dtype if dtype is None else dtype
        return torch.stack(
            [torch.cat([part.dequantize(dtype=kind) for part in expert]) for expert in self._parts]
        )

    def holds(self, other: object) -> bool:
        """Returns whether `other` is a stack of the same expert objects."""
        return isinstance(other, ExpertStack) and other._parts is self._parts

    def __deepcopy__(self, memo: dict[int, Any]) -> ExpertStack:
        copied = memo[id(self)] = ExpertStack(copy.deepcopy(self._parts, memo), self.dtype)
        # Copies all attributes, such as a parameter's mark; memo already contains the parts.
        copied.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return copied

    def __repr__(self) -> str:  # type: ignore[override]  # PyTorch's own has no annotations
        return f"ExpertStack(shape={tuple(self.shape)}, of={type(self._parts[0][0]).__name__})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # PyTorch's own has no annotations
        cls,
        func: Operator,
        types: Sequence[type],
        args: tuple[Any, ...],
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        if func in (torch.ops.aten.detach.default, torch.ops.aten.alias.default):
            return ExpertStack(args[0]._parts, args[0].dtype)
        if func is torch.ops.aten._to_copy.default and _keeps_codes(args[0], kwargs):
            return ExpertStack(args[0]._parts, kwargs.get("dtype") or args[0].dtype)
        if func is torch.ops.aten.select.int and args[1] in (0, -3):
            return read_only(args[0].expert(args[2]), _ORIGIN)
        effect = effect_of_call(func, args, kwargs)
        written = tree_flatten(arguments_of(effect.written, args, kwargs))[0]
        # The schemas of collectives (c10d) do not mark the arguments that are written.
        if func.namespace == "c10d" or any(isinstance(leaf, ExpertStack) for leaf in written):
            raise RuntimeError(
                f"{func}: an ExpertStack is read-only; write to the values that its dequantize() "
                "returns"
            )

        def values(item: object) -> object:
            return item.dequantize() if isinstance(item, ExpertStack) else item

        result = func(*tree_map(values, args), **tree_map(values, kwargs))
        return read_only(result, _ORIGIN) if effect.aliases else result


def _keeps_codes(stack: ExpertStack, options: dict[str, Any]) -> bool:
    """Returns whether a copy differs from the stack only in its nominal type."""
    device, dtype = options.get("device"), options.get("dtype")
    return (device is None or torch.device(device) == stack.device) and (
        dtype is None or dtype.is_floating_point
    )
