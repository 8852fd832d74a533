# SPDX-License-Identifier: Apache-2.0
"""Tensors of one type and format, concatenated in flat buffers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, ClassVar, Self

import torch

from narrowfloat.pytorch import _native
from narrowfloat.pytorch._types import Quantized
from narrowfloat.pytorch.quantized_tensor import Quantizer

# The group's field for each role of a member's buffers.
_FIELDS = {
    "rowwise_data": "rowwise_data",
    "columnwise_data": "columnwise_data",
    "rowwise_scale_inv": "scale_inv",
    "columnwise_scale_inv": "columnwise_scale_inv",
    "amax_rowwise": "amax",
    "amax_columnwise": "columnwise_amax",
}
# The field of a member with the place of its scale and its amax in the group.
GROUP_STATE = "_group_scale_and_amax"
_SAVED = (
    "rowwise_data",
    "columnwise_data",
    "scale_inv",
    "columnwise_scale_inv",
    "amax",
    "columnwise_amax",
    "scale",
    "first_dims",
    "last_dims",
    "tensor_offsets",
)
# Constructor arguments other than the shape and the type, and their fields.
_ARGUMENTS = {
    "num_tensors": "num_tensors",
    "shapes": "tensor_shapes",
    "quantizer": "quantizer",
    "data": "rowwise_data",
    **{name: name for name in _SAVED[1:]},
    "offsets": "offsets",
    "scale_inv_offsets": "scale_inv_offsets",
    "columnwise_scale_inv_offsets": "columnwise_scale_inv_offsets",
    "with_gemm_swizzled_scales": "_with_gemm_swizzled_scales",
    "row_scaled_nvfp4": "row_scaled_nvfp4",
    "nvfp4_use_4over6": "nvfp4_use_4over6",
    "nvfp4_e4m3_max": "nvfp4_e4m3_max",
}
_FLAGS = ("_with_gemm_swizzled_scales", "row_scaled_nvfp4", "nvfp4_use_4over6")

MemberBuffers = dict[str, tuple[torch.dtype, tuple[int, ...]]]


def prefix_sums(sizes: Iterable[int]) -> list[int]:
    """Returns 0, then the sums of the first 1, 2, ... sizes."""
    sums = [0]
    for size in sizes:
        sums.append(sums[-1] + int(size))
    return sums


def member_buffers(quantizer: Quantizer, shape: tuple[int, ...]) -> MemberBuffers:
    """Returns dtype and shape of a member's buffers by the group's fields."""
    specs: dict[str, Any] = quantizer._buffer_specs(shape)
    names = dict(zip(_native.ROLES, quantizer.STORAGE._role_names, strict=True))
    buffers = {field: specs[names[role]] for role, field in _FIELDS.items() if names[role] in specs}
    if quantizer.STORAGE._shares_scale:
        buffers.pop("columnwise_scale_inv", None)  # one vector is used for both directions
    return buffers


class GroupedTensorStorage:
    """Flat buffers of `num_tensors` members, and the offset of each.

    `logical_shape`: the members stacked, `[n * M, K]`; with `first_dims` `[sum, K]`, with
    `last_dims` `[M, sum]`, with both `[1, total]`.

    shape: the logical shape. dtype: the nominal type. requires_grad, stride: of GroupedTensor;
    a storage ignores them.
    num_tensors: the number of members. shapes: of each member; None to compute them from the sizes.
    quantizer: of the members; None for plain members.
    data, columnwise_data: flat codes, or values, of all members in order, or None.
    scale_inv, columnwise_scale_inv: their flat scales, or None.
    amax, columnwise_amax, scale: float32, one element per member, or None.
    first_dims, last_dims: int64, one size per member; None if all are equal.
    tensor_offsets, offsets: of the members, in elements, as a tensor and as a list.
    scale_inv_offsets, columnwise_scale_inv_offsets: of the members' scales.
    with_gemm_swizzled_scales, row_scaled_nvfp4, nvfp4_use_4over6, nvfp4_e4m3_max: as in
        NVFP4TensorStorage.
    Errors: TypeError for another argument.
    """

    TENSOR: ClassVar[type]  # the class with autograd

    # Fields, by _ARGUMENTS; buffers are flat, None if they are absent.
    num_tensors: int
    logical_shape: tuple[int, int]
    fake_dtype: torch.dtype
    tensor_shapes: list[tuple[int, ...]] | None
    quantizer: Any  # a Quantizer, or None
    quantized_tensors: list[Any] | None
    first_dims: torch.Tensor | None
    last_dims: torch.Tensor | None
    tensor_offsets: torch.Tensor | None
    rowwise_data: torch.Tensor | None
    columnwise_data: torch.Tensor | None
    columnwise_scale_inv: torch.Tensor | None
    columnwise_scale_inv_offsets: list[int] | None
    scale: torch.Tensor | None
    amax: torch.Tensor | None
    _with_gemm_swizzled_scales: bool

    def __new__(
        cls,
        shape: tuple[int, int],
        dtype: torch.dtype,
        *,
        requires_grad: bool = False,
        stride: Sequence[int] | None = None,
        **fields: Any,
    ) -> Self:
        instance = object.__new__(cls)
        instance._set_fields(shape, dtype, fields)
        return instance

    def _set_fields(
        self, shape: tuple[int, int], dtype: torch.dtype, fields: dict[str, Any]
    ) -> None:
        """Sets the fields. Errors: TypeError for an unknown argument."""
        for name in fields:
            if name not in _ARGUMENTS:
                raise TypeError(f"GroupedTensor has no argument {name!r}")
        own = self.__dict__
        for argument, field in _ARGUMENTS.items():
            value = fields.get(argument)
            own[field] = bool(value) if field in _FLAGS else value
        if own["nvfp4_e4m3_max"] is None:
            own["nvfp4_e4m3_max"] = getattr(self.quantizer, "nvfp4_e4m3_max", None)
        own["logical_shape"] = tuple(shape)
        own["fake_dtype"] = dtype
        own["quantized_tensors"] = None

    # Shapes.

    def has_data(self) -> bool:
        return self.rowwise_data is not None

    def has_columnwise_data(self) -> bool:
        return self.columnwise_data is not None

    def all_same_first_dim(self) -> bool:
        return self.first_dims is None

    def all_same_last_dim(self) -> bool:
        return self.last_dims is None

    def all_same_shape(self) -> bool:
        return self.first_dims is None and self.last_dims is None

    def varying_both_dims(self) -> bool:
        return self.first_dims is not None and self.last_dims is not None

    def get_common_first_dim(self) -> int:
        """Returns the first dimension of all members. Errors: RuntimeError if it varies."""
        if not self.all_same_first_dim():
            raise RuntimeError("First dim varies across tensors")
        rows = self.logical_shape[0]
        return rows // self.num_tensors if self.all_same_shape() else rows

    def get_common_last_dim(self) -> int:
        """Returns the last dimension of all members. Errors: RuntimeError if it varies."""
        if not self.all_same_last_dim():
            raise RuntimeError("Last dim varies across tensors")
        return self.logical_shape[1]

    def get_dtype(self) -> torch.dtype:
        """Returns the nominal type."""
        return self.fake_dtype

    def _member_shapes(self) -> list[tuple[int, ...]]:
        if self.tensor_shapes is None:
            rows, cols = self.logical_shape
            self.tensor_shapes = shapes_of(
                self.num_tensors, self.first_dims, self.last_dims, rows, cols
            )
        return self.tensor_shapes

    # Construction.

    @staticmethod
    def make_grouped_tensor_with_shapes(
        num_tensors: int,
        shapes: Sequence[tuple[int, int]],
        quantizer: Quantizer | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> GroupedTensorStorage:
        """Returns a group of members with these shapes, as make_grouped_tensor().

        Errors: AssertionError if the last dimensions differ.
        """
        rows, cols = [shape[0] for shape in shapes], [shape[1] for shape in shapes]
        assert len(set(cols)) == 1, f"Last dims should be uniform, got {cols}"
        uniform = len(set(rows)) == 1
        first_dims = None if uniform else torch.tensor(rows, dtype=torch.int64, device=device)
        return GroupedTensorStorage.make_grouped_tensor(
            num_tensors, first_dims, None, sum(rows), cols[0], quantizer, device, dtype
        )

    @staticmethod
    def make_grouped_tensor(
        num_tensors: int,
        first_dims: torch.Tensor | None,
        last_dims: torch.Tensor | None,
        logical_first_dim: int,
        logical_last_dim: int,
        quantizer: Quantizer | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> GroupedTensorStorage:
        """Returns a group with uninitialised buffers.

        Errors: ValueError, NotImplementedError for a quantizer without a flat form; AssertionError
        without a quantizer and a type.
        """
        shapes = shapes_of(num_tensors, first_dims, last_dims, logical_first_dim, logical_last_dim)
        total = logical_first_dim * logical_last_dim
        fields = offsets_of(shapes, first_dims, last_dims)
        fields |= {
            "num_tensors": num_tensors,
            "shapes": shapes,
            "quantizer": quantizer,
            "first_dims": first_dims,
            "last_dims": last_dims,
        }
        if quantizer is None:
            assert dtype is not None, "dtype must be provided for unquantized GroupedTensor"
            fields["data"] = torch.empty(total, dtype=dtype, device=device)
        else:
            quantizer._check_group()
            fields |= allocate(quantizer, shapes, total, device)
        both = first_dims is not None and last_dims is not None
        shape = (1, total) if both else (logical_first_dim, logical_last_dim)
        dtype = torch.float32 if dtype is None else dtype
        cls = _class_for(quantizer)
        make = cls if quantizer is None else partial(quantizer._make_group, cls)
        group = make(shape, dtype, **fields)
        group._keep_members()
        return group

    @staticmethod
    def make_grouped_tensor_from_rowwise_data(
        *,
        num_tensors: int,
        tensor_shape: Sequence[int],
        rowwise_data: torch.Tensor,
        dtype: torch.dtype | None = None,
        internal: bool = False,
    ) -> GroupedTensorStorage:
        """Returns a group without a quantizer over existing values, without a copy.

        Errors: ValueError for a wrong count, rank or size.
        """
        member = tuple(int(size) for size in tensor_shape)
        if num_tensors < 1:
            raise ValueError(f"GroupedTensor needs at least one member, got {num_tensors}")
        if len(member) not in (1, 2):
            raise ValueError(f"GroupedTensor members must have one or two dimensions, got {member}")
        if rowwise_data.numel() != num_tensors * math.prod(member):
            raise ValueError(
                f"GroupedTensor: {num_tensors} members of {member} need rowwise_data of "
                f"{num_tensors * math.prod(member)} elements, got {rowwise_data.numel()}"
            )
        shapes = [member] * num_tensors
        rows = num_tensors * (member[0] if len(member) == 2 else 1)
        cls = GroupedTensorStorage if internal else _class_for(None)
        group = cls(
            (rows, member[-1]),
            rowwise_data.dtype if dtype is None else dtype,
            num_tensors=num_tensors,
            shapes=shapes,
            data=rowwise_data.reshape(-1),
            **offsets_of(shapes, None, None),
        )
        group.quantized_tensors = group.split_into_quantized_tensors()
        return group

    # Members.

    def _members_quantizer(self) -> Quantizer | None:
        """Returns the quantizer that defines the members' buffers; None for plain members."""
        return self.quantizer

    def _keep_members(self) -> None:
        """Stores the members; must be called after buffers or the quantizer were replaced."""
        self.quantized_tensors = self.split_into_quantized_tensors()

    def _mark_swizzled(self) -> None:
        """Records that the scales are swizzled, also in the quantizer."""
        self._with_gemm_swizzled_scales = True
        self.quantizer = self.quantizer.copy()
        self.quantizer.optimize_for_gemm = True
        self._keep_members()

    def _mark_columnwise(self) -> None:
        """Records that columnwise buffers were added."""
        self.quantizer = self.quantizer.copy()
        self.quantizer.set_usage(columnwise=True)
        self._keep_members()

    def _plain_like(self, dtype: torch.dtype, device: torch.device) -> GroupedTensorStorage:
        """Returns an uninitialised group of this shape without a quantizer."""
        return GroupedTensorStorage.make_grouped_tensor(
            self.num_tensors,
            self.first_dims,
            self.last_dims,
            *self.logical_shape,
            quantizer=None,
            device=device,
            dtype=dtype,
        )

    def split_into_quantized_tensors(self) -> list[Any]:
        """Returns the members over the group's own buffers: plain, bare storages or tensors."""
        return self._split()

    def _split(self) -> list[Any]:
        """Returns members; autograd does not count writes to them."""
        shapes = self._member_shapes()
        quantizer = self._members_quantizer()
        if quantizer is None:
            flat = self.rowwise_data if self.has_data() else self.columnwise_data
            if flat is None:
                raise RuntimeError("GroupedTensor has no data to split")
            starts = prefix_sums(math.prod(shape) for shape in shapes)
            return [
                flat[start : start + math.prod(shape)].view(shape)
                for start, shape in zip(starts, shapes, strict=False)
            ]
        quantizer._check_group()
        begins = dict.fromkeys(_FIELDS.values(), 0)
        members = [self._member(quantizer, shape, begins) for shape in shapes]
        if quantizer.STORAGE._shares_scale:
            for index, member in enumerate(members):
                place = slice(index, index + 1)
                scale = None if self.scale is None else self.scale[place]
                amax = None if self.amax is None else self.amax[place]
                setattr(member, GROUP_STATE, (scale, amax))
        return members

    def _member(
        self, quantizer: Quantizer, shape: tuple[int, ...], begins: dict[str, int]
    ) -> Quantized:
        """Returns one member; advances `begins` to the next member's buffers."""
        names = dict(zip(_native.ROLES, quantizer.STORAGE._role_names, strict=True))
        attributes = {field: names[role] for role, field in _FIELDS.items()}
        tensors: dict[str, torch.Tensor] = {}
        for field, (_, size) in member_buffers(quantizer, shape).items():
            flat = getattr(self, field)
            count = math.prod(size)
            begin = begins[field]
            begins[field] = begin + count
            name = attributes[field]
            if flat is None or name is None or name in tensors:
                continue
            tensors[name] = flat[begin : begin + count].view(size)
        device = next(iter(tensors.values())).device
        return quantizer._make_member(shape, self.fake_dtype, tensors, device)

    @torch.no_grad()
    def quantize(
        self, tensors: Sequence[torch.Tensor], noop_flag: torch.Tensor | None = None
    ) -> list[Any]:
        """Quantizes a tensor into each member; returns the members."""
        members = self._split()
        quantizer: Any = self._members_quantizer()
        for tensor, member in zip(tensors, members, strict=True):
            quantizer.update_storage(tensor, member, noop_flag=noop_flag)
        return members

    # Lifetime.

    def _arguments(self) -> dict[str, Any]:
        return {argument: getattr(self, field) for argument, field in _ARGUMENTS.items()}

    def copy(self) -> Self:
        """Returns another group over the same buffers."""
        group = type(self)(self.logical_shape, self.fake_dtype, **self._arguments())
        group.quantized_tensors = self.quantized_tensors
        return group

    def prepare_for_saving(self) -> tuple[list[torch.Tensor | None], GroupedTensorStorage]:
        """Returns the buffers and removes them here; restore_from_saved() restores them."""
        tensors = [getattr(self, name) for name in _SAVED]
        for name in _SAVED:
            setattr(self, name, None)
        self.quantized_tensors = None
        return tensors, self

    def restore_from_saved(
        self, tensors: Sequence[torch.Tensor | None]
    ) -> Sequence[torch.Tensor | None]:
        """Restores the buffers from the first tensors, and returns the remaining tensors."""
        for name, tensor in zip(_SAVED, tensors, strict=False):
            setattr(self, name, tensor)
        return tensors[len(_SAVED) :]

    def clear(self) -> None:
        """Removes every buffer and every shape."""
        for name in (*_SAVED, "quantizer", "quantized_tensors", "offsets"):
            setattr(self, name, None)
        self.scale_inv_offsets = self.columnwise_scale_inv_offsets = None
        self.logical_shape = (0, 0)
        self.num_tensors = 0
        self.tensor_shapes = []
        self.fake_dtype = torch.float32

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(num_tensors={self.num_tensors}, shapes={self.tensor_shapes}, "
            f"logical_shape={self.logical_shape}, quantizer={self.quantizer}, "
            f"dtype={self.fake_dtype})"
        )


def _class_for(quantizer: Quantizer | None) -> type:
    internal = quantizer is not None and quantizer.internal
    return GroupedTensorStorage if internal else GroupedTensorStorage.TENSOR


def shapes_of(
    num_tensors: int,
    first_dims: torch.Tensor | None,
    last_dims: torch.Tensor | None,
    rows: int,
    cols: int,
) -> list[tuple[int, ...]]:
    """Returns the shapes of the members."""
    uniform = first_dims is None and last_dims is None
    own_rows = rows // num_tensors if uniform else rows
    firsts = [own_rows] * num_tensors if first_dims is None else first_dims.tolist()
    lasts = [cols] * num_tensors if last_dims is None else last_dims.tolist()
    return list(zip(firsts, lasts, strict=True))


def offsets_of(
    shapes: Sequence[tuple[int, ...]],
    first_dims: torch.Tensor | None,
    last_dims: torch.Tensor | None,
) -> dict[str, Any]:
    """Returns the members' offsets in elements: as a list, and as a tensor if sizes vary."""
    offsets = prefix_sums(math.prod(shape) for shape in shapes)
    sizes = first_dims if first_dims is not None else last_dims
    if sizes is None:
        return {"offsets": offsets}
    tensor = torch.tensor(offsets, dtype=torch.int64, device=sizes.device)
    return {"offsets": offsets, "tensor_offsets": tensor}


def allocate(
    quantizer: Quantizer,
    shapes: Sequence[tuple[int, ...]],
    total: int,
    device: torch.device | str | None,
) -> dict[str, Any]:
    """Returns constructor arguments of the flat buffers. total: elements, which may exceed the
    members'.
    """
    members = [member_buffers(quantizer, shape) for shape in shapes]
    fields: dict[str, Any] = {
        "with_gemm_swizzled_scales": quantizer.optimize_for_gemm,
        "row_scaled_nvfp4": getattr(quantizer, "row_scaled_nvfp4", False),
        "nvfp4_use_4over6": getattr(quantizer, "nvfp4_use_4over6", False),
        "nvfp4_e4m3_max": getattr(quantizer, "nvfp4_e4m3_max", None),
    }
    used = prefix_sums(math.prod(shape) for shape in shapes)[-1]
    for field in dict.fromkeys(name for member in members for name in member):
        sizes = prefix_sums(math.prod(member[field][1]) for member in members)
        count = sizes[-1]
        if field in ("rowwise_data", "columnwise_data") and used < total:
            per_byte = used // count if count else 1
            count = total // per_byte
        dtype = members[0][field][0]
        argument = "data" if field == "rowwise_data" else field
        # An empty member is never written, and its amax is 0.
        make = torch.zeros if field.endswith("amax") else torch.empty
        fields[argument] = make(count, dtype=dtype, device=device)
        if field.endswith("scale_inv"):
            fields[f"{field}_offsets"] = sizes
    if quantizer.STORAGE._shares_scale:
        fields["scale_inv"].fill_(1)  # the scale_inv of an empty member
        if quantizer._directions()[1]:
            fields["columnwise_scale_inv"] = fields["scale_inv"]
            fields["columnwise_scale_inv_offsets"] = fields["scale_inv_offsets"]
    return fields | quantizer._group_state(len(shapes), device)
