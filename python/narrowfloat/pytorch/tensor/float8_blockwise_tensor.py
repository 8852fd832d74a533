# SPDX-License-Identifier: Apache-2.0
"""FP8 under fp32 scales of runs along each direction, or of square tiles."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from narrowfloat.common import recipe
from narrowfloat.pytorch import _native
from narrowfloat.pytorch._autograd import _IdentityFunc, _ReshapeFunc, _ViewFunc
from narrowfloat.pytorch.constants import DType
from narrowfloat.pytorch.tensor._scheme_quantizer import SchemeQuantizer, scale_shape
from narrowfloat.pytorch.tensor._scheme_tensor import SchemeTensor
from narrowfloat.pytorch.tensor.storage.float8_blockwise_tensor_storage import (
    Float8BlockwiseQTensorStorage,
    _FromFloat8BlockwiseFunc,
    float8_block_scheme,
)
from narrowfloat.pytorch.tensor.storage.float8_tensor_storage import to_columnwise

__all__ = [
    "Float8BlockQuantizer",
    "Float8BlockwiseQTensor",
    "_FromFloat8BlockwiseFunc",
    "_IdentityFunc",
    "_ReshapeFunc",
    "_ViewFunc",
]


class Float8BlockQuantizer(SchemeQuantizer):
    """FP8 with an fp32 scale per block: square tiles (`block_scaling_dim` 2) or runs (1)."""

    STORAGE = Float8BlockwiseQTensorStorage

    def __init__(
        self,
        fp8_dtype: DType,
        *,
        rowwise: bool,
        columnwise: bool,
        amax_epsilon: float = 0.0,
        force_pow_2_scales: bool = True,
        block_scaling_dim: int = 2,
    ) -> None:
        super().__init__(rowwise=rowwise, columnwise=columnwise)
        if block_scaling_dim not in (1, 2):
            raise RuntimeError(
                f"Float8BlockQuantizer: block_scaling_dim is 1 or 2, got {block_scaling_dim}"
            )
        self.dtype = DType.cast(fp8_dtype)
        self.amax_epsilon = amax_epsilon
        self.force_pow_2_scales = force_pow_2_scales
        self.block_scaling_dim = block_scaling_dim
        self.block_len = _native.make_spec(self._scheme(), True, True).block_length

    def _scheme(self) -> str:
        return float8_block_scheme(self.dtype, self.block_scaling_dim == 2)

    def _options(self) -> tuple[tuple[str, Any], ...]:
        return (
            ("amax_epsilon", self.amax_epsilon),
            ("force_pow_2_scales", self.force_pow_2_scales),
        )

    def _settings(self) -> dict[str, Any]:
        return {"fp8_dtype": self.dtype, "is_2D_scaled": self.block_scaling_dim == 2}

    def _check_destination(self, dst: Any, bare: bool = False) -> None:
        super()._check_destination(dst, bare)
        if dst._is_2D_scaled != (self.block_scaling_dim == 2):
            raise ValueError(
                f"Float8BlockQuantizer: block_scaling_dim is {self.block_scaling_dim}, but the "
                f"tensor was made with {2 if dst._is_2D_scaled else 1}"
            )

    def get_scale_shape(self, shape: Iterable[int], columnwise: bool) -> tuple[int, ...]:
        """Shape of a direction's padded scales."""
        return scale_shape(_native.make_spec(self._scheme(), True, True), shape, columnwise)

    def get_columnwise_shape(self, shape: Iterable[int]) -> tuple[int, ...]:
        """The last dimension first."""
        return tuple(to_columnwise(tuple(shape)))

    def is_requantization_safe(self) -> bool:
        return True

    def _get_compatible_recipe(self) -> type:
        return recipe.Float8BlockScaling

    def _rebuild_derived_state(self) -> None:
        self.block_len = _native.make_spec(self._scheme(), True, True).block_length


Float8BlockQuantizer.register_value_class(
    "dtype", "amax_epsilon", "force_pow_2_scales", "block_scaling_dim"
)


class Float8BlockwiseQTensor(Float8BlockwiseQTensorStorage, SchemeTensor):
    """A tensor of FP8 codes under an fp32 scale per block."""

    @property
    def data(self) -> Float8BlockwiseQTensor:
        """This tensor; assigning requantizes in place."""
        return self

    @data.setter
    @torch.no_grad()
    def data(self, tensor: torch.Tensor) -> None:
        if self.shape != tensor.shape:
            raise ValueError(
                f"Float8BlockwiseQTensor.data: size {tuple(self.shape)} cannot become "
                f"{tuple(tensor.shape)}"
            )
        if tensor.layout != self.layout or tuple(tensor.stride()) != tuple(self.stride()):
            raise ValueError("Float8BlockwiseQTensor.data: stride and layout must stay")
        if isinstance(tensor, Float8BlockwiseQTensor):
            self._rebind(tensor)
            return
        assert self._quantizer is not None, (
            "Float8BlockwiseQTensor.data: quantizing a plain tensor needs a quantizer"
        )
        if not self._on(tensor.device) or self.dtype != tensor.dtype:
            self._set_plain_data(tensor)
            return
        self._quantizer.update_quantized(tensor.detach(), self)
        self.requires_grad_(tensor.requires_grad)

    def __reduce_ex__(self, protocol: int) -> tuple[Any, ...]:
        return _make_float8_blockwise_tensor_in_reduce_ex, (
            self.shape,
            self._rowwise_data,
            self._rowwise_scale_inv,
            self._columnwise_data,
            self._columnwise_scale_inv,
            self._fp8_dtype,
            self.dtype,
            self._quantizer,
            self._is_2D_scaled,
            None,
        )

    @classmethod
    def _make_in_reduce_ex(cls, *args: Any) -> Float8BlockwiseQTensor:
        """Payloads of older versions name this."""
        return _make_float8_blockwise_tensor_in_reduce_ex(*args)


Float8BlockQuantizer.TENSOR = Float8BlockwiseQTensor


def _make_float8_blockwise_tensor_in_reduce_ex(
    shape: torch.Size,
    rowwise_data: torch.Tensor | None,
    rowwise_scale_inv: torch.Tensor | None,
    columnwise_data: torch.Tensor | None,
    columnwise_scale_inv: torch.Tensor | None,
    fp8_dtype: DType,
    dtype: torch.dtype,
    quantizer: Any = None,
    is_2D_scaled: bool = True,
    data_format: Any = None,
) -> Float8BlockwiseQTensor:
    """What a pickled Float8BlockwiseQTensor is made of; `data_format` was of older versions."""
    return Float8BlockwiseQTensor(
        shape=shape,
        dtype=dtype,
        rowwise_data=rowwise_data,
        rowwise_scale_inv=rowwise_scale_inv,
        columnwise_data=columnwise_data,
        columnwise_scale_inv=columnwise_scale_inv,
        fp8_dtype=fp8_dtype,
        quantizer=quantizer,
        is_2D_scaled=is_2D_scaled,
    )
