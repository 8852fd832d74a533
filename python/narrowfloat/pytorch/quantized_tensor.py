# SPDX-License-Identifier: Apache-2.0
"""The base classes of quantizers and of quantized tensors with autograd."""

from __future__ import annotations

import abc
import copy
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NoReturn, Self, SupportsIndex

import torch
from typing_extensions import TypeVar

from narrowfloat.pytorch import _dispatch
from narrowfloat.pytorch._autograd import (
    _QuantizeFunc,
    count_write,
    has_derivatives,
    keep_saved,
    refuse_transforms,
)
from narrowfloat.pytorch._checkpoint_modes import hidden_from_checkpoints
from narrowfloat.pytorch._exported_tensors import name_tensor
from narrowfloat.pytorch._memory import WithoutMemory
from narrowfloat.pytorch._native import in_float32_if_double
from narrowfloat.pytorch._quantized_storage import (
    QuantizedTensorStorage,
    prepare_for_saving,
    refuse_absent,
    restore_from_func_ctx,
    restore_from_saved,
)
from narrowfloat.pytorch._read_only import ReadOnlyError
from narrowfloat.pytorch._shard_group import SHARD_GROUP
from narrowfloat.pytorch._tracing import (
    has_node,
    quantize_as_node,
    quantize_in_graph,
    refuse_jit_trace,
)
from narrowfloat.pytorch._types import Operator, Quantized, TensorLike
from narrowfloat.pytorch._values import (
    ValueSemantics,
    copy_outside,
    guard_fields,
    is_called_by_tracer,
    never_traced,
    node_of_copy,
    write_outside,
)

__all__ = [
    "QuantizedTensor",
    "QuantizedTensorStorage",
    "Quantizer",
    "prepare_for_saving",
    "restore_from_func_ctx",
    "restore_from_saved",
]

# Operators that process quantized tensors directly instead of their values: overloads of torch.ops
# that a program adds. The name is TransformerEngine's.
_quantized_tensor_passthrough_ops: set[Operator] = set()

# The type of tensors that a quantizer makes.
TensorT_co = TypeVar("TensorT_co", covariant=True, bound="Quantized", default="Quantized")


class Quantizer(ValueSemantics, abc.ABC, Generic[TensorT_co]):
    """Makes quantized tensors of one format, and stores none of them.

    `rowwise_usage`, `columnwise_usage`: the directions of new tensors. `internal`: makes bare
    storages instead of tensors. `optimize_for_gemm`: swizzles scales, in formats that allow it.

    rowwise, columnwise: the initial rowwise_usage and columnwise_usage.
    """

    VALUE_FIELDS: tuple[str, ...] = (
        "rowwise_usage",
        "columnwise_usage",
        "internal",
        "optimize_for_gemm",
    )

    if TYPE_CHECKING:
        # A family defines its options, its classes, and methods that plan its buffers.
        def __getattr__(self, name: str) -> Any: ...  # noqa: ANN401  # a field of any type

    QUANTIZES_OUTPUTS: ClassVar[bool] = False  # whether it may quantize results of products
    COLUMNS_ALONE: ClassVar[bool] = False  # can make columnwise data only, in every format
    SCALE_IS_GIVEN: ClassVar[bool] = False  # known before the values (delayed scaling)
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
        """Returns whether this quantizer computes products itself (`qgemm`)."""
        return False

    @abc.abstractmethod
    def update_quantized(
        self,
        src: torch.Tensor,
        dst: Quantized,
        *,
        noop_flag: torch.Tensor | None = None,
    ) -> Quantized:
        """Quantizes `src` into the buffers of `dst` and returns `dst`.

        Changes no byte if noop_flag is 1.
        """

    def _check_update(self, src: torch.Tensor, dst: Quantized) -> None:
        """Raises the errors of update_quantized() that do not depend on the values."""

    def quantize_impl(self, tensor: torch.Tensor) -> TensorT_co:
        """Returns a new quantized tensor, outside of autograd."""
        refuse_absent(self, "quantize_impl")

    def quantize(
        self,
        tensor: torch.Tensor,
        *,
        out: Quantized | None = None,
        dtype: torch.dtype | None = None,
    ) -> TensorT_co:
        """Returns `tensor` quantized, in `out` or in a new tensor with a straight-through gradient.

        With `internal`, returns a bare storage instead.
        Errors: TypeError unless `tensor` is a torch.Tensor; NotImplementedError within
        torch.jit.trace and for tensors of torch.func's transforms; further ones of the family.
        """
        is_compiled = torch.compiler.is_dynamo_compiling()
        if is_compiled and has_node(self):
            return quantize_in_graph(self, tensor, out)
        if not isinstance(tensor, torch.Tensor) and not isinstance(tensor, QuantizedTensorStorage):
            raise TypeError(
                f"quantize: the input must be a torch.Tensor, got {type(tensor).__name__}"
            )
        if is_compiled:
            return self._quantize(tensor, out)
        refuse_jit_trace()
        refuse_transforms(tensor)
        with hidden_from_checkpoints():
            return self._quantize(tensor, out)

    def _quantize(self, tensor: torch.Tensor, out: Quantized | None) -> Any:  # noqa: ANN401  # TensorT_co
        """Implements quantize() outside of graphs."""
        result: Any
        if out is not None:
            keep_saved(out)
            result = self.update_quantized(tensor, out)
            count_write(out)
            return result
        if self.internal and torch.compiler.is_compiling() and has_node(self):
            return quantize_as_node(self, tensor)
        if not self.internal and has_derivatives(tensor):
            result = _QuantizeFunc.apply(tensor, self.quantize_impl)
        else:
            result = self.quantize_impl(tensor)
        # A tensor never keeps a process group.
        own = getattr(result, "_quantizer", None)
        if own is not None and getattr(own, "with_amax_reduction", False):
            own.with_amax_reduction = False
            own.amax_reduction_group = None
        return result

    def __call__(self, tensor: torch.Tensor) -> TensorT_co:
        """Returns quantize() of `tensor`."""
        if not torch.compiler.is_dynamo_compiling():
            if (node := node_of_copy(self, tensor, tensor)) is not None:
                return node
            if is_called_by_tracer():
                guard_fields(self)
        return self.quantize(tensor)

    def multi_quantize(self, list_of_tensors: Iterable[torch.Tensor]) -> list[TensorT_co]:
        """Returns quantize() of each tensor."""
        return [self.quantize(tensor) for tensor in list_of_tensors]

    def make_empty(
        self,
        shape: Iterable[int],
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
        requires_grad: bool = False,
        pin_memory: bool = False,
    ) -> TensorT_co:
        """Returns a quantized tensor with uninitialised buffers."""
        raise NotImplementedError(
            f"{self.__class__.__name__} class does not implement make_empty function, "
            "required for construction of unintialized quantized tensor"
        )

    def inner_tensor_specs(
        self, shape: Iterable[int]
    ) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Returns the shape and dtype of the inner tensors in flattening order, without data."""
        self._refuse_flattening("inner_tensor_specs")

    def storage_metadata(self, dtype: torch.dtype) -> dict[str, Any]:
        """Returns the tensor's constructor arguments that are not buffers."""
        self._refuse_flattening("storage_metadata")

    def alloc_tensors(
        self,
        shape: Iterable[int],
        *,
        device: torch.device | str | None = None,
        pin_memory: bool = False,
    ) -> dict[str, torch.Tensor]:
        """Returns uninitialised inner tensors by name."""
        self._refuse_flattening("alloc_tensors")

    def create_metadata(
        self, shape: Iterable[int], dtype: torch.dtype, requires_grad: bool = False
    ) -> dict[str, Any]:
        """Returns the __tensor_flatten__ context of a tensor with this quantizer."""
        self._refuse_flattening("create_metadata")

    def _refuse_flattening(self, method: str) -> NoReturn:
        """Raises NotImplementedError for a family that does not plan its buffers by shape."""
        raise NotImplementedError(
            f"{method}: {self.__class__.__name__} does not plan the inner tensors of a shape, "
            "which TensorSpec needs"
        )

    def calibrate(self, tensor: torch.Tensor) -> None:
        """Updates the quantizer's state from `tensor` without quantizing; most have no state."""

    def set_usage(self, *, rowwise: bool | None = None, columnwise: bool | None = None) -> None:
        """Sets the directions of new tensors; None does not change a direction."""
        given = {"rowwise_usage": rowwise, "columnwise_usage": columnwise}
        changed = {n: v for n, v in given.items() if v is not None and v != getattr(self, n)}
        if changed and torch.compiler.is_dynamo_compiling() and self._is_value():
            write_outside(self, **changed)
            return
        for name, value in changed.items():
            setattr(self, name, value)

    def get_usages(self) -> dict[str, bool]:
        """Returns the directions of new tensors."""
        return {"rowwise": self.rowwise_usage, "columnwise": self.columnwise_usage}

    def copy(self) -> Self:
        """Returns a quantizer with the same configuration, which shares the state tensors."""
        if torch.compiler.is_dynamo_compiling() and self._is_value():
            return copy_outside(type(self).copy, self)
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other

    @never_traced
    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        if torch.compiler.is_dynamo_compiling() and self._is_value():
            return copy_outside(copy.deepcopy, self)
        other = memo[id(self)] = object.__new__(type(self))
        other.__setstate__(copy.deepcopy(self.__getstate__(), memo))
        return other

    def onnx_quantize(self, tensor: torch.Tensor) -> NoReturn:
        """Raises NotImplementedError: ONNX export is not supported."""
        raise NotImplementedError(f"{self.__class__.__name__} has no ONNX form")

    def onnx_dequantize(self, tensor: torch.Tensor) -> NoReturn:
        """Raises NotImplementedError: ONNX export is not supported."""
        raise NotImplementedError(f"{self.__class__.__name__} has no ONNX form")

    def _get_compatible_recipe(self) -> type | None:
        """Returns the class of the recipe that makes quantizers of this class."""
        return None

    def supports_only_rowwise_all_gather(self) -> bool:
        """Returns whether an all-gather of a sharded tensor sends its rowwise buffers only."""
        return False

    def allows_save_original_input_for_backward(self) -> bool:
        """Returns whether backward may quantize the input again instead of reading saved codes."""
        return True

    def _check_group(self) -> None:
        """Checks that tensors of this format can be members of a group.

        Errors: ValueError, NotImplementedError if they cannot.
        """
        raise ValueError(f"Unsupported quantizer for GroupedTensor: {self}")

    def is_requantization_safe(self) -> bool:
        """Returns whether quantizing a dequantized tensor again makes the same tensor."""
        return False

    def keeps_columns_of_later(self) -> bool:
        """Returns whether backward would make the same columnwise codes as the forward pass."""
        return self.is_requantization_safe()

    def holds_values(self) -> tuple[bool, bool]:
        """Returns for the rowwise and the columnwise direction whether it is in high precision."""
        return False, False

    def quantizes_shards(self, inp: torch.Tensor) -> bool:
        """Returns whether quantizing shards like this one makes the codes of the whole tensor."""
        return False

    def is_quantizable(self, inp: torch.Tensor) -> bool:
        """Returns whether the format supports a tensor of this shape."""
        return True

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        if "amax_reduction_group" in state:
            state["amax_reduction_group"] = None  # process groups belong to a process
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


def reduced_parameter(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Returns the function and the arguments that rebuild a parameter, as PyTorch does."""
    hooks: OrderedDict[Any, Any] = OrderedDict()
    return torch._utils._rebuild_parameter, (tensor.detach(), tensor.requires_grad, hooks)


@dataclass(frozen=True)
class QuantizerRequest:
    """A request of a factory to the recipe state: make a quantizer and store its state."""


class QuantizedTensor(WithoutMemory, _dispatch.WriteTarget, torch.Tensor):
    """A tensor that reports a high-precision dtype and stores narrow codes.

    The storage class is the first base of concrete classes.

    shape: of the values. dtype: the nominal type, which dequantize() returns. fake_dtype: None or
    the same type. requires_grad: as torch.Tensor's. device: of the buffers; None is torch's
    default. stride, storage_offset: of the values; None is a contiguous tensor.
    Errors: ValueError if fake_dtype differs from dtype.
    """

    _dtype: torch.dtype

    if TYPE_CHECKING:
        # The storage class defines the fields.
        def __getattr__(self, name: str) -> Any: ...  # noqa: ANN401  # a field of any type
        def __setattr__(self, name: str, value: Any) -> None: ...  # noqa: ANN401  # likewise

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
        device = torch.get_default_device() if device is None else torch.device(device)
        if device.type == "cuda" and device.index is None:  # else the wrapper would have no index
            device = torch.device("cuda", torch.cuda.current_device())
        instance = torch.Tensor._make_wrapper_subclass(
            cls,
            tuple(shape),
            strides=None if stride is None else tuple(stride),
            storage_offset=None if stride is None else storage_offset,
            dtype=dtype,
            layout=torch.strided,
            requires_grad=requires_grad,
            device=device,
        )
        instance._dtype = dtype
        return instance

    @property
    def dtype(self) -> torch.dtype:
        """The nominal type, which dequantize() returns."""
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
        """Returns the values as a plain tensor of the nominal type, or of `dtype`."""
        refuse_absent(self, "dequantize")

    def quantize_(self, tensor: TensorLike, *, noop_flag: torch.Tensor | None = None) -> Quantized:
        """Quantizes `tensor` into this one; does nothing if noop_flag is 1."""
        refuse_absent(self, "quantize_")

    def detach(self) -> QuantizedTensor:
        """Returns an alias without a gradient, of the same class."""
        refuse_absent(self, "detach")

    @never_traced
    def __setitem__(self, index: Any, value: Any) -> None:  # noqa: ANN401  # as torch.Tensor's
        """Writes a part if its bounds fit the blocks; else quantizes the whole changed tensor
        again.

        Errors: RuntimeError if a gradient would be lost; as quantize_().
        """
        try:
            super().__setitem__(index, value)
        except ReadOnlyError:
            needs_grad = self.requires_grad or getattr(value, "requires_grad", False)
            if torch.is_grad_enabled() and needs_grad:
                raise
            values = self._plain_copy()
            values[index] = value._plain() if isinstance(value, QuantizedTensor) else value
            self.quantize_(in_float32_if_double(values))

    def _tangent(self) -> Any:  # noqa: ANN401  # a plain tensor where a class is expected
        """Returns a plain tensor with the shape and type of gradients; its values are undefined."""
        return self._live_buffers()[0].new_empty(self.shape, dtype=self.dtype)

    def __coerce_same_metadata_as_tangent__(
        self,
        flatten_spec: object,
        expected_type: type | None = None,
    ) -> torch.Tensor | None:
        """Returns a quantized gradient as the plain gradient that a graph expects."""
        return self._plain() if expected_type is torch.Tensor else None

    def view(self, *shape: Any) -> torch.Tensor:  # sizes, one sequence of sizes, or a dtype
        raise NotImplementedError(f"{self.__class__.__name__} class does not support tensor views")

    def cpu(self, memory_format: torch.memory_format = torch.preserve_format) -> torch.Tensor:
        """Returns this tensor on the CPU, still quantized."""
        return self.to(device=torch.device("cpu"), memory_format=memory_format)

    def float(self) -> torch.Tensor:
        return self.dequantize(dtype=torch.float32)

    def bfloat16(self) -> torch.Tensor:
        return self.dequantize(dtype=torch.bfloat16)

    def half(self) -> torch.Tensor:
        return self.dequantize(dtype=torch.float16)

    def to_dtype(self, dtype: torch.dtype) -> QuantizedTensor:
        """Returns an alias with another nominal type."""
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
        """Returns an alias of `tensor` with another shape, nominal type or gradient flag."""
        fields = tensor.get_metadata()
        fields["fake_dtype"] = tensor.dtype if dtype is None else dtype
        alias = cls(
            shape=tensor.shape if shape is None else shape,
            dtype=fields["fake_dtype"],
            requires_grad=requires_grad,
            device=tensor.device,
            **fields,
        )
        group = tensor.__dict__.get(SHARD_GROUP)
        if group is not None:
            setattr(alias, SHARD_GROUP, group)
        mark = tensor.__dict__.get("_cut")
        if mark is not None:
            alias._cut = mark
            name_tensor(alias)
        return alias

    def _describe(self) -> str:
        """Returns the text of the fields other than the values, for __repr__."""
        return ""

    def __repr__(self, *, tensor_contents: object = None) -> str:  # type: ignore[override]  # of no types
        name, fields = self.__class__.__name__, self._describe()
        try:
            return f"{name}({fields}data={self._decode(self._dtype)})"
        except Exception as error:
            shape = tuple(torch._C.TensorBase.size(self))
            return f"{name}({fields}shape={shape}, dtype={self._dtype}, data=<{error}>)"

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        """Reduces to a parameter and with the gradient flag, if these apply, as PyTorch does."""
        if getattr(self, "_is_param", False):
            return reduced_parameter(self)
        reduced = self._reduce(protocol)
        # The arguments of torch.Tensor.__setstate__(): the gradient and the hooks.
        return (*reduced, (True, None, OrderedDict())) if self.requires_grad else reduced

    def _reduce(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        """Returns the function and the arguments that rebuild the tensor."""
        return super().__reduce_ex__(protocol)

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
        if func in _quantized_tensor_passthrough_ops:
            return super().__torch_dispatch__(func, types, args, kwargs or {})
        return _dispatch.dispatch(func, args, kwargs or {})
