# SPDX-License-Identifier: Apache-2.0
"""The two context managers that set the global state, and functions for supported formats."""

import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

import torch

from narrowfloat.common.recipe import Recipe
from narrowfloat.pytorch._native import records_operators
from narrowfloat.pytorch._values import constant_of_graphs, run_without_graph
from narrowfloat.pytorch.quantization.global_state import (
    AutocastState,
    FP8GlobalStateManager,
    ModelInitState,
    get_default_recipe,
)

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class autocast:
    """Makes layers quantize by `recipe` while this context is entered; it may be nested.

    It affects this library's layers; torch.nn.Linear and other operators ignore it.
    enabled: False disables quantization inside. calibrating: collects amaxes for delayed scaling
    without quantizing, in an autocast that is not enabled. recipe: None is the default recipe.
    amax_reduction_group: of delayed scaling's amaxes.
    Errors: RuntimeError for an object that is not a recipe, for entering an entered object, or for
    delayed scaling (its state is kept between steps) while a graph is made; NotImplementedError for
    an unsupported option of the recipe.
    """

    def __init__(
        self,
        enabled: bool = True,
        calibrating: bool = False,
        recipe: Recipe | None = None,
        amax_reduction_group: "ProcessGroup | None" = None,
    ) -> None:
        self.enabled = enabled
        self.calibrating = calibrating
        self.recipe = recipe
        self.amax_reduction_group = amax_reduction_group
        self._before: AutocastState | None = None

    def __enter__(self) -> "autocast":
        if self._before is not None:
            raise RuntimeError("autocast: this object is already entered; make another one")
        recipe = get_default_recipe() if self.recipe is None else self.recipe
        if self.enabled or self.calibrating:
            check_recipe_support(recipe)
            note_recipe(recipe)
            if recipe.delayed() and torch.compiler.is_compiling():
                raise RuntimeError(
                    "autocast: DelayedScaling is not supported under torch.compile; enter the "
                    "autocast around the call of the compiled function"
                )
            if recipe.delayed() and records_operators():  # the graph would never take the step
                raise RuntimeError(
                    "autocast: DelayedScaling is not supported under make_fx; enter the autocast "
                    "around make_fx and around each call of the graph"
                )
        self._before = FP8GlobalStateManager.get_autocast_state()
        FP8GlobalStateManager.autocast_enter(
            self.enabled, self.calibrating, recipe, self.amax_reduction_group
        )
        return self

    def __exit__(self, *_: object) -> None:
        before, self._before = self._before, None
        assert before is not None
        FP8GlobalStateManager.set_autocast_state(before)
        FP8GlobalStateManager.autocast_exit(self.enabled or self.calibrating)


@constant_of_graphs
def note_recipe(recipe: Recipe) -> None:
    """Stores a recipe, so that graphs can refer to it by its text.

    If the traced function makes the recipe, the tracer stores its fields apart from the object. The
    object is then empty, so that the recipe has no text.
    """
    if not vars(recipe):
        run_without_graph(
            f"autocast: the recipe must be made outside of the function that is compiled, got a "
            f"{type(recipe).__name__} that the function makes"
        )
    recipe.note()


@contextmanager
def quantized_model_init(
    enabled: bool = True,
    recipe: Recipe | None = None,
    preserve_high_precision_init_val: bool = False,
) -> Iterator[None]:
    """Makes layers that are constructed inside have quantized parameters.

    recipe: None is the default recipe. preserve_high_precision_init_val: each weight keeps its
    values before quantizing, on the CPU, for optimizers: get_high_precision_init_val() and
    clear_high_precision_init_val() of the parameter.
    Errors: RuntimeError and NotImplementedError for a recipe, as autocast().
    """
    if enabled and recipe is not None:
        check_recipe_support(recipe)
    before = FP8GlobalStateManager.get_model_init_state()
    autocast_before = FP8GlobalStateManager.get_autocast_state()
    FP8GlobalStateManager.set_model_init_state(
        ModelInitState(enabled, preserve_high_precision_init_val)
    )
    inside = FP8GlobalStateManager.get_autocast_state()
    inside.recipe = get_default_recipe() if recipe is None else recipe
    FP8GlobalStateManager.set_autocast_state(inside)
    try:
        yield
    finally:
        FP8GlobalStateManager.set_model_init_state(before)
        FP8GlobalStateManager.set_autocast_state(autocast_before)


def fp8_autocast(
    enabled: bool = True,
    calibrating: bool = False,
    fp8_recipe: Recipe | None = None,
    fp8_group: "ProcessGroup | None" = None,
) -> autocast:
    """Returns autocast() with a DeprecationWarning for its older name."""
    _warn_of_old_name("fp8_autocast", "autocast")
    return autocast(enabled, calibrating, fp8_recipe, fp8_group)


def fp8_model_init(
    enabled: bool = True,
    recipe: Recipe | None = None,
    preserve_high_precision_init_val: bool = False,
) -> AbstractContextManager[None]:
    """Returns quantized_model_init() with a DeprecationWarning for its older name."""
    _warn_of_old_name("fp8_model_init", "quantized_model_init")
    return quantized_model_init(enabled, recipe, preserve_high_precision_init_val)


def _warn_of_old_name(old: str, new: str) -> None:
    warnings.warn(f"{old} is now called {new}", DeprecationWarning, stacklevel=3)


def check_recipe_support(recipe: Recipe) -> None:
    """Checks that the layers support a recipe.

    Errors: RuntimeError for an object that is not a recipe; NotImplementedError for fp8_dpa and
    fp8_mha, which are for attention layers.
    """
    if not isinstance(recipe, Recipe):
        raise RuntimeError(
            f"autocast: recipe must be a narrowfloat.common.recipe.Recipe, got {recipe!r}"
        )
    for name in ("fp8_dpa", "fp8_mha"):
        value = getattr(recipe, name)
        if value:
            raise NotImplementedError(
                f"autocast: {name} needs a quantized attention layer, which narrowfloat does not "
                f"have, got {type(recipe).__name__}({name}={value!r})"
            )


def is_fp8_available(return_reason: bool = False) -> bool | tuple[bool, str]:
    """Returns whether FP8 is supported; with return_reason, a pair with the reason if it is not."""
    return _answer(FP8GlobalStateManager.is_fp8_available(), return_reason)


def is_mxfp8_available(return_reason: bool = False) -> bool | tuple[bool, str]:
    """Returns is_fp8_available() for MXFP8."""
    return _answer(FP8GlobalStateManager.is_mxfp8_available(), return_reason)


def is_fp8_block_scaling_available(return_reason: bool = False) -> bool | tuple[bool, str]:
    """Returns is_fp8_available() for block-scaled FP8."""
    return _answer(FP8GlobalStateManager.is_fp8_block_scaling_available(), return_reason)


def is_nvfp4_available(return_reason: bool = False) -> bool | tuple[bool, str]:
    """Returns is_fp8_available() for NVFP4."""
    return _answer(FP8GlobalStateManager.is_nvfp4_available(), return_reason)


# The pairs of availability and reason.
check_fp8_support = FP8GlobalStateManager.is_fp8_available
check_mxfp8_support = FP8GlobalStateManager.is_mxfp8_available
check_fp8_block_scaling_support = FP8GlobalStateManager.is_fp8_block_scaling_available
check_nvfp4_support = FP8GlobalStateManager.is_nvfp4_available


def _answer(pair: tuple[bool, str], return_reason: bool) -> bool | tuple[bool, str]:
    return pair if return_reason else pair[0]
