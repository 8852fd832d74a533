# SPDX-License-Identifier: Apache-2.0
"""The extra state of layers: its bytes, and pickles of TransformerEngine's layers.

Only delayed scaling has such state. Unpickling can run any code, so the opcodes of a pickle are
checked first: other recipes have no state to load.
"""

import io
import os
import pickle
import pickletools
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any, NamedTuple, SupportsIndex

import torch

from narrowfloat.common import recipe as recipes
from narrowfloat.common.recipe import Recipe

UNSAFE_PICKLE_EXTRA_STATE_ENV = "NVTE_ALLOW_UNSAFE_PICKLE_EXTRA_STATE"

_RECIPE_MODULES = ("narrowfloat.common.recipe", "transformer_engine.common.recipe")
DELAYED_BUFFERS = ("scale", "amax_history")  # of a pass, in the order of its graphs
_DELAYED_STATE = frozenset(f"{what}_{way}" for what in DELAYED_BUFFERS for way in ("fwd", "bwd"))

_ARCHIVE = b"PK"  # the first bytes of a file of torch.save()


class CheckpointExtraStatePolicy(Enum):
    """States whether the extra state of a recipe may contain state."""

    STATELESS = "stateless"  # no state, unless the payload contains its names
    STATEFUL = "stateful"


# By the names of recipes in pickles.
_RECIPE_POLICIES: dict[tuple[str, str], CheckpointExtraStatePolicy] = {
    (package, kind.__name__): (
        CheckpointExtraStatePolicy.STATEFUL
        if kind.delayed()
        else CheckpointExtraStatePolicy.STATELESS
    )
    for package in _RECIPE_MODULES
    for kind in (getattr(recipes, name) for name in recipes.__all__)
    if issubclass(kind, Recipe) and kind is not Recipe
}


def is_stateless_recipe(recipe: Recipe) -> bool:
    """Returns whether layers keep no state of this recipe between steps; False for a CustomRecipe,
    because its state is unknown.
    """
    return not recipe.delayed() and not recipe.custom()


def unsafe_pickle_extra_state_enabled() -> bool:
    """Returns whether the user trusts pickled state: NVTE_ALLOW_UNSAFE_PICKLE_EXTRA_STATE is 1."""
    return os.environ.get(UNSAFE_PICKLE_EXTRA_STATE_ENV, "0") == "1"


def should_load_extra_state_pickle(data: bytes, context: str) -> bool:
    """Returns whether to unpickle the payload; False if it has no state and can be ignored.

    `context` names the layer. Errors: RuntimeError if it may hold state and the user has not
    declared it as trusted.
    """
    if not data or not _may_hold_state(data):
        return False
    if unsafe_pickle_extra_state_enabled():
        return True
    raise RuntimeError(
        f"load_state_dict: the extra state of {context} is a pickle that may hold the state of "
        "delayed scaling; unpickling runs code that the file contains. If you trust the file, set "
        f"{UNSAFE_PICKLE_EXTRA_STATE_ENV}=1"
    )


class _Contents(NamedTuple):
    """The names in a pickle: its strings, and the objects that it looks up, by module and name."""

    texts: set[str]
    lookups: set[tuple[str | None, str | None]]


def _may_hold_state(data: bytes) -> bool:
    try:
        contents = _contents_of(data)
    except Exception:
        return True  # not a pickle, or more than one
    if contents.texts & _DELAYED_STATE:
        return True
    if not contents.lookups:
        return False  # plain containers: no code to run, and no state
    policies = {
        _RECIPE_POLICIES.get((package, str(name)))
        for module, name in contents.lookups
        for package in _RECIPE_MODULES
        if module is not None and module.startswith(package)
    }
    return (
        "recipe" not in contents.texts
        or CheckpointExtraStatePolicy.STATELESS not in policies
        or CheckpointExtraStatePolicy.STATEFUL in policies
    )


def _contents_of(data: bytes) -> _Contents:
    contents = _Contents(set(), set())
    for pushed in _walk(data, contents.lookups):
        if pushed is not None:
            contents.texts.add(pushed)
    return contents


def _walk(data: bytes, lookups: set[tuple[str | None, str | None]]) -> Iterator[str | None]:
    """Yields every string that is pushed, in order; other pushes are None. Executes nothing."""
    last: list[str | None] = [None, None]
    memo: dict[int, str | None] = {}
    operations: Iterator[tuple[Any, Any, Any]] = pickletools.genops(data)
    for opcode, argument, place in operations:
        name = opcode.name
        if name == "STOP" and place + 1 != len(data):
            raise ValueError("the data must end with the pickle, got more bytes")
        if name == "MEMOIZE":
            memo[len(memo)] = last[-1]
            continue
        if name in ("PUT", "BINPUT", "LONG_BINPUT"):
            memo[argument] = last[-1]
            continue
        if name in ("GET", "BINGET", "LONG_BINGET"):
            pushed = memo.get(argument)
        elif name == "STACK_GLOBAL":
            lookups.add((last[-2], last[-1]))
            pushed = None
        elif name in ("GLOBAL", "INST"):
            lookups.add(tuple(argument.split(" ", 1)))
            pushed = None
        else:
            pushed = argument if isinstance(argument, str) else None
        last = [last[-1], pushed]
        yield pushed


class ExtraState(torch.Tensor):
    """A tensor of bytes with a size that may differ between save and load.

    A distributed checkpoint raises if a tensor's size differs from the loading model's, which has
    no state before its first pass. It stores this class as an object without a size. In every other
    file it is a plain tensor of bytes.
    """

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        return self.as_subclass(torch.Tensor).__reduce_ex__(protocol)

    def __deepcopy__(self, memo: dict[int, Any]) -> "ExtraState":
        # torch.Tensor's method raises for its own copy, a plain tensor if subclasses are disabled.
        copied = self.detach().clone().as_subclass(ExtraState)
        memo[id(self)] = copied
        return copied

    def __create_write_items__(self, name: str, _: object) -> list[Any]:
        from torch.distributed.checkpoint.metadata import MetadataIndex
        from torch.distributed.checkpoint.planner import WriteItem, WriteItemType

        return [WriteItem(index=MetadataIndex(name), type=WriteItemType.BYTE_IO)]


def pack_extra_state(tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    """Returns tensors as bytes, for unpack_extra_state(); an empty tensor for an empty dict."""
    data = b""
    if tensors:
        file = io.BytesIO()
        torch.save({name: tensor.cpu() for name, tensor in tensors.items()}, file)
        data = file.getvalue()
    packed = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else _no_bytes()
    return packed.as_subclass(ExtraState)


def unpack_extra_state(state: object, context: str) -> dict[str, torch.Tensor]:
    """Returns the tensors of a layer's extra state; {} if it has none.

    state: of pack_extra_state(), or a pickle in a tensor of bytes or in io.BytesIO, as
    TransformerEngine's layers write it. `context` names the layer.
    Errors: RuntimeError for another type, and as should_load_extra_state_pickle().
    """
    if state is None:
        return {}
    if isinstance(state, io.BytesIO):
        data = state.getvalue()
    elif isinstance(state, torch.Tensor):
        data = state.detach().cpu().numpy().tobytes()
    else:
        raise RuntimeError(
            f"load_state_dict: the extra state of {context} must be a tensor of bytes, "
            f"got {type(state).__name__}"
        )
    if data.startswith(_ARCHIVE) and isinstance(state, torch.Tensor):
        loaded = torch.load(io.BytesIO(data), weights_only=True)
    elif should_load_extra_state_pickle(data, context):
        loaded = _unpickled(data)
    else:
        return {}
    return {name: loaded[name] for name in sorted(_DELAYED_STATE) if name in loaded}


def _no_bytes() -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8)


def _unpickled(data: bytes) -> Mapping[str, torch.Tensor]:
    """Unpickles trusted data; recipes of TransformerEngine are read as narrowfloat's."""
    if data.startswith(_ARCHIVE):
        return torch.load(io.BytesIO(data), weights_only=False)
    return _RecipeUnpickler(io.BytesIO(data)).load()


class _RecipeUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> type:
        ours, theirs = _RECIPE_MODULES
        if module.startswith(theirs):
            module = ours
        return super().find_class(module, name)
