# SPDX-License-Identifier: Apache-2.0
"""Rows of the operator table for the families whose scales belong to blocks."""

from __future__ import annotations

from typing import Any

import torch

from narrowfloat.pytorch import _native
from narrowfloat.pytorch._dispatch import implements
from narrowfloat.pytorch.tensor._operators import (
    _empty_like,
    _new_empty,
    aten,
    is_full_slice,
    is_identity_stride,
)
from narrowfloat.pytorch.tensor.float8_blockwise_tensor import Float8BlockwiseQTensor
from narrowfloat.pytorch.tensor.mxfp8_tensor import MXFP8Tensor
from narrowfloat.pytorch.tensor.nvfp4_tensor import NVFP4Tensor


def _resolved(tensor: torch.Tensor, size: list[int]) -> torch.Size:
    return torch.empty(tensor.shape, device="meta").view(size).shape


@implements(aten.view.default, MXFP8Tensor)
@implements(aten._unsafe_view.default, MXFP8Tensor)
def _view_mxfp8(tensor: MXFP8Tensor, size: list[int]) -> MXFP8Tensor:
    shape = _resolved(tensor, size)
    if len(shape) < 2 or shape[-1] != tensor.shape[-1]:
        raise ValueError(
            f"view: an MXFP8Tensor keeps at least two dimensions and its last one, "
            f"{tuple(tensor.shape)} cannot become {tuple(shape)}"
        )
    return tensor._make_view(shape)


@implements(aten.view.default, Float8BlockwiseQTensor)
@implements(aten._unsafe_view.default, Float8BlockwiseQTensor)
def _view_blockwise(tensor: Float8BlockwiseQTensor, size: list[int]) -> Float8BlockwiseQTensor:
    shape = _resolved(tensor, size)
    if shape != tensor.shape:
        raise NotImplementedError(
            f"view: a Float8BlockwiseQTensor keeps its shape here, {tuple(tensor.shape)} cannot "
            f"become {tuple(shape)}; its view() method can"
        )
    return Float8BlockwiseQTensor.make_like(tensor)


@implements(aten.view.default, NVFP4Tensor)
@implements(aten._unsafe_view.default, NVFP4Tensor)
def _view_nvfp4(tensor: NVFP4Tensor, size: list[int]) -> Any:
    shape = _resolved(tensor, size)
    if tensor._why_no_view(shape) is not None:
        return NotImplemented
    return tensor._make_view(shape)


@implements(aten.slice.Tensor, NVFP4Tensor)
def _slice_nvfp4(
    tensor: NVFP4Tensor,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> NVFP4Tensor:
    if not is_full_slice(tensor, dim, start, end, step):
        raise NotImplementedError("slice: an NVFP4Tensor can be sliced as a whole only")
    return NVFP4Tensor.make_like(tensor)


@implements(aten.as_strided.default, NVFP4Tensor)
def _as_strided_nvfp4(
    tensor: NVFP4Tensor, size: list[int], stride: list[int], storage_offset: int | None = None
) -> NVFP4Tensor:
    if not is_identity_stride(tensor, size, stride, storage_offset):
        raise NotImplementedError("as_strided: an NVFP4Tensor keeps its size, strides and offset")
    return NVFP4Tensor.make_like(tensor)


@implements(aten.empty_like.default, NVFP4Tensor)
def _empty_like_nvfp4(tensor: NVFP4Tensor, **kwargs: Any) -> NVFP4Tensor:
    new = _empty_like(tensor, **kwargs)
    for amax in (new._amax_rowwise, new._amax_columnwise):
        if amax is not None:
            amax.zero_()
    return new


@implements(aten.new_zeros.default, MXFP8Tensor)
def _new_zeros_mxfp8(tensor: MXFP8Tensor, size: list[int], **kwargs: Any) -> Any:
    quantizer = tensor._get_quantizer()
    if len(size) < 2 or not quantizer._spec().has_whole_blocks(tuple(size)):
        return NotImplemented
    new = _new_empty(tensor, size, **kwargs)
    usages = tensor.get_usages()
    new._keep(usages["rowwise"], usages["columnwise"])
    return aten.zero_.default(new)


@implements(aten.split.Tensor, MXFP8Tensor)
def _split_mxfp8(tensor: MXFP8Tensor, split_size: int, dim: int = 0) -> Any:
    length, spec = tensor.shape[0], tensor._spec()
    whole = dim % tensor.dim() == 0 and length % split_size == 0
    if not whole or split_size % spec.block_length != 0 or tensor._with_gemm_swizzled_scales:
        return NotImplemented
    shape = torch.Size((split_size, *tensor.shape[1:]))
    pieces = []
    for index in range(length // split_size):
        fields: dict[str, torch.Tensor | None] = {}
        for direction in ("rowwise", "columnwise"):
            codes = getattr(tensor, f"_{direction}_data")
            scales = getattr(tensor, f"_{direction}_scale_inv")
            if codes is None:
                fields[f"{direction}_data"] = fields[f"{direction}_scale_inv"] = None
                continue
            fields[f"{direction}_data"] = codes.narrow(0, index * split_size, split_size)
            fields[f"{direction}_scale_inv"] = _scales_of_piece(
                scales, spec, shape, direction == "columnwise", index
            )
        pieces.append(tensor._rebuild(shape, **fields))
    return pieces


def _scales_of_piece(
    scales: torch.Tensor,
    spec: Any,
    shape: torch.Size,
    columnwise: bool,
    index: int,
) -> torch.Tensor:
    """Scales of one of equal pieces along the rows: an alias where no padding is needed."""
    rows = spec.scale_content_shape(tuple(shape), columnwise)[0]
    role = "columnwise_scale_inv" if columnwise else "rowwise_scale_inv"
    padded = next(b.shape for b in _native.plan(spec, tuple(shape)) if b.role == role)
    part = scales.narrow(0, index * rows, rows)
    return part if padded[0] == rows else pad_rows(part, padded[0])


def pad_rows(part: torch.Tensor, rows: int) -> torch.Tensor:
    """`part` with zeros below, up to `rows` rows."""
    if part.shape[0] == rows:
        return part
    padded = part.new_zeros((rows, *part.shape[1:]))
    padded[: part.shape[0]].copy_(part)
    return padded
