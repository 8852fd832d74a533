# SPDX-License-Identifier: Apache-2.0
"""Quantized tensors as pytrees: data, scales and amaxes are leaves, other fields are structure."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.typing import DTypeLike

from narrowfloat.jax._arguments import check_kind, text_of
from narrowfloat.jax.quantize.scaling_modes import (
    ScalingMode,
    Shape,
    TensorUsage,
    normalize_axis,
    rotate,
)
from narrowfloat.jax.sharding import with_sharding_constraint_by_logical_axes

T = TypeVar("T")
LogicalAxes = Sequence[str | None] | None


_structures: dict[type, tuple[str, ...]] = {}


def structure_of(cls: type) -> tuple[str, ...]:
    """Returns the names of the fields that are not leaves, for a class registered by pytree()."""
    return _structures[cls]


def pytree(children: Sequence[str]) -> Callable[[type[T]], type[T]]:
    """Registers a dataclass as a pytree; the fields in `children` are its leaves.

    Unflattening skips the checks of __post_init__, because JAX may pass any objects as leaves, such
    as a batch of arrays.
    """

    def register(cls: type[T]) -> type[T]:
        names = [field.name for field in fields(cast(Any, cls))]
        rest = [name for name in names if name not in children]

        def flatten(tensor: T) -> tuple[tuple, tuple]:
            return (
                tuple(getattr(tensor, name) for name in children),
                tuple(getattr(tensor, name) for name in rest),
            )

        def flatten_with_keys(tensor: T) -> tuple[tuple, tuple]:
            leaves, aux = flatten(tensor)
            keys = (jax.tree_util.GetAttrKey(name) for name in children)
            return tuple(zip(keys, leaves, strict=True)), aux

        def unflatten(aux: tuple, leaves: Iterable[Any]) -> T:
            tensor = object.__new__(cls)
            for name, value in zip((*children, *rest), (*leaves, *aux), strict=True):
                object.__setattr__(tensor, name, value)
            return tensor

        _structures[cls] = tuple(rest)
        jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
        return cls

    return register


class AbstractBaseTensor(ABC):
    """The base class of plain and quantized tensors."""

    @property
    @abstractmethod
    def ndim(self) -> int: ...

    @abstractmethod
    def dequantize(self) -> jax.Array | list:
        """Returns the values in the layout of the data and the dtype of the unquantized tensor."""

    @abstractmethod
    def get_tensor(self, usage: TensorUsage) -> AbstractBaseTensor:
        """Returns the direction that an operand needs. Errors: ValueError if it is absent."""

    def checkpoint(self, quantizer: object) -> AbstractBaseTensor:
        """Returns this tensor, its leaves named by the quantizer's checkpoint name if any."""
        name = getattr(quantizer, "checkpoint_name", None)
        return self if name is None else jax.tree.map(lambda x: checkpoint_name(x, name), self)

    def apply_sharding_constraint_by_logical_axes(self, names: LogicalAxes) -> AbstractBaseTensor:
        """Returns this tensor with a sharding constraint; `names` has one name per input dimension.
        Block scales get the same sharding as their codes. Errors: NotImplementedError for groups.
        """
        raise NotImplementedError(
            f"apply_sharding_constraint_by_logical_axes: {type(self).__name__} is not supported, "
            "because its data have one dimension"
        )


@pytree(["data", "amax"])
@dataclass
class NoScaleTensor(AbstractBaseTensor):
    """A tensor that is not quantized, and its amax if that is known."""

    data: jax.Array
    amax: jax.Array | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.data, jax.Array):
            raise TypeError(f"quantize: data must be a JAX array, got {type(self.data).__name__}")

    @property
    def ndim(self) -> int:
        return self.data.ndim

    def dequantize(self) -> jax.Array:
        return self.data

    def get_tensor(self, usage: TensorUsage) -> NoScaleTensor:
        return self

    def apply_sharding_constraint_by_logical_axes(self, names: LogicalAxes) -> NoScaleTensor:
        return replace(self, data=with_sharding_constraint_by_logical_axes(self.data, names))

    def checkpoint(self, quantizer: object) -> NoScaleTensor:
        if quantizer is not None:
            raise ValueError(
                "checkpoint: quantizer must be None for a tensor that is not quantized, got "
                f"{type(quantizer).__name__}"
            )
        return self


class ScaledTensor(AbstractBaseTensor):
    """A quantized tensor with one or two directions."""


@pytree(["data", "amax", "scale_inv"])
@dataclass
class ScaledTensor1x(ScaledTensor):
    """Codes and scales of one direction.

    data: codes; transposed in layout T: the dimensions from the flatten axis on come first.
    amax: float32 (1,); scale_inv: without padding; flatten_axis: of `data` in its own layout.
    """

    data: jax.Array
    amax: jax.Array
    scale_inv: jax.Array
    scaling_mode: ScalingMode
    dq_dtype: DTypeLike
    _dq_func: Callable[[ScaledTensor1x], jax.Array]
    is_colwise: bool
    data_layout: str
    flatten_axis: int
    has_rht_applied: bool = False

    def __post_init__(self) -> None:
        check_kind("quantize", "scaling_mode", self.scaling_mode, ScalingMode)
        axis = normalize_axis(self.flatten_axis, self.data.ndim)
        if self.scaling_mode is ScalingMode.NO_SCALING:
            self.scale_inv = jnp.empty((0,), jnp.float32)
            return
        self.scaling_mode.check_scale_inv(self.scale_inv)
        of_input = self.data.ndim - axis if self.data_layout == "T" else axis
        shapes = {
            self.scaling_mode.get_scale_shape(
                self.data.shape, self.data_layout, self.is_colwise, False, of_input, broadcast
            )
            for broadcast in (True, False)
        }
        if self.scale_inv.shape not in shapes:
            raise ValueError(
                f"quantize: scale_inv of {self.scaling_mode.name} data of shape {self.data.shape} "
                f"must have shape {' or '.join(map(str, sorted(shapes)))}, got "
                f"{self.scale_inv.shape}"
            )

    @property
    def ndim(self) -> int:
        return self.data.ndim

    def dequantize(self) -> jax.Array:
        return self._dq_func(self)

    def get_tensor(self, usage: TensorUsage) -> ScaledTensor1x:
        wanted = self.scaling_mode.get_quantize_layout(usage)
        if wanted.has_colwise == self.is_colwise:
            return self
        raise ValueError(
            f"get_tensor: {usage.name} of {self.scaling_mode.name} needs {wanted.name} data, got "
            f"{'COLWISE' if self.is_colwise else 'ROWWISE'}"
        )

    def apply_sharding_constraint_by_logical_axes(self, names: LogicalAxes) -> ScaledTensor1x:
        if not names:
            return self
        if self.data_layout == "T":
            names = rotate(names, self.ndim - self.flatten_axis)
        lies = functools.partial(with_sharding_constraint_by_logical_axes, logical_axis_names=names)
        blocks = self.scaling_mode.is_block_scaling and self.scale_inv.ndim == self.ndim
        scale_inv = lies(self.scale_inv) if blocks else self.scale_inv
        return replace(self, data=lies(self.data), scale_inv=scale_inv)


@pytree(["rowwise_tensor", "colwise_tensor"])
@dataclass
class ScaledTensor2x(ScaledTensor):
    """A tensor quantized in both directions."""

    rowwise_tensor: ScaledTensor1x | GroupedScaledTensor1x
    colwise_tensor: ScaledTensor1x | GroupedScaledTensor1x

    @property
    def ndim(self) -> int:
        return self.rowwise_tensor.ndim

    def dequantize(self) -> jax.Array | list:
        return self.rowwise_tensor.dequantize()

    def get_tensor(self, usage: TensorUsage) -> ScaledTensor1x | GroupedScaledTensor1x:
        layout = self.rowwise_tensor.scaling_mode.get_quantize_layout(usage)
        return self.rowwise_tensor if layout.is_rowwise_only else self.colwise_tensor

    def apply_sharding_constraint_by_logical_axes(self, names: LogicalAxes) -> ScaledTensor2x:
        lies = [
            cast(ScaledTensor1x, half.apply_sharding_constraint_by_logical_axes(names))
            for half in (self.rowwise_tensor, self.colwise_tensor)
        ]
        return ScaledTensor2x(*lies)


def refuse_last_dims(last_dims: object) -> None:
    """Raises NotImplementedError for sizes of groups of columns."""
    if last_dims is not None:
        raise NotImplementedError(
            "quantize: groups of columns are not supported, so last_dims must be None, got "
            f"{text_of(last_dims)}"
        )


@pytree(["data", "scale_inv", "amax", "first_dims", "last_dims"])
@dataclass
class GroupedScaledTensor1x(ScaledTensor):
    """One direction of groups of rows, each quantized as a tensor of its own.

    data, scale_inv: flat, group after group; first_dims: int32 sizes of the groups along axis 0,
    None if each slice is a group. last_dims: must be None. original_shape: of the whole tensor,
    transposed in layout T. pre_swizzled: scales are swizzled.
    Errors: NotImplementedError for last_dims.
    """

    data: jax.Array
    scale_inv: jax.Array
    amax: jax.Array
    first_dims: jax.Array | None
    last_dims: jax.Array | None
    scaling_mode: ScalingMode
    dq_dtype: DTypeLike
    _dq_func: Callable[[GroupedScaledTensor1x], list]
    is_colwise: bool
    data_layout: str
    flatten_axis: int
    original_shape: Shape
    pre_swizzled: bool = False

    def __post_init__(self) -> None:
        refuse_last_dims(self.last_dims)
        check_kind("quantize", "scaling_mode", self.scaling_mode, ScalingMode)
        if self.scaling_mode is not ScalingMode.NO_SCALING:
            self.scaling_mode.check_scale_inv(self.scale_inv)

    @property
    def ndim(self) -> int:
        return len(self.original_shape)

    @property
    def n_groups(self) -> int:
        return self.original_shape[0] if self.first_dims is None else self.first_dims.size

    @property
    def group_sizes(self) -> jax.Array:
        """Slices of axis 0 in each group."""
        if self.first_dims is not None:
            return self.first_dims
        return jnp.ones((self.n_groups,), jnp.int32)

    def dequantize(self) -> list:
        """Returns the values of each group; an empty list for an empty group.

        Requires: concrete sizes.
        """
        return self._dq_func(self)

    def get_tensor(self, usage: TensorUsage) -> GroupedScaledTensor1x:
        wanted = self.scaling_mode.get_quantize_layout(usage)
        if wanted.has_colwise == self.is_colwise:
            return self
        raise ValueError(
            f"get_tensor: {usage.name} of {self.scaling_mode.name} needs {wanted.name} data"
        )


@pytree(["data", "amax", "first_dims", "last_dims"])
@dataclass
class GroupedNoScaleTensor(AbstractBaseTensor):
    """Groups of rows that are not quantized. Errors: NotImplementedError for last_dims."""

    data: jax.Array
    amax: jax.Array | None
    first_dims: jax.Array | None
    last_dims: jax.Array | None
    original_shape: Shape

    def __post_init__(self) -> None:
        refuse_last_dims(self.last_dims)

    @property
    def ndim(self) -> int:
        return len(self.original_shape)

    def dequantize(self) -> jax.Array:
        return self.data

    def get_tensor(self, usage: TensorUsage) -> GroupedNoScaleTensor:
        return self


def value_dtype(
    tensor: NoScaleTensor | ScaledTensor1x | GroupedNoScaleTensor | GroupedScaledTensor1x,
) -> DTypeLike:
    """Returns the type of the values of a tensor, quantized or not."""
    return getattr(tensor, "dq_dtype", tensor.data.dtype)
