# SPDX-License-Identifier: Apache-2.0
"""Represents a quantized layer in torch.compile as one node with a backward pass.

While a function is compiled, the layer makes its recipe's state and a node that holds copies of its
quantizers. The graph then depends on the text of the recipe and on the buffers of delayed scaling,
which are arguments of the node. The node runs the layer's own autograd function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch._compile import _disable_dynamo

from narrowfloat.common.recipe import Recipe
from narrowfloat.pytorch._extra_state import DELAYED_BUFFERS
from narrowfloat.pytorch._product_mode import mode_of_this_thread
from narrowfloat.pytorch._tracing import QuantizeNode, has_node, node_of
from narrowfloat.pytorch._types import Group
from narrowfloat.pytorch._values import ValueSemantics, constant_of_graphs, node_of_copy
from narrowfloat.pytorch.module.function import Call, LinearFunction
from narrowfloat.pytorch.module.sharded import is_dtensor
from narrowfloat.pytorch.module.states import PASSES
from narrowfloat.pytorch.module.watching import Slots, watcher_factory
from narrowfloat.pytorch.quantization import FP8GlobalStateManager
from narrowfloat.pytorch.quantization.global_state import step_after_backward
from narrowfloat.pytorch.quantization.recompute import is_in_quantized_checkpoint
from narrowfloat.pytorch.quantized_tensor import QuantizedTensorStorage, Quantizer

if TYPE_CHECKING:
    from narrowfloat.pytorch.module.passes import RunningLayer


class Slot(NamedTuple):
    """A quantizer of a layer. direction, place: index of its pass and scale in delayed scaling."""

    node: QuantizeNode
    direction: int = 0
    place: int | None = None

    def build(self, states: Sequence[torch.Tensor]) -> Quantizer:
        """Returns the quantizer; states: scale and history of forward, then of backward."""
        if self.place is None:
            return self.node.build()
        scale, history = states[2 * self.direction : 2 * self.direction + 2]
        here = slice(self.place, self.place + 1)
        return self.node.build((scale[here], history[0][here]))


class Plan(NamedTuple):
    """The settings of a forward pass. slots: one tuple per weight.

    The other fields are as in Call.
    """

    name: str
    slots: tuple[tuple[Slot | None, ...], ...]
    backward_override: str | None
    saves_input: bool


PASS_KEYS = tuple(key for key, _ in PASSES.values())

# A tracer can pass numbers between functions, but no objects. Equal plans have one number.
_plans: list[Plan] = []


class LayerNode(ValueSemantics):
    """A forward pass of a layer by the plan with this number; a constant of graphs."""

    VALUE_FIELDS = ("plan", "mode")

    def __init__(self, number: int, mode: str) -> None:
        self.plan = _plans[number]
        self.mode = mode  # of its products

    def __call__(
        self,
        x: torch.Tensor,
        splits: Sequence[int],
        dtype: torch.dtype,
        parameters: Sequence[torch.Tensor | None],
        states: Sequence[torch.Tensor],
        steps_amaxes: bool,
    ) -> torch.Tensor:
        """Returns the output; parameters: weights, then biases."""
        args = (x, splits, dtype, parameters, states, steps_amaxes)
        if (node := node_of_copy(self, x, *args)) is not None:
            return node
        slots = [
            Slots(*(None if slot is None else slot.build(states) for slot in each))
            for each in self.plan.slots
        ]
        call = Call(
            name=self.plan.name,
            dtype=dtype,
            slots=slots,
            kept=[None] * len(slots),
            splits=splits,
            grad_enabled=torch.is_grad_enabled(),
            product_mode=self.mode,
            backward_override=self.plan.backward_override,
            saves_input=self.plan.saves_input,
            ends_step=partial(step_after_backward, states[-1]) if steps_amaxes else None,
        )
        if not isinstance(x, QuantizedTensorStorage):
            x = x.to(dtype).contiguous()
        with mode_of_this_thread(self.mode):
            return LinearFunction.apply(x, call, *parameters)[0]

    def __fx_repr__(self) -> tuple[str, dict[str, Any]]:
        name = f"layer_node_{abs(hash(self))}"
        return name, {name: self}


LayerNode.register_value_class()


@constant_of_graphs
def plan_for(
    layer: RunningLayer,
    text: str,
    group: Group,
    saves_input: bool,
    fp8_output: bool,
    fp8_grad: bool,
) -> int | None:
    """Makes the layer's state for the recipe with this text. Returns the number of its plan.

    saves_input: the layer's save_original_input. None: a graph cannot hold a quantizer.
    """
    if fp8_output or fp8_grad:
        return None  # graphs expect plain gradients of results, and of inputs
    recipe = Recipe.noted(text)
    layer._check_recipe_of_weights(recipe)
    parents = layer._parents(recipe, group, fp8_output, fp8_grad)
    quantizers = [q for slots in parents for q in slots if q is not None]
    if not all(has_node(quantizer) for quantizer in quantizers):
        return None
    plan = Plan(
        name=layer.name,
        slots=tuple(tuple(_slot(layer, quantizer) for quantizer in each) for each in parents),
        backward_override=recipe.backward_override,
        saves_input=layer._saves_input(recipe, parents),
    )
    if plan not in _plans:
        _plans.append(plan)
    return _plans.index(plan)


def _slot(layer: RunningLayer, quantizer: Quantizer | None) -> Slot | None:
    if quantizer is None:
        return None
    if not quantizer.STATE_FIELDS:
        return Slot(node_of(quantizer))
    storage = quantizer.scale.untyped_storage().data_ptr()
    scales = [state_of(layer, key, "scale") for key in PASS_KEYS]
    direction = [scale.untyped_storage().data_ptr() for scale in scales].index(storage)
    return Slot(node_of(quantizer), direction, quantizer.scale.storage_offset())


@constant_of_graphs
def has_states(layer: RunningLayer, *versions: int) -> bool:
    """Returns whether a pass of the layer has delayed scaling.

    versions: counts of changes, read for the tracer's guards: new states need a new graph.
    """
    return any(getattr(state, "scale", None) is not None for state in layer.fp8_meta.values())


@constant_of_graphs
def state_of(layer: RunningLayer, key: str, name: str) -> torch.Tensor:
    """Returns a buffer of delayed scaling of a pass; an empty tensor if the pass has none."""
    buffer = getattr(layer.fp8_meta[key], name, None)
    return torch.empty(0) if buffer is None else buffer


def states_of(layer: RunningLayer) -> tuple[torch.Tensor, ...]:
    """Returns scale and history of forward, then of backward; () without delayed scaling.

    One by one: a tracer names tensors within a constant by a name that a later graph may use.
    """
    if not has_states(layer, layer._states.version, FP8GlobalStateManager.resets):
        return ()
    return tuple([state_of(layer, key, name) for key in PASS_KEYS for name in DELAYED_BUFFERS])


class GraphPass(NamedTuple):
    """A forward pass in a graph. states: as states_of() returns them."""

    number: int
    states: tuple[torch.Tensor, ...]


def plan_in_graph(
    layer: RunningLayer, is_first_microbatch: bool | None, fp8_output: bool, fp8_grad: bool
) -> GraphPass | None:
    """Returns the pass of a quantized layer in a graph; None breaks the graph.

    The tracer traces into this function.
    """
    if not FP8GlobalStateManager.is_fp8_enabled() or is_first_microbatch is not None:
        return None
    if layer.fuse_wgrad_accumulation or layer.delay_wgrad_compute or is_watched(layer):
        return None
    if any([is_dtensor(parameter) for parameter in layer.parameters(recurse=False)]):
        return None
    text = FP8GlobalStateManager.get_fp8_recipe()._text
    group = FP8GlobalStateManager.get_fp8_group()
    number = plan_for(layer, text, group, layer.save_original_input, fp8_output, fp8_grad)
    return None if number is None else GraphPass(number, states_of(layer))


@constant_of_graphs
def is_in_checkpoint(layer: RunningLayer, quantizes: bool) -> bool:
    """Returns whether the layer must run outside of the graph, because a checkpoint is around it.

    The second pass reuses the recipe and the scales of the first one only outside of graphs.
    """
    return is_in_quantized_checkpoint(quantizes)


def is_plain(layer: RunningLayer) -> bool:
    """Returns whether the layer runs exactly as torch.nn.Linear."""
    manager = FP8GlobalStateManager
    if manager.is_fp8_enabled() or manager.is_fp8_calibration() or is_watched(layer):
        return False
    return not (layer.fuse_wgrad_accumulation or layer.delay_wgrad_compute)


def is_watched(layer: RunningLayer) -> bool:
    """Returns whether a debug session runs."""
    if watcher_factory() is None:
        return False
    find_watcher(layer)
    return layer._watcher is None or layer._watcher.is_running()


@constant_of_graphs
def find_watcher(layer: RunningLayer) -> None:
    """Sets the watcher of a layer that is older than the factory."""
    layer._find_watcher()


@_disable_dynamo
def run_untraced(function: Callable[..., Any], *args: Any) -> object:
    """Calls the function without tracing it.

    After a call that raised, a tracer runs the layer and traces each function that it calls
    separately. In these traces quantizers are not constants.
    """
    return function(*args)


@_disable_dynamo
def run_outside(layer: RunningLayer, *args: Any) -> object:
    """Breaks the graph and runs the layer's pass.

    Does not run forward(): the forward() of a derived class may be the caller.
    """
    return layer._run(*args)
