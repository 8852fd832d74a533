# SPDX-License-Identifier: Apache-2.0
"""MXFP8: E8M0 scales of 1x32 blocks along each direction, or of square tiles."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from narrowfloat.common import recipe
from narrowfloat.pytorch._autograd import _IdentityFunc, _ReshapeFunc, _ViewFunc
from narrowfloat.pytorch.constants import DType, DTypeSpelling
from narrowfloat.pytorch.tensor._families import register_family
from narrowfloat.pytorch.tensor._master_weights import Route, check_matrix, quantize_mxfp8
from narrowfloat.pytorch.tensor._scheme_quantizer import (
    SchemeQuantizer,
    block_scale_shape,
    check_whole_blocks,
)
from narrowfloat.pytorch.tensor._scheme_tensor import SchemeTensor
from narrowfloat.pytorch.tensor.storage.mxfp8_tensor_storage import (
    MXFP8TensorStorage,
    _FromMXFP8Func,
    mxfp8_scheme,
)

if TYPE_CHECKING:
    from narrowfloat.pytorch.tensor._master_weights import Piece

__all__ = [
    "MXFP8Quantizer",
    "MXFP8Tensor",
    "_FromMXFP8Func",
    "_IdentityFunc",
    "_ReshapeFunc",
    "_ViewFunc",
]


class MXFP8Quantizer(SchemeQuantizer["MXFP8Tensor"]):
    """MXFP8 in 1x32 blocks along each direction, or in tiles (`with_2d_quantization`).

    Rows and columns must be multiples of the block. Set the attribute `optimize_for_gemm` for
    swizzled scales.

    fp8_dtype: E4M3 or E5M2, in any form that DType.cast() accepts.
    rowwise, columnwise: the directions of new tensors; set_usage() changes them.
    with_2d_quantization: square tiles share a scale, and both directions hold the same codes.
    """

    def __init__(
        self,
        fp8_dtype: DTypeSpelling,
        *,
        rowwise: bool = True,
        columnwise: bool = True,
        with_2d_quantization: bool = False,
    ) -> None:
        super().__init__(rowwise=rowwise, columnwise=columnwise)
        self.dtype = DType.cast(fp8_dtype)
        self.with_2d_quantization = with_2d_quantization

    def _scheme(self) -> str:
        return mxfp8_scheme(self.dtype, self.with_2d_quantization)

    def _options(self) -> tuple[tuple[str, Any], ...]:
        return (("swizzled", True),) if self.optimize_for_gemm else ()

    def _settings(self) -> dict[str, Any]:
        return {
            "fp8_dtype": self.dtype,
            "with_gemm_swizzled_scales": self.optimize_for_gemm,
        }

    def _check_shape(self, shape: tuple[int, ...]) -> None:
        check_whole_blocks("MXFP8Quantizer", self._scheme(), shape)

    get_scale_shape = block_scale_shape

    def get_columnwise_shape(self, rowwise_data_shape: Iterable[int]) -> tuple[int, ...]:
        """Returns `rowwise_data_shape`: columnwise codes are not transposed."""
        return tuple(rowwise_data_shape)

    def create_tensor_from_data(
        self,
        data: torch.Tensor,
        scale_inv: torch.Tensor,
        fake_dtype: torch.dtype,
        fp8_dtype: DType = DType.kFloat8E4M3,
    ) -> MXFP8Tensor:
        """Returns a tensor over existing rowwise codes and scales."""
        return MXFP8Tensor(
            shape=data.shape,
            dtype=fake_dtype,
            rowwise_data=data,
            rowwise_scale_inv=scale_inv,
            columnwise_data=None,
            columnwise_scale_inv=None,
            fp8_dtype=fp8_dtype,
            quantizer=self,
            with_gemm_swizzled_scales=False,
        )

    def is_requantization_safe(self) -> bool:
        return True

    def _get_compatible_recipe(self) -> type:
        return recipe.MXFP8BlockScaling


MXFP8Quantizer.register_value_class("dtype", "with_2d_quantization")


class MXFP8Tensor(MXFP8TensorStorage, SchemeTensor):  # type: ignore[override]  # device: a field in PyTorch's stub
    """A tensor of FP8 codes with E8M0 scales.

    The arguments are those of MXFP8TensorStorage and of QuantizedTensor.
    """

    RESHAPE_DEQUANTIZES = False
    PAYLOAD = ("buffers", "element", "dtype", "shape", "quantizer", "modes")

    def _master_route(self, piece: Piece) -> Route:
        check_matrix(self)
        quantizer = self._quantizer
        options = (quantizer.dtype.name, ("with_2d_quantization", quantizer.with_2d_quantization))
        return Route(quantize_mxfp8, (self.dtype,), options)


def _make_mxfp8_tensor_in_reduce_ex(*arguments: Any) -> MXFP8Tensor:
    """Makes the tensor of a pickle."""
    return MXFP8Tensor._make_in_reduce_ex(*arguments)


register_family(
    MXFP8Tensor,
    MXFP8TensorStorage,
    MXFP8Quantizer,
    default=lambda storage: MXFP8Quantizer(storage._fp8_dtype),
    reconstructor=_make_mxfp8_tensor_in_reduce_ex,
)
