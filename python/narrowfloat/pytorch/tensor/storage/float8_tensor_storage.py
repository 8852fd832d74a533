# SPDX-License-Identifier: Apache-2.0
"""Per-tensor FP8: codes, their transpose as a cache, and one scale_inv."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Self

import torch

from narrowfloat import _core
from narrowfloat.pytorch import _native
from narrowfloat.pytorch._autograd import _DequantizeFunc
from narrowfloat.pytorch._exported_tensors import name_tensor
from narrowfloat.pytorch.constants import DType, element_of
from narrowfloat.pytorch.tensor.storage import _aliases as aliases
from narrowfloat.pytorch.tensor.storage._fields import Buffer, Setting
from narrowfloat.pytorch.tensor.storage._scheme_storage import SchemeStorage
from narrowfloat.pytorch.utils import empty_like_device

_FromFloat8Func = _DequantizeFunc

# The layout of codes in an all-gather.
_NATIVE, _M_MAJOR = "native", "columnwise_m_major"


@lru_cache
def float8_scheme(fp8_dtype: DType) -> str:
    """Returns the name of the per-tensor scheme with this element type."""
    return _core.per_tensor_scheme(element_of(fp8_dtype))


def to_columnwise(shape: Sequence[int]) -> torch.Size:
    """Returns the shape of the transpose, with the last dimension first."""
    return torch.Size(shape) if len(shape) < 2 else torch.Size((shape[-1], *shape[:-1]))


def from_columnwise(shape: Sequence[int]) -> torch.Size:
    """Returns the shape of the tensor from the shape of its transpose."""
    return torch.Size(shape) if len(shape) < 2 else torch.Size((*shape[1:], shape[0]))


class Float8TensorStorage(SchemeStorage):
    """The buffers of a per-tensor FP8 tensor. `_transpose_invalid` marks a stale transpose.

    data: uint8 codes, the field `_data`; None if there is only a transpose.
    data_transpose: the same codes with the last dimension first, the field `_transpose`, or None.
    fp8_scale_inv: float32 of one element for both, the field `_scale_inv`.
    fp8_dtype: E4M3 or E5M2, in any form that DType.cast() accepts.
    quantizer: a quantizer of per-tensor FP8, which is copied, or None.
    fake_dtype: the nominal type, which dequantize() returns; None is float32.
    """

    BUFFERS = (
        Buffer("_data", "data", ("rowwise_data",)),
        Buffer("_transpose", "data_transpose", ("columnwise_data",), None),
        Buffer("_scale_inv", "fp8_scale_inv", ("rowwise_scale_inv", "columnwise_scale_inv")),
    )
    SETTINGS = (Setting("_fp8_dtype", "fp8_dtype", "FP8 dtype", convert=DType.cast),)
    _data: torch.Tensor | None
    _transpose: torch.Tensor | None
    _scale_inv: torch.Tensor
    _fp8_dtype: DType
    _transpose_invalid: bool

    @classmethod
    def _settle(cls, fields: dict[str, Any], outer: dict[str, Any]) -> None:
        super()._settle(fields, outer)
        fields["_transpose_invalid"] = fields["_transpose"] is None

    def _rebuild(self, shape: Iterable[int] | None = None, **changes: Any) -> Self:
        new = super()._rebuild(shape, **changes)
        if new._data is self._data or new._transpose is self._transpose:
            aliases.join(self, new)
        if new._transpose is not None:
            new._transpose_invalid = self._transpose_invalid
        return new

    def _scheme(self) -> str:
        return float8_scheme(self._fp8_dtype)

    def _has_columnwise(self) -> bool:
        return self._transpose is not None and not self._transpose_invalid

    def _logical_shape(self) -> torch.Size:
        if self._data is not None:
            return self._data.shape
        if self._transpose is not None:
            return from_columnwise(self._transpose.shape)
        raise RuntimeError(f"{self.__class__.__name__} has no data!")

    def _shared_names(self) -> tuple[str, ...]:
        return ("_scale_inv",)

    def get_usages(self) -> dict[str, bool]:
        has_data = self._data is not None
        if self._reads_any_layout():
            return {"rowwise": has_data, "columnwise": has_data}
        return {"rowwise": has_data, "columnwise": self._has_columnwise()}

    def _require_readable(self) -> None:
        if self._data is None and self._transpose_invalid:
            raise RuntimeError(f"{self.__class__.__name__} has no valid data to dequantize")

    def clear(self) -> None:
        # Keeps _scale_inv, which other tensors share.
        for tensor in (self._data, self._transpose):
            if tensor is not None:
                tensor.data = empty_like_device(tensor)
        self._transpose_invalid = True

    def restore_from_saved(
        self, tensors: Sequence[torch.Tensor | None]
    ) -> Sequence[torch.Tensor | None]:
        left = super().restore_from_saved(tensors)
        self._transpose_invalid = self._transpose is None or self._transpose_invalid
        return left

    # Usages.

    def update_usage(
        self, rowwise_usage: bool | None = None, columnwise_usage: bool | None = None
    ) -> None:
        """Updates directions. Errors: RuntimeError for dropped codes or a transpose of them."""
        has_data, has_transpose = self._data is not None, self._has_columnwise()
        if self._reads_any_layout():
            # Products read the codes in both directions, so there is no transpose.
            if rowwise_usage is None and columnwise_usage is None:
                return
            needs_data, needs_transpose = bool(rowwise_usage or columnwise_usage), False
        else:
            needs_data = has_data if rowwise_usage is None else rowwise_usage
            needs_transpose = has_transpose if columnwise_usage is None else columnwise_usage
        if needs_data and not has_data:
            raise RuntimeError(
                "update_usage: rowwise codes were dropped and cannot be made of the transpose"
            )
        if needs_transpose and not has_transpose:
            if not has_data:
                raise RuntimeError("update_usage: the transpose needs the rowwise codes")
            self._create_transpose()
        self._keep(needs_data, needs_transpose)

    def _keep(self, rowwise: bool, columnwise: bool) -> None:
        drops_data = not rowwise and self._data is not None
        drops_transpose = not columnwise and self._transpose is not None
        pair = aliases.unrecorded(self) if drops_data or drops_transpose else None
        if drops_data:
            self._data = None
        if not columnwise:
            self._transpose = None
            self._transpose_invalid = True
        if pair is not None and pair.is_alive():  # another tensor has the dropped buffer
            pair.record()
        name_tensor(self)

    def _create_transpose(self) -> None:
        """Writes the codes to the transpose; does nothing without codes."""
        if self._data is None:
            return
        data = self._data.contiguous()
        shape = to_columnwise(data.shape)
        if self._transpose is None or self._transpose.shape != shape:
            self._transpose = torch.empty(shape, dtype=torch.uint8, device=data.device)
        spec = _native.make_spec(self._scheme(), True, True)
        scale_inv = self._scale_inv
        if data.numel() > 0:
            buffers = (data, scale_inv, self._transpose, scale_inv, None, None, None)
            _native.derive_columnwise(spec, tuple(data.shape), buffers)
        self._transpose_invalid = False
        aliases.register(self)

    _aliases: aliases.Aliases | None = None  # of a tensor of a graph

    def _make_view(self, shape: torch.Size) -> Self:
        return self._mark_view(super()._make_view(shape))

    def _mark_view(self, view: Self) -> Self:
        """Returns `view`, as an alias: a write to either updates the other direction of both."""
        aliases.join(self, view)
        return view

    def _record_made(self, direction: str) -> None:
        aliases.register(self)

    def _is_followed(self) -> bool:
        return aliases.is_followed(self)

    def _after_write(self) -> None:
        super()._after_write()
        aliases.follow(self)

    def _reset_caches(self) -> None:
        """Marks the transpose as stale after a write to the codes, unless it is the only buffer."""
        if self._data is not None:
            self._transpose_invalid = True
            aliases.follow(self)

    def remove_caches(self) -> None:
        """Drops the transpose."""
        self._keep(True, False)

    # Views.

    def __tensor_flatten__(self) -> tuple[list[str], dict[str, Any]]:
        aliases.register(self)  # a graph may return a view of the codes without the transpose
        return super().__tensor_flatten__()

    def _view_buffers(self, shape: torch.Size) -> dict[str, torch.Tensor | None]:
        """Returns the buffers. Errors: NotImplementedError for a new shape of a transpose only."""
        if self._data is None:
            if shape != self._logical_shape():
                raise NotImplementedError(
                    f"{self.__class__.__name__} with columnwise-only data cannot change its shape, "
                    f"from {tuple(self._logical_shape())} to {tuple(shape)}"
                )
            return {}
        fits = (
            self._transpose is not None
            and not self._transpose_invalid
            and self._transpose.shape == to_columnwise(shape)
        )
        return {
            "data": self._data.view(shape),
            "data_transpose": self._transpose if fits else None,
        }

    # Transport between ranks that hold rows of one tensor.

    def _derives_columnwise(self) -> bool:
        return True

    def _create_columnwise(self) -> None:
        self._create_transpose()

    def fsdp_buffer_fields(self) -> tuple[str, ...]:
        return ("_data",) if self._data is not None else ("_transpose",)

    def fsdp_extract_buffers(self) -> tuple[tuple[torch.Tensor, ...], dict[str, Any]]:
        """Returns the codes, or the transposed codes with rows first.

        Errors: RuntimeError if there is only a stale transpose.
        """
        if self._data is None and not self._has_columnwise():
            raise RuntimeError("fsdp_extract_buffers: the transpose is invalid")
        buffers, meta = super().fsdp_extract_buffers()
        return buffers, {
            **meta,
            "transport_layout": _NATIVE if self._data is not None else _M_MAJOR,
        }

    def fsdp_assign_gathered(self, buffers: Sequence[torch.Tensor], meta: dict[str, Any]) -> None:
        """Replaces the buffers. Errors: RuntimeError for another number or an unknown layout."""
        layout = meta.get("transport_layout", _NATIVE)
        if layout not in (_NATIVE, _M_MAJOR):
            raise RuntimeError(f"fsdp_assign_gathered: unknown transport_layout {layout!r}")
        super().fsdp_assign_gathered(buffers, meta)

    def _take_gathered(self, fields: dict[str, torch.Tensor]) -> None:
        super()._take_gathered(fields)
        if "_data" not in fields:
            self._data = None
        self._transpose_invalid = "_transpose" not in fields
