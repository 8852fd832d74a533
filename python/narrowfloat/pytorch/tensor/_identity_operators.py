# SPDX-License-Identifier: Apache-2.0
"""Rows of the operator table for tensors in high precision, which return views of the buffer."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from narrowfloat.pytorch._dispatch import implements
from narrowfloat.pytorch.quantized_tensor import QuantizedTensor
from narrowfloat.pytorch.tensor._operators import aten
from narrowfloat.pytorch.tensor.identity_tensor import IdentityTensor


def over(
    tensor: IdentityTensor, data: torch.Tensor, dtype: torch.dtype | None = None
) -> IdentityTensor:
    """Returns a tensor of the same class over other values."""
    return tensor._rebuild(
        data.shape, hp_data=data, fake_dtype=tensor.dtype if dtype is None else dtype
    )


@implements(aten.view.default, IdentityTensor)
@implements(aten._unsafe_view.default, IdentityTensor)
def _view(tensor: IdentityTensor, size: list[int]) -> IdentityTensor:
    return over(tensor, tensor._hp_data.view(size))


@implements(aten.view.dtype, IdentityTensor)
def _view_dtype(tensor: IdentityTensor, dtype: torch.dtype) -> None:
    raise TypeError("view: an IdentityTensor cannot be seen as another type")


@implements(aten.slice.Tensor, IdentityTensor)
def _slice(
    tensor: IdentityTensor,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> IdentityTensor:
    return over(tensor, aten.slice.Tensor(tensor._hp_data, dim, start, end, step))


@implements(aten.split.Tensor, IdentityTensor)
def _split(tensor: IdentityTensor, split_size: int, dim: int = 0) -> list[IdentityTensor]:
    return [over(tensor, piece) for piece in tensor._hp_data.split(split_size, dim)]


@implements(aten.split_with_sizes.default, IdentityTensor)
def _split_with_sizes(
    tensor: IdentityTensor, split_sizes: list[int], dim: int = 0
) -> list[IdentityTensor]:
    return [
        over(tensor, p) for p in aten.split_with_sizes.default(tensor._hp_data, split_sizes, dim)
    ]


@implements(aten.select.int, IdentityTensor)
def _select(tensor: IdentityTensor, dim: int, index: int) -> IdentityTensor:
    return over(tensor, tensor._hp_data.select(dim, index))


@implements(aten.unbind.int, IdentityTensor)
def _unbind(tensor: IdentityTensor, dim: int = 0) -> list[IdentityTensor]:
    return [over(tensor, piece) for piece in tensor._hp_data.unbind(dim)]


@implements(aten.unsqueeze.default, IdentityTensor)
def _unsqueeze(tensor: IdentityTensor, dim: int) -> IdentityTensor:
    return over(tensor, tensor._hp_data.unsqueeze(dim))


@implements(aten.as_strided.default, IdentityTensor)
def _as_strided(
    tensor: IdentityTensor, size: list[int], stride: list[int], storage_offset: int | None = None
) -> IdentityTensor:
    data = tensor._hp_data
    offset = data.storage_offset() if storage_offset is None else storage_offset
    return over(tensor, data.as_strided(size, stride, offset))


def _new(
    make: Callable[..., torch.Tensor],
    tensor: IdentityTensor,
    size: list[int],
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
) -> IdentityTensor:
    held = tensor._hp_data.dtype if dtype is None else dtype
    target = tensor.device if device is None else device
    return over(tensor, make(size, dtype=held, device=target, pin_memory=bool(pin_memory)), dtype)


implements(aten.new_zeros.default, IdentityTensor)(functools.partial(_new, torch.zeros))
implements(aten.new_empty.default, IdentityTensor)(functools.partial(_new, torch.empty))


@implements(aten.empty_like.default, IdentityTensor)
def _empty_like(tensor: IdentityTensor, **kwargs: Any) -> IdentityTensor:
    held = kwargs.get("dtype") or tensor._hp_data.dtype
    return over(tensor, torch.empty_like(tensor._hp_data, **kwargs), kwargs.get("dtype") and held)


@implements(aten.copy_.default, IdentityTensor)
def _copy(dst: torch.Tensor, src: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    if not isinstance(dst, QuantizedTensor):
        assert isinstance(src, IdentityTensor)
        return dst.copy_(src._hp_data, non_blocking)
    values = src._plain() if isinstance(src, QuantizedTensor) else src
    dst._hp_data.copy_(values, non_blocking)
    return dst
