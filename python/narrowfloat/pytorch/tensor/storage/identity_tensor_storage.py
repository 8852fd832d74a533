# SPDX-License-Identifier: Apache-2.0
"""A tensor in high precision, in places that expect quantized tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from narrowfloat.pytorch._autograd import resolve_shape
from narrowfloat.pytorch._exported_tensors import name_buffers
from narrowfloat.pytorch.tensor.storage._fields import Buffer
from narrowfloat.pytorch.tensor.storage._scheme_storage import SchemeStorage


class IdentityTensorStorage(SchemeStorage):
    """The buffer of a tensor in high precision.

    hp_data: the values, for both directions; the field is `_hp_data`.
    quantizer: an IdentityQuantizer, which is copied, or None.
    fake_dtype: the nominal type, which dequantize() returns; None is the type of the values.
    """

    BUFFERS = (Buffer("_hp_data", "hp_data", ("rowwise_data", "columnwise_data")),)
    HOLDS_VALUES = True
    _hp_data: Any  # a tensor, or None while it is saved for the backward pass

    @classmethod
    def _settle(cls, fields: dict[str, Any], outer: dict[str, Any]) -> None:
        super()._settle(fields, outer)
        data = fields["_hp_data"]
        if data is None:
            return
        if not cls._is_tensor and outer.get("fake_dtype") is None:
            outer["fake_dtype"] = data.dtype
        elif cls._is_tensor and outer.get("stride") is None:
            # The wrapper has the strides of the buffer.
            outer["stride"] = data.stride()
            outer["storage_offset"] = data.storage_offset()

    def update_usage(
        self, rowwise_usage: bool | None = None, columnwise_usage: bool | None = None
    ) -> None:
        """Does nothing: both directions use one buffer."""

    def get_usages(self) -> dict[str, bool]:
        return {"rowwise": True, "columnwise": True}

    def get_data_tensors(self, rowwise_data: bool = True, columnwise_data: bool = True) -> Any:  # noqa: ANN401  # values of both directions, or of one
        if rowwise_data and columnwise_data:
            return self._hp_data, None
        return super().get_data_tensors(rowwise_data, columnwise_data)

    def _decode(self, dtype: torch.dtype | None = None) -> torch.Tensor:
        if self._hp_data is None:
            raise RuntimeError(f"{self.__class__.__name__} has no data to dequantize")
        name_buffers(self)
        # The context keeps what is saved before an operator changes it, but does not see that an
        # operator on this tensor changes the buffer.
        copied = torch.autograd.graph._allow_mutation_on_saved_tensors_enabled
        return self._hp_data.to(self._dtype if dtype is None else dtype, copy=copied)

    def view(self, *shape: Any) -> Any:  # noqa: ANN401  # a storage here, a tensor in subclasses
        wanted = resolve_shape(shape, self._logical_shape())
        return self._rebuild(hp_data=self._hp_data.view(wanted))

    def _view_buffers(self, shape: torch.Size) -> dict[str, torch.Tensor | None]:
        return {"hp_data": self._hp_data.view(shape)}

    # Transport between ranks that hold rows of one tensor: the values, for both directions.

    def fsdp_buffer_fields(self) -> tuple[str, ...]:
        return ("_hp_data",)

    def _transport_spec(self, directions: Sequence[str]) -> None:
        return None

    def _keeps_dtype(self) -> bool:
        return True

    def _why_no_transport(self) -> str | None:
        if self._hp_data.dtype == self._dtype:
            return None
        return (
            f"FSDP2 cannot gather an IdentityTensor of {self._dtype} whose values are "
            f"{self._hp_data.dtype}"
        )

    def _transport_fields(self, rowwise: bool, columnwise: bool) -> tuple[str, ...]:
        return self.fsdp_buffer_fields()
