# SPDX-License-Identifier: Apache-2.0
"""Decoded values instead of a view of a quantized tensor; a write to them raises."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, SupportsIndex, TypeVar

import numpy as np
import torch
from torch.utils._pytree import tree_flatten, tree_map

from narrowfloat.pytorch._exported_tensors import CLASSES, full_name, name_tensor
from narrowfloat.pytorch._inference import run_in_inference_mode
from narrowfloat.pytorch._tracing import is_asked_for_tangent
from narrowfloat.pytorch._types import Context, Operator
from narrowfloat.pytorch._values import never_traced

if TYPE_CHECKING:
    from narrowfloat.pytorch.quantized_tensor import QuantizedTensor


Value = TypeVar("Value")


# Operators that write the arguments _STATISTICS although their schemas do not mark them. If they
# have an argument _TRAINING, they write only if it is true.
_UNMARKED = frozenset(
    f"aten::{name}"
    for name in (
        "native_batch_norm",
        "cudnn_batch_norm",
        "miopen_batch_norm",
        "batch_norm_update_stats",
        "batch_norm_gather_stats",
        "batch_norm_gather_stats_with_counts",
    )
)
_STATISTICS = ("running_mean", "running_var")
_TRAINING = "training"

Place = tuple[int, str]  # position and name of an argument


class Effect(NamedTuple):
    """The arguments that an operator writes, and the results that are views."""

    written: tuple[Place, ...]
    aliases: bool  # whether a result is a view of an argument
    returned: tuple[int | None, ...]  # for each result, the index in `written` of its argument
    training: Place | None = None  # the argument that must be true for unmarked writes
    counted: bool = True  # whether autograd counts the writes; it does not count unmarked ones


@cache
def effect_of(func: Operator, updates: bool = True) -> Effect:
    """Returns the effect of an operator, from its schema and the list of unmarked writes.

    updates: whether unmarked arguments are written.
    """
    schema = func._schema
    places = [(position, argument.name) for position, argument in enumerate(schema.arguments)]
    written = tuple(
        place
        for place, argument in zip(places, schema.arguments, strict=True)
        if argument.alias_info is not None and argument.alias_info.is_write
    )
    infos = [schema.arguments[position].alias_info for position, _ in written]
    sets = [info.before_set for info in infos if info is not None]
    returned = tuple(
        sets.index(info.before_set)
        if (info := result.alias_info) is not None and info.is_write and info.before_set in sets
        else None
        for result in schema.returns
    )
    aliases = any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)
    if schema.name not in _UNMARKED or not updates:
        return Effect(written, aliases, returned)
    training = next((place for place in places if place[1] == _TRAINING), None)
    # After the marked ones, to which `returned` refers.
    written += tuple(place for place in places if place[1] in _STATISTICS)
    return Effect(written, aliases, returned, training, False)


def effect_of_call(func: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Effect:
    """Returns the effect of an operator with these arguments."""
    effect = effect_of(func)
    if effect.training is None or arguments_of((effect.training,), args, kwargs)[0]:
        return effect
    return effect_of(func, False)


def arguments_of(
    places: tuple[Place, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[Any]:
    """Returns the arguments at these places, by name or by position; None for omitted ones."""
    return [
        # By name, because keyword-only arguments such as out= have no position.
        kwargs[name] if name in kwargs else args[position] if position < len(args) else None
        for position, name in places
    ]


_rows: dict[Any, Callable[..., Any]] = {}  # for operators on transposes


def reads_transposed(func: Operator) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Makes the decorated function replace the operator on read-only values.

    It may return NotImplemented: then the operator runs on the values.
    """

    def register(row: Callable[..., Any]) -> Callable[..., Any]:
        _rows[func] = row
        return row

    return register


class ReadOnlyError(RuntimeError):
    """An error of a write to read-only values, raised before anything is written."""


class _Decoded:
    """Caches the values of a tensor in a graph, until one of its buffers is written.

    Caches nothing outside of graphs.
    """

    def __init__(self) -> None:
        self._contents: list[torch.Tensor] = []
        self._values: torch.Tensor | None = None

    def of(self, tensor: QuantizedTensor) -> torch.Tensor:
        """Returns the values of `tensor`. Requires: every call passes the same tensor."""
        buffers: list[Any] = tensor._live_buffers()
        # Functional tensors: a write to one, or to an alias, replaces its content.
        if not all(hasattr(buffer, "from_functional") for buffer in buffers):
            return tensor._plain()
        contents = [buffer.from_functional() for buffer in buffers]
        if self._values is None or any(map(operator.is_not, contents, self._contents)):
            self._contents, self._values = contents, tensor._plain()
        return self._values


class ReadOnlyValues(torch.Tensor):
    """Read-only values returned by `origin`; views of them are read-only too.

    A write would change a copy and not the quantized tensor.
    """

    _kept: torch.Tensor | None  # None: decoded from `transposed` at each use
    _origin: str
    transposed: Any  # a quantized tensor; the values have its last two dimensions exchanged
    _decoded: _Decoded  # only of a transpose

    __dlpack_c_exchange_api__: Any = None  # torch.Tensor's function reads the memory of the wrapper

    def __new__(cls, values: torch.Tensor, origin: str) -> ReadOnlyValues:
        if type(values) is torch.Tensor:
            instance = torch.Tensor._make_subclass(cls, values)
        else:  # traced, without memory
            instance = torch.Tensor._make_wrapper_subclass(
                cls,
                values.shape,
                strides=values.stride(),
                storage_offset=values.storage_offset(),
                dtype=values.dtype,
                layout=values.layout,
                device=values.device,
            )
        instance._kept = values
        instance._origin = origin
        instance.transposed = None
        return instance

    @classmethod
    def of_transpose(cls, tensor: QuantizedTensor, origin: str) -> ReadOnlyValues:
        """Returns a quantized tensor with its last two dimensions exchanged.

        A product reads the codes of `tensor`; every other operator decodes it. A graph decodes it
        once between two writes.
        """
        outer = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta").mT
        instance = torch.Tensor._make_wrapper_subclass(
            cls, outer.shape, strides=outer.stride(), dtype=outer.dtype, device=tensor.device
        )
        instance._kept = None
        instance._origin = origin
        instance.transposed = tensor
        instance._decoded = _Decoded()
        return instance

    def alias(self) -> ReadOnlyValues:
        """Returns a transpose of the same tensor. Requires: this is a transpose."""
        made = self.of_transpose(self.transposed, self._origin)
        made._decoded = self._decoded
        return made

    @property
    def _values(self) -> torch.Tensor:  # type: ignore[override]  # PyTorch's is a method
        if self._kept is not None:
            return self._kept
        with torch.no_grad():
            return self._decoded.of(self.transposed).mT

    def detach(self) -> torch.Tensor:
        if not is_asked_for_tangent():
            return torch.ops.aten.detach.default(self)
        if self.transposed is None:
            return self._values.detach()
        return self.transposed._tangent().mT

    def __coerce_same_metadata_as_tangent__(
        self,
        flatten_spec: object,
        expected_type: type | None = None,
    ) -> torch.Tensor | None:
        """Returns a gradient of this class as the plain gradient that a graph expects."""
        return self._values if expected_type is torch.Tensor else None

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
        kwargs = kwargs or {}
        if func.namespace == "c10d":  # its schemas do not mark written arguments
            values = next(v for v in tree_flatten(args)[0] if isinstance(v, cls))
            raise RuntimeError(f"{func}: {_rule(values)}; clone() them to communicate them")
        if torch.is_inference_mode_enabled():
            return run_in_inference_mode(_run, func, args, kwargs, effect_of(func).aliases)
        return _run(func, args, kwargs)

    def __repr__(self, *, tensor_contents: object = None) -> str:  # type: ignore[override]  # of no types
        return f"{type(self).__name__}({self._values!r}, origin={self._origin!r})"

    def numpy(self, *, force: bool = False) -> np.ndarray:
        """Returns the values as a read-only array."""
        if self.requires_grad and not force:
            raise RuntimeError("numpy: a tensor that requires grad needs detach() first")
        array = self._values.detach().numpy(force=force)
        array.flags.writeable = False
        return array

    def tolist(self) -> list[Any]:
        return self._values.tolist()

    def _memory(self) -> Any:  # noqa: ANN401  # a tensor, or a quantized one
        return self.transposed if self._kept is None else self._kept

    def untyped_storage(self) -> torch.UntypedStorage:
        """Returns the storage of the values; a transpose has an empty one.

        It is not that of the transposed tensor, because a graph would make the transpose again as a
        view by strides.
        """
        if self._kept is None:
            return torch.UntypedStorage(0, device=self.device)
        return self._kept.untyped_storage()

    def share_memory_(self) -> ReadOnlyValues:
        """Moves the values, or the buffers of a transposed tensor, to shared memory."""
        self._memory().share_memory_()
        return self

    def is_shared(self) -> bool:
        """Returns whether the same memory is shared already."""
        return self._memory().is_shared()

    def apply_(self, callable: Callable[..., Any]) -> NoReturn:
        self._refuse("apply_")

    def map_(self, tensor: torch.Tensor, callable: Callable[..., Any]) -> NoReturn:
        self._refuse("map_")

    def map2_(self, x: torch.Tensor, y: torch.Tensor, callable: Callable[..., Any]) -> NoReturn:
        self._refuse("map2_")

    def _refuse(self, method: str) -> NoReturn:
        raise ReadOnlyError(f"{method}: {_rule(self)}; write to the tensor, or to blocks of it")

    def __dlpack__(self, **kwargs: Any) -> NoReturn:
        raise BufferError(f"dlpack: {_rule(self)}; clone() them to pass them on")

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        return self._values.clone()

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        return self._values.clone().__reduce_ex__(protocol)

    def __tensor_flatten__(self) -> tuple[list[str], str]:
        # A transpose holds the tensor in graphs too, so that its values include later writes.
        return ["_values" if self.transposed is None else "transposed"], self._origin

    @staticmethod
    def __tensor_unflatten__(
        inner: dict[str, Any],
        origin: str,
        outer_size: torch.Size,
        outer_stride: tuple[int, ...],
    ) -> ReadOnlyValues:
        if "transposed" in inner:
            return ReadOnlyValues.of_transpose(inner["transposed"], origin)
        return ReadOnlyValues(inner["_values"], origin)


CLASSES[full_name(ReadOnlyValues)] = ReadOnlyValues


def _run(func: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
    """Runs an operator on read-only values. Errors: RuntimeError if it writes them."""
    row = _rows.get(func)
    if row is not None:
        result = row(*args, **kwargs)
        if result is not NotImplemented:
            return result
    effect = effect_of_call(func, args, kwargs)
    if effect.written:
        refuse_writes(func, arguments_of(effect.written, args, kwargs))
    result = func(*tree_map(unwrapped, args), **tree_map(unwrapped, kwargs))
    if not effect.aliases:
        return result
    origin = next(leaf._origin for leaf in args if type(leaf) is ReadOnlyValues)
    return read_only(result, origin)


def unwrapped(value: Value) -> Value | torch.Tensor:
    """Returns the plain values of read-only ones; returns any other value unchanged."""
    return value._values if isinstance(value, ReadOnlyValues) else value


def read_only(tree: object, origin: str) -> object:
    """Returns `tree` with its tensors read-only."""
    return tree_map(
        lambda leaf: ReadOnlyValues(leaf, origin) if isinstance(leaf, torch.Tensor) else leaf, tree
    )


def refuse_writes(func: Operator, written: Iterable[object]) -> None:
    """Raises RuntimeError if an operator writes read-only values."""
    for value in written:
        if type(value) is ReadOnlyValues:
            value._refuse(str(func))
        if isinstance(value, (list, tuple)):
            refuse_writes(func, value)


def _rule(values: ReadOnlyValues) -> str:
    return (
        f"the values that {values._origin} are read-only, because a write to them would not reach "
        "the tensor"
    )


class _ReadOnlyFunc(torch.autograd.Function):
    """Makes values read-only in forward; passes the gradient through."""

    @staticmethod
    def forward(ctx: Context, values: torch.Tensor, origin: str) -> torch.Tensor:
        made = ReadOnlyValues(values.detach(), origin)
        name_tensor(made)
        return made

    @staticmethod
    def backward(ctx: Context, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad, None

    @staticmethod
    def jvp(ctx: Context, tangent: torch.Tensor, _: object) -> torch.Tensor:
        return tangent.clone()


def read_only_values(values: torch.Tensor, origin: str) -> torch.Tensor:
    """Returns the values as read-only, connected to the same autograd graph."""
    return _ReadOnlyFunc.apply(values, origin)
