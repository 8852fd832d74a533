# SPDX-License-Identifier: Apache-2.0
"""Parameters that FSDP2 shards: the buffers that it gathers, and the gathered parameter."""

from __future__ import annotations

import math
import sys
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from narrowfloat.pytorch._autograd import is_in_backward
from narrowfloat.pytorch._types import Quantized
from narrowfloat.pytorch.quantized_tensor import Quantizer
from narrowfloat.pytorch.tensor.storage import _transport as transport

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam
    from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

    from narrowfloat.pytorch.quantized_tensor import QuantizedTensorStorage

_FSDP_PARAMETER = "torch.distributed.fsdp._fully_shard._fsdp_param"
_REPLICATING = "torch.distributed.utils"
_SHARDING = (_FSDP_PARAMETER, "torch.distributed.tensor.placement_types")

# The parameter group of each module that owns a sharded parameter.
_groups: weakref.WeakKeyDictionary[torch.nn.Module, Any] = weakref.WeakKeyDictionary()


def _owns(group: FSDPParamGroup, module: torch.nn.Module) -> bool:
    return any(param._module_info.module is module for param in group.fsdp_params)


def find_parameter_group(module: torch.nn.Module) -> FSDPParamGroup:
    """Returns the FSDP2 group of a module's parameters, which may be an ancestor's.

    Errors: RuntimeError if FSDP2 does not shard the module.
    """
    known = None if module is None else _groups.get(module)
    group = None if known is None else known()
    if group is not None:
        return group
    from torch.distributed._composable_state import _module_state_mapping
    from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState

    for reference in list(_module_state_mapping.values()):
        state = reference() if isinstance(reference, weakref.ref) else reference
        if not isinstance(state, FSDPState):
            continue
        groups = getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group]
        for candidate in groups:
            if candidate is not None and _owns(candidate, module):
                _groups[module] = weakref.ref(candidate)
                return candidate
    raise RuntimeError(
        f"fsdp_pre_all_gather: {type(module).__name__} must be in an FSDP2 parameter group"
    )


# Modules by whether activation checkpointing may run their forward pass again. Modules that do not
# report their passes are absent.
_runs_again: weakref.WeakKeyDictionary[torch.nn.Module, bool] = weakref.WeakKeyDictionary()


def note_forward(module: torch.nn.Module, may_run_again: bool) -> None:
    """Stores whether activation checkpointing may run this forward pass of a module again.

    Requires: the module calls it in every forward pass, and its parameters are only read in its
    forward pass and the corresponding backward pass.
    """
    _runs_again[module] = may_run_again or _runs_again.get(module, False)


def _may_run_again(module: torch.nn.Module, shard: Quantized) -> bool:
    """Returns whether the forward pass of a parameter's module may run during backward.

    True for modules that do not report their passes, and for parameters that modules share.
    """
    param = _parameter_of(module, shard)
    shared = param is not None and bool(param._module_info.shared_modules)
    return shared or _runs_again.get(module, True)


def usages_of_pass(module: torch.nn.Module, shard: Quantized) -> tuple[bool, bool]:
    """Returns which directions the gathered parameter needs.

    If it is gathered for one pass, only the direction of that pass. If it stays gathered, as after
    unshard(), also the columnwise one, if the quantizer makes it. So too if it is gathered in
    backward and a checkpoint runs the forward pass again there, without resharding.
    """
    from torch.distributed.fsdp._fully_shard._fsdp_common import TrainingState

    group, quantizer = find_parameter_group(module), shard._quantizer
    state = group._training_state
    if group._reshard_after_forward:
        if state == TrainingState.FORWARD and not is_in_backward():
            return True, False
        if state == TrainingState.PRE_BACKWARD and not _may_run_again(module, shard):
            return False, True
    return True, quantizer is None or quantizer.columnwise_usage


def _parameter_of(module: torch.nn.Module, shard: Quantized) -> FSDPParam | None:
    """Returns FSDP2's record of a sharded parameter; None without a record."""
    try:
        params = find_parameter_group(module).fsdp_params
    except RuntimeError:
        return None
    owned = (param for param in params if param._module_info.module is module)
    return next((param for param in owned if param._sharded_local_tensor is shard), None)


def _name_of(module: torch.nn.Module, shard: Quantized) -> str:
    """Returns the name of a sharded parameter, from the root if FSDP2 knows it."""
    param = _parameter_of(module, shard)
    if param is None:
        return f"of {type(module).__name__}"
    return param._param_fqn or f"{type(module).__name__}.{param._module_info.param_name}"


def _make_room(param: FSDPParam | None, sent: Sequence[torch.Tensor], world: int) -> None:
    """Makes FSDP2 allocate new memory if the sizes of the buffers changed.

    FSDP2 keeps the tensors of the first gather, without memory while the parameter is sharded, and
    would gather into them. If they are removed, it allocates new ones, as in the first gather.
    """
    if param is None:
        return
    wanted = [(world * buffer.numel(), buffer.dtype) for buffer in sent]
    if [(memory.numel(), memory.dtype) for memory in param.all_gather_outputs] != wanted:
        param.all_gather_outputs = []
        param._unsharded_inner_tensors = []


@contextmanager
def _naming(module: torch.nn.Module | None, shard: Quantized) -> Iterator[None]:
    """Adds the parameter's name to errors that are raised inside."""
    try:
        yield
    except (NotImplementedError, RuntimeError) as error:
        if module is None:
            raise
        raise type(error)(f"{error} (parameter {_name_of(module, shard)})") from error


def _frames() -> Iterator[types.FrameType]:
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def is_asked_by_fsdp() -> bool:
    """Returns whether FSDP2 runs the operator that is being dispatched."""
    return any(frame.f_globals.get("__name__") == _FSDP_PARAMETER for frame in _frames())


def refuse_plain_shards(tensor: Quantized, why: str) -> None:
    """Raises if torch.distributed shards a tensor and an operator would return plain values.

    FSDP2 and DTensor would use the unquantized values instead of the tensor without a warning. Only
    the callers' frames distinguish them from a program that reads values.
    Errors: NotImplementedError, with the parameter's name under FSDP2.
    """
    for frame in _frames():
        if frame.f_globals.get("__name__") in _SHARDING:
            info = getattr(frame.f_locals.get("self"), "_module_info", None)
            name = "" if info is None else f" {info.param_name} of {type(info.module).__name__}"
            raise NotImplementedError(
                f"{type(tensor).__name__}{name} of shape {tuple(tensor.shape)} cannot be sharded: "
                f"{why}"
            )


def refuse_replicas_of_values(tensor: Quantized) -> None:
    """Raises if DistributedDataParallel sends the values of a tensor from rank 0 to the others.

    The other ranks would quantize the values again, and train different weights.
    Errors: NotImplementedError.
    """
    if any(frame.f_globals.get("__name__") == _REPLICATING for frame in _frames()):
        raise NotImplementedError(
            f"DistributedDataParallel cannot broadcast the values of a {type(tensor).__name__} of "
            f"shape {tuple(tensor.shape)}: call torch.distributed.broadcast(parameter.data, 0) for "
            "each parameter, which sends the codes, and pass init_sync=False"
        )


class _Part(NamedTuple):
    """The buffers that one storage sends: fields with rows, and fields equal on all ranks."""

    fields: tuple[str, ...]
    shared: tuple[str, ...]
    usages: tuple[bool, bool]


class _Bundle(NamedTuple):
    """Buffers packed into one or more tensors of one shape; `contents`: type and shape of each."""

    contents: tuple[tuple[torch.dtype, torch.Size], ...]

    @classmethod
    def pack(
        cls, buffers: Sequence[torch.Tensor], shape: tuple[int, ...] | None
    ) -> tuple[tuple[torch.Tensor, ...], _Bundle]:
        """Packs into byte tensors of `shape`, as many as needed, or into one of any size."""
        contents = tuple((buffer.dtype, buffer.shape) for buffer in buffers)
        flat = torch.cat([b.contiguous().view(-1).view(torch.uint8) for b in buffers])
        if shape is None:
            return (flat,), cls(contents)
        short = -flat.numel() % math.prod(shape)
        flat = torch.cat([flat, flat.new_zeros(short)])
        return tuple(flat.view(-1, *shape).unbind()), cls(contents)

    def unpack(self, gathered: Sequence[torch.Tensor], world: int) -> list[torch.Tensor]:
        """Returns the buffers of all ranks, concatenated in the order of ranks."""
        ranks = torch.cat([piece.contiguous().view(world, -1) for piece in gathered], 1)
        buffers, begin = [], 0
        for dtype, shape in self.contents:
            end = begin + shape.numel() * dtype.itemsize
            part = ranks[:, begin:end].contiguous().view(-1).view(dtype)
            buffers.append(part.view(world * shape[0], *shape[1:]))
            begin = end
        return buffers


class _Gathering(NamedTuple):
    """The metadata that rebuilds the parameter."""

    parts: tuple[_Part | None, ...]
    whole: int | None  # the size of the first dimension; None: the number of indices received
    world: int | None
    bundle: _Bundle | None
    module: torch.nn.Module | None


def _shares(storage: Quantized, names: Sequence[str]) -> tuple[torch.Tensor, ...]:
    return tuple(getattr(storage, name).detach().reshape(1, -1) for name in names)


if TYPE_CHECKING:
    _Storage = QuantizedTensorStorage  # the class that is combined with this one
else:
    _Storage = object


class ShardedParameter(_Storage):
    """The hooks of FSDP2 for a tensor of one scheme."""

    def _shard_parts(self, usages: tuple[bool, bool]) -> list[tuple[Any, tuple[bool, bool]]]:
        """Returns the storages to send, with their directions."""
        return [(self, usages)]

    def _gather_usages(self, module: torch.nn.Module) -> tuple[bool, bool]:
        """Returns the directions that the gathered parameter needs, as usages_of_pass()."""
        return usages_of_pass(module, self)

    def _note_mesh(self, mesh: DeviceMesh) -> None:
        """Stores the group that later quantizations of the shard reduce their amax over, if any."""
        for storage, _ in self._shard_parts((True, True)):
            measures = hasattr(getattr(storage, "_quantizer", None), "with_amax_reduction")
            if measures and transport.shared_fields(storage):
                storage.amax_reduction_group = mesh.get_group()

    def fsdp_pre_all_gather(
        self,
        mesh: DeviceMesh | None,
        orig_size: torch.Size,
        contiguous_orig_stride: tuple[int, ...],
        module: torch.nn.Module,
        mp_policy: object,
    ) -> tuple[tuple[torch.Tensor, ...], Any]:
        """Returns the buffers to gather, and metadata.

        Every rank sends buffers of the same sizes: a short shard is padded with zeros. Without a
        mesh returns the buffers of this shard only, and compares nothing between ranks.
        Errors: RuntimeError outside of FSDP2; RuntimeError or NotImplementedError, on every rank,
        for a tensor that cannot be gathered.
        """
        with _naming(module, self):
            # Raises first for tensors that cannot be sent, also outside of FSDP2.
            for storage, _ in self._shard_parts((True, True)):
                if storage is not None:
                    _require_transportable(storage)
        world, whole, padded = None, None, None
        if mesh is not None:
            world, whole = mesh.size(), orig_size[0]
            padded = -(-whole // world)
        usages = self._gather_usages(module)
        with _naming(module, self):
            parts, buffers = self._extract(usages, world, padded)
            sent, bundle = _in_shape(buffers, world, whole, padded, orig_size)
        if mesh is not None:
            _make_room(_parameter_of(module, self), sent, mesh.size())
            self._note_mesh(mesh)
        return sent, _Gathering(tuple(parts), whole, world, bundle, module)

    def _extract(
        self, usages: tuple[bool, bool], world: int | None, padded: int | None
    ) -> tuple[list[_Part | None], list[torch.Tensor]]:
        """Returns the part of each storage and the buffers. Errors: as fsdp_pre_all_gather()."""
        buffers: list[torch.Tensor] = []
        parts: list[_Part | None] = []
        for storage, wanted in self._shard_parts(usages):
            part = None if storage is None else _part_of(storage, wanted, world, padded)
            parts.append(part)
            if part is not None:
                buffers.extend(transport.extract(storage, part.fields, padded))
                buffers.extend(_shares(storage, part.shared))
        return parts, buffers

    def fsdp_post_all_gather(
        self,
        all_gather_outputs: tuple[torch.Tensor, ...],
        metadata: _Gathering,
        param_dtype: torch.dtype,
        *,
        out: Quantized | None = None,
    ) -> tuple[Any, tuple[torch.Tensor, ...]]:
        """Returns the gathered parameter, and the tensors that FSDP2 may free after use.

        Errors: RuntimeError, on every rank, if fields that ranks must share differ.
        """
        left = list(all_gather_outputs)
        if metadata.bundle is not None:
            assert metadata.world is not None
            left = metadata.bundle.unpack(left, metadata.world)
        arrived: list[Any] = []
        with _naming(metadata.module, self):
            for part in metadata.parts:
                if part is None:
                    arrived.append(None)
                    continue
                end = len(part.fields)
                shared = left[end : end + len(part.shared)]
                _require_agreement(part.shared, shared, type(self), "fsdp_post_all_gather", _HOW)
                arrived.append((part, left[:end]))
                left = left[end + len(part.shared) :]
            return self._join(arrived, metadata.whole, param_dtype, out), all_gather_outputs

    def _join(
        self, arrived: list[Any], whole: int | None, dtype: torch.dtype, out: Quantized | None
    ) -> Quantized:
        """Returns the parameter over the gathered buffers of each storage."""
        ((part, buffers),) = arrived
        tensor = gathered(self, part, buffers, whole, dtype, out)
        _give_quantizer(tensor, self._quantizer, part.usages)
        return tensor


def _require_transportable(storage: Quantized) -> None:
    """Raises NotImplementedError for a storage with buffers that cannot be sent."""
    reason = storage._why_no_transport()
    if reason is not None:
        raise NotImplementedError(reason)


def _part_of(
    storage: Quantized, usages: tuple[bool, bool], world: int | None, padded: int | None
) -> _Part:
    """Returns the part of a storage. Errors: NotImplementedError, RuntimeError if not sendable."""
    _require_transportable(storage)
    storage._own_buffers()
    usages = _usages_at_hand(storage, usages)
    fields = storage._transport_fields(*usages)
    if world is None:
        return _Part(fields, (), usages)
    if world > 1:
        assert padded is not None
        transport.require_whole_blocks(storage, fields, padded)
    return _Part(fields, transport.shared_fields(storage), usages)


def _usages_at_hand(storage: Quantized, wanted: tuple[bool, bool]) -> tuple[bool, bool]:
    """Returns the wanted directions that are present, or all present ones if no wanted one is.

    A weight with one direction is used in both passes.
    """
    if storage._has_rowwise() and storage._derives_columnwise():
        return wanted
    present = storage.get_usages()
    rowwise, columnwise = wanted[0] and present["rowwise"], wanted[1] and present["columnwise"]
    return (rowwise, columnwise) if rowwise or columnwise else tuple(present.values())


def _in_shape(
    buffers: list[torch.Tensor],
    world: int | None,
    whole: int | None,
    padded: int | None,
    orig_size: torch.Size,
) -> tuple[tuple[torch.Tensor, ...], _Bundle | None]:
    """Returns the buffers in the shapes that FSDP2 needs.

    A single rank may send one buffer only. With uneven shards, FSDP2 needs buffers that all have
    the shape of the longest shard.
    """
    if world == 1 and len(buffers) > 1:
        return _Bundle.pack(buffers, None)
    if world is not None and padded is not None and padded * world != whole:
        shape = torch.Size((padded, *orig_size[1:]))
        if any(buffer.shape != shape for buffer in buffers):
            return _Bundle.pack(buffers, shape)
    return tuple(buffers), None


_HOW = "quantize them with a reduced amax or one given scale"


def _require_agreement(
    names: Sequence[str], gathered_values: Sequence[torch.Tensor], cls: type, verb: str, how: str
) -> None:
    """Raises RuntimeError if the bytes of a rank differ from the first rank's.

    verb: begins the message. how: ends it, with a remedy.
    """
    for name, values in zip(names, gathered_values, strict=True):
        ranks = values.contiguous().view(torch.uint8)
        if not torch.equal(ranks, ranks[:1].expand_as(ranks)):
            raise RuntimeError(
                f"{verb}: the shards of a {cls.__name__} must share one {name}, got "
                f"{values.tolist()}; {how}"
            )


def gathered(
    shard: Quantized,
    part: _Part,
    buffers: Sequence[torch.Tensor],
    whole: int | None,
    dtype: torch.dtype,
    out: Quantized | None,
) -> Quantized:
    """Returns a tensor over gathered buffers: `out`, or a new one like `shard`."""
    fields = transport.restore(shard, part.fields, buffers, whole)
    fields.update({name: getattr(shard, name) for name in transport.shared_fields(shard)})
    if out is None:
        shape = transport.gathered_shape(shard, part.fields, buffers, whole)
        keywords = {b.keyword: fields.get(b.name) for b in shard.BUFFERS}
        settings = {s.keyword: getattr(shard, s.name) for s in shard.SETTINGS}
        nominal = shard.dtype if shard._keeps_dtype() else dtype
        make: Any = type(shard)
        out = make(shape=shape, dtype=nominal, quantizer=shard._quantizer, **keywords, **settings)
    else:
        derives = out._derives_columnwise()
        absent = {b.name: None for b in shard.BUFFERS if b.name not in fields and not derives}
        out.__dict__.update(absent)
        out.__dict__.update({s.name: getattr(shard, s.name) for s in shard.SETTINGS})
        out._take_gathered(fields)
    rowwise, columnwise = part.usages
    if columnwise and out.COLUMNWISE not in part.fields and out._derives_columnwise():
        out._create_columnwise()
    out.update_usage(rowwise_usage=rowwise, columnwise_usage=columnwise)
    return out


def gather_shards(shard: Quantized, gather: Callable[[torch.Tensor], torch.Tensor]) -> Quantized:
    """Returns the tensor whose rows the ranks hold in equal shards; `gather` gathers one buffer.

    Errors: RuntimeError, on every rank, for partial blocks and for shards with different shared
    fields; NotImplementedError for swizzled scales.
    """
    arrived: list[Any] = []
    for storage, usages in shard._shard_parts((True, True)):
        if storage is None:
            arrived.append(None)
            continue
        # Padded shards are equal, so a check for two shards is valid for any number.
        part = _part_of(storage, usages, 2, storage._logical_shape()[0])
        buffers = [gather(buffer) for buffer in transport.extract(storage, part.fields)]
        shared = [gather(value) for value in _shares(storage, part.shared)]
        how = f"{_HOW}, or gather dequantize() of each"
        _require_agreement(part.shared, shared, type(shard), "all_gather", how)
        present = storage.get_usages()
        part = part._replace(usages=(present["rowwise"], present["columnwise"]))
        arrived.append((part, buffers))
    return shard._join(arrived, None, shard.dtype, None)


def _give_quantizer(
    tensor: Quantized, quantizer: Quantizer | None, usages: tuple[bool, bool]
) -> None:
    """Sets a copy of the quantizer without the shards' reduction on a gathered tensor."""
    if quantizer is None:
        return
    own = quantizer.copy()
    own._of_one_pass = usages[0] != usages[1]
    own.set_usage(rowwise=usages[0], columnwise=usages[1])
    if getattr(own, "with_amax_reduction", False):
        own.with_amax_reduction, own.amax_reduction_group = False, None
    tensor._quantizer = own


def is_gathered(weight: torch.Tensor) -> bool:
    """Returns whether FSDP2 gathered a weight."""
    return hasattr(getattr(weight, "_quantizer", None), "_of_one_pass")


def is_of_one_pass(weight: Quantized) -> bool:
    """Returns whether FSDP2 gathered one direction of a weight; backward gathers the other."""
    return getattr(weight._quantizer, "_of_one_pass", False)


_CHILDREN = {"rowwise": (True, False), "columnwise": (False, True)}


class ShardedHybrid(ShardedParameter):
    """The hooks of FSDP2 for a tensor of two storages, which are both sent in every pass."""

    def _gather_usages(self, module: torch.nn.Module) -> tuple[bool, bool]:
        return True, True

    def _shard_parts(self, usages: tuple[bool, bool]) -> list[tuple[Any, tuple[bool, bool]]]:
        """Returns both storages. Errors: NotImplementedError for a child that cannot be sent."""
        parts = []
        for direction, wanted in _CHILDREN.items():
            child = getattr(self, f"_{direction}_storage")
            if child is not None:
                _require_transport(child, direction)
            parts.append((child, wanted))
        return parts

    def _join(
        self, arrived: list[Any], whole: int | None, dtype: torch.dtype, out: Quantized | None
    ) -> Quantized:
        children: dict[str, Any] = {}
        for direction, item in zip(_CHILDREN, arrived, strict=True):
            shard = getattr(self, f"_{direction}_storage")
            if item is None:
                children[f"{direction}_storage"] = None
                continue
            part, buffers = item
            into = None if out is None else getattr(out, f"_{direction}_storage")
            child = gathered(shard, part, buffers, whole, dtype, into)
            _give_quantizer(child, shard._quantizer, part.usages)
            children[f"{direction}_storage"] = child
        if out is not None:
            return out
        shape = next(child.shape for child in children.values() if child is not None)
        make: Any = type(self)
        return make(shape=shape, dtype=dtype, quantizer=self._quantizer, **children)


def _require_transport(child: Quantized, direction: str) -> None:
    """Raises NotImplementedError for a bare storage or a family without FSDP2's methods."""
    name = type(child).__name__
    is_tensor = isinstance(child, torch.Tensor)
    if not is_tensor:
        raise NotImplementedError(
            f"FSDP2 cannot gather a hybrid tensor with a storage-only {direction} sub-storage, "
            f"{name}"
        )
    try:
        child.fsdp_buffer_fields()
    except NotImplementedError as error:
        raise NotImplementedError(
            f"FSDP2 cannot gather a hybrid tensor whose {direction} sub-storage is {name}, which "
            "has no fsdp_buffer_fields(). Use a supported sub-quantizer: per-tensor FP8, MXFP8, "
            "block-scaled FP8, or high precision"
        ) from error
