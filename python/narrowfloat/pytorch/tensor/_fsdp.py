# SPDX-License-Identifier: Apache-2.0
"""Parameters that FSDP2 shards: what travels in an all-gather, and what is made of it."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from narrowfloat.pytorch import _native
from narrowfloat.pytorch.quantized_tensor import QuantizedTensorStorage

# The parameter group of each module that owns a sharded parameter.
_groups: weakref.WeakKeyDictionary[torch.nn.Module, Any] = weakref.WeakKeyDictionary()


def _owns(group: Any, module: torch.nn.Module) -> bool:
    return any(param._module_info.module is module for param in group.fsdp_params)


def find_parameter_group(module: torch.nn.Module) -> Any:
    """The FSDP2 group that a module's parameters belong to; it may be an ancestor's.

    Errors: RuntimeError if there is none.
    """
    known = _groups.get(module)
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
        f"fsdp_pre_all_gather: {type(module).__name__} belongs to no FSDP2 parameter group"
    )


def usages_of_pass(module: torch.nn.Module, quantizer: Any) -> tuple[bool, bool]:
    """Which directions the gathered parameter needs.

    What is gathered for one pass needs that pass's direction alone; what stays gathered needs the
    column-wise one too, if the quantizer makes it.
    """
    from torch.distributed.fsdp._fully_shard._fsdp_common import TrainingState

    group = find_parameter_group(module)
    if group._reshard_after_forward:
        backward = group._training_state == TrainingState.PRE_BACKWARD
        return not backward, backward
    return True, quantizer is None or quantizer.columnwise_usage


def unpadded_rows(storage: Any, columnwise: bool) -> torch.Tensor:
    """A direction's scales without the rows that are padding."""
    name = "_columnwise_scale_inv" if columnwise else "_rowwise_scale_inv"
    rows = storage._spec().scale_content_shape(tuple(storage._logical_shape()), columnwise)[0]
    return getattr(storage, name)[:rows].contiguous()


def padded_rows(
    scales: torch.Tensor,
    spec: Any,
    shape: torch.Size,
    columnwise: bool,
) -> torch.Tensor:
    """Gathered scales with the padding that a tensor of `shape` has."""
    role = "columnwise_scale_inv" if columnwise else "rowwise_scale_inv"
    planned = next(b for b in _native.plan(spec, tuple(shape)) if b.role == role)
    if scales.shape[0] == planned.shape[0]:
        return scales
    padded = scales.new_zeros((planned.shape[0], *scales.shape[1:]))
    padded[: scales.shape[0]].copy_(scales)
    return padded


class ShardedParameter:
    """The hooks of FSDP2. A family says what it sends and what it makes of what was gathered."""

    def _send(self, rowwise: bool, columnwise: bool) -> tuple[tuple[torch.Tensor, ...], Any]:
        """Buffers that the directions need, and what rebuilding them takes."""
        raise NotImplementedError

    def _receive(
        self,
        gathered: tuple[torch.Tensor, ...],
        meta: Any,
        usages: tuple[bool, bool],
        dtype: torch.dtype,
        out: Any,
    ) -> Any:
        """The gathered tensor: `out` with new buffers, or a new one."""
        raise NotImplementedError

    def _note_mesh(self, mesh: Any) -> None:
        """Keeps the group that later quantizations of the shard reduce over, if any do."""
        if mesh is not None and hasattr(self._quantizer, "with_amax_reduction"):
            self.amax_reduction_group = mesh.get_group()

    def _usages(self, module: torch.nn.Module) -> tuple[bool, bool]:
        """Which directions the gathered parameter needs."""
        return usages_of_pass(module, self._quantizer)

    def fsdp_pre_all_gather(
        self,
        mesh: Any,
        orig_size: torch.Size,
        contiguous_orig_stride: tuple[int, ...],
        module: torch.nn.Module,
        mp_policy: Any,
    ) -> tuple[tuple[torch.Tensor, ...], Any]:
        """Buffers to gather, and metadata. Errors: RuntimeError outside of FSDP2."""
        usages = self._usages(module)
        buffers, meta = self._send(*usages)
        self._note_mesh(mesh)
        return buffers, (meta, usages, self._quantizer)

    def fsdp_post_all_gather(
        self,
        all_gather_outputs: tuple[torch.Tensor, ...],
        metadata: Any,
        param_dtype: torch.dtype,
        *,
        out: Any = None,
    ) -> tuple[Any, tuple[torch.Tensor, ...]]:
        """The gathered parameter, and the tensors that FSDP2 may free after use."""
        meta, usages, quantizer = metadata
        tensor = self._receive(all_gather_outputs, meta, usages, param_dtype, out)
        if quantizer is not None:
            own = quantizer.copy()
            own.set_usage(rowwise=usages[0], columnwise=usages[1])
            if getattr(own, "with_amax_reduction", False):
                own.with_amax_reduction, own.amax_reduction_group = False, None
            tensor._quantizer = own
        return tensor, all_gather_outputs


class ShardedFloat8(ShardedParameter):
    """Codes travel, the transpose is made of them."""

    def _send(self, rowwise: bool, columnwise: bool) -> tuple[tuple[torch.Tensor, ...], Any]:
        if self._data is None:
            raise RuntimeError("fsdp_pre_all_gather: a Float8Tensor needs its row-wise codes")
        return (self._data,), (self._scale_inv, self._fp8_dtype)

    def _receive(
        self,
        gathered: tuple[torch.Tensor, ...],
        meta: Any,
        usages: tuple[bool, bool],
        dtype: torch.dtype,
        out: Any,
    ) -> Any:
        (data,), (scale_inv, fp8_dtype) = gathered, meta
        if out is None:
            out = type(self)(
                shape=data.shape,
                dtype=dtype,
                data=data,
                fp8_scale_inv=scale_inv,
                fp8_dtype=fp8_dtype,
            )
        else:
            out._data, out._scale_inv = data, scale_inv
            out._transpose_invalid = True
        out.update_usage(*usages)
        return out


class ShardedMXFP8(ShardedParameter):
    """The direction of the pass travels; scales without the rows that are padding."""

    def _send(self, rowwise: bool, columnwise: bool) -> tuple[tuple[torch.Tensor, ...], Any]:
        if self._with_gemm_swizzled_scales:
            raise NotImplementedError(
                "FSDP2 cannot gather an MXFP8Tensor whose scales are GEMM-swizzled"
            )
        buffers: list[torch.Tensor] = []
        for direction, wanted in (("rowwise", rowwise), ("columnwise", columnwise)):
            if wanted:
                self._require_buffers(direction)
                buffers.append(getattr(self, f"_{direction}_data"))
                buffers.append(unpadded_rows(self, direction == "columnwise"))
        return tuple(buffers), self._fp8_dtype

    def _receive(
        self,
        gathered: tuple[torch.Tensor, ...],
        meta: Any,
        usages: tuple[bool, bool],
        dtype: torch.dtype,
        out: Any,
    ) -> Any:
        spec = _native.make_spec(self._scheme(), True, True)
        fields: dict[str, Any] = {"fp8_dtype": meta, "with_gemm_swizzled_scales": False}
        left = list(gathered)
        for direction, sent in zip(("rowwise", "columnwise"), usages, strict=True):
            data, scales = (left.pop(0), left.pop(0)) if sent else (None, None)
            if sent:
                scales = padded_rows(scales, spec, data.shape, direction == "columnwise")
            fields[f"{direction}_data"], fields[f"{direction}_scale_inv"] = data, scales
        return rebound(out, type(self), gathered[0].shape, dtype, fields)


class ShardedBlockwise(ShardedParameter):
    """Tiles: row-wise buffers travel, column-wise ones are made of them."""

    def _send(self, rowwise: bool, columnwise: bool) -> tuple[tuple[torch.Tensor, ...], Any]:
        if not self._is_2D_scaled:
            raise NotImplementedError(
                "FSDP2 gathers a Float8BlockwiseQTensor of square tiles only: scales of runs lie "
                "across the shards"
            )
        if self._rowwise_data is None or self._rowwise_scale_inv is None:
            raise RuntimeError(
                "fsdp_pre_all_gather: a Float8BlockwiseQTensor needs its row-wise data"
            )
        return (self._rowwise_data, self._rowwise_scale_inv), self._fp8_dtype

    def _receive(
        self,
        gathered: tuple[torch.Tensor, ...],
        meta: Any,
        usages: tuple[bool, bool],
        dtype: torch.dtype,
        out: Any,
    ) -> Any:
        data, scales = gathered
        fields = {
            "fp8_dtype": meta,
            "is_2D_scaled": True,
            "rowwise_data": data,
            "rowwise_scale_inv": scales,
            "columnwise_data": None,
            "columnwise_scale_inv": None,
        }
        tensor = rebound(out, type(self), data.shape, dtype, fields)
        if usages[1]:
            tensor._create_columnwise()
        tensor._keep(*usages)
        return tensor


class ShardedNVFP4(ShardedParameter):
    """Row-wise buffers travel, column-wise ones of tiles are made of them; amaxes are shared.

    Rows are needed to make columns, so both are there in every pass.
    """

    def _usages(self, module: torch.nn.Module) -> tuple[bool, bool]:
        return True, self._quantizer is not None and self._quantizer.columnwise_usage

    def _send(self, rowwise: bool, columnwise: bool) -> tuple[tuple[torch.Tensor, ...], Any]:
        if self._with_gemm_swizzled_scales:
            raise NotImplementedError(
                "FSDP2 cannot gather an NVFP4Tensor whose scales are GEMM-swizzled"
            )
        spec = self._spec()
        assert self.shape[0] % spec.block_length == 0, (
            f"FSDP2 needs NVFP4 shards of whole blocks of {spec.block_length} rows, got "
            f"{self.shape[0]}"
        )
        self._require_buffers("rowwise")
        if columnwise:
            assert self._quantizer is not None and self._quantizer.with_2d_quantization, (
                "FSDP2 makes the column-wise data of an NVFP4Tensor under 2-D quantization only"
            )
        modes = {
            "fp4_dtype": self._fp4_dtype,
            "with_gemm_swizzled_scales": False,
            "row_scaled_nvfp4": self._row_scaled_nvfp4,
            "nvfp4_use_4over6": self._nvfp4_use_4over6,
            "nvfp4_e4m3_max": self._nvfp4_e4m3_max,
            "amax_rowwise": self._amax_rowwise,
        }
        return (self._rowwise_data, unpadded_rows(self, False)), (modes, self.shape[-1])

    def _receive(
        self,
        gathered: tuple[torch.Tensor, ...],
        meta: Any,
        usages: tuple[bool, bool],
        dtype: torch.dtype,
        out: Any,
    ) -> Any:
        (data, scales), (modes, columns) = gathered, meta
        shape = torch.Size((*data.shape[:-1], columns))
        spec = _native.make_spec(self._scheme(), True, False)
        fields = {
            **modes,
            "rowwise_data": data,
            "rowwise_scale_inv": padded_rows(scales, spec, shape, False),
            "columnwise_data": None,
            "columnwise_scale_inv": None,
            "amax_columnwise": None,
            "quantizer": self._quantizer,
        }
        tensor = rebound(out, type(self), shape, dtype, fields)
        if usages[1]:
            tensor._create_columnwise()
        tensor._keep(*usages)
        return tensor


class ShardedIdentity(ShardedParameter):
    """The values travel, for both directions."""

    def _usages(self, module: torch.nn.Module) -> tuple[bool, bool]:
        return True, True

    def _note_mesh(self, mesh: Any) -> None:
        """Nothing is reduced."""

    def _send(self, rowwise: bool, columnwise: bool) -> tuple[tuple[torch.Tensor, ...], Any]:
        if self._hp_data.dtype != self.dtype:
            raise RuntimeError(
                f"fsdp_pre_all_gather: the values are {self._hp_data.dtype}, the parameter "
                f"{self.dtype}"
            )
        return (self._hp_data,), None

    def _receive(
        self,
        gathered: tuple[torch.Tensor, ...],
        meta: Any,
        usages: tuple[bool, bool],
        dtype: torch.dtype,
        out: Any,
    ) -> Any:
        (data,) = gathered
        if out is None:
            return type(self)(shape=data.shape, dtype=data.dtype, hp_data=data)
        out._hp_data = data
        return out


class ShardedHybrid(ShardedParameter):
    """Buffers of both children travel, by the protocol of their storages."""

    def _note_mesh(self, mesh: Any) -> None:
        group = None if mesh is None else mesh.get_group()
        for child in self._children():
            if hasattr(child._quantizer, "with_amax_reduction"):
                child.amax_reduction_group = group

    def fsdp_pre_all_gather(
        self,
        mesh: Any,
        orig_size: torch.Size,
        contiguous_orig_stride: tuple[int, ...],
        module: torch.nn.Module,
        mp_policy: Any,
    ) -> tuple[tuple[torch.Tensor, ...], Any]:
        buffers: list[torch.Tensor] = []
        parts = []
        for child in (self._rowwise_storage, self._columnwise_storage):
            if child is None:
                parts.append(None)
                continue
            if not isinstance(child, torch.Tensor):
                direction = "rowwise" if child is self._rowwise_storage else "columnwise"
                raise NotImplementedError(
                    f"FSDP2 cannot gather a hybrid tensor with a storage-only {direction} "
                    f"sub-storage, {type(child).__name__}"
                )
            sent, meta = self._extract(child)
            buffers.extend(sent)
            parts.append((len(sent), meta))
        self._note_mesh(mesh)
        return tuple(buffers), tuple(parts)

    def _extract(self, child: Any) -> tuple[tuple[torch.Tensor, ...], dict[str, Any]]:
        """What a child sends. Errors: NotImplementedError if its family has no such protocol."""
        if type(child).fsdp_buffer_fields is QuantizedTensorStorage.fsdp_buffer_fields:
            direction = "rowwise" if child is self._rowwise_storage else "columnwise"
            raise NotImplementedError(
                f"FSDP2 cannot gather a hybrid tensor whose {direction} sub-storage is "
                f"{type(child).__name__}, which has no fsdp_buffer_fields(). Use a supported "
                "sub-quantizer: per-tensor FP8, MXFP8, FP8 in square tiles, or high precision"
            )
        return child.fsdp_extract_buffers()

    def fsdp_post_all_gather(
        self,
        all_gather_outputs: tuple[torch.Tensor, ...],
        metadata: Any,
        param_dtype: torch.dtype,
        *,
        out: Any = None,
    ) -> tuple[Any, tuple[torch.Tensor, ...]]:
        left = list(all_gather_outputs)
        names = ("_rowwise_storage", "_columnwise_storage")
        children: dict[str, Any] = {}
        for name, part in zip(names, metadata, strict=True):
            if part is None:
                children[name[1:]] = None
                continue
            count, meta = part
            sharded = getattr(self, name)
            child = type(sharded).make_like(sharded) if out is None else getattr(out, name)
            child.amax_reduction_group = None
            child.fsdp_assign_gathered(left[:count], meta)
            child._share_shard_state(sharded)
            rowwise = name == "_rowwise_storage"
            child.update_usage(rowwise_usage=rowwise, columnwise_usage=not rowwise)
            left = left[count:]
            # The first time the wrapper still has the size of a shard.
            children[name[1:]] = child._rebuild(child._logical_shape()) if out is None else child
        if out is None:
            shape = next(child.shape for child in children.values() if child is not None)
            out = type(self)(shape=shape, dtype=param_dtype, quantizer=self._quantizer, **children)
        return out, all_gather_outputs


def rebound(
    out: Any,
    cls: type,
    shape: torch.Size,
    dtype: torch.dtype,
    fields: dict[str, Any],
) -> Any:
    """`out` over the buffers in `fields`, or a new tensor."""
    fresh = cls(shape=shape, dtype=dtype, **fields)
    if out is None:
        return fresh
    for buffer in cls.BUFFERS:
        setattr(out, buffer.name, getattr(fresh, buffer.name))
    for setting in cls.SETTINGS:
        setattr(out, setting.name, getattr(fresh, setting.name))
    return out
