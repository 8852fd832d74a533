# SPDX-License-Identifier: Apache-2.0
"""Imitates TransformerEngine's classes: the same names, modules and fields, without verbs."""

import sys
import types
from typing import Any

import torch
from narrowfloat.pytorch import tensor
from narrowfloat.pytorch.quantized_tensor import Quantizer
from narrowfloat.pytorch.tensor._hosted import HOSTS
from narrowfloat.pytorch.tensor.storage._fields import REQUIRED
from narrowfloat.pytorch.tensor.storage.grouped_tensor_storage import (
    _ARGUMENTS,
    _FLAGS,
    GroupedTensorStorage,
)

PACKAGE = "stand_in_engine"
FAMILIES = {
    tensor.Float8Tensor: (tensor.Float8Quantizer, tensor.Float8CurrentScalingQuantizer),
    tensor.MXFP8Tensor: (tensor.MXFP8Quantizer,),
    tensor.Float8BlockwiseQTensor: (tensor.Float8BlockQuantizer,),
    tensor.NVFP4Tensor: (tensor.NVFP4Quantizer,),
}


class HostQuantizer:
    """Holds options. Its only method is `copy`."""

    def copy(self) -> object:
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other


def _storage_fields(ours: type, kwargs: dict[str, Any]) -> dict[str, Any]:
    fields = {}
    for field in (*ours.BUFFERS, *ours.SETTINGS):
        default = None if field.default is REQUIRED else field.default
        fields[field.name] = kwargs.pop(field.keyword, default)
    if "_transpose" in fields:
        fields["_transpose_invalid"] = fields["_transpose"] is None
    quantizer = kwargs.pop("quantizer")
    fields["_quantizer"] = None if quantizer is None else quantizer.copy()
    return fields


def _storage_class(ours: type) -> type:
    def new(cls: type, **kwargs: object) -> object:
        made = object.__new__(cls)
        made.__dict__.update(_storage_fields(ours, kwargs), _dtype=kwargs["fake_dtype"])
        return made

    return type(ours.__name__, (), {"__new__": new})


def _tensor_class(ours: type, storage: type) -> type:
    def new(cls: type, *, shape: object, dtype: torch.dtype, **kwargs: object) -> object:
        fields = _storage_fields(ours, kwargs)
        made = torch.Tensor._make_wrapper_subclass(
            cls, tuple(shape), dtype=dtype, device=kwargs["device"]
        )
        made.__dict__.update(fields, _dtype=dtype)
        return made

    def dispatch(cls: type, func: object, *rest: object) -> object:
        raise NotImplementedError(f"{cls.__name__} has no operator {func}")

    members = {"__new__": new, "__torch_dispatch__": classmethod(dispatch)}
    return type(ours.__name__, (storage, torch.Tensor), members)


def _group_class() -> type:
    def new(cls: type, shape: object, dtype: torch.dtype, **kwargs: object) -> object:
        made = object.__new__(cls)
        fields = {field: kwargs.pop(argument, None) for argument, field in _ARGUMENTS.items()}
        assert not kwargs, kwargs
        made.__dict__.update(fields, logical_shape=tuple(shape), fake_dtype=dtype)
        for flag in _FLAGS:
            made.__dict__[flag] = bool(made.__dict__[flag])
        made.quantized_tensors = None
        return made

    return type("GroupedTensorStorage", (), {"__new__": new})


def _put(ours: type, made: type) -> None:
    name = ours.__module__.replace("narrowfloat", PACKAGE, 1)
    made.__module__ = name
    setattr(sys.modules.setdefault(name, types.ModuleType(name)), ours.__name__, made)


def _install() -> None:
    for ours, quantizers in FAMILIES.items():
        storage = _storage_class(ours.FAMILY)
        _put(ours.FAMILY, storage)
        _put(ours, _tensor_class(ours, storage))
        for quantizer in quantizers:
            _put(quantizer, type(quantizer.__name__, (HostQuantizer,), {}))
    group = _group_class()
    _put(GroupedTensorStorage, group)
    _put(GroupedTensorStorage.TENSOR, type("GroupedTensor", (group,), {}))


if PACKAGE not in HOSTS:
    HOSTS.append(PACKAGE)
    _install()


def host_of(ours: type) -> type:
    """Returns the host's class for a class of narrowfloat."""
    return getattr(sys.modules[ours.__module__.replace("narrowfloat", PACKAGE, 1)], ours.__name__)


def hosts_quantizer(quantizer: Quantizer) -> object:
    """Returns the host's quantizer with the options of `quantizer`. Tensors are copied."""
    made = object.__new__(host_of(type(quantizer)))
    for name, value in quantizer.__dict__.items():
        made.__dict__[name] = value.clone() if isinstance(value, torch.Tensor) else value
    return made


def fields_of(value: object) -> dict[str, Any]:
    """Returns buffers and settings of a storage or a tensor of either package."""
    names = [f.name for f in (*_table(value).BUFFERS, *_table(value).SETTINGS)]
    return {name: value.__dict__[name] for name in names}


def _table(value: object) -> type:
    for base in type(value).__mro__:
        for ours in FAMILIES:
            if base.__name__ in (ours.__name__, ours.FAMILY.__name__):
                return ours.FAMILY
    raise TypeError(f"{type(value).__name__} has no table of fields")


def assert_same_fields(ours: object, hosts: object) -> None:
    """Asserts that both have the same buffers, bit by bit, and the same settings."""
    own, other = fields_of(ours), fields_of(hosts)
    for name, value in own.items():
        if isinstance(value, torch.Tensor):
            assert value.dtype == other[name].dtype and value.shape == other[name].shape, name
            assert torch.equal(value.view(torch.uint8), other[name].view(torch.uint8)), name
        else:
            assert value == other[name], (name, value, other[name])


GROUP_BUFFERS = (
    "rowwise_data",
    "columnwise_data",
    "scale_inv",
    "columnwise_scale_inv",
    "amax",
    "columnwise_amax",
    "tensor_offsets",
)


def assert_same_group(ours: object, hosts: object) -> None:
    """Asserts that both groups have the same buffers, bit by bit, and the same layout of scales."""
    assert type(hosts) is host_of(type(ours))
    for name in GROUP_BUFFERS:
        mine, other = ours.__dict__[name], hosts.__dict__[name]
        assert (mine is None) == (other is None), name
        if mine is not None:
            assert torch.equal(mine.view(torch.uint8), other.view(torch.uint8)), name
    assert ours._with_gemm_swizzled_scales == hosts._with_gemm_swizzled_scales
    assert tuple(ours.logical_shape) == tuple(hosts.logical_shape)
