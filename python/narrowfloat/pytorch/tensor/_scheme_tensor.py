# SPDX-License-Identifier: Apache-2.0
"""The tensor class of all families whose format is a scheme."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Self, SupportsIndex, TypeVar, cast

import torch

from narrowfloat.pytorch._autograd import (
    _IdentityFunc,
    _ReshapeFunc,
    _ViewFunc,
    resolve_shape,
)
from narrowfloat.pytorch._exported_tensors import name_tensor
from narrowfloat.pytorch._native import in_float32_if_double
from narrowfloat.pytorch._read_only import read_only_values
from narrowfloat.pytorch._shard_group import SHARD_GROUP, ShardGroup
from narrowfloat.pytorch._tracing import is_asked_for_tangent
from narrowfloat.pytorch._types import Quantized
from narrowfloat.pytorch.quantized_tensor import QuantizedTensor, QuantizedTensorStorage
from narrowfloat.pytorch.tensor._fsdp import ShardedParameter
from narrowfloat.pytorch.tensor._fsdp_passes import is_asked_by_fsdp
from narrowfloat.pytorch.tensor._state_broadcast import (
    is_asked_by_state_broadcast,
    values_to_broadcast,
)
from narrowfloat.pytorch.tensor._weight import Weight
from narrowfloat.pytorch.tensor.storage._fields import payload_keywords
from narrowfloat.pytorch.tensor.storage._scheme_storage import SchemeStorage
from narrowfloat.pytorch.tensor.storage._stale import require_fresh
from narrowfloat.pytorch.utils import devices_match

if TYPE_CHECKING:
    from narrowfloat.pytorch.tensor.grouped_tensor import GroupedTensor
    from narrowfloat.pytorch.tensor.hybrid_tensor import HybridQuantizedTensor

_native_size = torch._C.TensorBase.size
TensorT = TypeVar("TensorT", "SchemeTensor", "HybridQuantizedTensor")


class SchemeTensor(  # type: ignore[override]  # of fields of PyTorch's stub by properties
    SchemeStorage, ShardedParameter, Weight, QuantizedTensor
):
    """A SchemeStorage with autograd and torch's operators."""

    # True: a reshape that the blocks do not allow returns plain values, as a view does.
    RESHAPE_DEQUANTIZES: ClassVar[bool] = True

    # The arguments in a pickle; "buffers", "element" and "modes" are replaced by field arguments.
    PAYLOAD: ClassVar[tuple[str, ...]] = (
        "shape",
        "buffers",
        "element",
        "dtype",
        "quantizer",
        "modes",
    )
    # The function in pickles; None is _make_tensor_in_reduce_ex(), with the class as an argument.
    RECONSTRUCTOR: ClassVar[Callable[..., Any] | None] = None

    # The process group over which later quantizations of a sharded parameter share one amax.
    amax_reduction_group = ShardGroup()

    @property
    def HAS_DEFAULT_QUANTIZER(self) -> bool:
        """Returns whether a tensor without a quantizer can make others like it."""
        own = type(self)._build_default_quantizer
        return own is not QuantizedTensorStorage._build_default_quantizer

    @property
    def shape(self) -> torch.Size:  # type: ignore[override]  # PyTorch's stub has a field
        """The shape by the buffers; without buffers, the shape of the constructor."""
        try:
            return self._logical_shape()
        except RuntimeError:  # there are no codes
            return _native_size(self)

    def size(self, dim: int | None = None) -> Any:  # noqa: ANN401  # sizes of all dimensions, or of one
        shape = self.shape
        return shape if dim is None else shape[dim]

    def __dir__(self) -> list[str]:
        """Returns the names of attributes without buffers.

        torch.export traces attributes that dir() lists; it cannot trace those of tensors that are
        made during tracing.
        """
        hidden = {buffer.name for buffer in self.BUFFERS}
        return [name for name in super().__dir__() if name not in hidden]

    def _describe(self) -> str:
        # An IntEnum would print as its number.
        values = {setting.keyword: self.__dict__[setting.name] for setting in self.SETTINGS}
        return "".join(
            f"{key}={value.name if isinstance(value, Enum) else value}, "
            for key, value in values.items()
        )

    __repr__ = QuantizedTensor.__repr__

    def detach(self) -> SchemeTensor:
        if is_asked_for_tangent():
            return self._tangent()
        if is_asked_by_state_broadcast():
            return values_to_broadcast(self)
        return torch.ops.aten.detach.default(self)

    def clone(self, *, memory_format: torch.memory_format | None = None) -> SchemeTensor:
        """Returns a copy of every buffer, still quantized."""
        self._require_cloneable()
        return _IdentityFunc.apply(self, self._cloned_buffers())

    def _require_cloneable(self) -> None:
        """Raises the family's error for a tensor that cannot be cloned."""

    def _check_write(self, values: torch.Tensor) -> None:
        self._get_quantizer()._check_update(values, self)

    def _is_part(self) -> bool:
        return self._cut is not None and bool(self._shared_names())

    def _live_buffers(self) -> list[torch.Tensor]:
        return [buffer for buffer in self._tensors() if buffer is not None]

    def _code_buffers(self) -> list[torch.Tensor]:
        codes = (self.__dict__[self.ROWWISE], self.__dict__[self.COLUMNWISE])
        return [buffer for buffer in codes if buffer is not None]

    # Views.

    def view(self, *shape: Any) -> torch.Tensor:
        if len(shape) == 1 and shape[0] is None:
            return _ViewFunc.apply(self, None)
        if len(shape) == 1 and isinstance(shape[0], torch.dtype):
            return self._values_as(shape[0])
        wanted = resolve_shape(shape, self.shape)
        reason = self._why_no_view(wanted)
        if reason is None:
            return _ViewFunc.apply(self, wanted)
        if is_asked_by_fsdp():  # FSDP2 makes a flat view, which it never reads
            return self.detach()
        warnings.warn(f"{reason}; the tensor is dequantized", stacklevel=2)
        return self._values_as(wanted)

    def _values_as(self, shape: torch.Size | torch.dtype) -> torch.Tensor:
        """Returns the values in a shape that the blocks do not allow, or in another type."""
        origin = f"view gave of a {type(self).__name__}"
        return read_only_values(self.dequantize().view(shape), origin)

    def reshape(self, *shape: Any) -> torch.Tensor:
        if len(shape) == 1 and shape[0] is None:
            return _ReshapeFunc.apply(self, None)
        wanted = resolve_shape(shape, self.shape)
        reason = self._why_no_view(wanted)
        if reason is None:
            return _ReshapeFunc.apply(self, wanted)
        if not self.RESHAPE_DEQUANTIZES:
            raise RuntimeError(reason)
        warnings.warn(f"{reason}; the tensor is dequantized", stacklevel=2)
        return self._values_as(wanted)

    def contiguous(
        self, memory_format: torch.memory_format = torch.contiguous_format
    ) -> SchemeTensor:
        """Returns this tensor if its codes are contiguous, else a copy of every buffer.

        Errors: ValueError for another memory format.
        """
        if memory_format not in (torch.contiguous_format, torch.preserve_format):
            raise ValueError(
                f"{self.__class__.__name__} does not support different memory formats!"
            )
        codes = self._first_buffer()
        if codes is None or codes.is_contiguous():
            return self
        return _IdentityFunc.apply(self, self._cloned_buffers(torch.contiguous_format))

    # .data

    @property
    def data(self) -> SchemeTensor:
        """An alias without a gradient; as in torch.Tensor, autograd does not count its writes.
        Assignment replaces the buffers or quantizes again.
        """
        return cast(SchemeTensor, type(self).make_like(self))

    @data.setter
    @torch.no_grad()
    def data(self, tensor: torch.Tensor) -> None:
        if type(tensor) is type(self) or isinstance(tensor, type(self)):
            self._rebind(tensor)
            return
        assert self._quantizer is not None, (
            f"{self.__class__.__name__}.data: quantizing a plain tensor needs a quantizer"
        )
        self._set_plain_data(tensor)

    def _set_plain_data(self, tensor: torch.Tensor) -> None:
        """Sets the values, shape, type and device of a tensor of another class."""
        quantizer = self._get_quantizer()._with_group_of(self).copy()
        quantizer.internal = False
        made = quantizer.quantize_impl(in_float32_if_double(tensor.detach()))
        self._rebind(made if made.dtype is tensor.dtype else made.to_dtype(tensor.dtype))

    def _rebind(self, tensor: SchemeTensor) -> None:
        """Sets the fields of a tensor of this class, and its outer metadata if they differ."""
        set_outer(self, tensor)
        for buffer in self.BUFFERS:
            setattr(self, buffer.name, getattr(tensor, buffer.name))
        for setting in self.SETTINGS:
            setattr(self, setting.name, getattr(tensor, setting.name))
        self._quantizer = None if tensor._quantizer is None else tensor._quantizer.copy()
        self._dtype = tensor.dtype
        name_tensor(self)

    def _on(self, device: torch.device) -> bool:
        buffer = self._first_buffer()
        return buffer is not None and devices_match(buffer.device, device)

    def __tensor_flatten__(self) -> tuple[list[str], dict[str, Any]]:
        """Returns the inner tensors and the context of a graph, which checks no codes itself.

        Errors: RuntimeError for stale codes.
        """
        require_fresh(self)
        return super().__tensor_flatten__()

    # Pickles and copies.

    @classmethod
    def _payload_keywords(cls) -> tuple[str, ...]:
        return payload_keywords(cls.PAYLOAD, cls.BUFFERS, cls.SETTINGS)

    def _payload(self) -> dict[str, Any]:
        """Returns the constructor arguments for a pickle."""
        fields = {**self.get_metadata(), "dtype": self.dtype, "shape": self.shape}
        for buffer in self.BUFFERS:
            fields[buffer.keyword] = self._standalone_buffer(buffer.name)
        return fields

    def _reduce(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        if self._cut is not None:
            return self._standalone()._reduce(protocol)
        fields = self._payload()
        arguments = tuple(fields.get(keyword) for keyword in self._payload_keywords())
        if self.RECONSTRUCTOR is None:
            return _make_tensor_in_reduce_ex, (type(self), *arguments)
        return self.RECONSTRUCTOR, arguments

    @classmethod
    def _make_in_reduce_ex(cls, *arguments: Any) -> Self:
        """Makes the tensor of a pickle. Older pickles refer to this, and have fewer arguments."""
        return cls(**dict(zip(cls._payload_keywords(), arguments, strict=False)))

    def _standalone(self) -> SchemeTensor:
        """Returns a copy that is not a part of another tensor."""
        with torch.no_grad():
            made = self._rebuild(**self._cloned_buffers())
        made.requires_grad_(self.requires_grad)
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> SchemeTensor:
        return copy_deeply(self, memo)


def copy_deeply(tensor: TensorT, memo: dict[int, Any]) -> TensorT:
    """Returns a copy of the buffers and attributes, without the process group."""
    if id(tensor) in memo:
        return memo[id(tensor)]
    with torch.no_grad():
        copied = tensor._rebuild(**tensor._cloned_buffers())
    copied.requires_grad_(tensor.requires_grad)
    memo[id(tensor)] = copied
    own = copied.__dict__
    for name, value in tensor.__dict__.items():
        if name not in own and name != SHARD_GROUP:
            own[name] = copy.deepcopy(value, memo)
    return copied


def set_outer(
    tensor: SchemeTensor | HybridQuantizedTensor | GroupedTensor,
    source: QuantizedTensor | GroupedTensor,
) -> None:
    """Sets the shape, type and device that PyTorch reads to those of `source`, if they differ."""
    device = source.device
    if (tensor.shape, tensor.dtype) == (source.shape, source.dtype) and tensor._on(device):
        return
    shell = torch.Tensor._make_wrapper_subclass(
        type(tensor),
        source.shape,
        dtype=source.dtype,
        layout=torch.strided,
        requires_grad=source.requires_grad,
        device=device,
    )
    # The native setter copies size, strides, type and device of the shell.
    native: Any = torch._C.TensorBase.data
    native.__set__(tensor, shell)


def require_directions(tensor: Quantized) -> None:
    """Ends a graph that writes an input without a direction that its quantizer makes.

    Another tensor over the codes may have the direction; a graph does not see it.
    Errors: NotImplementedError.
    """
    if tensor._unflattened is None or tensor._quantizer is None:
        return
    for there, made in zip(tensor._unflattened, tensor._quantizer._directions(), strict=True):
        if made and not there:
            raise NotImplementedError(
                f"write: a {type(tensor).__name__} that has dropped a direction must be written "
                "outside of a graph, which does not see whether another tensor has the direction"
            )


def _make_tensor_in_reduce_ex(cls: type[SchemeTensor], *arguments: Any) -> SchemeTensor:
    """Makes the tensor of a pickle that contains its class."""
    return cls._make_in_reduce_ex(*arguments)
