# SPDX-License-Identifier: Apache-2.0
"""Two storages, one per direction, which may have different formats."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch

from narrowfloat.pytorch._autograd import resolve_shape
from narrowfloat.pytorch._exported_tensors import name_buffers, name_tensor
from narrowfloat.pytorch.quantized_tensor import QuantizedTensorStorage
from narrowfloat.pytorch.tensor.storage._dropped import drop_child

if TYPE_CHECKING:
    from narrowfloat.pytorch.tensor.hybrid_tensor import HybridQuantizer


def name_of(child: QuantizedTensorStorage | None) -> str:
    """Returns the class name of a child, for messages."""
    return "None" if child is None else type(child).__name__


class HybridQuantizedTensorStorage(QuantizedTensorStorage):
    """Two storages, one per direction. Each argument is a field, with the prefix _.

    rowwise_storage, columnwise_storage: quantized tensors or bare storages; None without the
        direction.
    quantizer: a HybridQuantizer, which is copied.
    fake_dtype: the nominal type, which dequantize() returns; None is float32.
    Errors: TypeError for a quantizer without two children.
    """

    _rowwise_storage: QuantizedTensorStorage | None
    _columnwise_storage: QuantizedTensorStorage | None

    _unflattened: tuple[bool, bool] | None = None  # initial directions of an input of a graph

    FAMILY: ClassVar[type[HybridQuantizedTensorStorage]]

    def __new__(
        cls,
        *args: Any,
        rowwise_storage: QuantizedTensorStorage | None,
        columnwise_storage: QuantizedTensorStorage | None,
        quantizer: HybridQuantizer | None = None,
        fake_dtype: torch.dtype | None = None,
        **kwargs: Any,
    ) -> Self:
        for name in ("rowwise_quantizer", "columnwise_quantizer"):
            if getattr(quantizer, name, None) is None:
                raise TypeError(
                    f"{cls.__name__} requires a parent HybridQuantizer with both children, got "
                    f"{type(quantizer).__name__} without {name}"
                )
        assert quantizer is not None
        if cls is HybridQuantizedTensorStorage:
            instance = object.__new__(cls)
            instance._dtype = torch.float32 if fake_dtype is None else fake_dtype
        else:
            if kwargs.get("device") is None:
                children = (rowwise_storage, columnwise_storage)
                kwargs["device"] = next((c.device for c in children if c is not None), None)
            make: Any = super().__new__
            instance = make(cls, *args, fake_dtype=fake_dtype, **kwargs)
        instance._rowwise_storage = rowwise_storage
        instance._columnwise_storage = columnwise_storage
        instance._quantizer = quantizer.copy()
        name_tensor(instance)
        return instance

    @property
    def rowwise_sub_storage(self) -> QuantizedTensorStorage | None:
        """The storage of the rowwise direction."""
        return self._rowwise_storage

    @property
    def columnwise_sub_storage(self) -> QuantizedTensorStorage | None:
        """The storage of the columnwise direction."""
        return self._columnwise_storage

    def _children(self) -> list[QuantizedTensorStorage]:
        """Returns the present children, rowwise first."""
        children = (self._rowwise_storage, self._columnwise_storage)
        return [child for child in children if child is not None]

    def _leaves(self) -> list[QuantizedTensorStorage]:
        return [leaf for child in self._children() for leaf in child._leaves()]

    def _first_child(self, verb: str) -> QuantizedTensorStorage:
        children = self._children()
        if not children:
            raise RuntimeError(f"{self.__class__.__name__} has no data {verb}")
        return children[0]

    def _part_buffers(self) -> list[torch.Tensor]:
        """Returns the buffers if a write to a child may raise because of its values; else []."""
        children: list[Any] = [c for c in self._children() if isinstance(c, torch.Tensor)]
        if not any(child._is_part() for child in children):
            return []
        return [buffer for child in children for buffer in child._live_buffers()]

    def _map(self, change: Callable[[Any], Any]) -> dict[str, Any]:
        """Returns constructor arguments with each child changed."""
        name_buffers(self)
        return {
            "rowwise_storage": None
            if self._rowwise_storage is None
            else change(self._rowwise_storage),
            "columnwise_storage": None
            if self._columnwise_storage is None
            else change(self._columnwise_storage),
        }

    def _cloned_buffers(
        self, memory_format: torch.memory_format = torch.preserve_format
    ) -> dict[str, Any]:
        """Returns constructor arguments of children that share no memory with these."""
        return self._map(lambda child: child._rebuild(**child._cloned_buffers(memory_format)))

    def get_metadata(self) -> dict[str, Any]:
        return {
            "rowwise_storage": self._rowwise_storage,
            "columnwise_storage": self._columnwise_storage,
            "quantizer": self._quantizer,
            "fake_dtype": self._dtype,
        }

    def _rebuild(self, shape: Iterable[int] | None = None, **changes: Any) -> Self:
        fields = {**self.get_metadata(), **changes}
        if not isinstance(self, torch.Tensor):
            fields.pop("device", None)
            return type(self)(**fields)
        return type(self)(
            shape=self.shape if shape is None else shape, dtype=fields["fake_dtype"], **fields
        )

    # Usages.

    def get_usages(self) -> dict[str, bool]:
        return {
            "rowwise": self._rowwise_storage is not None,
            "columnwise": self._columnwise_storage is not None,
        }

    def update_usage(
        self, rowwise_usage: bool | None = None, columnwise_usage: bool | None = None
    ) -> None:
        """Drops or requires directions. Errors: RuntimeError, before changes, for a dropped one."""
        wanted = {"rowwise": rowwise_usage, "columnwise": columnwise_usage}
        usages = self.get_usages()
        for direction, usage in wanted.items():
            if usage and not usages[direction]:
                raise RuntimeError(
                    f"update_usage: {self.__class__.__name__} has no {direction} data, and it "
                    "cannot be made of the other direction"
                )
        for direction, usage in wanted.items():
            if usage is False:
                drop_child(self, direction)
        name_tensor(self)

    def clear(self) -> None:
        for child in self._children():
            child.clear()

    def prepare_for_saving(
        self,
    ) -> tuple[list[torch.Tensor | None], HybridQuantizedTensorStorage]:
        tensors: list[torch.Tensor | None] = []
        for child in self._children():
            tensors.extend(child.prepare_for_saving()[0])
        return tensors, self

    def restore_from_saved(
        self, tensors: Sequence[torch.Tensor | None]
    ) -> Sequence[torch.Tensor | None]:
        for child in self._children():
            tensors = child.restore_from_saved(tensors)
        return tensors

    def copy_from_storage(self, src: QuantizedTensorStorage) -> None:
        if getattr(src, "FAMILY", None) is not self.FAMILY:
            raise TypeError("copy_from_storage expects HybridQuantizedTensorStorage")
        pairs = (
            (self._rowwise_storage, src._rowwise_storage),
            (self._columnwise_storage, src._columnwise_storage),
        )
        for mine, other in pairs:
            if mine is not None and other is not None:
                mine.copy_from_storage(other)

    def get_data_tensors(
        self, rowwise_data: bool = True, columnwise_data: bool = True
    ) -> tuple[Any, ...]:
        """Returns the data tensors of the children, concatenated."""
        if not (rowwise_data or columnwise_data):
            raise ValueError("No data to get, both rowwise_data and columnwise_data are False")
        tensors: tuple[Any, ...] = ()
        children = (
            (rowwise_data, self._rowwise_storage),
            (columnwise_data, self._columnwise_storage),
        )
        for wanted, child in children:
            if wanted and child is not None:
                part = child.get_data_tensors()
                tensors += part if isinstance(part, tuple) else (part,)
        return tensors

    # Values.

    def _decode(self, dtype: torch.dtype | None = None) -> torch.Tensor:
        child = self._first_child("to dequantize")
        return child._decode(self._dtype if dtype is None else dtype)

    def _plain(self) -> torch.Tensor:
        return self._decode(self._dtype)

    def dequantize(self, dtype: torch.dtype | None = None) -> torch.Tensor:
        return self._decode(dtype)

    @property
    def shape(self) -> torch.Size:
        return torch.Size(self._first_child("to take a shape from").shape)

    def size(self, dim: int | None = None) -> Any:  # noqa: ANN401  # sizes of all dimensions, or of one
        shape = self.shape
        return shape if dim is None else shape[dim]

    @property
    def device(self) -> torch.device:
        return self._first_child("and is on no device").device

    def view(self, *shape: Any) -> Any:  # noqa: ANN401  # a storage here, a tensor in subclasses
        """Returns a view of both children."""
        return self._make_view(resolve_shape(shape, self.shape))

    def _make_view(self, shape: torch.Size) -> Self:
        if shape == self.shape:
            return self._rebuild()
        reason = self._why_no_view(shape)
        if reason is not None:
            raise RuntimeError(reason)
        return self._rebuild(shape, **self._map(lambda child: child._make_view(shape)))

    def _why_no_view(self, shape: torch.Size) -> str | None:
        for child in self._children():
            reason = child._why_no_view(shape)
            if reason is not None:
                return reason
        return None

    def __repr__(self) -> str:
        return (
            f"{self.__class__.__name__}(rowwise={name_of(self._rowwise_storage)}, "
            f"columnwise={name_of(self._columnwise_storage)}, dtype={self._dtype})"
        )


HybridQuantizedTensorStorage.FAMILY = HybridQuantizedTensorStorage
