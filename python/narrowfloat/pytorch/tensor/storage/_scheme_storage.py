# SPDX-License-Identifier: Apache-2.0
"""The storage class of all families whose format is a scheme. Each family names its buffers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self

import torch

from narrowfloat import _core
from narrowfloat.pytorch import _native
from narrowfloat.pytorch._autograd import _DequantizeFunc, is_in_forward_mode, resolve_shape
from narrowfloat.pytorch._exported_tensors import name_buffers, name_tensor
from narrowfloat.pytorch._shard_group import SHARD_GROUP
from narrowfloat.pytorch._values import same_configuration
from narrowfloat.pytorch.quantized_tensor import QuantizedTensorStorage
from narrowfloat.pytorch.tensor.storage import _dropped as dropped
from narrowfloat.pytorch.tensor.storage import _transport as transport
from narrowfloat.pytorch.tensor.storage._fields import Buffer, TableStorage
from narrowfloat.pytorch.tensor.storage._references import Reference
from narrowfloat.pytorch.tensor.storage._stale import note_write, require_fresh
from narrowfloat.pytorch.utils import empty_like_device, is_non_tn_fp8_gemm_supported


class Cut:
    """Marks a tensor as a part of another tensor, with which it shares buffers."""

    def __init__(self, codes: tuple[torch.Tensor | None, ...] = ()) -> None:
        self.codes = codes  # of the whole, by direction; empty in a traced graph

    @classmethod
    def of(cls, whole: SchemeStorage) -> Cut:
        """Returns the mark of the parts of `whole`."""
        return cls((whole.__dict__[whole.ROWWISE], whole.__dict__[whole.COLUMNWISE]))

    def remember(self) -> Callable[[], Cut]:
        """Returns a function that makes the mark again, and does not keep the codes alive."""
        references = [None if codes is None else Reference(codes) for codes in self.codes]
        return lambda: Cut(tuple(None if r is None else r.buffer() for r in references))


def dense(buffer: torch.Tensor | None) -> torch.Tensor | None:
    """Returns the buffer, or a contiguous copy if it is not contiguous, for example a slice."""
    return buffer if buffer is None or buffer.is_contiguous() else buffer.contiguous()


def same_context(first: dict[str, Any], second: dict[str, Any]) -> bool:
    """Returns whether two contexts of __tensor_flatten__ are equal, apart from object identity."""
    return first.keys() == second.keys() and all(
        same_context(value, second[name])
        if isinstance(value, dict)
        else same_configuration(value, second[name])
        for name, value in first.items()
    )


class SchemeStorage(TableStorage):
    """The buffers of a scheme, under a family's names."""

    _cut: Cut | None = None  # set in a part of another tensor
    _unflattened: tuple[bool, bool] | None = None  # initial directions of an input of a graph

    # Methods that a family defines.

    def _scheme(self) -> str:
        """Returns the name of the scheme."""
        raise NotImplementedError

    def _layout_options(self) -> tuple[tuple[str, Any], ...]:
        """Returns the options that the verbs need to read the buffers."""
        return ()

    def _view_buffers(self, shape: torch.Size) -> dict[str, torch.Tensor | None]:
        """Returns constructor arguments of the buffers of a view. Raises the family's errors."""
        raise NotImplementedError

    def _why_no_view(self, shape: torch.Size) -> str | None:
        """Returns the reason why `shape` breaks the blocks; None if it does not."""
        return None

    def _shared_names(self) -> tuple[str, ...]:
        """Returns the buffers that every part of a tensor shares: scales or amaxes of the whole."""
        return ()

    def _reads_any_layout(self) -> bool:
        """Returns whether products read per-tensor codes in any layout, so that no transpose
        exists.
        """
        return is_non_tn_fp8_gemm_supported()

    def _has_swizzled_scales(self) -> bool:
        """Returns whether scales are swizzled."""
        return self.__dict__.get("_with_gemm_swizzled_scales", False)

    # Copies.

    def _rebuild(self, shape: Iterable[int] | None = None, **changes: Any) -> Self:
        """Returns a tensor of the same class with changed arguments; shares the others."""
        fields = self.get_metadata()
        fields.update(changes)
        if not self._is_tensor:
            fields.pop("device", None)
            return type(self)(**fields)
        return type(self)(
            shape=self.shape if shape is None else shape, dtype=fields["fake_dtype"], **fields
        )

    # Buffers.

    def _direction_buffers(self, direction: str) -> list[str]:
        """Returns the names of the buffers that belong to one direction only."""
        return [buffer.name for buffer in self.BUFFERS if direction in buffer.keyword]

    def _keep(self, rowwise: bool, columnwise: bool) -> None:
        """Drops the buffers of the directions that are not kept."""
        for direction, kept in (("rowwise", rowwise), ("columnwise", columnwise)):
            if not kept:
                dropped.drop(self, direction)
        name_tensor(self)

    def _role_buffers(self) -> tuple[torch.Tensor | None, ...]:
        get: Any = self.__dict__.get
        return tuple(map(get, self._role_names))

    def _tensors(self) -> list[torch.Tensor | None]:
        return [self.__dict__[buffer.name] for buffer in self.BUFFERS]

    def _whole_buffer(self, name: str) -> torch.Tensor | None:
        """Returns a buffer for verbs: dense, and for scales of a cut, padded."""
        buffer = self.__dict__[name]
        if buffer is None or self._cut is None or "scale_inv" not in name:
            return dense(buffer)
        return transport.padded_to(buffer, self._planned_shape(name, buffer.shape))

    def _standalone_buffer(self, name: str) -> torch.Tensor | None:
        """Returns a buffer in the form of a tensor that is not a part of another one.

        Errors: RuntimeError for stale codes.
        """
        require_fresh(self)
        name_buffers(self)
        return self.__dict__[name] if self._cut is None else self._whole_buffer(name)

    def _record_made(self, direction: str) -> None:
        """Records a direction whose buffers were made here, for other tensors over the codes."""
        dropped.record_made(self, direction)

    def _is_followed(self) -> bool:
        """Returns whether _after_write() may update other tensors."""
        return False

    def _after_write(self) -> None:
        """Records that all codes of this tensor were written with its scales."""
        note_write(self)

    def _planned_shape(self, name: str, default: torch.Size) -> tuple[int, ...]:
        """Returns the planned shape of a buffer of scales."""
        shape = _native.flatten_shape(tuple(self._logical_shape()))
        for planned in _native.plan(self._spec(), shape):
            if self._role_names[_native.ROLES.index(planned.role)] == name:
                return planned.shape
        return tuple(default)

    def _whole_buffers(self) -> tuple[torch.Tensor | None, ...]:
        """Returns the buffers by role, for verbs.

        Errors: RuntimeError for stale codes.
        """
        require_fresh(self)
        if self._cut is None:
            return tuple([dense(buffer) for buffer in self._role_buffers()])
        return tuple(
            None if name is None else self._whole_buffer(name) for name in self._role_names
        )

    def _first_buffer(self) -> torch.Tensor | None:
        fields = self.__dict__
        rowwise = fields[self.ROWWISE]
        return fields[self.COLUMNWISE] if rowwise is None else rowwise

    def _has_rowwise(self) -> bool:
        return self.__dict__[self.ROWWISE] is not None

    def _has_columnwise(self) -> bool:
        return self.__dict__[self.COLUMNWISE] is not None

    def _spec(self) -> _core.QuantSpec:
        """Returns the spec for reading the present buffers."""
        return _native.make_spec(
            self._scheme(), self._has_rowwise(), self._has_columnwise(), self._layout_options()
        )

    def _logical_shape(self) -> torch.Size:
        """Returns the shape of the tensor, from its codes. Raises RuntimeError without codes."""
        codes = self.__dict__[self.ROWWISE]
        if codes is not None:
            return codes.shape
        codes = self.__dict__[self.COLUMNWISE]
        if codes is None:
            raise RuntimeError(f"{self.__class__.__name__} has no data!")
        return codes.shape

    @property
    def shape(self) -> torch.Size:
        return self._logical_shape()

    def size(self, dim: int | None = None) -> Any:  # noqa: ANN401  # sizes of all dimensions, or of one
        shape = self._logical_shape()
        return shape if dim is None else shape[dim]

    @property
    def device(self) -> torch.device:
        """The device of the buffers. Errors: RuntimeError without buffers."""
        buffer = self._first_buffer()
        if buffer is None:
            raise RuntimeError(f"{self.__class__.__name__} has no data!")
        return buffer.device

    def get_usages(self) -> dict[str, bool]:
        return {"rowwise": self._has_rowwise(), "columnwise": self._has_columnwise()}

    def get_data_tensors(self, rowwise_data: bool = True, columnwise_data: bool = True) -> Any:  # noqa: ANN401  # codes of both directions, or of one
        """Returns the codes of both directions, or of the selected one."""
        rowwise, columnwise = self.__dict__[self.ROWWISE], self.__dict__[self.COLUMNWISE]
        if rowwise_data and columnwise_data:
            return rowwise, columnwise
        if rowwise_data:
            return rowwise
        if columnwise_data:
            return columnwise
        raise ValueError("No data to get, both rowwise_data and columnwise_data are False")

    def prepare_for_saving(self) -> tuple[list[torch.Tensor | None], SchemeStorage]:
        tensors = self._tensors()
        for buffer in self.BUFFERS:
            setattr(self, buffer.name, None)
        return tensors, self

    def restore_from_saved(
        self, tensors: Sequence[torch.Tensor | None]
    ) -> Sequence[torch.Tensor | None]:
        for buffer, tensor in zip(self.BUFFERS, tensors, strict=False):
            setattr(self, buffer.name, tensor)
        return tensors[len(self.BUFFERS) :]

    def clear(self) -> None:
        for tensor in self._tensors():
            if tensor is not None:
                tensor.data = empty_like_device(tensor)

    def copy_from_storage(self, src: QuantizedTensorStorage) -> None:
        """Copies the buffers. Errors: TypeError (another family), RuntimeError (another layout)."""
        if getattr(src, "FAMILY", None) is not self.FAMILY:
            raise TypeError(f"copy_from_storage expects {self.FAMILY.__name__}")
        for setting in self.SETTINGS:
            if getattr(self, setting.name) != getattr(src, setting.name):
                raise RuntimeError(f"{setting.mismatch} mismatch in copy_from_storage")
        with torch.no_grad():
            for mine, other in zip(self._tensors(), src._tensors(), strict=True):
                if mine is not None and other is not None:
                    mine.copy_(other)

    def _cloned_buffers(
        self, memory_format: torch.memory_format = torch.preserve_format
    ) -> dict[str, torch.Tensor | None]:
        """Returns constructor arguments of buffers that share no memory with these."""
        copies = {}
        for buffer in self.BUFFERS:
            tensor = self._standalone_buffer(buffer.name)
            copies[buffer.keyword] = (
                None if tensor is None else tensor.detach().clone(memory_format=memory_format)
            )
        return copies

    # Values.

    def _decode(self, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Returns the values, outside of autograd."""
        dtype = self._dtype if dtype is None else dtype
        shape = self._logical_shape()
        known = dtype if dtype in _native.FLOAT_DTYPES else torch.float32
        if math.prod(shape) > 0:
            self._require_readable()
        first = self._first_buffer()
        if type(first) is torch.Tensor and not first.is_meta and not _native.records_operators():
            out = torch.empty(shape, dtype=known, device=self.device)
            if out.numel() > 0:
                buffers = self._whole_buffers()
                _native.verbs.dequantize(self._spec(), buffers, out, _native.threads())
        else:  # traced: an operator, for tensors without memory too
            name_buffers(self)
            buffers = self._whole_buffers()
            out = _native.dequantize(buffers, self._spec().text, shape, known)
        return out if known is dtype else out.to(dtype)

    def _require_readable(self) -> None:
        """Raises the family's error if a buffer for decoding is missing."""

    def _plain(self) -> torch.Tensor:
        return self._decode(self._dtype)

    def dequantize(self, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Returns the values as a plain tensor, in the nominal type or `dtype`."""
        dtype = self._dtype if dtype is None else dtype
        if self._is_tensor and (torch.is_grad_enabled() or is_in_forward_mode()):
            return _DequantizeFunc.apply(self, dtype)
        return self._decode(dtype)

    # Views.

    def view(self, *shape: Any) -> Any:  # noqa: ANN401  # a storage here, a tensor in subclasses
        """Returns the same bytes with another shape.

        Errors: of the family, if the shape breaks blocks.
        """
        if len(shape) == 1 and shape[0] is None:
            return self
        wanted = resolve_shape(shape, self._logical_shape())
        if wanted == self._logical_shape():
            return self
        return self._rebuild(**self._view_buffers(wanted))

    def _make_view(self, shape: torch.Size) -> Self:
        name_buffers(self)
        view = self._rebuild(shape, **self._view_buffers(torch.Size(shape)))
        if self._cut is not None:
            view._cut = self._cut
            name_tensor(view)
        group = self.__dict__.get(SHARD_GROUP)
        if group is not None:  # the view has the values of the whole shard
            view.__dict__[SHARD_GROUP] = group
        return view

    # Transport between ranks that hold rows of one tensor.

    def _transport_spec(self, directions: Sequence[str]) -> _core.QuantSpec | None:
        """Returns the spec that plans the buffers of these directions; None for plain values."""
        return _native.make_spec(
            self._scheme(),
            "rowwise" in directions,
            "columnwise" in directions,
            self._layout_options(),
        )

    def _why_no_transport(self) -> str | None:
        """Returns the reason why the buffers cannot be sent; None if they can."""
        if self._has_swizzled_scales():
            name = type(self).__name__
            article = "an" if name[0] in "MN" else "a"
            return f"FSDP2 cannot gather {article} {name} whose scales are GEMM-swizzled"
        return None

    def _own_buffers(self) -> None:
        """Copies the buffers of a cut, so that it is no longer a part of another tensor.

        FSDP2 keeps a short shard as a part of a padded one; the padding is never read.
        """
        if self._cut is not None:
            self.__dict__.update({b.name: self._whole_buffer(b.name) for b in self.BUFFERS})
            self._cut = None

    def _keeps_dtype(self) -> bool:
        """Returns whether a gathered tensor has the nominal type of its shards."""
        return False

    def _derives_columnwise(self) -> bool:
        """Returns whether the columnwise buffers can be derived from the rowwise ones."""
        return False

    def _transport_fields(self, rowwise: bool, columnwise: bool) -> tuple[str, ...]:
        """Returns the fields that are sent for these directions, without derived ones."""
        if self._derives_columnwise() and self._has_rowwise():
            rowwise, columnwise = True, False
        wanted = {"rowwise": rowwise, "columnwise": columnwise}
        return transport.fields_of(self, [way for way, asked in wanted.items() if asked])

    def fsdp_buffer_fields(self) -> tuple[str, ...]:
        usages = self.get_usages()
        return transport.fields_of(self, [way for way, there in usages.items() if there])

    def fsdp_extract_buffers(self) -> tuple[tuple[torch.Tensor, ...], dict[str, Any]]:
        """Returns the buffers with rows first, without rows of padding.

        Errors: NotImplementedError if the scales are swizzled; RuntimeError if a buffer is missing.
        """
        reason = self._why_no_transport()
        if reason is not None:
            raise NotImplementedError(reason)
        names = self.fsdp_buffer_fields()
        return transport.extract(self, names), {"field_names": names}

    def fsdp_assign_gathered(self, buffers: Sequence[torch.Tensor], meta: dict[str, Any]) -> None:
        """Replaces the buffers. Errors: RuntimeError, before any change, if they do not match."""
        names = meta.get("field_names")
        if names is None:
            names = transport.fields_of(self, [meta["direction"]])
        if len(buffers) != len(names):
            raise RuntimeError(
                f"fsdp_assign_gathered: {self.__class__.__name__} needs {len(names)} buffers, got "
                f"{len(buffers)}"
            )
        self._take_gathered(transport.restore(self, names, buffers))

    def _take_gathered(self, fields: dict[str, torch.Tensor]) -> None:
        """Replaces the buffers by the given ones."""
        self.__dict__.update(fields)

    # Text.

    def __repr__(self) -> str:
        fields = ", ".join(
            f"{setting.keyword}={self.__dict__[setting.name]}" for setting in self.SETTINGS
        )
        try:
            return f"{self.__class__.__name__}({fields}, data={self._decode(torch.float32)})"
        except Exception as error:
            return f"{self.__class__.__name__}({fields}, data=<{error}>)"

    # Flattening, for tracing.

    def __tensor_flatten__(self) -> tuple[list[str], dict[str, Any]]:
        names = [name for name, _ in self._INNER_TENSORS if self.__dict__[name] is not None]
        kwargs = {setting.keyword: self.__dict__[setting.name] for setting in self.SETTINGS}
        kwargs["quantizer"] = self._quantizer
        kwargs["fake_dtype"] = self._dtype
        is_tensor = self._is_tensor
        context = {
            "cls": type(self),
            "is_tensor": is_tensor,
            "requires_grad": is_tensor and self.requires_grad,
            "nontensor_kwargs": kwargs,
        }
        if self._cut is not None:
            context["is_cut"] = True
        return names, context

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
    ) -> SchemeStorage:
        cls = context["cls"]
        kwargs = dict(context["nontensor_kwargs"])
        for name, keyword in cls._INNER_TENSORS:
            kwargs[keyword] = inner_tensors.get(name)
        if not context["is_tensor"]:
            return cls(**kwargs)
        tensor = cls(
            shape=outer_size,
            dtype=kwargs["fake_dtype"],
            requires_grad=context["requires_grad"],
            stride=outer_stride,
            **kwargs,
        )
        if "is_cut" in context:
            tensor._cut = Cut()
        if not all(map(_native.in_memory, inner_tensors.values())):
            tensor._unflattened = tensor._has_rowwise(), tensor._has_columnwise()
        return tensor


# The buffers of families with block scales, in the order of arguments.
BLOCK_BUFFERS = tuple(
    Buffer(f"_{role}", role, (role,))
    for role in (
        "rowwise_data",
        "columnwise_data",
        "rowwise_scale_inv",
        "columnwise_scale_inv",
    )
)


class BlockStorage(SchemeStorage):
    """A storage with codes, scales and, in some families, amaxes of each direction."""

    POSITIONAL = True
    _rowwise_data: torch.Tensor | None
    _columnwise_data: torch.Tensor | None
    _rowwise_scale_inv: torch.Tensor | None
    _columnwise_scale_inv: torch.Tensor | None

    def _block_boundary(self, along_rows: bool) -> int:
        """Returns the block length of the directions that are present; tiles are square."""
        spec = self._spec()
        tiles = spec.derives_columnwise or getattr(self._quantizer, "with_2d_quantization", False)
        across = self._has_columnwise() if along_rows else self._has_rowwise()
        return spec.block_length if tiles or across else 1

    def _cut_amaxes(self, fields: dict[str, Any], along_rows: bool, first: int, count: int) -> bool:
        """Adds the amaxes of a cut to its fields; returns False if they cannot be cut."""
        return True

    def _require_buffers(self, direction: str) -> None:
        for name in self._direction_buffers(direction):
            if self.__dict__[name] is None:
                raise RuntimeError(
                    f"update_usage: {self.__class__.__name__} lacks {name}, which {direction} "
                    "usage needs"
                )

    def update_usage(
        self, rowwise_usage: bool | None = None, columnwise_usage: bool | None = None
    ) -> None:
        """Drops or requires directions. Errors: RuntimeError for an absent one: none is derived."""
        rowwise = self._has_rowwise() if rowwise_usage is None else rowwise_usage
        columnwise = self._has_columnwise() if columnwise_usage is None else columnwise_usage
        if rowwise:
            self._require_buffers("rowwise")
        if columnwise:
            self._require_buffers("columnwise")
        self._keep(rowwise, columnwise)

    def _derive_columnwise(self, scheme: str | None = None) -> None:
        """Derives the columnwise codes and scales of tiles from the rowwise ones."""
        spec = _native.make_spec(
            self._scheme() if scheme is None else scheme, True, True, self._layout_options()
        )
        if dropped.take_back(self, writes=False):
            return
        shape = tuple(self._columnwise_plan_shape())
        filled = {name: self._whole_buffer(name) for name in self._role_names if name is not None}
        made = {}
        for planned in _native.plan(spec, shape):
            name = self._role_names[_native.ROLES.index(planned.role)]
            if name is not None and planned.role in ("columnwise_data", "columnwise_scale_inv"):
                present = filled[name]
                if present is None or present.shape != planned.shape:
                    made[name] = torch.empty(planned.shape, dtype=planned.dtype, device=self.device)
        filled.update(made)
        roles = tuple(None if name is None else filled[name] for name in self._role_names)
        _native.derive_columnwise(spec, shape, roles)
        self.__dict__.update(made)
        for name in self._direction_buffers("columnwise"):
            own, new = self.__dict__[name], filled[name]
            if (
                own is not None and new is not None and own is not new
            ):  # a part, whose buffers are not dense
                own.copy_(transport.content_of(new, own.shape))
        self._record_made("columnwise")

    def _columnwise_plan_shape(self) -> torch.Size:
        """Returns the shape that the columnwise buffers are planned for."""
        return self._logical_shape()

    def _other_inner(self, own: torch.Size, shape: torch.Size) -> str:
        """Returns the reason why blocks along the last dimension do not allow `shape`."""
        return (
            f"{self.__class__.__name__} cannot reshape its inner dimension, from {tuple(own)} to "
            f"{tuple(shape)}"
        )

    def _require_view(self, shape: torch.Size) -> None:
        reason = self._why_no_view(shape)
        if reason is not None:
            raise RuntimeError(reason)
