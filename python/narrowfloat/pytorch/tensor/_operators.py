# SPDX-License-Identifier: Apache-2.0
"""Rows of the operator table for all families of schemes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import torch

from narrowfloat.pytorch import _native
from narrowfloat.pytorch._dispatch import implements
from narrowfloat.pytorch._read_only import reads_transposed
from narrowfloat.pytorch._tracing import CHILDREN
from narrowfloat.pytorch._types import Operator, RowResult
from narrowfloat.pytorch.quantized_tensor import QuantizedTensor
from narrowfloat.pytorch.tensor._scheme_tensor import SchemeTensor, require_directions
from narrowfloat.pytorch.tensor.storage._dropped import take_back
from narrowfloat.pytorch.tensor.storage._stale import require_fresh, take_scales
from narrowfloat.pytorch.tensor.storage._transport import content_of

aten = torch.ops.aten


def contiguous_strides(shape: torch.Size) -> tuple[int, ...]:
    """Returns the strides of a dense tensor of `shape`."""
    return torch.empty(shape, device="meta").stride()


def is_identity_stride(
    tensor: torch.Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    storage_offset: int | None,
) -> bool:
    """Returns whether as_strided() with these arguments returns the whole tensor unchanged."""
    return (
        tuple(size) == tuple(tensor.shape)
        and tuple(stride) == contiguous_strides(tensor.shape)
        and storage_offset in (None, 0)
    )


def empty_piece(tensor: torch.Tensor, dim: int) -> torch.Tensor:
    """Returns a part without values as a plain tensor; writes to it change nothing."""
    size = list(tensor.shape)
    size[dim] = 0
    return torch.empty(size, dtype=tensor.dtype, device=tensor.device)


def normalize_slice(
    length: int, start: int | None, end: int | None, step: int
) -> tuple[int, int, int]:
    """Returns start, stop and step of a slice of `length` items, by torch's rules."""
    return slice(start, end, step).indices(length)


def is_full_slice(
    tensor: torch.Tensor, dim: int, start: int | None, end: int | None, step: int
) -> bool:
    """Returns whether a slice includes all items."""
    length = tensor.shape[dim]
    return normalize_slice(length, start, end, step) == (0, length, 1)


def split_lengths(tensor: torch.Tensor, split: int | list[int], dim: int) -> list[int]:
    """Returns the lengths of the pieces of split(). Errors: as torch."""
    # split() of a meta tensor applies every rule and has every message.
    pieces = torch.empty(tensor.shape, device="meta").split(split, dim)
    return [piece.shape[dim] for piece in pieces]


def row_shard(
    tensor: torch.Tensor, size: list[int], stride: list[int], offset: int
) -> tuple[int, int] | None:
    """Returns the range of rows if the arguments select consecutive whole rows, else None."""
    shape = tensor.shape
    dense = contiguous_strides(shape)
    if len(size) != len(shape) or len(shape) < 2 or tuple(size[1:]) != tuple(shape[1:]):
        return None
    if tuple(stride) != dense or dense[0] == 0 or offset % dense[0] != 0:
        return None
    first = offset // dense[0]
    return (first, first + size[0]) if first + size[0] <= shape[0] else None


def view_or_values(tensor: QuantizedTensor, shape: torch.Size) -> RowResult:
    """Returns a view; NotImplemented if the strides of a part do not allow it.

    torch's reshape() and flatten() call this, because the wrapper of a part is contiguous.
    """
    try:
        return tensor._make_view(shape)
    except NotImplementedError:  # raised by the family
        raise
    except (RuntimeError, ValueError):  # ValueError: raised for tensors in a graph
        return NotImplemented


# Autograd sets the node of alias()'s result, and does not accept a result that requires grad.
@implements(aten.alias.default, QuantizedTensor)
@implements(aten.detach.default, QuantizedTensor)
def _detach(tensor: QuantizedTensor) -> QuantizedTensor:
    return type(tensor).make_like(tensor)


@implements(torch.ops.narrowfloat.buffers.default, QuantizedTensor)
def _buffers(tensor: QuantizedTensor) -> list[torch.Tensor]:
    """Returns the buffers, not copies."""
    return tensor._live_buffers()


@implements(aten.detach_.default, QuantizedTensor)
def _detach_in_place(tensor: QuantizedTensor) -> QuantizedTensor:
    return tensor


@implements(aten.clone.default, SchemeTensor)
def _clone(
    tensor: SchemeTensor, *, memory_format: torch.memory_format | None = None
) -> SchemeTensor:
    is_dense = memory_format is torch.contiguous_format
    kept = torch.contiguous_format if is_dense else torch.preserve_format
    return tensor._rebuild(**tensor._cloned_buffers(kept))


@implements(aten._to_copy.default, SchemeTensor)
def _to_copy(
    tensor: SchemeTensor,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    non_blocking: bool = False,
    memory_format: torch.memory_format | None = None,
) -> RowResult:
    if dtype is not None and dtype != tensor.dtype:
        return NotImplemented
    target = tensor.device if device is None else torch.device(device)

    def moved(buffer: torch.Tensor | None) -> torch.Tensor | None:
        if buffer is None:
            return None
        copied = buffer.to(device=target, non_blocking=non_blocking, copy=True)
        return copied.pin_memory() if pin_memory else copied

    fields: dict[str, Any] = {
        b.keyword: moved(tensor._standalone_buffer(b.name)) for b in tensor.BUFFERS
    }
    if not tensor._on(target):
        fields["quantizer"] = quantizer_on(tensor._quantizer, target)
    return tensor._rebuild(device=target, **fields)


def quantizer_on(quantizer: Any, device: torch.device) -> Any:  # noqa: ANN401  # of any family, or None
    """Returns a quantizer with its state on `device`, where the codes are and read it."""
    state = getattr(quantizer, "STATE_FIELDS", ())
    children = [name for name in CHILDREN if hasattr(quantizer, name)]
    if not state and not children:
        return quantizer
    moved = quantizer.copy()
    for name in state:
        setattr(moved, name, getattr(quantizer, name).to(device))
    for name in children:
        setattr(moved, name, quantizer_on(getattr(quantizer, name), device))
    return moved


def plain_source(dst: QuantizedTensor, src: torch.Tensor) -> torch.Tensor:
    """Returns `src` for copy_(): with the shape of `dst`, in a type that can be quantized."""
    if src.shape != dst.shape:
        src = src.expand(dst.shape)
    if src.dtype in _native.FLOAT_DTYPES:
        return src
    return _native.in_float32_if_double(src.to(dst.dtype))


def of_one_family(dst: object, src: object) -> bool:
    """Returns whether both are quantized tensors with the same fields."""
    family = getattr(dst, "FAMILY", None)
    return family is not None and family is getattr(src, "FAMILY", None)


def copies_raw(dst: SchemeTensor, src: SchemeTensor) -> bool:
    """Returns whether every byte of `dst` can be copied from `src`."""
    if not of_one_family(dst, src):
        return False
    settings = all(
        getattr(dst, setting.name) == getattr(src, setting.name) for setting in dst.SETTINGS
    )
    mine, other = dst.get_usages(), src.get_usages()
    return settings and src.shape == dst.shape and all(other[d] or not mine[d] for d in mine)


@implements(aten.copy_.default, QuantizedTensor)
def _copy(dst: torch.Tensor, src: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    if not isinstance(dst, QuantizedTensor):
        known = dst.dtype if dst.dtype in _native.FLOAT_DTYPES else torch.float32
        quantized: Any = src
        return dst.copy_(quantized._decode(known), non_blocking)
    if isinstance(src, QuantizedTensor):
        src = src._plain()
    dst._requantize(plain_source(dst, src))
    return dst


@implements(aten.copy_.default, SchemeTensor)
def _copy_scheme(dst: torch.Tensor, src: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    if not isinstance(dst, SchemeTensor) or not isinstance(src, SchemeTensor):
        return _copy(dst, src, non_blocking)
    require_directions(dst)
    take_back(dst)
    if not copies_raw(dst, src):
        return _copy(dst, src, non_blocking)
    require_fresh(src)
    take_scales(dst, src)
    for buffer in dst.BUFFERS:
        mine, other = dst.__dict__[buffer.name], src.__dict__[buffer.name]
        if mine is not None and other is not None and buffer.name not in dst._shared_names():
            copy_buffer(mine, other, non_blocking)
    dst._after_write()
    return dst


def copy_buffer(mine: torch.Tensor, other: torch.Tensor, non_blocking: bool = False) -> None:
    """Copies a buffer of an equal tensor; scales of a cut may have no padding on either side."""
    if mine.numel() == other.numel():
        mine.copy_(other.view(mine.shape), non_blocking)
        return
    content = torch.Size(map(min, mine.shape, other.shape))
    content_of(mine, content).copy_(content_of(other, content), non_blocking)


@implements(aten.zero_.default, SchemeTensor)
def _zero(tensor: SchemeTensor) -> SchemeTensor:
    zero_buffers(tensor)
    return tensor


def zero_buffers(tensor: SchemeTensor) -> None:
    """Zeros the codes and every scale, except fields that a part shares with the whole tensor."""
    require_directions(tensor)
    take_back(tensor)
    shared = tensor._shared_names() if tensor._cut is not None else ()
    for buffer in tensor.BUFFERS:
        values = tensor.__dict__[buffer.name]
        if values is not None and buffer.name not in shared:
            values.zero_()
    tensor._after_write()


def empty_buffers(
    tensor: SchemeTensor, device: torch.device | None, pin_memory: bool | None
) -> dict[str, torch.Tensor | None]:
    """Returns constructor arguments with uninitialised buffers like those of `tensor`."""
    return {
        buffer.keyword: None
        if old is None
        else torch.empty(old.shape, dtype=old.dtype, device=device, pin_memory=bool(pin_memory))
        for buffer in tensor.BUFFERS
        for old in (tensor._standalone_buffer(buffer.name),)
    }


@implements(aten.empty_like.default, SchemeTensor)
def _empty_like(
    tensor: SchemeTensor,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    memory_format: torch.memory_format | None = None,
) -> SchemeTensor:
    target = tensor.device if device is None else torch.device(device)
    fields: dict[str, Any] = empty_buffers(tensor, target, pin_memory)
    if dtype is not None:
        fields["fake_dtype"] = dtype
    return tensor._rebuild(device=target, **fields)


def refuse_without_quantizer(tensor: QuantizedTensor) -> NoReturn:
    """Raises RuntimeError for a tensor without a quantizer to make others like it."""
    raise RuntimeError(
        f"new_empty: {type(tensor).__name__} has no quantizer to build another tensor with"
    )


@implements(aten.new_empty.default, SchemeTensor)
def _new_empty(
    tensor: SchemeTensor,
    size: list[int],
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
) -> QuantizedTensor:
    if tensor._quantizer is None and not tensor.HAS_DEFAULT_QUANTIZER:
        refuse_without_quantizer(tensor)
    quantizer: Any = tensor._get_quantizer().copy()
    quantizer.internal = False
    return quantizer.make_empty(
        size,
        dtype=tensor.dtype if dtype is None else dtype,
        device=tensor.device if device is None else device,
        pin_memory=bool(pin_memory),
    )


@implements(aten.is_pinned.default, SchemeTensor)
def _is_pinned(tensor: SchemeTensor, device: torch.device | None = None) -> bool:
    buffer = tensor._first_buffer()
    return buffer is not None and buffer.is_pinned()


@implements(aten.record_stream.default, SchemeTensor)
def _record_stream(tensor: SchemeTensor, stream: torch.Stream) -> None:
    for buffer in tensor._tensors():
        if buffer is not None:
            buffer.record_stream(stream)


@implements(aten.slice.Tensor, SchemeTensor)
def _slice(
    tensor: SchemeTensor,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> RowResult:
    if is_full_slice(tensor, dim, start, end, step):
        return type(tensor).make_like(tensor)
    return NotImplemented


@implements(aten.as_strided.default, SchemeTensor)
def _as_strided(
    tensor: SchemeTensor, size: list[int], stride: list[int], storage_offset: int | None = None
) -> RowResult:
    if is_identity_stride(tensor, size, stride, storage_offset):
        return type(tensor).make_like(tensor)
    return NotImplemented


@implements(aten.set_data.default, QuantizedTensor)
def _set_data(tensor: torch.Tensor, new_data: torch.Tensor) -> None:
    raise NotImplementedError("set_data: assign to the data attribute of a quantized tensor")


@implements(aten.resize_.default, QuantizedTensor)
def _resize(tensor: QuantizedTensor, size: list[int], **kwargs: Any) -> None:
    raise NotImplementedError(f"resize_: {type(tensor).__name__} cannot change its size in place")


def _split_safely(operator: Operator, view: Operator) -> None:
    """Makes `operator` return the results of `view`: its schema does not declare shared memory."""

    @reads_transposed(operator)
    @implements(operator, QuantizedTensor)
    def row(tensor: torch.Tensor, split: int | list[int], dim: int = 0) -> object:
        return view(tensor, split, dim)


_split_safely(aten.unsafe_split.Tensor, aten.split.Tensor)
_split_safely(aten.unsafe_split_with_sizes.default, aten.split_with_sizes.default)
