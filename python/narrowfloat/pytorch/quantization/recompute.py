# SPDX-License-Identifier: Apache-2.0
"""Stores the state of a pass, for the pass that torch.utils.checkpoint runs again in backward.

By then the autocast has ended and delayed scaling has changed its scales. torch.utils.checkpoint
saves neither, and gives layers no sign of a second pass. Its functions hold one object per
checkpoint while either pass runs, and the stack shows it: the state is stored on that object.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch
from torch.utils import checkpoint

_ATTRIBUTE = "_narrowfloat_passes"


class Place(NamedTuple):
    """A function of torch.utils.checkpoint that is running.

    key: its object. is_again: whether the pass is the second one. has_graph: whether backward uses
    the graph of that second pass, as it does in reentrant mode.
    """

    key: Any
    is_again: bool
    has_graph: bool


@dataclass
class FirstPass:
    """The state of one layer in a first pass. scales: copies of delayed scaling's scales."""

    layer: int
    autocast: Any
    scales: list[Any]
    is_first_module: bool
    has_graph: bool = False


@dataclass
class _Passes:
    """The first passes in order, and the number of them that a backward pass has run again."""

    first: list[FirstPass] = field(default_factory=list)
    task: int = -1
    done: int = 0


def running_places() -> list[Place]:
    """Returns the checkpoints around this call, the innermost first, up to a second pass.

    Returns an empty list in a graph, because the graph runs both passes of its checkpoints.
    """
    return [] if torch.compiler.is_compiling() else _places_on_stack()


def _places_on_stack() -> list[Place]:
    found: list[Place] = []
    hooked = _hooked_place()
    if hooked is not None:
        found.append(hooked)
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        read = _READERS.get(frame.f_code)
        place = None if read is None else read(frame.f_locals)
        if place is not None and place.key is not None:
            if place != hooked:
                found.append(place)
            if place.is_again:
                break
        frame = frame.f_back
    return found


def _saving_hooks() -> tuple[Any, Any] | None:
    """Returns the innermost hooks for saved tensors."""
    while_tracing = True
    return torch._C._autograd._top_saved_tensors_default_hooks(while_tracing)


def _hooked_place() -> Place | None:
    """Returns the checkpoint that set the active hooks for saved tensors, or None.

    A checkpoint of torch.distributed._composable begins and ends in hooks of a module, and is not
    on the stack between them.
    """
    hooks = _saving_hooks()
    code = None if hooks is None else getattr(hooks[0], "__code__", None)
    if hooks is None or code is not _PACK_HOOK:
        return None
    cells = dict(zip(_PACK_HOOK.co_freevars, hooks[0].__closure__, strict=True))
    return Place(cells["frame"].cell_contents, is_again=False, has_graph=False)


def is_first_pass() -> bool:
    """Returns whether a checkpoint will run this pass again."""
    return any(not place.is_again for place in running_places())


def is_in_quantized_checkpoint(quantizes: bool) -> bool:
    """Returns whether a checkpoint is around the function that a tracer compiles, and a pass of the
    checkpoint quantizes: this one, as `quantizes` says, or the first one.
    """
    places = _places_on_stack()
    return any(quantizes or hasattr(place.key, _ATTRIBUTE) for place in places)


def may_run_again() -> bool:
    """Returns whether a checkpoint may run this pass again.

    That is possible if hooks for saved tensors are set: hooks of a program, set inside of a
    checkpoint, hide the checkpoint's hooks.
    """
    return _saving_hooks() is not None or is_first_pass()


def remember(places: list[Place], passed: FirstPass) -> None:
    """Stores the state of a layer's pass on all checkpoints that will run the pass again."""
    for place in places:
        if not place.is_again:
            if not hasattr(place.key, _ATTRIBUTE):
                setattr(place.key, _ATTRIBUTE, _Passes())
            getattr(place.key, _ATTRIBUTE).first.append(replace(passed, has_graph=place.has_graph))


def first_pass_of(layer: torch.nn.Module) -> FirstPass | None:
    """Returns the state of the first pass if this pass of a backward pass is a recomputation, else
    None.

    Only quantized passes are stored, so the caller must exclude passes in an autocast that does not
    quantize. Not recognized: a pass in no autocast of the checkpointed function, before a quantized
    pass of the same layer in an autocast of the function.
    """
    place = next((place for place in running_places() if place.is_again), None)
    passes = None if place is None else getattr(place.key, _ATTRIBUTE, None)
    if passes is None:
        return None
    task = torch._C._current_graph_task_id()
    if passes.task != task:
        passes.task, passes.done = task, 0
    if passes.done == len(passes.first) or passes.first[passes.done].layer != id(layer):
        return None  # the first pass was not quantized
    passes.done += 1
    return passes.first[passes.done - 1]


def _code(function: Callable[..., Any], inner: str | None = None) -> CodeType:
    code = inspect.unwrap(function).__code__
    if inner is None:
        return code
    return next(
        constant
        for constant in code.co_consts
        if isinstance(constant, CodeType) and constant.co_name == inner
    )


def _frame_of(generator: object) -> FrameType | None:
    running = getattr(generator, "gi_frame", None)
    return None if running is None else running.f_locals.get("new_frame")


_PACK_HOOK = _code(checkpoint._checkpoint_hook.__init__, "pack_hook")

_READERS: dict[CodeType, Callable[[dict[str, Any]], Place]] = {
    _code(checkpoint.CheckpointFunction.forward): lambda names: Place(
        names.get("ctx"), is_again=False, has_graph=True
    ),
    _code(checkpoint.CheckpointFunction.backward): lambda names: Place(
        names.get("ctx"), is_again=True, has_graph=True
    ),
    _code(checkpoint._checkpoint_impl): lambda names: Place(
        _frame_of(names.get("gen")), is_again=False, has_graph=False
    ),
    _code(checkpoint._checkpoint_hook.__init__, "unpack_hook"): lambda names: Place(
        names.get("frame"), is_again=True, has_graph=False
    ),
}
