# SPDX-License-Identifier: Apache-2.0
"""A tensor in the two forms that its gemms read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from narrowfloat.pytorch._types import TensorLike
from narrowfloat.pytorch.quantized_tensor import (
    QuantizedTensorStorage,
    prepare_for_saving,
    restore_from_saved,
)

if TYPE_CHECKING:
    from narrowfloat.debug.pytorch.debug_quantization import DebugQuantizer

SIDES = ("rowwise", "columnwise")


class DebugQuantizedTensor(QuantizedTensorStorage):
    """An operand made by a DebugQuantizer, with one form for each of the two gemms that read it.

    rowwise_gemm_tensor, columnwise_gemm_tensor: plain or quantized tensors, often the same object;
    None for a form that was dropped. quantizer: the DebugQuantizer.
    """

    def __init__(
        self,
        rowwise_gemm_tensor: TensorLike | None,
        columnwise_gemm_tensor: TensorLike | None,
        quantizer: DebugQuantizer,
        layer_name: str | None = None,
        tensor_name: str | None = None,
    ) -> None:
        self.rowwise_gemm_tensor = rowwise_gemm_tensor
        self.columnwise_gemm_tensor = columnwise_gemm_tensor
        self.quantizer = quantizer
        self._layer_name = layer_name
        self._tensor_name = tensor_name
        self._saved: list[Any] = []

    @property
    def _quantizer(self) -> DebugQuantizer:
        return self.quantizer

    @property
    def _form(self) -> Any:  # noqa: ANN401  # plain or quantized, and None in no live tensor
        """The rowwise form, or the columnwise form if the rowwise one was dropped."""
        if self.rowwise_gemm_tensor is not None:
            return self.rowwise_gemm_tensor
        return self.columnwise_gemm_tensor

    @property
    def dtype(self) -> torch.dtype:
        """The type of the values."""
        dtype = getattr(self._form, "dtype", None)
        return self._form._dtype if dtype is None else dtype

    _dtype = dtype

    @property
    def device(self) -> torch.device:
        """The device of the forms."""
        return self._form.device

    def size(self, *args: int) -> torch.Size | int:
        """Returns the size of the tensor, as torch.Tensor.size() does."""
        return self._form.size(*args)

    def get_tensor(self, transpose: bool) -> TensorLike | None:
        """Returns the form that a gemm reads: the columnwise one if `transpose`."""
        return self.columnwise_gemm_tensor if transpose else self.rowwise_gemm_tensor

    def dequantize(self, *, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Returns the values of the rowwise form, in `dtype` or the nominal type."""
        values = self._form
        if isinstance(values, QuantizedTensorStorage):
            values = values.dequantize()
        return values.to(self.dtype if dtype is None else dtype)

    def quantize_(
        self, tensor: TensorLike, *, noop_flag: torch.Tensor | None = None
    ) -> DebugQuantizedTensor:
        """Fills both forms again by the plans of the quantizer that made them."""
        plain = tensor.dequantize() if isinstance(tensor, QuantizedTensorStorage) else tensor
        self.quantizer.update_quantized(plain, self, noop_flag=noop_flag)
        return self

    def is_shared(self) -> bool:
        """Returns whether both gemms use the same object."""
        return self.rowwise_gemm_tensor is self.columnwise_gemm_tensor

    def get_usages(self) -> dict[str, bool]:
        """Returns which forms are present."""
        return {side: getattr(self, f"{side}_gemm_tensor") is not None for side in SIDES}

    def update_usage(
        self, rowwise_usage: bool | None = None, columnwise_usage: bool | None = None
    ) -> None:
        """Keeps (None), drops (False) or requires (True) each form.

        A quantized object that is both forms is updated once, and drops its own buffers.
        Errors: RuntimeError if a dropped form is required; then no form is dropped.
        """
        shared = self.rowwise_gemm_tensor if self.is_shared() else None
        if isinstance(shared, QuantizedTensorStorage):
            shared.update_usage(rowwise_usage, columnwise_usage)
            return
        wanted = dict(zip(SIDES, (rowwise_usage, columnwise_usage), strict=True))
        for side, usage in wanted.items():
            if usage and getattr(self, f"{side}_gemm_tensor") is None:
                other = next(name for name in SIDES if name != side)
                raise RuntimeError(
                    f"Cannot recreate {side} tensor from {other} tensor in debug mode."
                )
        for side, usage in wanted.items():
            if usage is False:
                setattr(self, f"{side}_gemm_tensor", None)

    def prepare_for_saving(
        self,
    ) -> tuple[list[torch.Tensor | None], DebugQuantizedTensor]:
        """Returns the tensors to save; a shared form is saved once.

        The forms also stay here: a cached weight is saved by the forward pass of each microbatch.
        """
        forms = [self.rowwise_gemm_tensor]
        if not self.is_shared():
            forms.append(self.columnwise_gemm_tensor)
        tensors, self._saved = prepare_for_saving(*forms)
        return tensors, self

    def restore_from_saved(
        self, tensors: Sequence[torch.Tensor | None]
    ) -> Sequence[torch.Tensor | None]:
        """Restores the forms from the first tensors, and returns the remaining tensors."""
        forms, left = restore_from_saved(self._saved, tensors, return_saved_tensors=True)
        self.rowwise_gemm_tensor, self.columnwise_gemm_tensor = forms[0], forms[-1]
        return left
