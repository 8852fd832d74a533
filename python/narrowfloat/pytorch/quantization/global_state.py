# SPDX-License-Identifier: Apache-2.0
"""What the running autocast says, and the step of delayed scaling over all layers."""

import itertools
import weakref
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch

from narrowfloat.common.recipe import DelayedScaling, Recipe
from narrowfloat.pytorch.quantization.custom_state import CustomRecipeState
from narrowfloat.pytorch.quantization.recipe_state import RecipeState
from narrowfloat.pytorch.quantization.recipe_states import DelayedScalingRecipeState
from narrowfloat.pytorch.quantization.recompute import is_first_pass, is_in_backward


@dataclass
class AutocastState:
    """What an autocast sets and puts back."""

    enabled: bool = False
    calibrating: bool = False
    recipe: Recipe | None = None
    group: object = None
    is_first_module: bool = False


@dataclass
class ModelInitState:
    """What a quantized_model_init sets and puts back."""

    enabled: bool = False
    recipe: Recipe | None = None
    preserve_high_precision_init_val: bool = False


@dataclass
class _Members:
    """The delayed states that take their steps together."""

    recipe: DelayedScaling
    group: object
    states: "weakref.WeakSet[DelayedScalingRecipeState]" = field(default_factory=weakref.WeakSet)


class FP8GlobalStateManager:
    """The state of the process; autocast and quantized_model_init set it, layers read it."""

    _autocast: ClassVar = AutocastState()
    _model_init: ClassVar = ModelInitState()
    _depth: ClassVar = 0
    # By pass, recipe and group; and the order of all states, which is that of the reduction.
    _members: ClassVar[dict[tuple[str, str, int], _Members]] = {}
    _order: ClassVar[weakref.WeakKeyDictionary] = weakref.WeakKeyDictionary()
    _places: ClassVar = itertools.count()  # a state that is gone does not free its place

    @staticmethod
    def is_fp8_available() -> tuple[bool, str]:
        """True, and why not: kernels for every CPU are built in."""
        return True, ""

    is_mxfp8_available = is_fp8_available
    is_fp8_block_scaling_available = is_fp8_available
    is_nvfp4_available = is_fp8_available

    @staticmethod
    def get_meta_tensor_key(forward: bool = True) -> str:
        """Returns the name of a pass in a layer's `fp8_meta` and `quantizers`."""
        return "scaling_fwd" if forward else "scaling_bwd"

    @classmethod
    def is_fp8_enabled(cls) -> bool:
        """Whether an enabled autocast is running."""
        return cls._autocast.enabled

    @classmethod
    def is_fp8_calibration(cls) -> bool:
        """Whether amaxes are collected without quantizing."""
        return cls._autocast.calibrating

    @classmethod
    def get_fp8_recipe(cls) -> Recipe:
        """The recipe of the running autocast, else the default one."""
        recipe = cls._autocast.recipe
        return get_default_recipe() if recipe is None else recipe

    @classmethod
    def get_fp8_group(cls) -> object:
        """The process group over which amaxes are reduced, or None for the world."""
        return cls._autocast.group

    @classmethod
    def with_fp8_parameters(cls) -> bool:
        """Whether layers make quantized parameters."""
        return cls._model_init.enabled

    @classmethod
    def with_high_precision_init_val(cls) -> bool:
        """Whether parameters keep the values they were quantized from."""
        return cls._model_init.preserve_high_precision_init_val

    @classmethod
    def is_first_fp8_module(cls) -> bool:
        """True once in each outermost autocast."""
        first = cls._autocast.is_first_module
        cls._autocast.is_first_module = False
        return first

    @classmethod
    def get_autocast_state(cls) -> AutocastState:
        """A copy of the running autocast's settings."""
        return replace(cls._autocast)

    @classmethod
    def set_autocast_state(cls, state: AutocastState) -> None:
        """Sets them, as the end of an autocast does."""
        cls._autocast = replace(state)

    @classmethod
    def autocast_enter(
        cls, enabled: bool, calibrating: bool, recipe: Recipe | None, group: object
    ) -> None:
        """Begins an autocast. The recipe of a disabled one is kept, but nobody asks for it."""
        first = cls._depth == 0 or cls._autocast.is_first_module
        cls._autocast = AutocastState(enabled, calibrating, recipe, group, first)
        cls._depth += 1

    @classmethod
    def autocast_exit(cls, collected: bool) -> None:
        """Ends an autocast; the outermost one takes the forward pass's step if it can learn.

        collected: whether layers collected amaxes inside, quantizing or calibrating. A pass that
        torch.utils.checkpoint runs again has taken its step the first time.
        """
        cls._depth -= 1
        if not collected or cls._depth > 0 or is_in_backward():
            return
        if torch.is_grad_enabled() or is_first_pass():
            cls.reduce_and_update_fp8_tensors(forward=True)

    @classmethod
    def get_model_init_state(cls) -> ModelInitState:
        """A copy of what the running quantized_model_init says."""
        return replace(cls._model_init)

    @classmethod
    def set_model_init_state(cls, state: ModelInitState) -> None:
        """Sets it, as the begin and the end of a quantized_model_init do."""
        cls._model_init = replace(state)

    @classmethod
    def reset(cls) -> None:
        """Forgets everything, as if the process had just begun."""
        cls._autocast = AutocastState()
        cls._model_init = ModelInitState()
        cls._depth = 0
        cls._members = {}
        cls._order = weakref.WeakKeyDictionary()

    @classmethod
    def add_recipe_state(cls, state: RecipeState, group: object = None) -> None:
        """From now on `state` takes the steps of its pass; others than delayed ones have none.

        States that are added in the same order on all processes are reduced together. A state lives
        as long as its layer holds it.
        """
        if isinstance(state, CustomRecipeState):
            state = state._ds_state
        if not isinstance(state, DelayedScalingRecipeState) or state in cls._order:
            return
        key = (state.mode, repr(state.recipe), id(group))
        members = cls._members.setdefault(key, _Members(state.recipe, group))
        members.states.add(state)
        cls._order[state] = next(cls._places)

    @classmethod
    def reduce_and_update_fp8_tensors(cls, forward: bool = True) -> None:
        """One step of delayed scaling for all states of a pass.

        Newest amaxes are first made the largest of all processes where the recipe says so and there
        are several: one all-reduce for all states of a recipe and group.
        """
        mode = "forward" if forward else "backward"
        for key, members in list(cls._members.items()):
            states = sorted(members.states, key=cls._order.__getitem__)
            if not states:
                del cls._members[key]  # their layers are gone
            if key[0] != mode or not states:
                continue
            newest = torch.cat([state.amax_history[0] for state in states])
            reduced = reduce_newest_amax(newest, members.recipe, members.group)
            parts = newest.split([state.num_quantizers for state in states])
            for state, part in zip(states, parts, strict=True):
                state.update(part if reduced else None)


def reduce_newest_amax(amax: torch.Tensor, recipe: DelayedScaling, group: object) -> bool:
    """The largest amax of all processes, in place, where the recipe wants it. Returns whether."""
    distributed = torch.distributed
    if not (recipe.reduce_amax and distributed.is_available() and distributed.is_initialized()):
        return False
    if distributed.get_world_size(group=group) < 2:
        return False
    distributed.all_reduce(amax, op=distributed.ReduceOp.MAX, group=group)
    return True


def get_default_recipe() -> Recipe:
    """The recipe of an autocast that names none: delayed scaling."""
    return DelayedScaling()


get_default_fp8_recipe = get_default_recipe
