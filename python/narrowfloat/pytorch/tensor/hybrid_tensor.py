# SPDX-License-Identifier: Apache-2.0
"""Tensors with one quantizer for the rowwise and another for the columnwise direction."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, SupportsIndex

import torch

from narrowfloat.common import recipe
from narrowfloat.pytorch._autograd import (
    _DequantizeFunc,
    _IdentityFunc,
    _ReshapeFunc,
    _ViewFunc,
    is_in_forward_mode,
    resolve_shape,
    without_gradients,
)
from narrowfloat.pytorch._exported_tensors import name_buffers, name_tensor
from narrowfloat.pytorch._native import in_float32_if_double
from narrowfloat.pytorch._read_only import read_only_values
from narrowfloat.pytorch._shard_group import ShardGroup
from narrowfloat.pytorch._tracing import is_asked_for_tangent
from narrowfloat.pytorch._types import Group, Quantized
from narrowfloat.pytorch.quantized_tensor import (
    QuantizedTensor,
    Quantizer,
    QuantizerRequest,
)
from narrowfloat.pytorch.tensor._families import register_family
from narrowfloat.pytorch.tensor._fsdp import ShardedHybrid
from narrowfloat.pytorch.tensor._fsdp_passes import is_asked_by_fsdp
from narrowfloat.pytorch.tensor._scheme_quantizer import source_tensor
from narrowfloat.pytorch.tensor._scheme_tensor import (
    _native_size,
    copy_deeply,
    require_directions,
    set_outer,
)
from narrowfloat.pytorch.tensor._state_broadcast import (
    is_asked_by_state_broadcast,
    values_to_broadcast,
)
from narrowfloat.pytorch.tensor._weight import Weight, as_weight
from narrowfloat.pytorch.tensor.storage._dropped import take_back_children
from narrowfloat.pytorch.tensor.storage._scheme_storage import same_context
from narrowfloat.pytorch.tensor.storage.hybrid_tensor_storage import (
    HybridQuantizedTensorStorage,
    name_of,
)
from narrowfloat.pytorch.utils import devices_match

if TYPE_CHECKING:
    from narrowfloat.pytorch.tensor._master_weights import Piece

_SOURCES = ("original", "rowwise_dequantized")


def _check_children(rowwise: object, columnwise: object) -> None:
    """Raises TypeError for an object that is not a quantizer, ValueError for one object twice."""
    for name, child in (("rowwise", rowwise), ("columnwise", columnwise)):
        if isinstance(child, QuantizerRequest):
            raise TypeError(
                f"HybridQuantizer does not support nested QuantizerRequest objects, got "
                f"{type(child).__name__} as {name}_quantizer"
            )
        if not isinstance(child, Quantizer):
            raise TypeError(
                f"HybridQuantizer: {name}_quantizer must be a Quantizer, got {type(child).__name__}"
            )
    if rowwise is columnwise:
        raise ValueError(
            "HybridQuantizer requires distinct rowwise and columnwise quantizers, got one for both"
        )


class HybridQuantizer(Quantizer["HybridQuantizedTensor"]):
    """Two quantizers, one per direction. It sets their directions, so they must not be shared.

    rowwise_quantizer, columnwise_quantizer: the quantizers of the two directions.
    columnwise_source: the input of columnwise_quantizer: the original, or the dequantized values of
        the rowwise direction.
    """

    COLUMNS_ALONE = True

    def __init__(
        self,
        *,
        rowwise_quantizer: Quantizer,
        columnwise_quantizer: Quantizer,
        columnwise_source: str = "original",
    ) -> None:
        _check_children(rowwise_quantizer, columnwise_quantizer)
        if columnwise_source not in _SOURCES:
            raise ValueError(
                f"HybridQuantizer: columnwise_source must be one of {_SOURCES}, got "
                f"{columnwise_source!r}"
            )
        super().__init__(rowwise=True, columnwise=True)
        self.rowwise_quantizer = rowwise_quantizer
        self.columnwise_quantizer = columnwise_quantizer
        self.columnwise_source = columnwise_source
        rowwise_quantizer.set_usage(rowwise=True, columnwise=False)
        columnwise_quantizer.set_usage(rowwise=False, columnwise=True)

    def _children(self) -> tuple[Quantizer, Quantizer]:
        return self.rowwise_quantizer, self.columnwise_quantizer

    def _requested(self) -> list[Quantizer]:
        flags = (self.rowwise_usage, self.columnwise_usage)
        return [child for child, wanted in zip(self._children(), flags, strict=True) if wanted]

    def copy(self) -> HybridQuantizer:
        other = super().copy()
        other.rowwise_quantizer = self.rowwise_quantizer.copy()
        other.columnwise_quantizer = self.columnwise_quantizer.copy()
        return other

    # The children reduce amaxes.

    @property
    def with_amax_reduction(self) -> bool:
        """Returns whether a child reduces its amax."""
        return any(getattr(child, "with_amax_reduction", False) for child in self._children())

    @with_amax_reduction.setter
    def with_amax_reduction(self, value: bool) -> None:
        for child in self._children():
            if hasattr(child, "with_amax_reduction"):
                child.with_amax_reduction = value

    @property
    def amax_reduction_group(self) -> Group:
        """The children's group. Errors: RuntimeError if they have different ones."""
        groups = [
            child.amax_reduction_group
            for child in self._children()
            if hasattr(child, "amax_reduction_group")
        ]
        if any(group is not groups[0] for group in groups):
            raise RuntimeError(
                "HybridQuantizer: the children must reduce amaxes over one group, got several"
            )
        return groups[0] if groups else None

    @amax_reduction_group.setter
    def amax_reduction_group(self, group: Group) -> None:
        for child in self._children():
            if hasattr(child, "amax_reduction_group"):
                child.amax_reduction_group = group

    # Building.

    def _wrap(
        self,
        shape: Iterable[int],
        dtype: torch.dtype,
        device: torch.device,
        rowwise: Quantized | None,
        columnwise: Quantized | None,
        requires_grad: bool = False,
    ) -> HybridQuantizedTensor:
        fields: dict[str, Any] = {
            "rowwise_storage": rowwise,
            "columnwise_storage": columnwise,
            "quantizer": self,
            "fake_dtype": dtype,
        }
        if self.internal:
            bare: Any = HybridQuantizedTensorStorage(**fields)
            return bare
        return HybridQuantizedTensor(
            shape=shape, dtype=dtype, device=device, requires_grad=requires_grad, **fields
        )

    def make_empty(
        self,
        shape: Iterable[int],
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
        requires_grad: bool = False,
        pin_memory: bool = False,
    ) -> HybridQuantizedTensor:
        device = torch.get_default_device() if device is None else torch.device(device)
        shape = tuple(shape)
        options: dict[str, Any] = {"dtype": dtype, "device": device, "pin_memory": pin_memory}
        rowwise = columnwise = None
        if self.rowwise_usage:
            rowwise = self.rowwise_quantizer.make_empty(shape, **options)
        if self.columnwise_usage:
            columnwise = self.columnwise_quantizer.make_empty(shape, **options)
        return self._wrap(shape, dtype, device, rowwise, columnwise, requires_grad)

    def _columnwise_input(self, tensor: torch.Tensor, rowwise: Quantized | None) -> torch.Tensor:
        """Returns the input of the columnwise child. Quantizes rowwise if `rowwise` is None."""
        if self.columnwise_source == "original":
            return tensor
        if rowwise is None:
            rowwise = self.rowwise_quantizer.quantize(tensor)
        return rowwise._decode(tensor.dtype)

    @without_gradients
    def quantize_impl(self, tensor: torch.Tensor) -> HybridQuantizedTensor:
        tensor = source_tensor(tensor, tensor.device).detach()
        rowwise = columnwise = None
        if self.rowwise_usage:
            rowwise = self.rowwise_quantizer.quantize(tensor)
        if self.columnwise_usage:
            source = self._columnwise_input(tensor, rowwise)
            columnwise = self.columnwise_quantizer.quantize(source)
        return self._wrap(tensor.shape, tensor.dtype, tensor.device, rowwise, columnwise)

    @without_gradients
    def update_quantized(
        self,
        src: torch.Tensor,
        dst: Quantized,
        *,
        noop_flag: torch.Tensor | None = None,
    ) -> Quantized:
        """Updates the directions that this quantizer makes and `dst` has.

        Errors: ValueError unless `dst` is a HybridQuantizedTensorStorage.
        """
        if not isinstance(dst, self.STORAGE):
            raise ValueError(
                f"HybridQuantizer can only update HybridQuantizedTensor, got {type(dst).__name__}"
            )
        src = source_tensor(src, src.device)
        quantizer = self
        if take_back_children(dst):
            quantizer = self.copy()
            quantizer.set_usage(**dst.get_usages())
        quantizer._check_update(src, dst)
        live = dst._part_buffers()
        saved = [buffer.clone() for buffer in live]
        try:
            quantizer._update_children(src, dst, noop_flag)
        except BaseException:
            for buffer, old in zip(live, saved, strict=True):
                buffer.copy_(old)
            raise
        return dst

    def _directions(self) -> tuple[bool, bool]:
        """Returns the directions to make."""
        return self.rowwise_usage, self.columnwise_usage

    def _check_update(self, src: torch.Tensor, dst: Quantized) -> None:
        require_directions(dst)
        take_back_children(dst)
        flags = (self.rowwise_usage, self.columnwise_usage)
        children = (dst._rowwise_storage, dst._columnwise_storage)
        for quantizer, wanted, child in zip(self._children(), flags, children, strict=True):
            if wanted and child is not None:
                quantizer._check_update(src, child)

    def _update_children(
        self,
        src: torch.Tensor,
        dst: HybridQuantizedTensorStorage,
        noop_flag: torch.Tensor | None,
    ) -> None:
        rowwise, columnwise = dst._rowwise_storage, dst._columnwise_storage
        if self.rowwise_usage and rowwise is not None:
            self.rowwise_quantizer.update_quantized(src, rowwise, noop_flag=noop_flag)
        if self.columnwise_usage and columnwise is not None:
            fresh = rowwise if self.rowwise_usage else None
            source = self._columnwise_input(src, fresh)
            self.columnwise_quantizer.update_quantized(source, columnwise, noop_flag=noop_flag)

    def supports_only_rowwise_all_gather(self) -> bool:
        return (
            self.rowwise_quantizer.supports_only_rowwise_all_gather()
            or self.columnwise_quantizer.COLUMNS_CANNOT_BE_GATHERED
        )

    def allows_save_original_input_for_backward(self) -> bool:
        return self.columnwise_source == "original" and all(
            child.allows_save_original_input_for_backward() for child in self._children()
        )

    def _check_group(self) -> None:
        raise NotImplementedError(f"GroupedTensor does not support {type(self).__name__}")

    def is_requantization_safe(self) -> bool:
        used = self._requested()
        if self.columnwise_usage and self.columnwise_source == "rowwise_dequantized":
            used.append(self.rowwise_quantizer)
        return all(child.is_requantization_safe() for child in used)

    def keeps_columns_of_later(self) -> bool:
        """Returns whether backward makes the same columns, by the source of the columns."""
        if self.columnwise_source == "original":
            return not self.columnwise_quantizer.SCALE_IS_GIVEN
        return self.rowwise_quantizer.is_requantization_safe()

    def holds_values(self) -> tuple[bool, bool]:
        rowwise = self.rowwise_quantizer.holds_values()[0]
        return rowwise, self.columnwise_quantizer.holds_values()[1]

    def is_quantizable(self, inp: torch.Tensor) -> bool:
        return all(child.is_quantizable(inp) for child in self._requested())

    def calibrate(self, tensor: torch.Tensor) -> None:
        for child in self._requested():
            child.calibrate(tensor)

    def _get_compatible_recipe(self) -> type:
        return recipe.CustomRecipe


HybridQuantizer.register_node_class(
    "rowwise_quantizer", "columnwise_quantizer", "columnwise_source"
)


class HybridQuantizedTensor(  # type: ignore[override]  # device: a field in PyTorch's stub
    HybridQuantizedTensorStorage, ShardedHybrid, Weight, QuantizedTensor
):
    """A tensor with a quantized tensor for each direction.

    The arguments are those of HybridQuantizedTensorStorage and of QuantizedTensor.
    """

    amax_reduction_group = ShardGroup()

    @property
    def shape(self) -> torch.Size:  # type: ignore[override]  # PyTorch's stub has a field
        children = self._children()
        return torch.Size(children[0].shape) if children else _native_size(self)

    # Flattening, for tracing: the children are tensors with flattening of their own.

    def __dir__(self) -> list[str]:
        """Returns the names of attributes without inner tensors, as SchemeTensor does."""
        return [name for name in super().__dir__() if not name.endswith("_storage")]

    def __tensor_flatten__(self) -> tuple[list[str], dict[str, Any]]:
        names = [
            n for n in ("_rowwise_storage", "_columnwise_storage") if getattr(self, n) is not None
        ]
        return names, {
            "cls": type(self),
            "requires_grad": self.requires_grad,
            "quantizer": self._quantizer,
            "fake_dtype": self._dtype,
        }

    @classmethod
    def __metadata_guard__(cls, compiled: dict[str, Any], current: dict[str, Any]) -> bool:
        """Returns whether code compiled for one tensor is valid for another."""
        return same_context(compiled, current)

    @staticmethod
    def __tensor_unflatten__(
        inner_tensors: dict[str, torch.Tensor],
        context: dict[str, Any],
        outer_size: torch.Size,
        outer_stride: tuple[int, ...],
    ) -> HybridQuantizedTensor:
        names = ("_rowwise_storage", "_columnwise_storage")
        children: list[Any] = [inner_tensors.get(name) for name in names]
        tensor = context["cls"](
            shape=outer_size,
            dtype=context["fake_dtype"],
            fake_dtype=context["fake_dtype"],
            requires_grad=context["requires_grad"],
            quantizer=context["quantizer"],
            rowwise_storage=children[0],
            columnwise_storage=children[1],
        )
        if any(child is not None and child._unflattened is not None for child in children):
            tensor._unflattened = (children[0] is not None, children[1] is not None)
        return tensor

    def _describe(self) -> str:
        return (
            f"rowwise={name_of(self._rowwise_storage)}, "
            f"columnwise={name_of(self._columnwise_storage)}, "
        )

    __repr__ = QuantizedTensor.__repr__

    @classmethod
    def make_like(  # type: ignore[override]  # of tensors of this class
        cls,
        tensor: HybridQuantizedTensor,
        *,
        shape: Iterable[int] | None = None,
        dtype: torch.dtype | None = None,
        requires_grad: bool = False,
    ) -> HybridQuantizedTensor:
        """Returns an alias with other outer metadata and with aliases of the children."""
        nominal = tensor.dtype if dtype is None else dtype
        return cls(
            shape=tensor.shape if shape is None else shape,
            dtype=nominal,
            requires_grad=requires_grad,
            **{**tensor.get_metadata(), **tensor._map(rewrap), "fake_dtype": nominal},
        )

    def detach(self) -> HybridQuantizedTensor:
        """Returns an alias with aliases of the children; saving one does not empty the other."""
        if is_asked_for_tangent():
            return self._tangent()
        if is_asked_by_state_broadcast():
            return values_to_broadcast(self)
        return torch.ops.aten.detach.default(self)

    def dequantize(self, dtype: torch.dtype | None = None) -> torch.Tensor:
        dtype = self._dtype if dtype is None else dtype
        if torch.is_grad_enabled() or is_in_forward_mode():
            return _DequantizeFunc.apply(self, dtype)
        return self._decode(dtype)

    def _decode(self, dtype: torch.dtype | None = None) -> torch.Tensor:
        name_buffers(self)
        return super()._decode(dtype)

    def _plain_copy(self) -> torch.Tensor:
        return self._plain().clone()  # _plain() may return the buffer itself

    def _check_write(self, values: torch.Tensor) -> None:
        self._get_quantizer()._check_update(values, self)

    def _is_part(self) -> bool:
        return bool(self._part_buffers())

    def _live_buffers(self) -> list[torch.Tensor]:
        return [buffer for child in self._children() for buffer in child._live_buffers()]

    def _code_buffers(self) -> list[torch.Tensor]:
        tensors = [child for child in self._children() if isinstance(child, QuantizedTensor)]
        return [buffer for child in tensors for buffer in child._code_buffers()]

    def view(self, *shape: Any) -> torch.Tensor:
        """Returns a hybrid tensor, or plain values if a child does not support the view.

        Errors: TypeError for a dtype.
        """
        if len(shape) == 1 and isinstance(shape[0], torch.dtype):
            raise TypeError("view: a HybridQuantizedTensor cannot be seen as another type")
        wanted = resolve_shape(shape, self.shape)
        reason = self._why_no_view(wanted)
        if reason is None:
            return _ViewFunc.apply(self, wanted)
        if is_asked_by_fsdp():  # FSDP2 makes a flat view, which it never reads
            return self.detach()
        warnings.warn(f"{reason}; the tensor is dequantized", stacklevel=2)
        origin = f"view gave of a {type(self).__name__}"
        return read_only_values(self.dequantize().view(wanted), origin)

    def reshape(self, *shape: Any) -> torch.Tensor:
        return _ReshapeFunc.apply(self, resolve_shape(shape, self.shape))

    def contiguous(
        self, memory_format: torch.memory_format = torch.contiguous_format
    ) -> HybridQuantizedTensor:
        """Returns this tensor if both children are contiguous, else a copy of both."""
        children = self._map(lambda child: child.contiguous(memory_format=memory_format))
        shared = [name for name in children if children[name] is getattr(self, f"_{name}")]
        if len(shared) == len(children):
            return self
        copies = self._cloned_buffers()
        return _IdentityFunc.apply(self, {**children, **{name: copies[name] for name in shared}})

    @property
    def data(self) -> HybridQuantizedTensor:
        """An alias without a gradient; as in torch.Tensor, autograd does not count its writes.
        Assignment replaces the buffers or quantizes again.
        """
        return type(self).make_like(self)

    @data.setter
    @torch.no_grad()
    def data(self, tensor: torch.Tensor) -> None:
        source: Any = tensor
        if not isinstance(tensor, self._quantizer.TENSOR):
            quantizer = self._quantizer.copy()
            quantizer.internal = False
            values = tensor.detach()
            if not all(quantizer.holds_values()):
                values = in_float32_if_double(values)
            source = quantizer.quantize_impl(values)
            if source.dtype is not tensor.dtype:
                source = source.to_dtype(tensor.dtype)
        set_outer(self, source)
        self._rowwise_storage = source._rowwise_storage
        self._columnwise_storage = source._columnwise_storage
        self._quantizer = source._quantizer.copy()
        self._dtype = source.dtype
        name_tensor(self)

    def _on(self, device: torch.device) -> bool:
        children = self._children()
        return bool(children) and devices_match(children[0].device, device)

    # Methods of Weight.

    def _raw_owner(self) -> Weight:
        if self._rowwise_storage is None:
            raise NotImplementedError("replace_raw_data: the hybrid tensor has no rowwise child")
        return as_weight("replace_raw_data", self._rowwise_storage)._raw_owner()

    def _drop_derived(self) -> None:
        for child in self._children():
            as_weight("quantize_master_weights", child)._drop_derived()

    def _restore_derived(self) -> None:
        for child in self._children():
            as_weight("post_all_gather_processing", child)._restore_derived()

    def _master_pieces(self, piece: Piece, master: torch.Tensor | None) -> list[Any]:
        children = self._children()
        if not children:
            raise ValueError("quantize_master_weights: the hybrid weight has no data")
        dequantized = self._quantizer.columnwise_source == "rowwise_dequantized"
        if dequantized and self._columnwise_storage is not None:
            raise NotImplementedError(
                "quantize_master_weights: columns of dequantized rows are not supported"
            )
        for child in children:
            if not getattr(child, "MASTER_IN_HYBRID", False):
                raise NotImplementedError(
                    f"quantize_master_weights: a {type(child).__name__} in a hybrid weight is not "
                    "supported"
                )
        if len(children) > 1 and master is not None and master.numel() != self.numel():
            raise ValueError(
                f"quantize_master_weights: a hybrid weight of shape {tuple(self.shape)} with two "
                f"directions needs its whole master, got {master.numel()} of {self.numel()} "
                "elements; update_usage() drops a direction"
            )
        return [replace(piece, weight=child) for child in children]

    def _reduce(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        return _make_hybrid_quantized_tensor_in_reduce_ex, (
            self._rowwise_storage,
            self._columnwise_storage,
            self._quantizer,
            self.dtype,
            self.shape,
        )

    @classmethod
    def _make_in_reduce_ex(cls, *arguments: Any) -> HybridQuantizedTensor:
        """Makes the tensor of a pickle. Older pickles refer to this method."""
        names = ("rowwise_storage", "columnwise_storage", "quantizer", "dtype", "shape")
        return cls(**dict(zip(names, arguments, strict=True)))

    def __deepcopy__(self, memo: dict[int, Any]) -> HybridQuantizedTensor:
        return copy_deeply(self, memo)


def rewrap(child: Quantized) -> QuantizedTensor:
    """Returns an alias of a child. Errors: NotImplementedError for a bare storage."""
    if not hasattr(type(child), "make_like"):
        raise NotImplementedError(
            f"detach: a child that is a bare {type(child).__name__} cannot be aliased"
        )
    whole: Any = child
    return type(whole).make_like(whole)


def _make_hybrid_quantized_tensor_in_reduce_ex(*arguments: Any) -> HybridQuantizedTensor:
    """Makes the tensor of a pickle."""
    return HybridQuantizedTensor._make_in_reduce_ex(*arguments)


register_family(
    HybridQuantizedTensor,
    HybridQuantizedTensorStorage,
    HybridQuantizer,
    reconstructor=_make_hybrid_quantized_tensor_in_reduce_ex,
)
