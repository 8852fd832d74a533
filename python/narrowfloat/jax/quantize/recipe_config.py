# SPDX-License-Identifier: Apache-2.0
"""Converts recipes to scaling modes and dtypes, and stores the recipe of autocast."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from narrowfloat.common.recipe import (
    DelayedScaling,
    Float8CurrentScaling,
    Format,
    MXFP8BlockScaling,
    NVFP4BlockScaling,
    Recipe,
)
from narrowfloat.jax.quantize.quantizer import AmaxComputeAlgo
from narrowfloat.jax.quantize.scaling_modes import QuantizeLayout, ScalingMode
from narrowfloat.jax.sharding import MeshResource, global_shard_guard

_recipe: ContextVar[Recipe | None] = ContextVar("narrowfloat_jax_recipe", default=None)


class TensorSource(Enum):
    """The tensor of a layer that is quantized."""

    X = 0
    KERNEL = 1
    DGRAD = 2


def _format2dtypes(format: Format | None) -> tuple[np.dtype, np.dtype]:
    """Returns the dtypes of the forward and of the backward pass; bfloat16 for no format."""
    wide, narrow = jnp.dtype(jnp.float8_e5m2), jnp.dtype(jnp.float8_e4m3fn)
    fp4, plain = jnp.dtype(jnp.float4_e2m1fn), jnp.dtype(jnp.bfloat16)
    by_format: dict[Format | None, tuple[np.dtype, np.dtype]] = {
        Format.E4M3: (narrow, narrow),
        Format.E5M2: (wide, wide),
        Format.HYBRID: (narrow, wide),
        Format.E2M1: (fp4, fp4),
    }
    return by_format.get(format, (plain, plain))


@dataclass(frozen=True)
class QuantizeConfig:
    """A recipe in terms of scaling modes; by default there is no recipe, and nothing is scaled.

    modes: of the input, the kernel and the incoming gradient. The capitals are TransformerEngine's
    names; MARGIN and AMAX_* apply to delayed scaling, DISABLE_* to NVFP4.
    """

    modes: tuple[ScalingMode, ScalingMode, ScalingMode] = (ScalingMode.NO_SCALING,) * 3
    FWD_DTYPE: DTypeLike = jnp.bfloat16
    BWD_DTYPE: DTypeLike = jnp.bfloat16
    MARGIN: float = 0.0
    AMAX_HISTORY_LEN: int = 0
    AMAX_COMPUTE_ALGO: AmaxComputeAlgo = AmaxComputeAlgo.MAX
    DISABLE_STOCHASTIC_ROUNDING: bool = False
    DISABLE_RHT: bool = False
    DISABLE_2D_QUANTIZATION: bool = False

    def is_fp8_enabled(self) -> bool:
        """Returns whether anything is quantized."""
        return self.modes[0] is not ScalingMode.NO_SCALING

    def get_scaling_mode(self, tensor_source: TensorSource) -> ScalingMode:
        return self.modes[tensor_source.value]

    def get_dtype(self, tensor_source: TensorSource) -> DTypeLike:
        """Returns the dtype of the codes."""
        return self.BWD_DTYPE if tensor_source is TensorSource.DGRAD else self.FWD_DTYPE

    def quantizer_options(
        self, tensor_source: TensorSource, layout: QuantizeLayout
    ) -> dict[str, Any]:
        """Returns the arguments of the tensor's quantizer, except mode, dtype and layout.

        Stochastic rounding needs the state of a generator, which only the caller has.
        """
        mode = self.get_scaling_mode(tensor_source)
        if mode is ScalingMode.DELAYED_TENSOR_SCALING:
            return {
                "margin": self.MARGIN,
                "amax_compute_algo": self.AMAX_COMPUTE_ALGO,
                "amax_history": jnp.zeros((self.AMAX_HISTORY_LEN,), jnp.float32),
            }
        if mode is ScalingMode.NVFP4_1D_SCALING:
            return {"use_rht": layout.has_colwise and not self.DISABLE_RHT}
        return {}


def _require(recipe: Recipe, **allowed: tuple[object, ...]) -> None:
    """Raises ValueError unless each field has one of the values that JAX supports."""
    for name, values in allowed.items():
        value = getattr(recipe, name)
        if value not in values:
            raise ValueError(
                f"{type(recipe).__name__}: {name} must be {' or '.join(map(repr, values))} in JAX, "
                f"got {value!r}"
            )


def _delayed(recipe: DelayedScaling) -> dict[str, Any]:
    _require(
        recipe,
        amax_compute_algo=tuple(algorithm.value for algorithm in AmaxComputeAlgo),
        scaling_factor_compute_algo=(None,),
        reduce_amax=(True,),
    )
    return {
        "MARGIN": float(recipe.margin),
        "AMAX_HISTORY_LEN": recipe.amax_history_len,
        "AMAX_COMPUTE_ALGO": AmaxComputeAlgo(recipe.amax_compute_algo),
    }


def _current(recipe: Float8CurrentScaling) -> dict[str, Any]:
    _require(recipe, use_power_2_scales=(False,))
    return {}


def _mxfp8(recipe: MXFP8BlockScaling) -> dict[str, Any]:
    _require(recipe, enable_2d_quantization=(False,))
    return {}


def _nvfp4(recipe: NVFP4BlockScaling) -> dict[str, Any]:
    _require(recipe, row_scaled_activation=(False,), nvfp4_4over6=("none",))
    runs, tiles = ScalingMode.NVFP4_1D_SCALING, ScalingMode.NVFP4_2D_SCALING
    forward, backward = _format2dtypes(recipe.fp4_format)
    return {
        "modes": (runs, runs if recipe.disable_2d_quantization else tiles, runs),
        "FWD_DTYPE": forward,
        "BWD_DTYPE": backward,
        "DISABLE_STOCHASTIC_ROUNDING": recipe.disable_stochastic_rounding,
        "DISABLE_RHT": recipe.disable_rht,
        "DISABLE_2D_QUANTIZATION": recipe.disable_2d_quantization,
    }


_CONFIGS: dict[type[Recipe], tuple[ScalingMode, Callable[[Any], dict[str, Any]]]] = {
    DelayedScaling: (ScalingMode.DELAYED_TENSOR_SCALING, _delayed),
    Float8CurrentScaling: (ScalingMode.CURRENT_TENSOR_SCALING, _current),
    MXFP8BlockScaling: (ScalingMode.MXFP8_1D_SCALING, _mxfp8),
    NVFP4BlockScaling: (ScalingMode.NVFP4_1D_SCALING, _nvfp4),
}


def get_quantize_config_with_recipe(recipe: Recipe | None) -> QuantizeConfig:
    """Returns the QuantizeConfig of a recipe. Errors: ValueError if JAX has no modes for it."""
    if recipe is None:
        return QuantizeConfig()
    for kind, (mode, more) in _CONFIGS.items():
        if isinstance(recipe, kind):
            forward, backward = _format2dtypes(recipe.fp8_format)
            common: dict[str, Any] = {
                "modes": (mode,) * 3,
                "FWD_DTYPE": forward,
                "BWD_DTYPE": backward,
            }
            return QuantizeConfig(**(common | more(recipe)))
    raise ValueError(
        f"quantize: the recipe must be {', '.join(kind.__name__ for kind in _CONFIGS)}, got "
        f"{type(recipe).__name__}"
    )


def get_global_quantize_recipe() -> Recipe | None:
    """Returns the recipe of the enclosing autocast; None outside, and if it is not enabled."""
    return _recipe.get()


@contextlib.contextmanager
def autocast(
    enabled: bool = False, recipe: Recipe | None = None, mesh_resource: MeshResource | None = None
) -> Iterator[None]:
    """Sets the recipe of quantizer sets made in this context. recipe: None is DelayedScaling(). A
    traced function keeps the recipe of its trace: jit does not trace it again for another. Each
    thread has its own recipe. Errors: as get_quantize_config_with_recipe.
    """
    chosen = None
    if enabled:
        chosen = DelayedScaling() if recipe is None else recipe
        get_quantize_config_with_recipe(chosen)
    token = _recipe.set(chosen)
    try:
        with global_shard_guard(MeshResource() if mesh_resource is None else mesh_resource):
            yield
    finally:
        _recipe.reset(token)


@contextlib.contextmanager
def fp8_autocast(
    enabled: bool = False,
    fp8_recipe: Recipe | None = None,
    mesh_resource: MeshResource | None = None,
) -> Iterator[None]:
    """Runs autocast() under its old name."""
    warnings.warn("fp8_autocast is called autocast now", DeprecationWarning, stacklevel=3)
    with autocast(enabled, fp8_recipe, mesh_resource):
        yield


def is_quantize_recipe_supported(recipe_name: str) -> tuple[bool, str]:
    """Returns whether the recipe runs here, and why not. Errors: ValueError for an unknown name."""
    get_quantization_recipe(recipe_name)
    return True, ""


def get_quantization_recipe(name: str) -> Recipe:
    """Returns a recipe with its defaults. Errors: ValueError for an unknown name."""
    known = {kind.__name__: kind for kind in _CONFIGS}
    if name not in known:
        raise ValueError(f"quantize: the recipe must be {', '.join(known)}, got '{name}'")
    return known[name]()


def get_supported_quantization_recipes() -> list[Recipe]:
    """Returns one recipe of each class, with its defaults."""
    return [kind() for kind in _CONFIGS]
