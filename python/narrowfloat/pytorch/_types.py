# SPDX-License-Identifier: Apache-2.0
"""Types of arguments that several modules take."""

from __future__ import annotations

from collections.abc import Sequence
from types import NotImplementedType
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

if TYPE_CHECKING:
    from narrowfloat.pytorch.quantized_tensor import QuantizedTensor, QuantizedTensorStorage

# An operator of torch.ops, with its overload.
Operator: TypeAlias = torch._ops.OpOverload

# Every form of a device argument that PyTorch accepts.
Device: TypeAlias = "torch.device | str | int | None"

# A process group; None is the default group, or no group.
Group: TypeAlias = "torch.distributed.ProcessGroup | None"

# A quantized tensor, with or without autograd.
Quantized: TypeAlias = "QuantizedTensor | QuantizedTensorStorage"

# Plain values, or a quantized tensor with or without autograd.
TensorLike: TypeAlias = "torch.Tensor | QuantizedTensorStorage"

# The result of a row of the operator table; after NotImplemented the operator runs on plain values.
RowResult: TypeAlias = torch.Tensor | NotImplementedType
RowResults: TypeAlias = Sequence[torch.Tensor] | NotImplementedType


if not TYPE_CHECKING:
    Context = torch.autograd.function.FunctionCtx
else:

    class Context(torch.autograd.function.FunctionCtx):
        """The context of an autograd function, which stores its fields there."""

        needs_input_grad: tuple[bool, ...]
        saved_tensors: tuple[torch.Tensor, ...]

        def save_for_backward(self, *tensors: torch.Tensor | None) -> None: ...
        def __getattr__(self, name: str) -> Any: ...  # noqa: ANN401  # a field of any type
        def __setattr__(self, name: str, value: Any) -> None: ...  # noqa: ANN401  # likewise
