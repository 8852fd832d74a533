# SPDX-License-Identifier: Apache-2.0
"""Scaling modes, and the schemes and shapes of scales that belong to them.

The planner computes every number. This module adds tensors of any rank: the dimensions from
`flatten_axis` on are the columns.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from enum import Enum, IntEnum
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.custom_partitioning import BATCHING, CompoundFactor
from jax.typing import DTypeLike

from narrowfloat import _core
from narrowfloat.common.dtypes import element_dtype
from narrowfloat.jax._arguments import check_array, integer_of, text_of

_enum: Any = IntEnum  # type checkers only find members of literals
JAXX_Scaling_Mode = _enum("JAXX_Scaling_Mode", _core.JAXX_Scaling_Mode)
JAXX_Quantize_Layout = _enum("JAXX_Quantize_Layout", _core.JAXX_Quantize_Layout)

T = TypeVar("T")
Shape = tuple[int, ...]
Spec = tuple[str | CompoundFactor, ...]


def normalize_axis(flatten_axis: int, ndim: int) -> int:
    """Returns `flatten_axis` counted from the front.

    Errors: TypeError unless it is an int; ValueError unless it splits the dimensions.
    """
    given = integer_of("quantize", "flatten_axis", flatten_axis)
    axis = given + ndim if given < 0 else given
    if not 0 < axis < ndim:
        raise ValueError(
            "quantize: flatten_axis must split the dimensions in two, got "
            f"{flatten_axis} for {ndim} dimensions"
        )
    return axis


def is_static(shape: Sequence[int]) -> bool:
    """Returns whether a shape has no symbolic dimensions; shapes of jax.export may have some."""
    return all(isinstance(extent, int | np.integer) for extent in shape)


def check_static(verb: str, shape: Sequence[int]) -> None:
    """Raises ValueError for a shape with symbolic dimensions.

    The shapes of block scales and of operands of code products are computed during tracing.
    """
    if not is_static(shape):
        raise ValueError(f"{verb}: shapes must be static, got {tuple(shape)}")


def split_dims(verb: str, contracting_dims: Sequence[Sequence[int]]) -> tuple[Shape, Shape]:
    """Returns the contracted dimensions of the operands of a product; negative ones stay negative.

    Errors: TypeError unless they are two sequences of ints.
    """
    try:
        of_lhs, of_rhs = (
            tuple(integer_of(verb, "contracting_dims", dim) for dim in dims)
            for dims in contracting_dims
        )
    except (TypeError, ValueError):
        raise TypeError(
            f"{verb}: contracting_dims must be two sequences of ints, got "
            f"{text_of(contracting_dims)}"
        ) from None
    return of_lhs, of_rhs


def normalize_dims(verb: str, operand: str, dims: Sequence[int], ndim: int) -> Shape:
    """Returns the contracted dimensions of an operand, counted from the front.

    Errors: ValueError unless there are one or more, all different.
    """
    counted = tuple(dim + ndim if dim < 0 else dim for dim in dims)
    if not counted or len({*counted}) < len(counted) or not {*counted} <= {*range(ndim)}:
        raise ValueError(
            f"{verb}: contracting_dims of {operand} must be one or more of its {ndim} dimensions, "
            f"each once, got {tuple(dims)}"
        )
    return counted


def check_contracted(
    verb: str, operands: tuple[str, str], lhs: Sequence[int], rhs: Sequence[int]
) -> None:
    """Raises ValueError unless the contracted dimensions of two operands have the same sizes."""
    if tuple(lhs) != tuple(rhs):
        raise ValueError(
            f"{verb}: contracted dimensions of {' and '.join(operands)} must have the same sizes, "
            f"got {tuple(lhs)} and {tuple(rhs)}"
        )


def split_shape(shape: Sequence[int], flatten_axis: int) -> tuple[int, int]:
    """Returns the rows and columns of a tensor split at `flatten_axis`."""
    axis = normalize_axis(flatten_axis, len(shape))
    return math.prod(shape[:axis]), math.prod(shape[axis:])


def rotate(items: Sequence[T], axis: int) -> tuple[T, ...]:
    """Returns the items of dimensions in the order of transposed data: from `axis` on, then the
    rest.
    """
    return (*items[axis:], *items[:axis])


class QuantizeShardyRules(NamedTuple):
    """Factors of the dimensions of an input, and of the codes and scales made from it.

    factor_sizes: sizes of the factors that are only a part of a dimension.
    """

    input_spec: Spec
    rowwise_out_spec: Spec
    rowwise_scale_spec: Spec
    colwise_out_spec: Spec
    colwise_scale_spec: Spec
    factor_sizes: dict[str, int]


class TensorUsage(Enum):
    """The operand of a product that a tensor is, and whether it is transposed."""

    LHS = 0
    LHS_TRANS = 1
    RHS = 2
    RHS_TRANS = 3


class QuantizeLayout(Enum):
    """The directions to quantize."""

    ROWWISE = JAXX_Quantize_Layout.ROWWISE
    COLWISE = JAXX_Quantize_Layout.COLWISE
    ROWWISE_COLWISE = JAXX_Quantize_Layout.ROWWISE_COLWISE

    @property
    def has_rowwise(self) -> bool:
        return self is not QuantizeLayout.COLWISE

    @property
    def has_colwise(self) -> bool:
        return self is not QuantizeLayout.ROWWISE

    @property
    def is_rowwise_colwise(self) -> bool:
        return self is QuantizeLayout.ROWWISE_COLWISE

    @property
    def is_rowwise_only(self) -> bool:
        return self is QuantizeLayout.ROWWISE

    @property
    def is_colwise_only(self) -> bool:
        return self is QuantizeLayout.COLWISE

    @staticmethod
    def of(rowwise: bool, colwise: bool) -> QuantizeLayout:
        """Returns the layout with these directions. Errors: ValueError if both are False."""
        if not rowwise and not colwise:
            raise ValueError("quantize: rowwise, colwise or both must be True, got neither")
        if rowwise and colwise:
            return QuantizeLayout.ROWWISE_COLWISE
        return QuantizeLayout.ROWWISE if rowwise else QuantizeLayout.COLWISE


@functools.cache
def _dtypes(mode: int) -> tuple[np.dtype, ...]:
    return tuple(jnp.dtype(name) for name in _core.dtypes_of_mode(mode))


def _expand(counts: tuple[int, int], shape: Shape, axis: int, blocks: tuple[int, int]) -> Shape:
    """Returns the shape of a matrix of scales, spread over the dimensions on both sides of `axis`.

    On each side the last dimension becomes extent over block, and the first one takes the rest. If
    the rest is not a whole number, as with some padding, the shape stays a matrix.
    """
    groups = []
    for count, dims, block in zip(counts, (shape[:axis], shape[axis:]), blocks, strict=True):
        if len(dims) == 1:
            groups += [count]
            continue
        inner = tuple(dims[1:-1]) + (dims[-1] // block,)
        rest = math.prod(inner)
        if rest == 0 or count % rest:
            return counts
        groups += [count // rest, *inner]
    return tuple(groups)


@jax.tree_util.register_pytree_node_class
class ScalingMode(Enum):
    """The set of elements that share a scale; a pytree without leaves."""

    NO_SCALING = JAXX_Scaling_Mode.NO_SCALING
    DELAYED_TENSOR_SCALING = JAXX_Scaling_Mode.DELAYED_TENSOR_SCALING
    MXFP8_1D_SCALING = JAXX_Scaling_Mode.MXFP8_1D_SCALING
    CURRENT_TENSOR_SCALING = JAXX_Scaling_Mode.CURRENT_TENSOR_SCALING
    NVFP4_1D_SCALING = JAXX_Scaling_Mode.NVFP4_1D_SCALING
    NVFP4_2D_SCALING = JAXX_Scaling_Mode.NVFP4_2D_SCALING

    def tree_flatten(self) -> tuple[tuple[()], ScalingMode]:
        return (), self

    @classmethod
    def tree_unflatten(cls, aux: ScalingMode, children: tuple[()]) -> ScalingMode:
        return aux

    def is_tensor_scaling(self) -> bool:
        """Returns whether one scale covers the tensor."""
        return self in (ScalingMode.DELAYED_TENSOR_SCALING, ScalingMode.CURRENT_TENSOR_SCALING)

    def is_1d_block_scaling(self) -> bool:
        """Returns whether scales are stored as for 1-D blocks: those of 2-D blocks are repeated."""
        return self.is_block_scaling

    @property
    def is_block_scaling(self) -> bool:
        return self is not ScalingMode.NO_SCALING and not self.is_tensor_scaling()

    @property
    def is_nvfp4_scaling(self) -> bool:
        return self in (ScalingMode.NVFP4_1D_SCALING, ScalingMode.NVFP4_2D_SCALING)

    @property
    def is_mxfp8_scaling(self) -> bool:
        return self is ScalingMode.MXFP8_1D_SCALING

    @property
    def is_colwise_transposed(self) -> bool:
        """Returns whether colwise codes are stored transposed."""
        if self is ScalingMode.NO_SCALING:
            return False
        return _core.is_columnwise_transposed(self.get_scheme())

    def get_scheme(self, q_dtype: DTypeLike | None = None) -> str:
        """Returns the name of the scheme with codes of `q_dtype`; None is any dtype of the mode.

        Errors: ValueError if the mode has no such codes.
        """
        dtype = (
            self.get_compatible_q_dtypes()[0]
            if q_dtype is None
            else jnp.dtype(element_dtype(q_dtype))
        )
        return _core.scheme_of_mode(int(self.value), dtype.name)

    def get_compatible_q_dtypes(self) -> list[np.dtype]:
        """Returns the dtypes that quantized data may have."""
        if self is ScalingMode.NO_SCALING:
            return [jnp.dtype(name) for name in ("float16", "bfloat16", "float32")]
        return list(_dtypes(int(self.value)))

    def get_scale_dtype(self) -> np.dtype:
        if self is ScalingMode.NO_SCALING:
            return jnp.dtype(jnp.float32)
        return jnp.dtype(_core.scale_dtype_of(self.get_scheme()))

    def check_scale_inv(self, scale_inv: jax.Array) -> None:
        """Raises TypeError unless an array has the mode's scale dtype; uint8 counts as E8M0."""
        dtype = self.get_scale_dtype()
        dtypes = (dtype, jnp.uint8) if dtype == jnp.float8_e8m0fnu else (dtype,)
        check_array("quantize", f"scale_inv of {self.name}", scale_inv, dtypes)

    def get_data_layout(self) -> str:
        """Returns the layouts of rowwise and of columnwise data: N as the input, T transposed."""
        return "NT" if self.is_colwise_transposed else "NN"

    def get_block(self) -> tuple[int, int]:
        """Returns the rows and columns of a rowwise block. Errors: ValueError without blocks."""
        if not self.is_block_scaling:
            raise ValueError(f"get_block: the mode must have blocks, got {self.name}")
        return _core.block_of(self.get_scheme())

    def get_scale_shape(
        self,
        data_shape: Sequence[int],
        data_layout: str = "N",
        is_colwise: bool = False,
        is_padded: bool = True,
        flatten_axis: int = -1,
        broadcast_2d_scale_shape_to_1d: bool = False,
    ) -> Shape:
        """Returns the shape of scale_inv for data of `data_shape` in `data_layout`.

        `flatten_axis` is of the N layout. If padded scales do not spread evenly over the
        dimensions, the shape is a matrix.
        Errors: ValueError if the mode has another layout, or a dimension along blocks is not a
        multiple of the block.
        """
        shape = tuple(data_shape)
        if self is ScalingMode.NO_SCALING:
            return (0,)
        if self.is_tensor_scaling():
            return (0,) if math.prod(shape) == 0 else (1,)
        check_static("quantize", shape)
        if data_layout != self.get_data_layout()[is_colwise]:
            raise ValueError(
                f"quantize: {'colwise' if is_colwise else 'rowwise'} data of {self.name} must have "
                f"layout {self.get_data_layout()[is_colwise]}, got {data_layout}"
            )
        axis = normalize_axis(flatten_axis, len(shape))
        if data_layout == "T":
            axis, is_colwise = len(shape) - axis, False
        rows, cols = split_shape(shape, axis)
        block = self.get_block()
        blocks = block[::-1] if is_colwise else block
        self._check_blocks(shape, axis, blocks)
        repeated = 1 if block[0] == 1 or broadcast_2d_scale_shape_to_1d else block[0]
        if block[0] > 1:
            blocks = (repeated, blocks[1])
        counts = _core.scale_shapes(self.get_scheme(), rows // repeated, cols, is_colwise)
        return _expand(counts[is_padded], shape, axis, blocks)

    def _check_blocks(self, shape: Shape, axis: int, blocks: tuple[int, int]) -> None:
        for extent, block in zip((shape[axis - 1], shape[-1]), blocks, strict=True):
            if extent % block:
                raise ValueError(
                    f"quantize: {self.name} needs a dimension that is a multiple of its blocks of "
                    f"{block}, got {extent} in shape {'x'.join(map(str, shape))}"
                )

    def get_scale_shape_2x(
        self,
        data_shape: Sequence[int],
        is_padded: bool = True,
        flatten_axis: int = -1,
        broadcast_2d_scale_shape_to_1d: bool = False,
    ) -> tuple[Shape, Shape]:
        """Returns the shapes of the rowwise and of the colwise scale_inv for an input of
        `data_shape`.
        """
        layout = self.get_data_layout()
        axis = normalize_axis(flatten_axis, len(data_shape))
        turned = rotate(data_shape, axis) if layout[1] == "T" else tuple(data_shape)
        shapes = [
            self.get_scale_shape(
                shape,
                layout[colwise],
                bool(colwise),
                is_padded,
                axis,
                broadcast_2d_scale_shape_to_1d,
            )
            for colwise, shape in enumerate((tuple(data_shape), turned))
        ]
        return shapes[0], shapes[1]

    def get_grouped_scale_shape(
        self,
        data_shape: Sequence[int],
        n_groups: int,
        is_colwise: bool,
        is_padded: bool = True,
        flatten_axis: int = -1,
    ) -> Shape:
        """Returns the shape of the scales of `n_groups` groups of rows, as in TransformerEngine.

        It has room for groups of whole blocks; get_grouped_scale_room() has room for any groups.
        """
        if not self.is_block_scaling:
            return (n_groups,)
        check_static("grouped_quantize", data_shape)
        axis = normalize_axis(flatten_axis, len(data_shape))
        content, stored = _core.scale_shapes(
            self.get_scheme(), *split_shape(data_shape, axis), is_colwise
        )
        if not is_padded:
            return (math.prod(content),)
        # The dimension along the rows; each group has a part of it.
        along = int(is_colwise and self.is_colwise_transposed)
        multiple = _core.scale_shapes(self.get_scheme(), 1, 1, is_colwise)[1][along]
        last = -(-(content[along] - n_groups + 1) // multiple)
        return (((n_groups - 1) + last) * multiple * stored[1 - along],)

    def get_grouped_scale_room(
        self, data_shape: Sequence[int], n_groups: int, is_colwise: bool, flatten_axis: int = -1
    ) -> Shape:
        """Returns the shape of the padded scales of `n_groups` groups of rows of any sizes."""
        if not self.is_block_scaling:
            return (n_groups,)
        check_static("grouped_quantize", data_shape)
        rows, cols = split_shape(data_shape, flatten_axis)
        # The most padding: every group except one has a single row.
        single, rest = (
            math.prod(_core.scale_shapes(self.get_scheme(), count, cols, is_colwise)[1])
            for count in (1, max(rows - n_groups + 1, 0))
        )
        return ((n_groups - 1) * single + rest,)

    def get_grouped_scale_shape_2x(
        self,
        data_shape: Sequence[int],
        n_groups: int,
        is_padded: bool = True,
        flatten_axis: int = -1,
    ) -> tuple[Shape, Shape]:
        """Returns the shapes of the rowwise and of the colwise scales of groups."""
        rowwise, colwise = (
            self.get_grouped_scale_shape(data_shape, n_groups, which, is_padded, flatten_axis)
            for which in (False, True)
        )
        return rowwise, colwise

    def get_shardy_sharding_rules(
        self,
        input_shape: Sequence[int],
        unique_var: str,
        flatten_axis: int = -1,
        q_layout: QuantizeLayout = QuantizeLayout.ROWWISE_COLWISE,
        broadcast_2d_scale_shape_to_1d: bool = True,
    ) -> QuantizeShardyRules:
        """Returns the factors that the dimensions of codes and scales share with the input.

        For programs that partition operators of their own. A dimension of several blocks is their
        number times their length; the number is also the factor of the scales' dimension. A single
        block cannot be spread. unique_var: prefix of the factors' names.
        Errors: ValueError for tiles whose scales are not repeated.
        """
        if self.is_block_scaling and self.get_block()[0] > 1 and not broadcast_2d_scale_shape_to_1d:
            raise ValueError(
                f"get_shardy_sharding_rules: {self.name} needs broadcast_2d_scale_shape_to_1d=True"
            )
        axis = normalize_axis(flatten_axis, len(input_shape))
        names = [f"{unique_var}_{i}" for i in range(len(input_shape))]
        data: list[str | CompoundFactor] = list(names)
        sizes: dict[str, int] = {}
        counted = {}
        for colwise, wanted in enumerate((q_layout.has_rowwise, q_layout.has_colwise)):
            if not wanted or not self.is_block_scaling:
                continue
            block, dim = self.get_block()[1], (axis if colwise else len(names)) - 1
            name = names[dim]
            counted[colwise] = dim, f"{name}_blocks"
            if input_shape[dim] > block:
                data[dim] = CompoundFactor(f"{name}_blocks", f"{name}_of_block")
                sizes[f"{name}_of_block"] = block

        def spec(colwise: int, part: str) -> Spec:
            wanted = q_layout.has_colwise if colwise else q_layout.has_rowwise
            if not wanted or (part == "scale" and colwise not in counted):
                half = "colwise" if colwise else "rowwise"
                return (f"{BATCHING}{unique_var}_{half}_{part}",)
            dims = list(data)
            if part == "scale":
                dim, count = counted[colwise]
                dims[dim] = count
            turned = colwise and self.is_colwise_transposed
            return rotate(dims, axis) if turned else tuple(dims)

        return QuantizeShardyRules(
            tuple(data),
            spec(0, "out"),
            spec(0, "scale"),
            spec(1, "out"),
            spec(1, "scale"),
            sizes,
        )

    def get_quantize_layout(self, usage: TensorUsage) -> QuantizeLayout:
        """Returns the direction of an operand: blocks extend along the contracted dimension."""
        if not self.is_block_scaling or usage in (TensorUsage.LHS, TensorUsage.RHS_TRANS):
            return QuantizeLayout.ROWWISE
        return QuantizeLayout.COLWISE
