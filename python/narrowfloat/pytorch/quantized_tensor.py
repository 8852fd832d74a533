# SPDX-License-Identifier: Apache-2.0
"""What all quantized tensors have in common: bare storages, quantizers, and tensors over them."""

from __future__ import annotations

import abc
import copy
import warnings
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Self, SupportsIndex

import torch

from narrowfloat.pytorch import _dispatch
from narrowfloat.pytorch._autograd import _IdentityFunc, _QuantizeFunc
from narrowfloat.pytorch._tracing import has_node, quantize_as_node, quantize_in_graph
from narrowfloat.pytorch._values import (
    ValueSemantics,
    copy_outside,
    guard_fields,
    is_called_by_tracer,
    never_traced,
    node_of_copy,
    write_outside,
)


class QuantizedTensorStorage:
    """The buffers of a quantized tensor, without autograd and without torch's operators.

    Fields of every family: `_dtype`, the nominal type, and `_quantizer`, the tensor's own.
    """

    HOLDS_VALUES: ClassVar[bool] = False  # in high precision, in place of codes and scales

    _dtype: torch.dtype
    _quantizer: Any  # a Quantizer of the family, or None

    if TYPE_CHECKING:
        # What a family brings: its buffers and settings, the methods that follow from its table,
        # and those of torch.Tensor where it is one.
        def __getattr__(self, name: str) -> Any: ...
        def __setattr__(self, name: str, value: Any) -> None: ...

    @property
    def custom(self) -> bool:
        """Whether products of this tensor are its own quantizer's business."""
        return False

    @property
    def shape(self) -> torch.Size:
        """Shape of the tensor that was quantized."""
        return torch.Size(self.size())

    def _leaves(self) -> list[QuantizedTensorStorage]:
        """The storages that have buffers: itself, or those that it consists of."""
        return [self]

    def _block_boundary(self, along_rows: bool) -> int:
        """Returns the number of rows, or of columns, that a part's ends must be a multiple of."""
        return 1

    def update_usage(
        self, rowwise_usage: bool | None = None, columnwise_usage: bool | None = None
    ) -> None:
        """Keeps (None), drops (False) or requires (True) each direction."""
        raise NotImplementedError(
            f"{self.__class__.__name__} class does not implement update_usage function"
        )

    def get_usages(self) -> dict[str, bool]:
        """Which directions have their buffers."""
        raise NotImplementedError(
            f"{self.__class__.__name__} class does not implement get_usages function"
        )

    def prepare_for_saving(
        self,
    ) -> tuple[list[torch.Tensor | None], QuantizedTensorStorage]:
        """Hands the buffers out and keeps the rest; restore_from_saved() takes them back."""
        raise NotImplementedError(
            f"{self.__class__.__name__} class does not implement prepare_for_saving function"
        )

    def restore_from_saved(
        self, tensors: Sequence[torch.Tensor | None]
    ) -> Sequence[torch.Tensor | None]:
        """Takes its buffers from the front and returns what is left."""
        raise NotImplementedError(
            f"{self.__class__.__name__} class does not implement restore_from_saved function"
        )

    def _get_quantizer(self) -> Quantizer:
        """The tensor's quantizer, or the family's default one."""
        if self._quantizer is not None:
            return self._quantizer
        return self._build_default_quantizer()

    def _build_default_quantizer(self) -> Quantizer:
        raise ValueError(
            f"{self.__class__.__name__} has no quantizer and no default quantizer is available"
        )

    def quantize_(
        self, tensor: torch.Tensor, *, noop_flag: torch.Tensor | None = None
    ) -> QuantizedTensorStorage:
        """Quantizes `tensor` into these buffers; a noop_flag of 1 leaves them."""
        if isinstance(tensor, QuantizedTensorStorage):
            tensor = tensor.dequantize()
        self._get_quantizer().update_quantized(tensor, self, noop_flag=noop_flag)
        return self

    def update_quantizer(self, quantizer: Quantizer) -> None:
        """Replaces the quantizer, with a warning. Errors: RuntimeError if there was none."""
        if self._quantizer is None:
            raise RuntimeError("To be updated, the quantized tensor must already have a quantizer")
        if self._quantizer is not quantizer:
            warnings.warn("Quantizer is being updated, results may change", stacklevel=2)
            self._quantizer = quantizer

    def copy_from_storage(self, src: QuantizedTensorStorage) -> None:
        """Copies the buffers that both sides have."""
        raise NotImplementedError(
            f"{self.__class__.__name__} class does not implement copy_from_storage function"
        )

    def clear(self) -> None:
        """Releases the memory of the buffers; again is fine."""
        raise NotImplementedError(
            f"{self.__class__.__name__} class does not implement clear function"
        )

    def fsdp_buffer_fields(self) -> tuple[str, ...]:
        """Names of the buffers that travel in an all-gather, in order."""
        raise NotImplementedError(
            f"{self.__class__.__name__} class does not implement fsdp_buffer_fields function"
        )

    def fsdp_extract_buffers(self) -> tuple[tuple[torch.Tensor, ...], dict[str, Any]]:
        """Those buffers as they travel, and what rebuilding them takes."""
        raise NotImplementedError(
            f"{self.__class__.__name__} class does not implement fsdp_extract_buffers function"
        )

    def fsdp_assign_gathered(self, buffers: Sequence[torch.Tensor], meta: dict[str, Any]) -> None:
        """Takes gathered buffers in place of its own."""
        raise NotImplementedError(
            f"{self.__class__.__name__} class does not implement fsdp_assign_gathered function"
        )


def prepare_for_saving(
    *tensors: torch.Tensor | QuantizedTensorStorage | None,
) -> tuple[list[torch.Tensor | None], list[QuantizedTensorStorage | None]]:
    """Plain tensors for ctx.save_for_backward, and the objects that take them back.

    A storage expands to its buffers and is an empty shell until it is restored.
    """
    saved: list[torch.Tensor | None] = []
    objects: list[QuantizedTensorStorage | None] = []
    for tensor in tensors:
        if tensor is None or isinstance(tensor, torch.Tensor):
            saved.append(tensor)
            objects.append(None)
        else:
            buffers, shell = tensor.prepare_for_saving()
            saved.extend(buffers)
            objects.append(shell)
    return saved, objects


def restore_from_saved(
    tensors: Sequence[QuantizedTensorStorage | None],
    saved_tensors: Sequence[torch.Tensor | None],
    return_saved_tensors: bool = False,
) -> Any:
    """What prepare_for_saving() took apart; optionally also the entries that were left over."""
    left = list(saved_tensors)
    restored: list[torch.Tensor | QuantizedTensorStorage | None] = []
    for shell in tensors:
        if shell is None or isinstance(shell, torch.Tensor):
            restored.append(left[0])
            left = left[1:]
        else:
            left = list(shell.restore_from_saved(left))
            restored.append(shell)
    return (restored, left) if return_saved_tensors else restored


def restore_from_func_ctx(ctx: Any, return_saved_tensors: bool = False) -> Any:
    """restore_from_saved() of `ctx.tensor_objects` and `ctx.saved_tensors`.

    The objects are dropped from `ctx`, so that their memory can go.
    Errors: AttributeError if there are none.
    """
    if not hasattr(ctx, "tensor_objects") or ctx.tensor_objects is None:
        raise AttributeError("ctx must have .tensor_objects to restore saved tensors")
    restored = restore_from_saved(
        ctx.tensor_objects, ctx.saved_tensors, return_saved_tensors=return_saved_tensors
    )
    ctx.tensor_objects = None
    return restored


class Quantizer(ValueSemantics, abc.ABC):
    """How tensors are quantized; builds them, holds none.

    `rowwise_usage`, `columnwise_usage`: the directions to make. `internal`: make bare storages.
    `optimize_for_gemm`: lay scales out as matrix products read them, where the format can.
    """

    VALUE_FIELDS: tuple[str, ...] = (
        "rowwise_usage",
        "columnwise_usage",
        "internal",
        "optimize_for_gemm",
    )

    if TYPE_CHECKING:
        # What a family brings: its options, its classes, and what it plans by.
        def __getattr__(self, name: str) -> Any: ...

    QUANTIZES_OUTPUTS: ClassVar[bool] = False  # whether products may be quantized by it
    COLUMNS_ALONE: ClassVar[bool] = False  # whether it makes columns without rows in every format
    SCALE_IS_GIVEN: ClassVar[bool] = False  # before the values are known (delayed scaling)
    COLUMNS_CANNOT_BE_GATHERED: ClassVar[bool] = False  # from shards along the rows

    def __init__(self, *, rowwise: bool, columnwise: bool) -> None:
        self.rowwise_usage = rowwise
        self.columnwise_usage = columnwise
        self.internal = False
        self.optimize_for_gemm = False

    def __repr__(self) -> str:
        dtype = getattr(self, "dtype", None)
        element = f"dtype={dtype.name}, " if isinstance(dtype, Enum) else ""
        return (
            f"{self.__class__.__name__}({element}"
            f"rowwise_usage={self.rowwise_usage}, "
            f"columnwise_usage={self.columnwise_usage}, "
            f"internal={self.internal})"
        )

    @property
    def custom(self) -> bool:
        """Whether this quantizer brings its own products (`qgemm`)."""
        return False

    @abc.abstractmethod
    def update_quantized(
        self,
        src: torch.Tensor,
        dst: Any,
        *,
        noop_flag: torch.Tensor | None = None,
    ) -> Any:
        """Quantizes `src` into the buffers of `dst`; a noop_flag of 1 leaves every byte."""

    def _check_update(self, src: torch.Tensor, dst: Any) -> None:
        """Errors: as update_quantized() has them, where they do not depend on the values."""

    def quantize_impl(self, tensor: torch.Tensor) -> Any:
        """A new quantized tensor, outside of autograd."""
        raise NotImplementedError(
            f"{self.__class__.__name__} class does not implement quantize_impl function"
        )

    def quantize(
        self,
        tensor: torch.Tensor,
        *,
        out: Any = None,
        dtype: torch.dtype | None = None,
    ) -> Any:
        """`tensor` quantized: into `out`, or new, with a straight-through gradient."""
        if torch.compiler.is_dynamo_compiling() and has_node(self):
            return quantize_in_graph(self, tensor, out)
        if not isinstance(tensor, torch.Tensor) and not isinstance(tensor, QuantizedTensorStorage):
            raise TypeError(
                f"quantize: the input must be a torch.Tensor, got {type(tensor).__name__}"
            )
        if out is not None:
            return self.update_quantized(tensor, out)
        if self.internal and torch.compiler.is_compiling() and has_node(self):
            return quantize_as_node(self, tensor)
        if (
            not self.internal
            and torch.is_grad_enabled()
            and getattr(tensor, "requires_grad", False)
        ):
            result = _QuantizeFunc.apply(tensor, self.quantize_impl)
        else:
            result = self.quantize_impl(tensor)
        # A process group never stays on a tensor.
        own = getattr(result, "_quantizer", None)
        if own is not None and getattr(own, "with_amax_reduction", False):
            own.with_amax_reduction = False
            own.amax_reduction_group = None
        return result

    def __call__(self, tensor: torch.Tensor) -> Any:
        if not torch.compiler.is_dynamo_compiling():
            if (node := node_of_copy(self, tensor, tensor)) is not None:
                return node
            if is_called_by_tracer():
                guard_fields(self)
        return self.quantize(tensor)

    def multi_quantize(self, list_of_tensors: Iterable[torch.Tensor]) -> list[Any]:
        """quantize() of each."""
        return [self.quantize(tensor) for tensor in list_of_tensors]

    def make_empty(
        self,
        shape: Iterable[int],
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
        requires_grad: bool = False,
        pin_memory: bool = False,
    ) -> Any:
        """A quantized tensor whose buffers are not initialised."""
        raise NotImplementedError(
            f"{self.__class__.__name__} class does not implement make_empty function, "
            "required for construction of unintialized quantized tensor"
        )

    def calibrate(self, tensor: torch.Tensor) -> None:
        """Updates state without quantizing; most quantizers have none."""

    def set_usage(self, *, rowwise: bool | None = None, columnwise: bool | None = None) -> None:
        """Changes the directions to make; None keeps one as it is."""
        given = {"rowwise_usage": rowwise, "columnwise_usage": columnwise}
        changed = {n: v for n, v in given.items() if v is not None and v != getattr(self, n)}
        if changed and torch.compiler.is_dynamo_compiling() and self._is_value():
            write_outside(self, **changed)
            return
        for name, value in changed.items():
            setattr(self, name, value)

    def get_usages(self) -> dict[str, bool]:
        """The directions to make."""
        return {"rowwise": self.rowwise_usage, "columnwise": self.columnwise_usage}

    def copy(self) -> Self:
        """Another quantizer with this configuration; tensors of state are shared."""
        if torch.compiler.is_dynamo_compiling() and self._is_value():
            return copy_outside(type(self).copy, self)
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other

    @never_traced
    def __deepcopy__(self, memo: dict[int, Any]) -> Quantizer:
        if torch.compiler.is_dynamo_compiling() and self._is_value():
            return copy_outside(copy.deepcopy, self)
        other = memo[id(self)] = object.__new__(type(self))
        other.__setstate__(copy.deepcopy(self.__getstate__(), memo))
        return other

    def onnx_quantize(self, tensor: torch.Tensor) -> Any:
        """Not part of narrowfloat."""
        raise NotImplementedError(f"{self.__class__.__name__} has no ONNX form")

    def onnx_dequantize(self, tensor: torch.Tensor) -> torch.Tensor:
        """Not part of narrowfloat."""
        raise NotImplementedError(f"{self.__class__.__name__} has no ONNX form")

    def _get_compatible_recipe(self) -> type | None:
        """Class of the recipe that makes quantizers of this kind."""
        return None

    def supports_only_rowwise_all_gather(self) -> bool:
        """Whether a sharded tensor is gathered by its rowwise buffers alone."""
        return False

    def allows_save_original_input_for_backward(self) -> bool:
        """Whether backward may quantize the original input again in place of what was saved."""
        return True

    def _check_group(self) -> None:
        """Errors: ValueError, NotImplementedError if its tensors have no flat form for groups."""
        raise ValueError(f"Unsupported quantizer for GroupedTensor: {self}")

    def is_requantization_safe(self) -> bool:
        """Whether quantizing a dequantized tensor again gives the same tensor."""
        return False

    def keeps_columns_of_later(self) -> bool:
        """Whether columns quantized in backward are those that the forward pass would make."""
        return self.is_requantization_safe()

    def holds_values(self) -> tuple[bool, bool]:
        """Returns for the row-wise and the column-wise direction if it stays in high precision."""
        return False, False

    def quantizes_shards(self, inp: torch.Tensor) -> bool:
        """Whether ranks that quantize shards like this one get the codes of the whole tensor."""
        return False

    def is_quantizable(self, inp: torch.Tensor) -> bool:
        """Whether the format takes a tensor of this shape."""
        return True

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        if "amax_reduction_group" in state:
            state["amax_reduction_group"] = None  # process groups belong to a process
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


@dataclass(frozen=True)
class QuantizerRequest:
    """What a factory returns for a quantizer that needs state the recipe state has to keep."""


class QuantizedTensor(_dispatch.WriteTarget, torch.Tensor):
    """A tensor that reports a high-precision dtype and keeps narrow codes.

    Concrete classes put their storage class first among their bases.
    """

    _dtype: torch.dtype

    if TYPE_CHECKING:
        # What the storage class brings.
        def __getattr__(self, name: str) -> Any: ...
        def __setattr__(self, name: str, value: Any) -> None: ...

    def __new__(
        cls,
        shape: Iterable[int],
        dtype: torch.dtype,
        *,
        fake_dtype: torch.dtype | None = None,
        requires_grad: bool = False,
        device: torch.device | str | None = None,
        stride: Iterable[int] | None = None,
        storage_offset: int = 0,
    ) -> QuantizedTensor:
        if fake_dtype is not None and fake_dtype != dtype:
            raise ValueError(f"fake_dtype ({fake_dtype}) does not match dtype ({dtype})")
        instance = torch.Tensor._make_wrapper_subclass(
            cls,
            tuple(shape),
            strides=None if stride is None else tuple(stride),
            storage_offset=None if stride is None else storage_offset,
            dtype=dtype,
            layout=torch.strided,
            requires_grad=requires_grad,
            device=torch.get_default_device() if device is None else torch.device(device),
        )
        instance._dtype = dtype
        return instance

    @property
    def dtype(self) -> torch.dtype:
        """The nominal type: what dequantize() gives."""
        return self._dtype

    @dtype.setter
    def dtype(self, value: torch.dtype) -> None:
        self._dtype = value

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]  # PyTorch's stub has a field
        return self.device.type == "cuda"

    @property
    def is_cpu(self) -> bool:  # type: ignore[override]  # likewise
        return self.device.type == "cpu"

    def dequantize(self, dtype: torch.dtype | None = None) -> torch.Tensor:
        """The values as a plain tensor of the nominal type, or of `dtype`."""
        raise NotImplementedError(
            f"{self.__class__.__name__} class does not implement dequantize function"
        )

    def quantize_(
        self, tensor: torch.Tensor, *, noop_flag: torch.Tensor | None = None
    ) -> QuantizedTensor:
        """Quantizes `tensor` into this one; a noop_flag of 1 leaves every byte."""
        raise NotImplementedError(
            f"{self.__class__.__name__} class does not implement quantize_ function"
        )

    def detach(self) -> QuantizedTensor:
        """An alias without a gradient, of the same class."""
        raise NotImplementedError(
            f"{self.__class__.__name__} class does not implement detach function"
        )

    def view(self, *shape: Any) -> torch.Tensor:
        raise NotImplementedError(f"{self.__class__.__name__} class does not support tensor views")

    def expand_as(self, other: torch.Tensor) -> torch.Tensor:
        if other is self:
            return _IdentityFunc.apply(self)
        return super().expand_as(other)

    def cpu(self, memory_format: torch.memory_format = torch.preserve_format) -> torch.Tensor:
        """This tensor on the CPU, still quantized."""
        return self.to(device=torch.device("cpu"), memory_format=memory_format)

    def untyped_storage(self) -> torch.UntypedStorage:
        """An empty storage: the bytes lie in the inner buffers."""
        return torch.UntypedStorage(0, device=self.device)

    __dlpack_c_exchange_api__ = None  # torch.Tensor's needs memory of the wrapper

    def __dlpack__(self, **kwargs: Any) -> Any:
        raise BufferError(
            "dlpack: a quantized tensor is no array of values; hand on dequantize() or a buffer, "
            f"got {type(self).__name__}"
        )

    def share_memory_(self) -> QuantizedTensor:
        """Moves every buffer to shared memory."""
        for buffer in self._live_buffers():
            buffer.share_memory_()
        return self

    def is_shared(self) -> bool:
        """Whether every buffer is in shared memory."""
        return all(buffer.is_shared() for buffer in self._live_buffers())

    def float(self) -> torch.Tensor:
        return self.dequantize(dtype=torch.float32)

    def bfloat16(self) -> torch.Tensor:
        return self.dequantize(dtype=torch.bfloat16)

    def half(self) -> torch.Tensor:
        return self.dequantize(dtype=torch.float16)

    def to_dtype(self, dtype: torch.dtype) -> QuantizedTensor:
        """An alias with another nominal type."""
        return type(self).make_like(self, dtype=dtype)

    @classmethod
    def make_like(
        cls,
        tensor: QuantizedTensor,
        *,
        shape: Iterable[int] | None = None,
        dtype: torch.dtype | None = None,
        requires_grad: bool = False,
    ) -> QuantizedTensor:
        """An alias of `tensor` with other outer metadata."""
        fields = tensor.get_metadata()
        fields["fake_dtype"] = tensor.dtype if dtype is None else dtype
        alias = cls(
            shape=tensor.shape if shape is None else shape,
            dtype=fields["fake_dtype"],
            requires_grad=requires_grad,
            device=tensor.device,
            **fields,
        )
        group = tensor.__dict__.get("_amax_reduction_group")
        if group is not None:
            alias._amax_reduction_group = group
        mark = tensor.__dict__.get("_cut")
        if mark is not None:
            alias._cut = mark
        return alias

    def _describe(self) -> str:
        """The fields beside the values, for __repr__."""
        return ""

    def __repr__(self, *, tensor_contents: object = None) -> str:  # type: ignore[override]  # of no types
        name, fields = self.__class__.__name__, self._describe()
        try:
            return f"{name}({fields}data={self._decode(self._dtype)})"
        except Exception as error:
            shape = tuple(torch._C.TensorBase.size(self))
            return f"{name}({fields}shape={shape}, dtype={self._dtype}, data=<{error}>)"

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        """Keeps whether the tensor is a parameter and has a gradient, as PyTorch does."""
        if getattr(self, "_is_param", False):
            hooks: OrderedDict[Any, Any] = OrderedDict()
            arguments = (self.detach(), self.requires_grad, hooks)
            return torch._utils._rebuild_parameter, arguments
        reduced = self._reduce(protocol)
        # torch.Tensor.__setstate__() takes the gradient and the hooks.
        return (*reduced, (True, None, OrderedDict())) if self.requires_grad else reduced

    def _reduce(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        """Returns the function and the arguments that make the tensor again."""
        return super().__reduce_ex__(protocol)

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # no method

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # PyTorch's own has no annotations
        cls,
        func: Any,
        types: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        return _dispatch.dispatch(func, args, kwargs or {})
