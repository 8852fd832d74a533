# SPDX-License-Identifier: Apache-2.0
"""The recipe states of one layer: its quantizers, and the buffers for checkpoints."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from narrowfloat.common.recipe import Recipe
from narrowfloat.pytorch._extra_state import DELAYED_BUFFERS
from narrowfloat.pytorch._native import outside_of_fakes
from narrowfloat.pytorch._types import Group
from narrowfloat.pytorch.quantization import (
    FP8GlobalStateManager,
    QuantizerRole,
    RecipeState,
)
from narrowfloat.pytorch.quantization.recipe_states import copy_history
from narrowfloat.pytorch.quantized_tensor import Quantizer

# TransformerEngine's names of the two passes, in a layer and in its checkpoint.
PASSES = {
    "forward": (FP8GlobalStateManager.get_meta_tensor_key(forward=True), "fwd"),
    "backward": (FP8GlobalStateManager.get_meta_tensor_key(forward=False), "bwd"),
}

Roles = dict[str, Sequence[QuantizerRole | None]]


class _Load(NamedTuple):
    """Loaded buffers, and the state that they are for."""

    state: Any
    scale: torch.Tensor
    history: torch.Tensor


class LayerStates:
    """Makes the quantizers of the current recipe, and keeps buffers when it changes.

    meta, quantizers: by TransformerEngine's name of the pass. `pending` holds loaded state until a
    recipe with such state runs. recipe: the last one. version: counts changes that are not visible
    to graphs with this state.
    """

    def __init__(self) -> None:
        self.meta: dict[str, RecipeState] = {}
        self.quantizers: dict[str, list[Quantizer]] = {}
        self.pending: dict[str, torch.Tensor] | None = None
        self.recipe: Recipe | None = None
        self.version = 0
        self._recipe_text: str | None = None
        self._is_stale = False
        self._group: Any = None

    def follow(self, recipe: Recipe, group: Group, roles: Callable[[], Roles]) -> bool:
        """Makes new quantizers if the recipe or the group changes. Returns whether it did.

        Recipes are equal if their texts are. Delayed scaling's buffers are kept.
        """
        text = repr(recipe)
        made = self._is_stale or self._recipe_text != text or self._group is not group
        if made:
            with outside_of_fakes():
                self._make(recipe, roles())
            self.recipe, self._recipe_text, self._group = recipe, text, group
            self._is_stale = False
        for state in self.meta.values():
            FP8GlobalStateManager.add_recipe_state(state, group)
        return made

    def forget_recipe(self) -> None:
        """Makes the next follow() make new quantizers; buffers are kept."""
        self._is_stale = True
        self.version += 1

    def is_other_recipe(self, recipe: Recipe) -> bool:
        """Returns whether the previous recipe exists and is another one."""
        return self._recipe_text is not None and self._recipe_text != repr(recipe)

    def _make(self, recipe: Recipe, roles: Roles) -> None:
        """Replaces the states of both passes, and applies loaded state; or raises first."""
        made: dict[str, tuple[RecipeState, list[Quantizer]]] = {}
        for mode, (key, _) in PASSES.items():
            state = RecipeState.create(
                recipe, mode=mode, num_quantizers=len(roles[mode]), roles=roles[mode]
            )
            if key in self.meta:
                state.continue_from(self.meta[key])
            made[key] = state, state.make_quantizers()
        loads = _loads(self.pending or {}, {key: state for key, (state, _) in made.items()})
        buffers = self._buffers()
        for key, (state, quantizers) in made.items():
            if key in self.meta:
                FP8GlobalStateManager.remove_recipe_state(self.meta[key])
            self.meta[key], self.quantizers[key] = state, quantizers
        self._apply_pending(loads)
        now = self._buffers()
        same = len(now) == len(buffers) and all(map(operator.is_, buffers, now))
        if not same:
            self.version += 1

    def _buffers(self) -> list[torch.Tensor | None]:
        """Returns the scales and histories of delayed scaling."""
        return [
            getattr(state, name, None) for state in self.meta.values() for name in DELAYED_BUFFERS
        ]

    def export(self) -> dict[str, torch.Tensor]:
        """Returns copies of the buffers for a checkpoint, by TransformerEngine's names."""
        found = {}
        for key, suffix in PASSES.values():
            state = self.meta.get(key)
            for name in DELAYED_BUFFERS:
                buffer = getattr(state, name, None)
                if buffer is not None:
                    found[f"{name}_{suffix}"] = buffer.detach().clone()
        return found or dict(self.pending or {})

    def load(self, tensors: dict[str, torch.Tensor]) -> None:
        """Loads a result of export(); before the first pass, stores it until there is a recipe.

        Errors: ValueError, before anything is changed, if the buffers of a pass are incomplete or
        the layer has another number of quantizers.
        """
        loads = _loads(tensors, self.meta)
        self.pending = dict(tensors)
        self._apply_pending(loads)

    def _apply_pending(self, loads: list[_Load]) -> None:
        """Copies loaded state into the buffers of the quantizers, if they exist."""
        if not loads:
            return
        with torch.no_grad():  # an empty region would stay in an exported program
            for state, scale, history in loads:
                state.scale.copy_(scale)
                copy_history(history, state.amax_history)
        self.pending = None


def _loads(pending: dict[str, torch.Tensor], meta: dict[str, RecipeState]) -> list[_Load]:
    """Returns the states of delayed scaling that `pending` has buffers for, after checking them."""
    found = []
    for mode, (key, suffix) in PASSES.items():
        state: Any = meta.get(key)
        wanted = getattr(state, "scale", None)
        names = [f"{name}_{suffix}" for name in DELAYED_BUFFERS]
        buffers = [pending[name] for name in names if name in pending]
        if wanted is None or not buffers:
            continue
        if len(buffers) < len(names):
            raise ValueError(
                f"load_state_dict: the state of delayed scaling must have {' and '.join(names)}, "
                f"got {', '.join(pending)}"
            )
        scale, history = buffers
        if scale.shape != wanted.shape or history.shape[1:] != wanted.shape:
            raise ValueError(
                f"load_state_dict: the state of delayed scaling must have {wanted.numel()} scales "
                f"for the {mode} pass, got shapes {tuple(scale.shape)} and {tuple(history.shape)}"
            )
        found.append(_Load(state, scale, history))
    return found
