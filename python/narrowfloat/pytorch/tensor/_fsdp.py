# SPDX-License-Identifier: Apache-2.0
"""Parameters that FSDP2 shards: the buffers that it gathers, and the gathered parameter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from narrowfloat.pytorch._types import Quantized
from narrowfloat.pytorch.quantized_tensor import Quantizer
from narrowfloat.pytorch.tensor._fsdp_passes import (
    make_room,
    naming,
    parameter_of,
    usages_of_pass,
)
from narrowfloat.pytorch.tensor.storage import _transport as transport

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from narrowfloat.pytorch.quantized_tensor import QuantizedTensorStorage


class _Part(NamedTuple):
    """The buffers that one storage sends: fields with rows, and fields equal on all ranks."""

    fields: tuple[str, ...]
    shared: tuple[str, ...]
    usages: tuple[bool, bool]


class _Gathering(NamedTuple):
    """The metadata that rebuilds the parameter."""

    parts: tuple[_Part | None, ...]
    whole: int | None  # the size of the first dimension; None: the number of indices received
    world: int | None
    bundle: transport.Bundle | None
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
        with naming(module, self):
            # Raises first for tensors that cannot be sent, also outside of FSDP2.
            for storage, _ in self._shard_parts((True, True)):
                if storage is not None:
                    _require_transportable(storage)
        world, whole, padded = None, None, None
        if mesh is not None:
            world, whole = mesh.size(), orig_size[0]
            padded = -(-whole // world)
        usages = self._gather_usages(module)
        with naming(module, self):
            parts, buffers = self._extract(usages, world, padded)
            sent, bundle = _in_shape(buffers, world, whole, padded, orig_size)
        if mesh is not None:
            make_room(parameter_of(module, self), sent, mesh.size())
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
        with naming(metadata.module, self):
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
) -> tuple[tuple[torch.Tensor, ...], transport.Bundle | None]:
    """Returns the buffers in the shapes that FSDP2 needs.

    A single rank may send one buffer only. With uneven shards, FSDP2 needs buffers that all have
    the shape of the longest shard.
    """
    if world == 1 and len(buffers) > 1:
        return transport.Bundle.pack(buffers, None)
    if world is not None and padded is not None and padded * world != whole:
        shape = torch.Size((padded, *orig_size[1:]))
        if any(buffer.shape != shape for buffer in buffers):
            return transport.Bundle.pack(buffers, shape)
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
