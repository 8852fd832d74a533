# SPDX-License-Identifier: Apache-2.0
"""FP8 with fp32 scales of 1x128 blocks along each direction, or of square tiles."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import torch

from narrowfloat.common import recipe
from narrowfloat.pytorch import _native
from narrowfloat.pytorch._autograd import _IdentityFunc, _ReshapeFunc, _ViewFunc
from narrowfloat.pytorch.constants import DType, DTypeSpelling
from narrowfloat.pytorch.tensor._families import register_family
from narrowfloat.pytorch.tensor._master_weights import TileWeight
from narrowfloat.pytorch.tensor._scheme_quantizer import SchemeQuantizer, block_scale_shape
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


class Float8BlockQuantizer(SchemeQuantizer["Float8BlockwiseQTensor"]):
    """FP8 with an fp32 scale per block: square tiles (`block_scaling_dim` 2) or 1x128 blocks (1).

    fp8_dtype: E4M3 or E5M2, in any form that DType.cast() accepts.
    rowwise, columnwise: the directions of new tensors; set_usage() changes them.
    amax_epsilon: the smallest amax that a scale is computed from.
    force_pow_2_scales: rounds each scale down to a power of two.
    block_scaling_dim: 2 for square tiles, 1 for blocks along rows and columns.

    Errors: RuntimeError for another block_scaling_dim, as in TransformerEngine.
    """

    def __init__(
        self,
        fp8_dtype: DTypeSpelling,
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
                f"Float8BlockQuantizer: block_scaling_dim must be 1 or 2, got {block_scaling_dim}"
            )
        self.dtype = DType.cast(fp8_dtype)
        self.amax_epsilon = amax_epsilon
        self.force_pow_2_scales = force_pow_2_scales
        self.block_scaling_dim = block_scaling_dim
        self._rebuild_derived_state()

    def _scheme(self) -> str:
        return float8_block_scheme(self.dtype, self.block_scaling_dim == 2)

    def _options(self) -> tuple[tuple[str, Any], ...]:
        return (
            ("amax_epsilon", self.amax_epsilon),
            ("force_pow_2_scales", self.force_pow_2_scales),
        )

    def _settings(self) -> dict[str, Any]:
        return {"fp8_dtype": self.dtype, "is_2D_scaled": self.block_scaling_dim == 2}

    def _check_destination(self, dst: object, bare: bool = False) -> None:
        super()._check_destination(dst, bare)
        assert isinstance(dst, Float8BlockwiseQTensorStorage)
        if dst._is_2D_scaled != (self.block_scaling_dim == 2):
            raise ValueError(
                "Float8BlockQuantizer: the output must have block_scaling_dim "
                f"{self.block_scaling_dim}, got {2 if dst._is_2D_scaled else 1}"
            )

    get_scale_shape = block_scale_shape

    def get_columnwise_shape(self, shape: Iterable[int]) -> tuple[int, ...]:
        """Returns the shape of columnwise codes, with the last dimension first."""
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


class Float8BlockwiseQTensor(  # type: ignore[override]  # device: a field in PyTorch's stub
    Float8BlockwiseQTensorStorage, TileWeight, SchemeTensor
):
    """A tensor of FP8 codes with an fp32 scale per block.

    The arguments are those of Float8BlockwiseQTensorStorage and of QuantizedTensor.
    """

    PAYLOAD = (*SchemeTensor.PAYLOAD, "data_format")  # from older versions; now None

    @classmethod
    def _make_in_reduce_ex(cls, *arguments: Any) -> Float8BlockwiseQTensor:
        return super()._make_in_reduce_ex(*arguments[: len(cls._payload_keywords()) - 1])

    def _has_tiles(self) -> bool:
        return self._is_2D_scaled

    @property
    def data(self) -> Float8BlockwiseQTensor:
        """An alias, as in every family; assignment quantizes again in place."""
        return cast(Float8BlockwiseQTensor, super().data)

    @data.setter
    @torch.no_grad()
    def data(self, tensor: torch.Tensor) -> None:
        if self.shape != tensor.shape:
            raise ValueError(
                f"Float8BlockwiseQTensor.data: the shape must stay {tuple(self.shape)}, got "
                f"{tuple(tensor.shape)}"
            )
        if tensor.layout != self.layout or tuple(tensor.stride()) != tuple(self.stride()):
            raise ValueError("Float8BlockwiseQTensor.data: stride and layout must stay")
        if isinstance(tensor, self.FAMILY):
            own: Any = tensor
            self._rebind(own)
            return
        assert self._quantizer is not None, (
            "Float8BlockwiseQTensor.data: quantizing a plain tensor needs a quantizer"
        )
        if not self._on(tensor.device) or self.dtype != tensor.dtype:
            self._set_plain_data(tensor)
            return
        self._quantizer.update_quantized(_native.in_float32_if_double(tensor.detach()), self)


def _make_float8_blockwise_tensor_in_reduce_ex(*arguments: Any) -> Float8BlockwiseQTensor:
    """Makes the tensor of a pickle."""
    return Float8BlockwiseQTensor._make_in_reduce_ex(*arguments)


register_family(
    Float8BlockwiseQTensor,
    Float8BlockwiseQTensorStorage,
    Float8BlockQuantizer,
    reconstructor=_make_float8_blockwise_tensor_in_reduce_ex,
)
