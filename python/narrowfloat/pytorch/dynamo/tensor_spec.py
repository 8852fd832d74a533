# SPDX-License-Identifier: Apache-2.0
"""A description of a tensor without its data, which lists and makes the inner tensors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from narrowfloat.pytorch._types import TensorLike
from narrowfloat.pytorch.quantized_tensor import QuantizedTensorStorage, Quantizer


class TensorSpec:
    """Shape, nominal type, and quantizer of a tensor; None for a plain tensor.

    The quantizer is copied: changes of usages affect only this object.
    """

    def __init__(
        self,
        shape: Iterable[int],
        dtype: torch.dtype,
        quantizer: Quantizer | None = None,
        requires_grad: bool = False,
        device: torch.device | str | None = None,
    ) -> None:
        self.shape = torch.Size(shape)
        self.dtype = dtype
        # A tracer does not trace a copy of a constant, and the original cannot change during
        # tracing.
        if quantizer is not None and not torch.compiler.is_dynamo_compiling():
            quantizer = quantizer.copy()
        self.quantizer = quantizer
        self.requires_grad = requires_grad
        self.device = torch.get_default_device() if device is None else torch.device(device)

    def update_usage(
        self, rowwise_usage: bool | None = None, columnwise_usage: bool | None = None
    ) -> None:
        """Sets the given usages on a copy of the quantizer.

        Errors: ValueError for a plain tensor.
        """
        if self.quantizer is None:
            raise ValueError("update_usage: a plain tensor has no usages")
        self.quantizer = self.quantizer.copy()
        self.quantizer.set_usage(rowwise=rowwise_usage, columnwise=columnwise_usage)

    @property
    def is_quantized(self) -> bool:
        return self.quantizer is not None

    def inner_names(self) -> tuple[str, ...]:
        """Returns the names of the inner tensors in flattening order; "data" for a plain tensor."""
        if self.quantizer is None:
            return ("data",)
        names = tuple(self.quantizer.inner_tensor_specs(self.shape))
        declared = tuple(name for name, _ in self.quantizer.STORAGE._INNER_TENSORS if name in names)
        if names != declared:
            raise RuntimeError(
                f"inner_tensor_specs: {names} do not follow the order of flattening, {declared}"
            )
        return names

    def create_metadata(self) -> dict[str, Any] | None:
        """Returns the context that __tensor_flatten__ returns beside the inner tensors."""
        if self.quantizer is None:
            return None
        return self.quantizer.create_metadata(self.shape, self.dtype, self.requires_grad)

    def create_inner_tensors(self) -> list[torch.Tensor]:
        """Returns new uninitialised inner tensors, or the one plain tensor."""
        if self.quantizer is None:
            return [torch.empty(self.shape, dtype=self.dtype, device=self.device)]
        tensors = self.quantizer.alloc_tensors(self.shape, device=self.device)
        return [tensors[name] for name in self.inner_names()]

    def assemble(self, inner_tensors: Sequence[torch.Tensor]) -> TensorLike:
        """Returns the tensor over these inner tensors."""
        if self.quantizer is None:
            (tensor,) = inner_tensors
            return tensor.requires_grad_(self.requires_grad)
        tensors = dict(zip(self.inner_names(), inner_tensors, strict=True))
        return self.quantizer._assemble(
            self.shape, self.dtype, tensors, self.device, self.requires_grad
        )

    def create_tensor(self) -> TensorLike:
        """Returns a new uninitialised tensor."""
        return self.assemble(self.create_inner_tensors())


def to_tensor_spec(tensor: torch.Tensor | QuantizedTensorStorage) -> TensorSpec:
    """Returns the spec of this tensor. Raises ValueError if a quantized one has no quantizer."""
    is_tensor = isinstance(tensor, torch.Tensor)
    requires_grad = is_tensor and tensor.requires_grad
    if not isinstance(tensor, QuantizedTensorStorage):
        return TensorSpec(tensor.shape, tensor.dtype, None, requires_grad, tensor.device)
    quantizer = tensor._get_quantizer().copy()
    quantizer.internal = not is_tensor
    usages = tensor.get_usages()
    quantizer.set_usage(rowwise=usages["rowwise"], columnwise=usages["columnwise"])
    return TensorSpec(tensor.shape, tensor._dtype, quantizer, requires_grad, tensor.device)
