# SPDX-License-Identifier: Apache-2.0
"""Quantizers: the type, mode and directions to quantize to, and the state of delayed scaling."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from narrowfloat.common.dtypes import element_dtype
from narrowfloat.common.recipe import DelayedScaling
from narrowfloat.jax._arguments import check_array, check_kind, check_number, count_of, text_of
from narrowfloat.jax.primitives import amax as amax_calls
from narrowfloat.jax.primitives.array_types import check_float
from narrowfloat.jax.primitives.quantize import STATE_WORDS, DBiasQuantizePrimitive
from narrowfloat.jax.quantize.scaling_modes import QuantizeLayout, ScalingMode, normalize_axis
from narrowfloat.jax.quantize.tensor import (
    NoScaleTensor,
    ScaledTensor,
    pytree,
)
from narrowfloat.jax.quantize.tensor_factory import ScaledTensorFactory

_SCALING_MODES = tuple(mode for mode in ScalingMode if mode is not ScalingMode.NO_SCALING)


class AmaxComputeAlgo(Enum):
    """Chooses the amax of the history that a delayed scale is computed from."""

    MAX = "max"
    MOST_RECENT = "most_recent"


def compute_scale_from_amax(
    amax: jax.Array, q_dtype: DTypeLike, margin: float, scale: jax.Array | None = None
) -> jax.Array:
    """Returns float32 (1,): the largest code over amax over 2^margin, at most the largest float.

    Returns `scale`, or 1 without one, where amax is not positive and finite.
    Errors: TypeError if margin is not a number; ValueError for a shape other than (1,).
    """
    check_number("compute_scale_from_amax", "margin", margin)
    if amax.shape != (1,):
        raise ValueError(f"compute_scale_from_amax: amax must have shape (1,), got {amax.shape}")
    scale = jnp.ones((1,), jnp.float32) if scale is None else scale
    return amax_calls.scale_from_amax(amax.astype(jnp.float32), q_dtype, margin, scale)


class Operands(NamedTuple):
    """The operands of te_dbias_quantize_ffi other than the input."""

    scale: jax.Array
    amax: jax.Array
    sr_rng_state: jax.Array
    post_rht_amax: jax.Array
    rht_matrix: jax.Array


def _operands(**given: jax.Array) -> Operands:
    """Returns the handler's operands, with placeholders for those that are not given."""
    nothing = jnp.zeros((1,), jnp.float32)
    defaults = {
        "scale": nothing,
        "amax": nothing,
        "sr_rng_state": jnp.zeros((0,), jnp.uint32),
        "post_rht_amax": nothing,
        "rht_matrix": jnp.zeros((1, 1), jnp.bfloat16),
    }
    return Operands(**(defaults | given))


@pytree([])
@dataclass
class Quantizer:
    """A dtype of codes, a scaling mode and the directions to make; subclasses keep their state.

    data_layout: one letter for rowwise and one for colwise data, N as the input, T transposed.
    Errors: TypeError for a mode or a layout of another class; ValueError if the mode has no codes
    of that dtype, or needs a scale or an amax that the class does not compute.
    """

    # The modes whose scales and amaxes the class computes; MXFP8 needs none.
    _modes: ClassVar[tuple[ScalingMode, ...]] = (ScalingMode.MXFP8_1D_SCALING,)

    q_dtype: DTypeLike
    scaling_mode: ScalingMode
    q_layout: QuantizeLayout
    data_layout: str
    checkpoint_name: str | None = None

    def __post_init__(self) -> None:
        check_kind("quantizer", "scaling_mode", self.scaling_mode, ScalingMode)
        check_kind("quantizer", "q_layout", self.q_layout, QuantizeLayout)
        if self.q_dtype is None:
            names = (dtype.name for dtype in self.scaling_mode.get_compatible_q_dtypes())
            raise ValueError(
                f"quantizer: q_dtype of {self.scaling_mode.name} must be {' or '.join(names)}, "
                "got None"
            )
        self.q_dtype = np.dtype(jnp.dtype(element_dtype(self.q_dtype)))
        self.scaling_mode.get_scheme(self.q_dtype)
        if self.scaling_mode not in self._modes:
            raise ValueError(
                f"quantizer: scaling_mode of {type(self).__name__} must be "
                f"{' or '.join(mode.name for mode in self._modes)}, got {self.scaling_mode.name}"
            )

    def update(self, amax: jax.Array) -> None:
        """Updates the state with the amax of the last quantized tensor."""

    def get_data_layout(self) -> str:
        """Returns the layout letters of the directions of q_layout."""
        if self.q_layout.is_rowwise_colwise:
            return self.data_layout
        return self.data_layout[1 if self.q_layout.is_colwise_only else 0]

    def get_scale_dtype(self) -> np.dtype:
        return self.scaling_mode.get_scale_dtype()

    def get_scale_shapes(
        self, shape: tuple[int, ...], is_padded: bool = True, flatten_axis: int = -1, **options: Any
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Returns the shapes of rowwise and columnwise scale_inv for an input of `shape`."""
        return self.scaling_mode.get_scale_shape_2x(shape, is_padded, flatten_axis, **options)

    def quantize(
        self,
        x: jax.Array | NoScaleTensor,
        is_rowwise: bool | None = None,
        is_colwise: bool | None = None,
        dq_dtype: DTypeLike | None = None,
        flatten_axis: int = -1,
        **ignored: object,
    ) -> ScaledTensor:
        """Returns `x` quantized in the given directions, by default the directions of q_layout.

        Shapes: any of rank 2 and more, split at flatten_axis. A scale is computed from the amax of
        x, if x has one. dq_dtype: of dequantized values; None is the dtype of x. The state is
        updated.
        Errors: TypeError for an input that is not float32, float16 or bfloat16; ValueError if
        blocks do not fill a dimension.
        """
        rowwise = self.q_layout.has_rowwise if is_rowwise is None else is_rowwise
        colwise = self.q_layout.has_colwise if is_colwise is None else is_colwise
        layout = QuantizeLayout.of(rowwise, colwise)
        return self.quantize_dbias(x, layout, dq_dtype, flatten_axis, is_dbias=False)[0]

    def quantize_dbias(
        self,
        x: jax.Array | NoScaleTensor,
        q_layout: QuantizeLayout | None = None,
        dq_dtype: DTypeLike | None = None,
        flatten_axis: int = -1,
        is_dbias: bool = True,
    ) -> tuple[ScaledTensor, jax.Array | None]:
        """Returns quantize(), and if is_dbias the sums of the columns in the dtype of x."""
        x = x if isinstance(x, NoScaleTensor) else NoScaleTensor(x)
        layout = self.q_layout if q_layout is None else q_layout
        check_float("quantize", x.data.dtype)
        axis = normalize_axis(flatten_axis, x.ndim)
        operands = self._operands(x, layout, axis)
        use_rht = layout.has_colwise and self._transforms()
        *made, amax, dbias = DBiasQuantizePrimitive.outer_primitive.bind(
            x.data,
            *operands,
            out_dtype=self.q_dtype,
            scaling_mode=int(self.scaling_mode.value),
            q_layout=int(layout.value),
            flatten_axis=axis,
            scale_dtype=np.dtype(self.get_scale_dtype()),
            is_dbias=bool(is_dbias),
            is_outer=True,
            stochastic_rounding=operands.sr_rng_state.size > 0,
            use_rht=use_rht,
        )
        data, colwise_data, scale_inv, colwise_scale_inv = made
        self.update(amax)
        letters = self.scaling_mode.get_data_layout()
        tensor = ScaledTensorFactory.create(
            data,
            scale_inv,
            colwise_data,
            colwise_scale_inv,
            q_layout=layout,
            amax=amax,
            colwise_amax=operands.post_rht_amax if use_rht else amax,
            data_layout=letters if layout.is_rowwise_colwise else letters[layout.is_colwise_only],
            colwise_has_rht_applied=use_rht,
            scaling_mode=self.scaling_mode,
            dq_dtype=x.data.dtype if dq_dtype is None else dq_dtype,
            flatten_axis=axis,
        )
        return tensor, dbias if is_dbias else None

    def _operands(self, x: NoScaleTensor, layout: QuantizeLayout, axis: int) -> Operands:
        return _operands()

    def _transforms(self) -> bool:
        """Returns whether colwise data hold the Hadamard transform of the input."""
        return False


def _amax_of(x: NoScaleTensor) -> jax.Array:
    """Returns float32 (1,): the amax of `x` if it is set, else the amax of its data.

    Errors: TypeError or ValueError for an amax that is not an array of one item.
    """
    if x.amax is None:
        return amax_calls.calculate_amax(x.data)
    check_array("quantize", "amax", x.amax)
    if math.prod(x.amax.shape) != 1:
        raise ValueError(f"quantize: amax must have one item, got shape {x.amax.shape}")
    return x.amax.astype(jnp.float32).reshape((1,))


@pytree([])
@dataclass
class CurrentScaleQuantizer(Quantizer):
    """Quantizes with one scale per tensor, from its own amax."""

    _modes = _SCALING_MODES

    q_dtype: DTypeLike
    scaling_mode: ScalingMode = ScalingMode.CURRENT_TENSOR_SCALING
    q_layout: QuantizeLayout = QuantizeLayout.ROWWISE_COLWISE
    data_layout: str = "NT"
    checkpoint_name: str | None = None

    def _operands(self, x: NoScaleTensor, layout: QuantizeLayout, axis: int) -> Operands:
        amax = _amax_of(x)
        return _operands(amax=amax, scale=compute_scale_from_amax(amax, self.q_dtype, 0.0))


@pytree(["scale", "amax_history"])
@dataclass
class DelayedScaleQuantizer(CurrentScaleQuantizer):
    """Quantizes with one scale per tensor, from the amaxes of earlier tensors.

    scale: float32 (1,), of the next tensor; amax_history: float32, the newest last, item 0 empty.
    update() replaces both. Under jit they are traced, so return the quantizer to keep them.
    amax_compute_algo: a member or its value, such as "max".
    Errors: TypeError if margin is not a number; ValueError for another algorithm. Quantizing raises
    these for a state of another dtype or shape.
    """

    _modes = tuple(mode for mode in _SCALING_MODES if not mode.is_nvfp4_scaling)

    scaling_mode: ScalingMode = ScalingMode.DELAYED_TENSOR_SCALING
    margin: float = 0.0
    amax_compute_algo: AmaxComputeAlgo = AmaxComputeAlgo.MAX
    scale: jax.Array = field(default_factory=lambda: jnp.ones((1,), jnp.float32))
    amax_history: jax.Array = field(
        default_factory=lambda: jnp.zeros((DelayedScaling.amax_history_len,), jnp.float32)
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("quantizer", "margin", self.margin)
        try:
            self.amax_compute_algo = AmaxComputeAlgo(self.amax_compute_algo)
        except ValueError:
            known = " or ".join(repr(algorithm.value) for algorithm in AmaxComputeAlgo)
            raise ValueError(
                f"quantizer: amax_compute_algo must be {known}, got {self.amax_compute_algo!r}"
            ) from None

    def _check_state(self) -> None:
        check_array("quantize", "scale", self.scale, [jnp.float32])
        if self.scale.shape != (1,):
            raise ValueError(f"quantize: scale must have shape (1,), got {self.scale.shape}")
        history = self.amax_history
        check_array("quantize", "amax_history", history, [jnp.float32])
        if len(history.shape) != 1 or history.shape[0] == 0:
            raise ValueError(
                "quantize: amax_history must have one dimension and one or more items, got shape "
                f"{history.shape}"
            )

    @property
    def scale_in_use(self) -> jax.Array:
        """The scale, or 1 if it is 0. A scale of 0 means a new state: the gradient of a set that a
        step did not use is all zeros.

        Errors: TypeError or ValueError for a state that update() cannot have made.
        """
        self._check_state()
        # A comparison of floats flushes subnormals; LLVM also turns a test for both zeros into one.
        bits = jax.lax.bitcast_convert_type(self.scale, jnp.uint32)
        return jnp.where(bits == 0, 1, self.scale)

    def update(self, amax: jax.Array) -> None:
        """Rotates the history and sets the scale of the next tensor. Shapes: amax is (1,).

        Inside shard_map, devices that share the state use the largest of their amaxes.
        """
        self.amax_history, self.scale = amax_calls.update_delayed_scale(
            self.amax_history,
            self.scale_in_use,
            amax_calls.largest_for([self.amax_history, self.scale], amax),
            self.q_dtype,
            self.margin,
            self.amax_compute_algo.value,
        )

    def _operands(self, x: NoScaleTensor, layout: QuantizeLayout, axis: int) -> Operands:
        return _operands(scale=self.scale_in_use)


@pytree([])
@dataclass
class BlockScaleQuantizer(Quantizer):
    """Quantizes with one scale per block."""

    q_dtype: DTypeLike
    scaling_mode: ScalingMode = ScalingMode.MXFP8_1D_SCALING
    q_layout: QuantizeLayout = QuantizeLayout.ROWWISE_COLWISE
    data_layout: str = "NN"
    checkpoint_name: str | None = None


def _checked_state(state: jax.Array) -> jax.Array:
    """Returns the state of a generator. Errors: TypeError or ValueError for another array."""
    name = "stochastic_rounding_rng_state"
    if not isinstance(state, jax.Array | np.ndarray):
        raise TypeError(f"quantize: {name} must be a JAX array, got {type(state).__name__}")
    if state.dtype.name != "uint32":
        raise TypeError(f"quantize: {name} must be uint32, got {state.dtype.name}")
    if state.ndim not in (1, 2) or state.shape[-1] != STATE_WORDS or state.shape[0] == 0:
        raise ValueError(
            f"quantize: {name} must have shape ({STATE_WORDS},), or (n, {STATE_WORDS}) for n "
            f"devices, got {state.shape}"
        )
    return jnp.asarray(state)


@pytree(["stochastic_rounding_rng_state"])
@dataclass
class NVFP4Quantizer(Quantizer):
    """Quantizes to 4-bit codes with one scale per block and an amax of the tensor.

    stochastic_rounding_rng_state: uint32 (4,), or (n, 4): one row per device; None: to nearest.
    Under vmap, items use the same random bits unless the state is mapped too.
    use_rht: colwise data hold the random Hadamard transform of the input.
    """

    _modes = tuple(mode for mode in _SCALING_MODES if mode.is_nvfp4_scaling)

    q_dtype: DTypeLike = jnp.float4_e2m1fn
    scaling_mode: ScalingMode = ScalingMode.NVFP4_1D_SCALING
    q_layout: QuantizeLayout = QuantizeLayout.ROWWISE_COLWISE
    data_layout: str = "NT"
    checkpoint_name: str | None = None
    use_rht: bool = False
    stochastic_rounding_rng_state: jax.Array | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.use_rht and self.scaling_mode is ScalingMode.NVFP4_2D_SCALING:
            raise ValueError("quantize: use_rht is not supported in NVFP4_2D_SCALING")

    @property
    def rounds_plainly(self) -> bool:
        """Returns whether codes are of the untransformed input, rounded to nearest."""
        return not self.use_rht and self.stochastic_rounding_rng_state is None

    def _transforms(self) -> bool:
        return self.use_rht

    def _operands(self, x: NoScaleTensor, layout: QuantizeLayout, axis: int) -> Operands:
        given = {}
        if self.stochastic_rounding_rng_state is not None:
            given["sr_rng_state"] = _checked_state(self.stochastic_rounding_rng_state)
        if not (self.use_rht and layout.has_colwise):
            return _operands(amax=_amax_of(x), **given)
        amax, post_rht_amax = amax_calls.calculate_post_rht_amax(x.data, axis, x.amax is None)
        return _operands(
            amax=amax if x.amax is None else _amax_of(x),
            post_rht_amax=post_rht_amax,
            rht_matrix=jnp.zeros((0, 0), jnp.bfloat16),  # stands for get_rht_matrix()
            **given,
        )


def _description(quantizer: object) -> str:
    if not isinstance(quantizer, Quantizer):
        return text_of(quantizer)
    name = type(quantizer).__name__
    return f"a {name} of {quantizer.scaling_mode.name} and {quantizer.q_dtype}"


@pytree(["quantizers"])
@dataclass
class GroupedQuantizer(Quantizer):
    """One quantizer per group of rows; without `quantizers`, n_groups equal ones are made.

    Errors: as Quantizer; ValueError for less than one group, another number of quantizers than
    n_groups, or a quantizer of another class, dtype or mode. Quantizing a tensor without groups
    raises TypeError.
    """

    _modes = _SCALING_MODES

    q_layout: QuantizeLayout = QuantizeLayout.ROWWISE_COLWISE
    data_layout: str = None  # type: ignore[assignment]  # __post_init__ sets it
    checkpoint_name: str | None = None
    n_groups: int = 1
    quantizers: tuple[Quantizer, ...] = (None,)  # type: ignore[assignment]  # so it does these

    def __post_init__(self) -> None:
        super().__post_init__()
        self.n_groups = count_of("quantizer", "n_groups", self.n_groups, 1)
        if self.quantizers == (None,):
            self.quantizers = create_quantizers(
                self.n_groups, self.scaling_mode, q_dtype=self.q_dtype, q_layout=self.q_layout
            )
        self._check_quantizers()
        self.data_layout = self.quantizers[0].data_layout

    def _check_quantizers(self) -> None:
        if len(self.quantizers) != self.n_groups:
            raise ValueError(
                f"quantizer: quantizers must be one per group, {self.n_groups}, got "
                f"{len(self.quantizers)}"
            )
        for group, own in enumerate(self.quantizers):
            is_single = isinstance(own, Quantizer) and not isinstance(own, GroupedQuantizer)
            alike = type(own) is type(self.quantizers[0]) and own.scaling_mode is self.scaling_mode
            if not is_single or not alike or own.q_dtype != self.q_dtype:
                raise ValueError(
                    "quantizer: quantizers must be for one tensor, of one class, "
                    f"{self.scaling_mode.name} and {self.q_dtype}, got {_description(own)} for "
                    f"group {group}"
                )

    def update(self, amax: jax.Array) -> None:
        """Updates each group's quantizer with the group's amax."""
        for group, quantizer in enumerate(self.quantizers):
            quantizer.update(amax[group : group + 1])

    def _operands(self, x: NoScaleTensor, layout: QuantizeLayout, axis: int) -> Operands:
        raise TypeError(
            "quantize: quantizer must be for one tensor, got GroupedQuantizer, which "
            "grouped_quantize() and grouped_dense() take"
        )


_CLASSES: dict[ScalingMode, type[Quantizer]] = {
    ScalingMode.DELAYED_TENSOR_SCALING: DelayedScaleQuantizer,
    ScalingMode.CURRENT_TENSOR_SCALING: CurrentScaleQuantizer,
    ScalingMode.MXFP8_1D_SCALING: BlockScaleQuantizer,
    ScalingMode.NVFP4_1D_SCALING: NVFP4Quantizer,
    ScalingMode.NVFP4_2D_SCALING: NVFP4Quantizer,
}


def create_quantizers(
    count: int, scaling_mode: ScalingMode, **fields: Any
) -> tuple[Quantizer, ...]:
    """Returns `count` quantizers of the mode's class, all with these fields."""
    return tuple(_CLASSES[scaling_mode](scaling_mode=scaling_mode, **fields) for _ in range(count))
