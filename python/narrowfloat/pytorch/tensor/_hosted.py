# SPDX-License-Identifier: Apache-2.0
"""Views of objects of TransformerEngine's classes as narrowfloat's, over the same fields.

Both packages use the same field names for quantizers, storages and groups. A view is an object of a
narrowfloat class that shares the `__dict__` of TransformerEngine's object. So nothing is copied,
and narrowfloat's methods work on both; a view is made for one call.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch

from narrowfloat.pytorch._types import Quantized
from narrowfloat.pytorch.quantized_tensor import Quantizer
from narrowfloat.pytorch.tensor._families import family_of, registered
from narrowfloat.pytorch.tensor._layouts import new_buffer
from narrowfloat.pytorch.tensor._scheme_quantizer import SchemeQuantizer
from narrowfloat.pytorch.tensor.storage._fields import REQUIRED
from narrowfloat.pytorch.tensor.storage.grouped_tensor_storage import GroupedTensorStorage

Object = TypeVar("Object")

_OURS = "narrowfloat"
HOSTS = ["transformer_engine"]  # packages with the same names of classes, modules and fields
GENERATIONS = ((9, 0), (10, 0))  # with known rules for per-tensor transposes


def set_generation(major: int, minor: int) -> None:
    """Sets the GPU generation that determines the buffers of TransformerEngine's tensors.

    From 10.0 on, products read per-tensor FP8 in any layout, so there is no transpose.
    Errors: ValueError for an unknown generation.
    """
    if (major, minor) not in GENERATIONS:
        known = " or ".join(f"{a}.{b}" for a, b in GENERATIONS)
        raise ValueError(f"set_generation: the generation must be {known}, got {major}.{minor}")
    HostedView.generation = (major, minor)


class HostedView:
    """Views `host`, an object of TransformerEngine's class, by its fields."""

    __slots__ = ()
    PACKAGE: ClassVar[str]

    if TYPE_CHECKING:
        # The fields of the host, and the methods of the class that is combined with this one.
        def __getattr__(self, name: str) -> Any: ...  # noqa: ANN401  # a field of any type

    generation: ClassVar[tuple[int, int]] = GENERATIONS[-1]
    host: Any

    def _reads_any_layout(self) -> bool:
        return self.generation >= (10, 0)


class HostedStorage(HostedView):
    """A view of a storage or of a tensor; its shape is the shape of its codes."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  # a field of any type
        if name == "_dtype":  # tensors store it at its first access
            return self.host.dtype
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


class HostedQuantizer(HostedView):
    """A view of a quantizer. It makes views of TransformerEngine's tensors."""

    __slots__ = ()

    def copy(self) -> Quantizer:
        return native(self.host.copy())

    def _check_destination(self, dst: object, bare: bool = False) -> None:
        super()._check_destination(dst, True)  # type: ignore[misc]  # of the class beside this one

    def _new_for(self, tensor: torch.Tensor) -> Quantized:
        self._check_quantize(tensor)
        specs = self._buffer_specs(tensor.shape)
        tensors = {name: new_buffer(dtype, size) for name, (dtype, size) in specs.items()}
        return self._assemble(tensor.shape, tensor.dtype, tensors, tensor.device)

    def _assemble(
        self,
        shape: Iterable[int],
        dtype: torch.dtype,
        tensors: dict[str, torch.Tensor],
        device: torch.device,
        requires_grad: bool = False,
    ) -> Quantized:
        fields = {**self._settings(), "quantizer": self.host, "fake_dtype": dtype}
        for buffer in self.STORAGE.BUFFERS:
            fields[buffer.keyword] = tensors.get(buffer.name)
        if self.internal:
            return native(host_class(self.PACKAGE, self.STORAGE)(**fields))
        outer = {"shape": shape, "dtype": dtype, "device": device, "requires_grad": requires_grad}
        return native(host_class(self.PACKAGE, self.TENSOR)(**outer, **fields))

    def _make_group(self, cls: type, *args: Any, **fields: Any) -> GroupedTensorStorage:
        return native(_hosts_group(self.PACKAGE, cls, args, {**fields, "quantizer": self.host}))

    def _make_member(
        self,
        shape: Iterable[int],
        dtype: torch.dtype,
        tensors: dict[str, torch.Tensor],
        device: torch.device,
    ) -> Quantized:
        fields = {**self._settings(), "quantizer": None, "fake_dtype": dtype}
        for buffer in self.STORAGE.BUFFERS:
            fields[buffer.keyword] = tensors.get(buffer.name)
        return _view_of(self.PACKAGE, self.STORAGE)(**fields)


class HostedGroup(HostedView):
    """A view of a group. Its members are narrowfloat's bare storages; the group stores none."""

    __slots__ = ()

    def _members_quantizer(self) -> Quantizer | None:
        """Returns a copy of the quantizer with the group's directions and layout of scales."""
        if self.quantizer is None:
            return None
        quantizer = native(self.quantizer.copy())
        quantizer.rowwise_usage = self.rowwise_data is not None
        quantizer.columnwise_usage = self.columnwise_data is not None
        quantizer.optimize_for_gemm = self._with_gemm_swizzled_scales
        return quantizer

    def _keep_members(self) -> None:
        """Removes the members: TransformerEngine splits groups into tensors of its classes."""
        self.quantized_tensors = None  # type: ignore[misc]  # the host has __dict__

    def _mark_swizzled(self) -> None:
        self._with_gemm_swizzled_scales = True  # type: ignore[misc]  # the host has __dict__

    def _mark_columnwise(self) -> None:
        """Does nothing: the buffers define which directions are present."""

    def _plain_like(self, dtype: torch.dtype, device: torch.device) -> GroupedTensorStorage:
        plain = super()._plain_like(dtype, device)  # type: ignore[misc]  # of the class beside this one
        args = plain.logical_shape, dtype
        return native(_hosts_group(self.PACKAGE, type(plain), args, plain._arguments()))


def _hosts_group(
    package: str, cls: type, args: tuple[Any, ...], fields: dict[str, Any]
) -> GroupedTensorStorage:
    """Makes a host's group, without default arguments, which an older host may not know."""
    given = {name: value for name, value in fields.items() if value is not None}
    kept = {name: value for name, value in given.items() if value is not False}
    return host_class(package, cls)(*args, **kept)


@lru_cache
def host_class(package: str, ours: type) -> type:
    """Returns the package's class with the same name and the same module name."""
    module = importlib.import_module(ours.__module__.replace(_OURS, package, 1))
    return getattr(module, ours.__name__)


@lru_cache
def _view_of(package: str, ours: type) -> type:
    """Returns the view class with the methods of one of narrowfloat's classes.

    Fields that an older TransformerEngine does not have have their defaults.
    """
    kind: type[HostedView]
    if issubclass(ours, Quantizer):
        kind = HostedQuantizer
        parameters = inspect.signature(ours.__init__).parameters.values()
        defaults = {p.name: p.default for p in parameters}
        defaults |= {"internal": False, "optimize_for_gemm": False}
    elif issubclass(ours, GroupedTensorStorage):
        kind, defaults = HostedGroup, {}
    else:
        kind = HostedStorage
        family: Any = family_of(ours)
        ours = family.storage
        fields = (*family.storage.BUFFERS, *family.storage.SETTINGS)
        defaults = {field.name: field.default for field in fields}
    given = {name: value for name, value in defaults.items() if value is not REQUIRED}
    given |= {"__slots__": ("host",), "PACKAGE": package}
    return type(ours.__name__, (kind, ours), given)


def _find_view(cls: type) -> type | None:
    """Returns the view class of `cls`; None if narrowfloat has no such class."""
    for base in cls.__mro__:
        package, _, path = base.__module__.partition(".")
        if package not in HOSTS:
            continue
        if base.__name__ == GroupedTensorStorage.__name__:
            return _view_of(package, GroupedTensorStorage)
        ours = registered(f"{_OURS}.{path}", base.__name__)
        family = None if ours is None else family_of(ours)
        if family is not None and issubclass(family.quantizers[0], SchemeQuantizer):
            return _view_of(package, ours)
    return None


_views: dict[type, type | None] = {}
_UNSEEN: Any = object()


def native(x: Object) -> Object:
    """Returns `x`, or a view of it if its class is TransformerEngine's."""
    cls = type(x)
    view = _views.get(cls, _UNSEEN)
    if view is _UNSEEN:
        view = _views[cls] = _find_view(cls)
    if view is None:
        return x
    made = object.__new__(view)
    object.__setattr__(made, "__dict__", x.__dict__)
    object.__setattr__(made, "host", x)
    return made


def hosted(x: Object) -> Object:
    """Returns the object of a HostedView, any other object unchanged: the inverse of native()."""
    return x.host if isinstance(x, HostedView) else x
