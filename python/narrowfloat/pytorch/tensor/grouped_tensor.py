# SPDX-License-Identifier: Apache-2.0
"""A group of tensors as one tensor for autograd and optimizers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import Any, Self, SupportsIndex

import torch

from narrowfloat.pytorch import _dispatch
from narrowfloat.pytorch._autograd import count_write, keep_saved
from narrowfloat.pytorch._memory import WithoutMemory
from narrowfloat.pytorch._native import in_float32_if_double
from narrowfloat.pytorch._types import Operator, RowResult
from narrowfloat.pytorch._values import never_traced
from narrowfloat.pytorch.quantized_tensor import QuantizedTensor, reduced_parameter
from narrowfloat.pytorch.tensor._operators import quantizer_on
from narrowfloat.pytorch.tensor._scheme_tensor import set_outer
from narrowfloat.pytorch.tensor.storage._scheme_storage import SchemeStorage, same_context
from narrowfloat.pytorch.tensor.storage.grouped_tensor_storage import (
    _FLAGS,
    GROUP_STATE,
    GroupedTensorStorage,
    member_buffers,
)
from narrowfloat.pytorch.utils import devices_match

aten = torch.ops.aten

_DETACHED = "_detached"  # the field of a group that makes its detach() return a member


def wrapper_shape(
    shape: Sequence[int], num_tensors: int, shapes: Sequence[Sequence[int]] | None
) -> tuple[int, ...]:
    """Returns `[n, *member]` for members of one shape, else the logical shape.

    Errors: ValueError for members of more than two dimensions.
    """
    if shapes is None or len(shapes) == 0 or len({tuple(member) for member in shapes}) > 1:
        return tuple(shape)
    member = tuple(shapes[0])
    if len(member) not in (1, 2):
        raise ValueError(f"GroupedTensor members must have one or two dimensions, got {member}")
    return (num_tensors, *member)


class GroupedTensor(  # type: ignore[misc]  # amax: a method of PyTorch's
    GroupedTensorStorage, WithoutMemory, _dispatch.WriteTarget, torch.Tensor
):
    """Members of one format in flat buffers, as a tensor.

    Its arguments are those of GroupedTensorStorage.
    """

    def __new__(
        cls,
        shape: tuple[int, int],
        dtype: torch.dtype,
        *,
        requires_grad: bool = False,
        stride: Sequence[int] | None = None,
        **fields: Any,
    ) -> GroupedTensor:
        shapes = fields.get("shapes")
        varies = fields.get("first_dims") is not None or fields.get("last_dims") is not None
        num_tensors = fields.get("num_tensors") or 0
        if shapes is None and not varies and num_tensors:
            shapes = [(shape[0] // num_tensors, shape[1])] * num_tensors
        buffers = (fields.get("data"), fields.get("columnwise_data"))
        device = next((buffer.device for buffer in buffers if buffer is not None), None)
        instance = torch.Tensor._make_wrapper_subclass(
            cls,
            wrapper_shape(shape, num_tensors, None if varies else shapes),
            strides=None if stride is None else tuple(stride),
            dtype=dtype,
            layout=torch.strided,
            requires_grad=requires_grad,
            device=torch.get_default_device() if device is None else device,
        )
        instance._set_fields(shape, dtype, fields)
        return instance

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # no method

    @classmethod
    @never_traced
    def __torch_dispatch__(  # type: ignore[override]  # PyTorch's own has no annotations
        cls,
        func: Operator,
        types: Sequence[type],
        args: tuple[Any, ...],
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        return _dispatch.dispatch(func, args, kwargs or {})

    @classmethod
    def make_like(
        cls,
        tensor: GroupedTensor,
        *,
        dtype: torch.dtype | None = None,
        requires_grad: bool = False,
    ) -> GroupedTensor:
        """Returns an alias over the same buffers, with another nominal type or gradient flag."""
        alias = cls(
            tensor.logical_shape,
            tensor.fake_dtype if dtype is None else dtype,
            requires_grad=requires_grad,
            **tensor._arguments(),
        )
        alias.quantized_tensors = tensor.quantized_tensors
        if alias.fake_dtype != tensor.fake_dtype and alias.quantized_tensors is not None:
            alias._keep_members()
        return alias

    @property
    def HOLDS_VALUES(self) -> bool:
        """Returns whether the members are in high precision."""
        return self.quantizer is None

    def detach(self) -> GroupedTensor:
        return torch.ops.aten.detach.default(self)

    @property
    def data(self) -> GroupedTensor:
        """An alias without a gradient; as in torch.Tensor, autograd does not count its writes.
        Assignment replaces the buffers or quantizes into new ones.

        Errors: ValueError for another shape; NotImplementedError for members of several shapes.
        """
        return type(self).make_like(self)

    @data.setter
    @torch.no_grad()
    def data(self, tensor: torch.Tensor) -> None:
        source = tensor if isinstance(tensor, GroupedTensor) else self._made_of(tensor)
        set_outer(self, source)
        keeps = self.quantized_tensors is not None
        self._set_fields(source.logical_shape, source.fake_dtype, source._arguments())
        if keeps:
            self._keep_members()

    def _made_of(self, tensor: torch.Tensor) -> GroupedTensor:
        """Returns a group like this one, with the values, type and device of another tensor."""
        if tensor.shape != self.shape:
            raise ValueError(
                f"GroupedTensor.data: the new tensor must have the shape {tuple(self.shape)}, got "
                f"{tuple(tensor.shape)}"
            )
        self._require_one_shape()
        values = tensor._plain() if isinstance(tensor, QuantizedTensor) else tensor.detach()
        made, device = type(self).make_like(self, dtype=tensor.dtype), tensor.device
        if self.quantizer is None:
            made.rowwise_data, made.columnwise_data = values.reshape(-1), None
            return made
        made = _on_device(made, device)
        made._requantize(in_float32_if_double(values))
        return made

    def _on(self, device: torch.device) -> bool:
        return all(devices_match(buffer.device, device) for buffer in self._live_buffers())

    def _require_one_shape(self) -> None:
        if not self.all_same_shape():
            raise NotImplementedError(
                f"GroupedTensor: operators need members of one shape, got {self._member_shapes()}"
            )

    def view(self, *shape: Any) -> torch.Tensor:
        """Returns the flat rowwise buffer for view(-1). Errors: RuntimeError for another shape."""
        if shape in ((-1,), ([-1],), ((-1,),)) and self.rowwise_data is not None:
            return self.rowwise_data
        raise RuntimeError(f"GroupedTensor.view: the shape must be (-1,), got {shape}")

    def dequantize(self, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Returns the members' values, stacked. Errors: NotImplementedError for several shapes."""
        return self._decode(dtype)

    def _decode(self, dtype: torch.dtype | None = None) -> torch.Tensor:
        self._require_one_shape()
        dtype = self.fake_dtype if dtype is None else dtype
        members = self._split()
        plain = [m._decode(dtype) if hasattr(m, "_decode") else m.to(dtype) for m in members]
        return torch.stack(plain)

    def _plain(self) -> torch.Tensor:
        return self._decode(self.fake_dtype)

    def share_memory_(self) -> Self:
        super().share_memory_()
        if self.quantized_tensors is not None:  # their buffers are views of the old memory
            self._keep_members()
        return self

    def _live_buffers(self) -> list[torch.Tensor]:
        return list(_raw_fields(self).values())

    def quantize_(
        self, tensor: torch.Tensor, *, noop_flag: torch.Tensor | None = None
    ) -> GroupedTensor:
        """Quantizes the parts of a stacked tensor into the members."""
        keep_saved(self)
        self._requantize(tensor, noop_flag)
        count_write(self, noop_flag)
        return self

    @torch.no_grad()
    def _requantize(self, tensor: torch.Tensor, noop_flag: torch.Tensor | None = None) -> None:
        if self.quantizer is None:
            for member, part in zip(self._split(), tensor, strict=True):
                member.copy_(part)
        else:
            super().quantize(list(tensor), noop_flag=noop_flag)

    def quantize(
        self, tensors: Sequence[torch.Tensor], noop_flag: torch.Tensor | None = None
    ) -> list[Any]:
        keep_saved(self)
        made = self._with_count(lambda: GroupedTensorStorage.quantize(self, tensors, noop_flag))
        count_write(self, noop_flag)
        return made

    def split_into_quantized_tensors(self) -> list[Any]:
        """Returns the members; autograd counts a write to one as a write to the group."""
        return self._with_count(self._split)

    def _with_count(self, make: Callable[[], list[Any]]) -> list[Any]:
        """Returns aliases of the members made by `make`, with the group's version counter.

        Only the result of PyTorch's detach() can share the counter of its argument.
        """
        if self.is_inference():  # writes are not counted
            return make()
        outside = torch.is_inference_mode_enabled()  # a view of a normal tensor is a normal tensor
        with torch.inference_mode(False) if outside else nullcontext(), torch.no_grad():
            counted, group = [], self.detach()
            for member in make():
                group.__dict__[_DETACHED] = member
                made = torch.ops.aten.detach.default(group)
                if GROUP_STATE in member.__dict__:
                    made.__dict__[GROUP_STATE] = member.__dict__[GROUP_STATE]
                counted.append(made)
            return counted

    def __repr__(self, *, tensor_contents: object = None) -> str:  # type: ignore[override]  # of no types
        return GroupedTensorStorage.__repr__(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> GroupedTensor:
        if id(self) in memo:
            return memo[id(self)]
        with torch.no_grad():
            fields = copy.deepcopy(self._arguments(), memo)
            copied = _make_group_in_reduce_ex(type(self), *self._header(), fields)
        memo[id(self)] = copied
        own = copied.__dict__
        for name, value in self.__dict__.items():
            if name not in own:
                own[name] = copy.deepcopy(value, memo)
        return copied

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        """Reduces to a parameter and with the gradient flag, if these apply, as PyTorch does."""
        if getattr(self, "_is_param", False):
            return reduced_parameter(self)
        return _make_group_in_reduce_ex, (type(self), *self._header(), self._arguments())

    def _header(self) -> tuple[tuple[int, int], torch.dtype, bool, bool]:
        """Returns shape, nominal type, whether a gradient is required, and whether members are
        stored.
        """
        keeps = self.quantized_tensors is not None
        return self.logical_shape, self.fake_dtype, self.requires_grad, keeps

    def __tensor_flatten__(self) -> tuple[list[str], dict[str, Any]]:
        """Returns the inner tensors and further arguments to rebuild the group, for tracing."""
        arguments = self._arguments()
        names = [name for name, value in arguments.items() if isinstance(value, torch.Tensor)]
        fields = ["rowwise_data" if name == "data" else name for name in names]
        rest = {name: value for name, value in arguments.items() if name not in names}
        return fields, {
            "shape": self.logical_shape,
            "dtype": self.fake_dtype,
            "requires_grad": self.requires_grad,
            "rest": rest,
        }

    @classmethod
    def __metadata_guard__(cls, compiled: dict[str, Any], current: dict[str, Any]) -> bool:
        """Returns whether code compiled for one group is valid for another."""
        return same_context(compiled, current)

    @staticmethod
    def __tensor_unflatten__(
        inner_tensors: dict[str, torch.Tensor],
        context: dict[str, Any],
        outer_size: torch.Size,
        outer_stride: tuple[int, ...],
    ) -> GroupedTensor:
        tensors: dict[str, Any] = {
            "data" if name == "rowwise_data" else name: tensor
            for name, tensor in inner_tensors.items()
        }
        return GroupedTensor(
            context["shape"],
            context["dtype"],
            requires_grad=context["requires_grad"],
            **context["rest"],
            **tensors,
        )


GroupedTensorStorage.TENSOR = GroupedTensor


def _make_group_in_reduce_ex(
    cls: type[GroupedTensor],
    shape: tuple[int, int],
    dtype: torch.dtype,
    requires_grad: bool,
    keeps_members: bool,
    fields: dict[str, Any],
) -> GroupedTensor:
    """Makes the group of a pickle."""
    group = cls(shape, dtype, requires_grad=requires_grad, **fields)
    if keeps_members:
        group._keep_members()
    return group


torch.serialization.add_safe_globals([GroupedTensor, _make_group_in_reduce_ex])


@_dispatch.implements(aten.detach.default, GroupedTensor)
@_dispatch.implements(aten.alias.default, GroupedTensor)
def _alias(tensor: GroupedTensor) -> torch.Tensor:
    member = tensor.__dict__.get(_DETACHED)
    return type(tensor).make_like(tensor) if member is None else member


def _mapped(
    group: GroupedTensor, change: Callable[[torch.Tensor], torch.Tensor], **fields: Any
) -> GroupedTensor:
    """Returns a group with changed buffers and fields."""
    changed: dict[int, torch.Tensor] = {}  # one vector of scales may be in two fields
    for name, value in group._arguments().items():
        if isinstance(value, torch.Tensor):
            if id(value) not in changed:
                changed[id(value)] = change(value)
            fields[name] = changed[id(value)]
        else:
            fields.setdefault(name, value)
    made = type(group)(group.logical_shape, group.fake_dtype, **fields)
    if group.quantized_tensors is not None:
        made._keep_members()
    return made


def _on_device(group: GroupedTensor, device: torch.device) -> GroupedTensor:
    """Returns a copy of a group on a device."""
    quantizer = quantizer_on(group.quantizer, device)
    return _mapped(group, lambda buffer: buffer.to(device, copy=True), quantizer=quantizer)


@_dispatch.implements(aten._to_copy.default, GroupedTensor)
def _to_copy(
    tensor: GroupedTensor,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
    **kwargs: Any,
) -> RowResult:
    if dtype not in (None, tensor.fake_dtype):
        return NotImplemented
    return _on_device(tensor, tensor.device if device is None else torch.device(device))


@_dispatch.implements(aten.empty_like.default, GroupedTensor)
def _empty_like(
    tensor: GroupedTensor,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
    **kwargs: Any,
) -> RowResult:
    if dtype not in (None, tensor.fake_dtype) or not tensor.all_same_shape():
        return NotImplemented
    target = tensor.device if device is None else torch.device(device)
    return _mapped(tensor, lambda buffer: torch.empty_like(buffer, device=target))


@_dispatch.implements(aten.expand.default, GroupedTensor)
def _expand(tensor: GroupedTensor, size: Sequence[int], **kwargs: Any) -> RowResult:
    own = tuple(tensor.size())
    wanted = tuple(size)
    if len(wanted) == len(own) and all(w in (-1, o) for w, o in zip(wanted, own, strict=True)):
        return type(tensor).make_like(tensor)
    return NotImplemented


def _raw_fields(group: GroupedTensor) -> dict[str, torch.Tensor]:
    """Returns the buffers with the members' data, by the group's fields."""
    fields: Iterable[str] = ("rowwise_data", "columnwise_data")
    if group.quantizer is not None:
        # The scale and the amax of delayed scaling belong to the quantizers.
        fields = member_buffers(group.quantizer, group._member_shapes()[0])
    buffers = {field: getattr(group, field) for field in fields}
    return {field: buffer for field, buffer in buffers.items() if buffer is not None}


def _settings(group: GroupedTensor) -> tuple[Any, ...]:
    """Returns the settings that are equal for two groups whose codes have the same meaning."""
    quantizer = group.quantizer
    format_ = None if quantizer is None else (quantizer.STORAGE, quantizer._settings())
    flags = [getattr(group, name) for name in (*_FLAGS, "nvfp4_e4m3_max")]
    return format_, flags, [tuple(shape) for shape in group._member_shapes()]


def _copies_raw(dst: GroupedTensor, src: GroupedTensor) -> bool:
    """Returns whether every byte of `dst` can be copied from `src`."""
    if dst.num_tensors == 0 or _settings(dst) != _settings(src):
        return False
    mine, other = _raw_fields(dst), _raw_fields(src)
    alike = all(
        name in other and (buffer.dtype, buffer.shape) == (other[name].dtype, other[name].shape)
        for name, buffer in mine.items()
    )
    kept = src.quantized_tensors or []
    stale = "columnwise_data" in mine and any(
        isinstance(member, SchemeStorage) and not member._has_columnwise() for member in kept
    )
    return alike and not stale


@_dispatch.implements(aten.copy_.default, GroupedTensor)
def _copy(dst: torch.Tensor, src: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    if isinstance(dst, GroupedTensor) and isinstance(src, GroupedTensor) and _copies_raw(dst, src):
        other = _raw_fields(src)
        for name, buffer in _raw_fields(dst).items():
            buffer.copy_(other[name], non_blocking)
        for member in dst.quantized_tensors or []:
            if isinstance(member, SchemeStorage):
                member._after_write()
        return dst
    values = src._plain() if isinstance(src, (GroupedTensor, QuantizedTensor)) else src
    if not isinstance(dst, GroupedTensor):
        return dst.copy_(values, non_blocking)
    return dst.quantize_(values.to(dst.fake_dtype).expand(dst.size()))


_REARRANGING = (
    aten.view.default,
    aten._unsafe_view.default,
    aten.view.dtype,
    aten.reshape.default,
    aten.transpose.int,
    aten.t.default,
    aten.permute.default,
    aten.slice.Tensor,
    aten.select.int,
    aten.split.Tensor,
    aten.split_with_sizes.default,
    aten.unbind.int,
    aten.cat.default,
    aten.stack.default,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.unsqueeze.default,
    aten.as_strided.default,
)


def _refuse(operator: Operator) -> None:
    @_dispatch.implements(operator, GroupedTensor)
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError(f"GroupedTensor does not support {operator}")


for _operator in _REARRANGING:
    _refuse(_operator)
