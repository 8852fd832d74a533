# SPDX-License-Identifier: Apache-2.0
"""The base classes of the reference tensors and quantizers: buffers by name, no kernels."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, ClassVar, Generic, Self, TypeVar

import torch

from narrowfloat.pytorch._types import Quantized
from narrowfloat.pytorch.custom_recipes.reference_utils import HIGH_PRECISION
from narrowfloat.pytorch.quantized_tensor import QuantizedTensorStorage, Quantizer

Buffer = Any  # a tensor, or None if the direction is absent


class ReferenceTensor(QuantizedTensorStorage):
    """A tensor with `data` and `scale` of the rows, and `data_t` and `scale_t` of the columns."""

    # The quantizer's qgemm computes products.
    custom: ClassVar[bool] = True
    data: Buffer
    data_t: Buffer
    scale: Buffer
    scale_t: Buffer
    dtype: Any  # the nominal torch.dtype
    quant_dtype: Any  # of the codes
    original_shape: Any  # None for a transposed tensor
    SAVED: ClassVar[tuple[str, ...]] = ("data", "data_t", "scale", "scale_t")
    # Amaxes, which stay when the others are saved, as in TransformerEngine.
    KEPT: ClassVar[tuple[str, ...]] = ()

    @property
    def _data(self) -> torch.Tensor | None:
        return self.data

    @_data.setter
    def _data(self, data: torch.Tensor | None) -> None:
        self.data = data

    @property
    def _scale_inv(self) -> torch.Tensor | None:
        return self.scale

    @_scale_inv.setter
    def _scale_inv(self, scale: torch.Tensor | None) -> None:
        self.scale = scale

    def prepare_for_saving(self) -> tuple[list[torch.Tensor | None], ReferenceTensor]:
        """Removes the buffers from this object; returns them and this object."""
        buffers = [getattr(self, name) for name in self.SAVED]
        for name in self.SAVED:
            setattr(self, name, None)
        return buffers, self

    def restore_from_saved(
        self, tensors: Sequence[torch.Tensor | None]
    ) -> list[torch.Tensor | None]:
        """Restores the buffers from the first of `tensors`; returns the remaining ones."""
        for name, tensor in zip(self.SAVED, tensors, strict=False):
            setattr(self, name, tensor)
        return list(tensors[len(self.SAVED) :])

    def get_usages(self) -> dict[str, bool]:
        """Returns which directions are present."""
        return {"rowwise": self.data is not None, "columnwise": self.data_t is not None}

    def get_data_tensors(self) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Returns the codes of both directions."""
        return self.data, self.data_t

    def clear(self) -> None:
        """Releases all buffers."""
        for name in (*self.SAVED, *self.KEPT):
            setattr(self, name, None)

    def size(self, dim: int | None = None) -> torch.Size | int:
        """Returns the shape of the tensor before it was quantized."""
        shape = torch.Size(self.original_shape)
        return shape if dim is None else shape[dim]

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(dtype={self.dtype}, quant_dtype={self.quant_dtype}, "
            f"original_shape={self.original_shape}, usages={self.get_usages()})"
        )


TensorT = TypeVar("TensorT", bound=ReferenceTensor)


class ReferenceQuantizer(Quantizer[TensorT], Generic[TensorT]):
    """A quantizer that makes reference tensors, without autograd (`internal`).

    A subclass computes codes and scales in _buffers().
    """

    custom: ClassVar[bool] = True
    TENSOR: ClassVar[type[Any]]  # the class of the tensors that it makes
    dtype: Any  # of the codes
    # A saved tensor has no process group.
    with_amax_reduction = False

    def __init__(self, *, rowwise: bool, columnwise: bool) -> None:
        super().__init__(rowwise=rowwise, columnwise=columnwise)
        self.internal = True

    def copy(self) -> Self:
        """Returns a quantizer with the same settings."""
        return copy.copy(self)

    def _buffers(self, x: torch.Tensor) -> dict[str, torch.Tensor | None]:
        """Returns the buffers of quantized x, by the names of the tensor's fields.

        Shapes: x is a result of as_matrix().
        """
        raise NotImplementedError(f"{type(self).__name__}: _buffers() is missing")

    def quantize(
        self, tensor: torch.Tensor, *, out: Quantized | None = None, **_: object
    ) -> TensorT:
        """Returns `tensor` quantized, in `out` or in a new tensor. Errors: as quantize_impl()."""
        made: Any = (
            self.quantize_impl(tensor) if out is None else self.update_quantized(tensor, out)
        )
        return made

    def quantize_impl(self, tensor: torch.Tensor) -> TensorT:
        """Returns a new tensor of codes. Shapes: any; above two dimensions, flattened to M x K.

        Errors: AssertionError unless `tensor` is float32, float16 or bfloat16.
        """
        made: Any = self.update_quantized(tensor, self.TENSOR())
        return made

    def update_quantized(
        self,
        src: torch.Tensor,
        dst: Quantized,
        *,
        noop_flag: torch.Tensor | None = None,
    ) -> Quantized:
        """Quantizes `src` into `dst` and returns `dst`; does nothing if noop_flag is not 0."""
        if noop_flag is not None and noop_flag.item() != 0:
            return dst
        for name, buffer in self._buffers(self.as_matrix(src)).items():
            setattr(dst, name, buffer)
        dst.dtype, dst.device, dst.quant_dtype = src.dtype, src.device, self.dtype
        dst.original_shape, dst._quantizer = tuple(src.shape), self
        return dst

    def dequantize(self, tensor: TensorT, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Returns the plain values of `tensor`; `dtype` defaults to its nominal type."""
        return tensor.dequantize(dtype)

    def _get_compatible_recipe(self) -> None:
        """Returns None: no recipe of the library makes this quantizer."""

    @staticmethod
    def as_matrix(tensor: torch.Tensor) -> torch.Tensor:
        """Returns the tensor with leading dimensions flattened.

        Errors: AssertionError unless it is float32, float16 or bfloat16.
        """
        assert tensor.dtype in HIGH_PRECISION, (
            f"quantize: a reference takes float32, float16 and bfloat16, got {tensor.dtype}"
        )
        tensor = tensor.detach()
        return tensor.reshape(-1, tensor.shape[-1]) if tensor.ndim > 2 else tensor
