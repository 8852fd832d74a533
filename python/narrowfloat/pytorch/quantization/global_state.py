# SPDX-License-Identifier: Apache-2.0
"""The settings of the running autocast, and the step of delayed scaling over all layers."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch._compile import _disable_dynamo

from narrowfloat.common.recipe import DelayedScaling, Recipe
from narrowfloat.pytorch._autograd import is_in_backward, running_transform
from narrowfloat.pytorch._native import fake_mode, in_memory
from narrowfloat.pytorch._reduction import reduce_max
from narrowfloat.pytorch._values import constant_of_graphs
from narrowfloat.pytorch.quantization.recipe_state import RecipeState
from narrowfloat.pytorch.quantization.recipe_states import DelayedScalingRecipeState
from narrowfloat.pytorch.quantization.recompute import is_first_pass

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


@dataclass
class AutocastState:
    """The settings that an autocast sets and restores. in_backward: whether a backward pass entered
    it, in a function that torch.utils.checkpoint runs again.
    """

    enabled: bool = False
    calibrating: bool = False
    recipe: Recipe | None = None
    group: ProcessGroup | None = None
    is_first_module: bool = False
    in_backward: bool = False


@dataclass
class ModelInitState:
    """The settings that a quantized_model_init sets and restores."""

    enabled: bool = False
    preserve_high_precision_init_val: bool = False


@dataclass
class _Members:
    """The delayed states that run their steps together, by their place in the reduced tensor.

    A freed state keeps its place, because ranks free it at different times, and all ranks must
    reduce the same number of amaxes in the same order.
    """

    recipe: DelayedScaling
    group: ProcessGroup | None
    places: weakref.WeakKeyDictionary[DelayedScalingRecipeState, int] = field(
        default_factory=weakref.WeakKeyDictionary
    )
    length: int = 0
    device: torch.device | str = "cpu"  # of the newest state, for ranks that have freed all
    free: dict[int, list[int]] = field(default_factory=dict)  # free places by their width

    def add(self, state: DelayedScalingRecipeState) -> None:
        """Assigns a free place to a state, or the next new one."""
        width = state.num_quantizers
        self.device = state.device
        if self.free.get(width):
            self.places[state] = self.free[width].pop()
            return
        self.places[state] = self.length
        self.length += width

    def remove(self, state: DelayedScalingRecipeState) -> None:
        """Frees the place of a state, if it has one."""
        place = self.places.pop(state, None)
        if place is not None:
            self.free.setdefault(state.num_quantizers, []).append(place)

    def update(self) -> None:
        """Runs one step of all states, after reducing their newest amaxes if the recipe requires
        it.
        """
        states = sorted(self.places.items(), key=lambda item: item[1])
        if not states and not _is_running(self.group):
            return
        newest = torch.zeros(self.length, device=states[0][0].device if states else self.device)
        for state, place in states:
            newest[place : place + state.num_quantizers] = state.amax_history[0]
        reduced = reduce_newest_amax(newest, self.recipe, self.group)
        for state, place in states:
            state.update(newest[place : place + state.num_quantizers] if reduced else None)


class FP8GlobalStateManager:
    """The state of the process; autocast and quantized_model_init set it, layers read it."""

    _autocast: ClassVar = AutocastState()
    _model_init: ClassVar = ModelInitState()
    _depth: ClassVar = 0
    _waiting: ClassVar = 0  # pending steps of backward passes in graphs
    # True if the outermost autocast, or an autocast inside it, uses a recipe that has delayed
    # scaling or may have it. The end of the outermost autocast then updates amaxes and scales.
    _may_step: ClassVar = False
    # Counts of events that invalidate graphs: resets, and new delayed states.
    resets: ClassVar = 0
    additions: ClassVar = 0
    # By pass, recipe and group; ranks reduce them in this order.
    _members: ClassVar[dict[tuple[str, str, int], _Members]] = {}
    _known: ClassVar[weakref.WeakSet] = weakref.WeakSet()

    @staticmethod
    def is_fp8_available() -> tuple[bool, str]:
        """Returns True and an empty reason: kernels for every CPU are built in."""
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
        """Returns whether an enabled autocast is running."""
        return cls._autocast.enabled

    @classmethod
    def is_fp8_calibration(cls) -> bool:
        """Returns whether amaxes are collected without quantizing."""
        return cls._autocast.calibrating

    @classmethod
    def get_fp8_recipe(cls) -> Recipe:
        """Returns the recipe of the running autocast, else the default one."""
        recipe = cls._autocast.recipe
        return get_default_recipe() if recipe is None else recipe

    @classmethod
    def get_fp8_group(cls) -> ProcessGroup | None:
        """Returns the process group over which amaxes are reduced, or None for the world."""
        return cls._autocast.group

    @classmethod
    def with_fp8_parameters(cls) -> bool:
        """Returns whether layers make quantized parameters."""
        return cls._model_init.enabled

    @classmethod
    def with_high_precision_init_val(cls) -> bool:
        """Returns whether parameters keep their values before quantizing."""
        return cls._model_init.preserve_high_precision_init_val

    @classmethod
    def is_first_fp8_module(cls) -> bool:
        """Returns True in the first call in an outermost autocast, and in the first call after an
        inner one that began before it: its end restores the setting, as in TransformerEngine.
        """
        first = cls._autocast.is_first_module
        cls._autocast.is_first_module = False
        return first

    @classmethod
    def is_plain_again(cls) -> bool:
        """Returns whether a recomputed function entered an autocast that does not quantize."""
        return cls._autocast.in_backward and not cls._autocast.enabled

    @classmethod
    def get_autocast_state(cls) -> AutocastState:
        """Returns a copy of the running autocast's settings."""
        return replace(cls._autocast)

    @classmethod
    def set_autocast_state(cls, state: AutocastState) -> None:
        """Sets the autocast's settings, as at the end of an autocast."""
        cls._autocast = replace(state)

    @classmethod
    def autocast_enter(
        cls, enabled: bool, calibrating: bool, recipe: Recipe | None, group: ProcessGroup | None
    ) -> None:
        """Begins an autocast. The recipe of a disabled one is kept, but not used."""
        first = cls._depth == 0 or cls._autocast.is_first_module
        if cls._depth == 0:
            cls._may_step = False
        if (enabled or calibrating) and recipe is not None:
            cls._may_step |= recipe.delayed() or recipe.custom()
        cls._autocast = AutocastState(enabled, calibrating, recipe, group, first, is_in_backward())
        cls._depth += 1

    @classmethod
    def autocast_exit(cls, collected: bool) -> None:
        """Ends an autocast; the outermost one runs the forward step in a pass that trains.

        collected: whether layers collected amaxes inside, quantizing or calibrating. A pass that
        torch.utils.checkpoint recomputes ran its step the first time.
        """
        cls._depth -= 1
        while cls._waiting:
            cls._waiting -= 1
            cls.step_backward()
        if not collected or cls._depth > 0 or is_in_backward():
            return
        if not torch.is_grad_enabled() and not is_first_pass():
            return
        if not torch.compiler.is_dynamo_compiling():
            if running_transform() is None:  # layers raise within a transform
                cls.reduce_and_update_fp8_tensors(forward=True)
        elif cls._may_step and _has_states(cls, cls.resets, cls.additions):
            step_forward_outside()

    @classmethod
    def get_model_init_state(cls) -> ModelInitState:
        """Returns a copy of the settings of the running quantized_model_init."""
        return replace(cls._model_init)

    @classmethod
    def set_model_init_state(cls, state: ModelInitState) -> None:
        """Sets them, as at the begin and the end of a quantized_model_init."""
        cls._model_init = replace(state)

    @classmethod
    def reset(cls) -> None:
        """Resets all state to that of a new process."""
        cls._autocast = AutocastState()
        cls._model_init = ModelInitState()
        cls._depth = 0
        cls._waiting = 0
        cls._may_step = False
        cls._members = {}
        cls._known = weakref.WeakSet()
        cls.resets += 1

    @classmethod
    def add_recipe_state(cls, state: RecipeState, group: ProcessGroup | None = None) -> None:
        """Adds `state` to the steps of its pass; only delayed scaling has steps.

        States that are added in the same order on all processes are reduced together. A state
        exists as long as its layer holds it; its place in the reduction stays until it is removed.
        A state with buffers without memory is not added.
        """
        delayed: Any = state.delayed_state
        if delayed is None or delayed in cls._known or not in_memory(delayed.scale):
            return
        key = (delayed.mode, repr(delayed.recipe), id(group))
        cls._members.setdefault(key, _Members(delayed.recipe, group)).add(delayed)
        cls._known.add(delayed)
        cls.additions += 1

    @classmethod
    def remove_recipe_state(cls, state: RecipeState) -> None:
        """Removes a state from the steps; all processes must remove theirs in the same order."""
        delayed: Any = state.delayed_state
        if delayed is None or delayed not in cls._known:
            return
        cls._known.discard(delayed)
        for members in cls._members.values():
            members.remove(delayed)

    @classmethod
    def step_backward(cls) -> None:
        """Runs the step of delayed scaling that ends a backward pass."""
        cls.reduce_and_update_fp8_tensors(forward=False)

    @classmethod
    def reduce_and_update_fp8_tensors(cls, forward: bool = True) -> None:
        """Runs one step of delayed scaling for all states of a pass.

        With several processes, and if the recipe requires it, the newest amaxes are first replaced
        by their maximum over processes: one all-reduce for all states of a recipe and group. After
        passes of tensors without memory there is no step.
        """
        if fake_mode() is not None:
            return
        mode = "forward" if forward else "backward"
        for key, members in list(cls._members.items()):
            if key[0] == mode:
                members.update()


def _is_running(group: ProcessGroup | None) -> bool:
    """Returns whether the process group has not been destroyed."""
    try:
        torch.distributed.get_process_group_ranks(group)
    except (KeyError, ValueError, RuntimeError):
        return False
    return True


@constant_of_graphs
def _has_states(manager: type[FP8GlobalStateManager], *versions: int) -> bool:
    """Returns whether any layer has a state of delayed scaling. versions: read for guards."""
    return any(members.places for members in manager._members.values())


@_disable_dynamo
def step_forward_outside() -> None:
    """Breaks the graph and runs the step of delayed scaling that ends a forward pass."""
    FP8GlobalStateManager.reduce_and_update_fp8_tensors(forward=True)


@torch.library.custom_op("narrowfloat::step_after_backward", mutates_args=("amax_history",))
def step_after_backward(amax_history: torch.Tensor) -> None:
    """Runs the step of delayed scaling when the running backward pass has ended.

    A graph writes its amaxes after its last node, so the step cannot be a node. For a backward pass
    inside the graph, the end of the autocast runs the step.
    amax_history: an argument that the step writes, which keeps the node in the graph.
    """
    if torch._C._current_graph_task_id() == -1:  # the graph includes the backward pass
        FP8GlobalStateManager._waiting += 1
        return
    torch.autograd.Variable._execution_engine.queue_callback(FP8GlobalStateManager.step_backward)


@step_after_backward.register_fake
def _step_after_backward_fake(amax_history: torch.Tensor) -> None:
    """Writes nothing: the step is not a part of the graph."""


def reduce_newest_amax(
    amax: torch.Tensor, recipe: DelayedScaling, group: ProcessGroup | None
) -> bool:
    """Replaces `amax` by its maximum over all processes, if the recipe requires it.

    Returns whether it did.
    """
    distributed = torch.distributed
    if not (recipe.reduce_amax and distributed.is_available() and distributed.is_initialized()):
        return False
    if distributed.get_world_size(group=group) < 2:
        return False
    reduce_max(amax, group)
    return True


def get_default_recipe() -> Recipe:
    """Returns the recipe of an autocast without one: delayed scaling."""
    return DelayedScaling()


get_default_fp8_recipe = get_default_recipe
