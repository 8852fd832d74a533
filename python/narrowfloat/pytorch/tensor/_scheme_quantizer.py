# SPDX-License-Identifier: Apache-2.0
"""The quantizer class of all families whose format is a scheme."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch

from narrowfloat import _core
from narrowfloat.pytorch import _native
from narrowfloat.pytorch._plans import has_symbols, numbers
from narrowfloat.pytorch._read_only import unwrapped
from narrowfloat.pytorch._types import Device, Quantized
from narrowfloat.pytorch._values import constant_of_graphs, never_traced
from narrowfloat.pytorch.constants import DType
from narrowfloat.pytorch.quantized_tensor import QuantizedTensorStorage, Quantizer, TensorT_co
from narrowfloat.pytorch.tensor._layouts import keep_layout
from narrowfloat.pytorch.tensor.storage import _dropped as dropped
from narrowfloat.pytorch.tensor.storage._scheme_storage import SchemeStorage
from narrowfloat.pytorch.tensor.storage._stale import StaleCodes
from narrowfloat.pytorch.tensor.storage._transport import content_of
from narrowfloat.pytorch.utils import is_non_tn_fp8_gemm_supported

if TYPE_CHECKING:
    from narrowfloat.pytorch.tensor.storage.grouped_tensor_storage import GroupedTensorStorage


def check_whole_blocks(quantizer: str, scheme: str, shape: tuple[int, ...]) -> None:
    """Raises ValueError unless rows and columns are multiples of the scheme's block."""
    try:
        _check_whole_blocks(quantizer, scheme, shape)
    except TypeError:  # symbols cannot be hashed
        if not has_symbols(shape):
            raise
        block = _native.make_spec(scheme, True, True).block_length
        if any(size % block != 0 for size in _native.flatten_shape(shape)):
            _core.check_whole_blocks(quantizer, scheme, numbers(shape))


@lru_cache
def _check_whole_blocks(quantizer: str, scheme: str, shape: tuple[int, ...]) -> None:
    _core.check_whole_blocks(quantizer, scheme, shape)


def require_fitting(tensor: str, largest: float, limit: float) -> None:
    """Checks values for a part of a tensor with one scale for the whole.

    Errors: ValueError if the largest magnitude exceeds `limit` by more than a margin.
    """
    # The scale, its reciprocal, and the product of a code with it each have one rounding error of
    # half an eps: the largest magnitude of the whole may exceed the limit by that much.
    margin = 1 + 4 * torch.finfo(torch.float32).eps
    if not largest <= limit * margin:
        raise ValueError(
            f"quantize: a part of this {tensor} shares its scale with the rest, which takes "
            f"magnitudes up to {limit:.8g}, got {largest:.8g}; write the whole tensor to change "
            "the scale"
        )


def check_same_matrix(src: torch.Size, dst: torch.Size) -> None:
    """Raises ValueError unless both shapes flatten to the same matrix."""
    if _native.flatten_shape(tuple(src)) != _native.flatten_shape(tuple(dst)):
        raise ValueError(
            f"quantize: the output must have the input's shape {tuple(src)}, got {tuple(dst)}"
        )


def source_tensor(src: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Returns `src` as a plain tensor on `device`."""
    src = src._decode() if isinstance(src, QuantizedTensorStorage) else unwrapped(src)
    return src if src.device == device else src.to(device)


@constant_of_graphs  # the planner is native code
def _planned(quantizer: SchemeQuantizer, shape: tuple[int, ...]) -> _native.PlannedFields:
    quantizer._check_shape(shape)
    return _native.name_fields(quantizer._plan(shape), quantizer.STORAGE._role_names)


class SchemeQuantizer(Quantizer[TensorT_co]):
    """Allocates and fills the buffers of a scheme. A family defines the scheme and its options."""

    QUANTIZES_OUTPUTS = True
    TENSOR: ClassVar[type]
    STORAGE: ClassVar[type[SchemeStorage]]
    dtype: DType

    # Methods that a family defines.

    def _scheme(self) -> str:
        """Returns the name of the scheme."""
        raise NotImplementedError

    def _options(self) -> tuple[tuple[str, Any], ...]:
        """Returns the options of the verb, without the directions."""
        return ()

    def _settings(self) -> dict[str, Any]:
        """Returns constructor arguments of the tensor's fields that are not buffers."""
        raise NotImplementedError

    def _check_shape(self, shape: tuple[int, ...]) -> None:
        """Raises ValueError for a shape that the format does not support."""

    def _check_destination(self, dst: object, bare: bool = False) -> None:
        """Raises the family's error unless `dst` is a tensor of the family.

        bare: accepts a storage too.
        """
        assert isinstance(dst, self.STORAGE if bare else self.TENSOR), (
            f"Cannot store quantized data in {type(dst).__name__}: "
            f"{type(self).__name__} fills {self.TENSOR.__name__}"
        )

    def _reads_any_layout(self) -> bool:
        """Returns whether products read per-tensor codes in any layout, so that no transpose
        exists.
        """
        return is_non_tn_fp8_gemm_supported()

    # Specs and plans.

    def _buffer_names(self) -> list[str]:
        return [buffer.name for buffer in self.STORAGE.BUFFERS]

    def _directions(self) -> tuple[bool, bool]:
        """Returns the directions to make."""
        return self.rowwise_usage, self.columnwise_usage

    def _spec(self) -> _core.QuantSpec:
        rowwise, columnwise = self._directions()
        return _native.make_spec(self._scheme(), rowwise, columnwise, self._options())

    def _plan(self, shape: tuple[int, ...]) -> tuple[_native.PlannedBuffer, ...]:
        if not any(self._directions()):
            return ()
        return _native.plan(self._spec(), shape)

    def _buffer_specs(self, shape: Iterable[int]) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
        """Returns dtype and shape of each of the tensor's buffer fields."""
        return {name: (dtype, size) for name, dtype, size in _planned(self, tuple(shape))}

    def _check_group(self) -> None:
        """Does nothing: tensors of any shape may be in a group."""

    def _group_state(self, count: int, device: Device) -> dict[str, torch.Tensor]:
        """Returns constructor arguments of a group beyond its members', one element per member."""
        return {}

    def _make_group(self, cls: type, *args: Any, **fields: Any) -> GroupedTensorStorage:
        """Returns a group of class `cls` or a replacement of it."""
        return cls(*args, **fields)

    def _make_member(self, *args: Any) -> Quantized:
        """Returns a member of a group over the group's buffers; arguments as _assemble()."""
        return self._assemble(*args)

    # Building.

    def inner_tensor_specs(
        self, shape: Iterable[int]
    ) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        specs = self._buffer_specs(shape)
        return {
            name: (specs[name][1], specs[name][0])
            for name, _ in self.STORAGE._INNER_TENSORS
            if name in specs
        }

    def storage_metadata(self, dtype: torch.dtype) -> dict[str, Any]:
        return {**self._settings(), "quantizer": self, "fake_dtype": dtype}

    def alloc_tensors(
        self,
        shape: Iterable[int],
        *,
        device: torch.device | str | None = None,
        pin_memory: bool = False,
    ) -> dict[str, torch.Tensor]:
        return {
            name: torch.empty(size, dtype=dtype, device=device, pin_memory=pin_memory)
            for name, (dtype, size) in self._buffer_specs(shape).items()
        }

    def create_metadata(
        self, shape: Iterable[int], dtype: torch.dtype, requires_grad: bool = False
    ) -> dict[str, Any]:
        return {
            "cls": self.STORAGE if self.internal else self.TENSOR,
            "is_tensor": not self.internal,
            "requires_grad": requires_grad and not self.internal,
            "nontensor_kwargs": self.storage_metadata(dtype),
        }

    def make_empty(
        self,
        shape: Iterable[int],
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
        requires_grad: bool = False,
        pin_memory: bool = False,
    ) -> TensorT_co:
        """Returns an uninitialised tensor. Errors: ValueError for an unsupported shape."""
        device = torch.get_default_device() if device is None else torch.device(device)
        shape = torch.Size(shape)
        tensors = self.alloc_tensors(shape, device=device, pin_memory=pin_memory)
        return self._assemble(shape, dtype, tensors, device, requires_grad)

    def _assemble(
        self,
        shape: Iterable[int],
        dtype: torch.dtype,
        tensors: dict[str, torch.Tensor],
        device: torch.device,
        requires_grad: bool = False,
    ) -> TensorT_co:
        fields = self.storage_metadata(dtype)
        for buffer in self.STORAGE.BUFFERS:
            fields[buffer.keyword] = tensors.get(buffer.name)
        made: Any
        if self.internal:
            made = self.STORAGE(**fields)
        else:
            outer = {"shape": shape, "dtype": dtype, "device": device}
            made = self.TENSOR(**outer, requires_grad=requires_grad, **fields)
        return made

    # Quantizing.

    def quantize_impl(self, tensor: torch.Tensor) -> TensorT_co:
        if _native.in_memory(tensor):
            out = self._new_for(tensor)
        else:
            tensor = source_tensor(tensor, tensor.device)
            self._check_quantize(tensor)
            out = self.make_empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
        if tensor.numel() > 0:
            self._fill(tensor, out, None)
        else:
            self._fill_nothing(tensor, out)
        return out

    def _new_for(self, tensor: torch.Tensor) -> TensorT_co:
        """Returns a new tensor for the codes of `tensor`, with a cached layout if there is one.

        Errors: as _check_quantize().
        """
        layouts = self.__dict__.get("_layouts")
        if layouts is None:
            layouts = self.__dict__["_layouts"] = {}
        device = None if tensor.is_cpu else tensor.device
        key = tensor.shape, tensor.dtype, self._directions(), device
        layout = layouts.get(key)
        if layout is not None:
            return layout.make(self)
        self._check_quantize(tensor)
        made = self.make_empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
        keep_layout(layouts, key, made)
        return made

    @never_traced
    def __setattr__(self, name: str, value: object) -> None:
        # Removes the reference only, because a copy may share the dictionary.
        self.__dict__.pop("_layouts", None)
        self._write_field(name, value)

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        state.pop("_layouts", None)
        return state

    def _fill_nothing(self, src: torch.Tensor, dst: Quantized) -> None:
        """Joins the reduction of amaxes for an empty shard, and stores the result."""
        if not getattr(self, "with_amax_reduction", False):
            return
        rows = max(self._spec().block_length, 1)
        zeros = src.new_zeros((rows, max(src.shape[-1], rows)))
        stand_in = self.make_empty(zeros.shape, dtype=zeros.dtype, device=zeros.device)
        self._fill(zeros, stand_in, None)
        for name in dst._shared_names():
            if dst.__dict__[name] is not None:
                dst.__dict__[name].copy_(stand_in.__dict__[name])

    def update_quantized(
        self,
        src: torch.Tensor,
        dst: Quantized,
        *,
        noop_flag: torch.Tensor | None = None,
    ) -> Quantized:
        """Quantizes `src` into `dst` and returns `dst`.

        Errors: as _check_destination(); ValueError if the shapes differ.
        """
        self._check_destination(dst)
        return self._update(src, dst, noop_flag)

    def update_storage(
        self, src: torch.Tensor, dst: Quantized, *, noop_flag: torch.Tensor | None = None
    ) -> Quantized:
        """Implements update_quantized(), for bare storages too."""
        self._check_destination(dst, bare=True)
        return self._update(src, dst, noop_flag)

    def _update(
        self, src: torch.Tensor, dst: Quantized, noop_flag: torch.Tensor | None
    ) -> Quantized:
        if type(src) is not torch.Tensor or src.device != dst.device:
            src = source_tensor(src, dst.device)
        part = dst._cut is not None
        self._check_source(src, dst, part)
        if noop_flag is not None and (part or not self._matches(dst)):
            _native.check_call(src, noop_flag)
            if _native.skips(noop_flag):  # in all other cases the verb reads the flag
                return dst
        dropped.take_back(dst)
        if src.numel() == 0:
            self._with_group_of(dst)._fill_nothing(src, dst)
            return dst
        if part:
            self._write_part(src, dst, noop_flag)
        else:
            self._with_group_of(dst)._run(src, dst, noop_flag)
        noted = part or StaleCodes.live or dst._is_followed()
        if noted and (noop_flag is None or self._writes(noop_flag)):
            dst._after_write()
        return dst

    def _writes(self, noop_flag: torch.Tensor) -> bool:
        """Returns whether a call with this flag writes.

        A flag in device memory is not read (updating aliases from unchanged codes is harmless),
        unless stale codes exist.
        """
        if noop_flag.is_cuda and not StaleCodes.live:
            return True
        return not _native.skips(noop_flag)

    def _check_source(self, src: torch.Tensor, dst: Quantized, part: bool) -> None:
        """Raises ValueError or the family's error if `src` cannot be quantized into `dst`."""
        if src.shape != dst.shape:
            check_same_matrix(src.shape, dst.shape)
        if not part:
            self._check_quantize(src)

    def _check_update(self, src: torch.Tensor, dst: Quantized) -> None:
        self._check_destination(dst)
        dropped.take_back(dst)
        self._check_source(src, dst, dst._cut is not None)

    def _write_part(self, src: torch.Tensor, dst: Quantized, noop: torch.Tensor | None) -> None:
        """Quantizes into a part of another tensor, in the directions that are present.

        The quantizer may not support the shape of a part, but its ends are block boundaries.
        """
        quantizer = self._of_part(dst)
        # Stale codes are written here: only reading them raises.
        buffers = {b.keyword: dst._whole_buffer(b.name) for b in dst.BUFFERS}
        fresh = dst._rebuild(**{n: None if t is None else t.clone() for n, t in buffers.items()})
        quantizer._fill_part(src, fresh, noop)
        for buffer in self.STORAGE.BUFFERS:
            mine = dst.__dict__[buffer.name]
            if mine is not None and buffer.name not in dst._shared_names():
                mine.copy_(content_of(fresh.__dict__[buffer.name], mine.shape))

    def _of_part(self, dst: Quantized) -> Self:
        """Returns this quantizer for a part's directions. Errors: ValueError for another format."""
        quantizer = self.copy()
        quantizer.optimize_for_gemm = dst._has_swizzled_scales()
        quantizer.set_usage(**dst.get_usages())
        for keyword, value in quantizer._settings().items():
            held = dst.__dict__[self.STORAGE._setting_names[keyword]]
            if held != value:
                raise ValueError(
                    f"quantize: a part of this {type(dst).__name__} needs a quantizer with "
                    f"{keyword} {held!r}, got {value!r}"
                )
        return quantizer

    def _fill_part(self, src: torch.Tensor, fresh: Quantized, noop: torch.Tensor | None) -> None:
        """Fills a copy of a part; fields that it shares with the whole do not change."""
        self._fill(src, fresh, noop)

    def _run(self, src: torch.Tensor, dst: Quantized, noop: torch.Tensor | None) -> None:
        if self._fits(dst):
            self._fill_dense(src, dst, noop)
            self._label(dst)
            return
        _native.check_call(src, noop)  # before any buffer changes
        absent = [name for name in self._buffer_names() if dst.__dict__[name] is None]
        quantizer = self
        self._fit(dst)
        if dropped.take_back(dst):  # aliases have what _fit() dropped
            quantizer = self.copy()
            quantizer.set_usage(**dst.get_usages())
        try:
            quantizer._fill_dense(src, dst, noop)
        except BaseException:  # new buffers are not filled
            dst.__dict__.update(dict.fromkeys(absent))
            raise
        self._label(dst)
        for direction, codes in (("rowwise", dst.ROWWISE), ("columnwise", dst.COLUMNWISE)):
            if codes in absent:
                dst._record_made(direction)
        if quantizer is not self:
            dst._keep(*self._directions())

    def _fill_dense(self, src: torch.Tensor, dst: Quantized, noop: torch.Tensor | None) -> None:
        """Fills `dst`, through dense copies of buffers that are not contiguous."""
        try:
            self._fill(src, dst, noop)
        except ValueError:  # nothing is written in this case
            loose = self._loose_buffers(dst)
            if not loose:
                raise
            self._fill_beside(src, dst, noop, loose)

    def _loose_buffers(self, dst: Quantized) -> dict[str, torch.Tensor]:
        """Returns the buffers that are not contiguous, which verbs cannot write."""
        named = {name: dst.__dict__[name] for name in self._buffer_names()}
        return {n: t for n, t in named.items() if t is not None and not t.is_contiguous()}

    def _fill_beside(
        self,
        src: torch.Tensor,
        dst: Quantized,
        noop: torch.Tensor | None,
        loose: dict[str, torch.Tensor],
    ) -> None:
        """Fills dense buffers instead of the loose ones, and copies them."""
        for name, tensor in loose.items():
            setattr(dst, name, tensor.contiguous())
        try:
            self._fill(src, dst, noop)
        finally:
            for name, tensor in loose.items():
                tensor.copy_(dst.__dict__[name])
                setattr(dst, name, tensor)

    def _check_quantize(self, tensor: torch.Tensor) -> None:
        """Raises the family's error for an unsupported combination of options or shape."""
        if not any(self._directions()):
            raise ValueError("quantize: the quantizer has neither rowwise nor columnwise usage")
        self._check_shape(tensor.shape)

    def _with_group_of(self, dst: Quantized) -> Self:
        """Returns this quantizer, or a copy that reduces over the group stored on `dst`."""
        if not hasattr(self, "with_amax_reduction"):
            return self
        group = getattr(dst, "amax_reduction_group", None)
        if group is None:
            return self
        quantizer = self.copy()
        quantizer.with_amax_reduction = True
        quantizer.amax_reduction_group = group
        return quantizer

    def _fits(self, dst: Quantized) -> bool:
        """Returns whether `dst` has the directions that this quantizer fills."""
        return (dst._has_rowwise(), dst._has_columnwise()) == self._directions()

    def _matches(self, dst: Quantized) -> bool:
        """Returns whether a call changes only values of buffers: no directions, no settings."""
        fields, names = dst.__dict__, self.STORAGE._setting_names
        same = all(fields[names[k]] == value for k, value in self._settings().items())
        return same and (dst._has_rowwise(), dst._has_columnwise()) == self._directions()

    def _fit(self, dst: Quantized) -> None:
        """Makes the buffers of `dst` that this quantizer fills, and drops the other ones.

        Errors: NotImplementedError for an input of a graph, which ends the graph.
        """
        if dst._unflattened not in (None, self._directions()):
            raise NotImplementedError(
                f"quantize: a write that changes the directions of a {type(dst).__name__} must run "
                "outside of a graph, which keeps the buffers of its inputs"
            )
        specs = self._buffer_specs(tuple(dst.shape))
        device = dst.device
        dst._keep(*self._directions())
        for buffer in self.STORAGE.BUFFERS:
            if buffer.name not in specs:
                setattr(dst, buffer.name, None)
            elif getattr(dst, buffer.name) is None:
                dtype, shape = specs[buffer.name]
                setattr(dst, buffer.name, torch.empty(shape, dtype=dtype, device=device))

    def _fill(self, src: torch.Tensor, dst: Quantized, noop: torch.Tensor | None) -> None:
        _native.quantize(self._spec(), src, dst._role_buffers(), noop)

    def _label(self, dst: Quantized) -> None:
        """Stores this quantizer's settings in the fields of a filled tensor."""
        fields, names = dst.__dict__, self.STORAGE._setting_names
        for keyword, value in self._settings().items():
            fields[names[keyword]] = value

    def quantizes_shards(self, inp: torch.Tensor) -> bool:
        return self.is_quantizable(inp)

    def is_quantizable(self, inp: torch.Tensor) -> bool:
        return inp.dim() >= 2 and self._spec().has_whole_blocks(tuple(inp.shape))


def block_scale_shape(
    self: SchemeQuantizer[Any], shape: Iterable[int], columnwise: bool
) -> tuple[int, ...]:
    """Returns the shape of a direction's padded scales. A method of families with blocks."""
    return scale_shape(_native.make_spec(self._scheme(), True, True), shape, columnwise)


def scale_shape(spec: _core.QuantSpec, shape: Iterable[int], columnwise: bool) -> tuple[int, ...]:
    """Returns the shape of the padded scales of a direction, for a spec with both directions."""
    role = "columnwise_scale_inv" if columnwise else "rowwise_scale_inv"
    planned = _native.plan(spec, tuple(shape))
    return next(buffer.shape for buffer in planned if buffer.role == role)
