# SPDX-License-Identifier: Apache-2.0
"""Tests that pickled extra state is classified by its opcodes, without running them."""

import io
import pickle
import sys
import types

import pytest
import torch
from narrowfloat.common import recipe
from narrowfloat.pytorch import _extra_state as extra_state
from narrowfloat.pytorch._extra_state import (
    UNSAFE_PICKLE_EXTRA_STATE_ENV,
    is_stateless_recipe,
    should_load_extra_state_pickle,
)


class Bomb:
    """Fails the test if it is unpickled."""

    def __reduce__(self) -> tuple:
        return (pytest.fail, ("the payload was unpickled",))


def refuses(data: bytes) -> bool:
    try:
        return should_load_extra_state_pickle(data, "fc1")
    except RuntimeError as error:
        assert str(error) == (
            "load_state_dict: the extra state of fc1 is a pickle that may hold the state of "
            "delayed scaling; unpickling runs code that the file contains. If you trust the file, "
            "set NVTE_ALLOW_UNSAFE_PICKLE_EXTRA_STATE=1"
        )
        return True


def saved_by_torch(state: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(state, buffer, _use_new_zipfile_serialization=False)
    return buffer.getvalue()


STATELESS = [
    recipe.Float8CurrentScaling(),
    recipe.MXFP8BlockScaling(),
    recipe.Float8BlockScaling(),
    recipe.NVFP4BlockScaling(),
    recipe.CustomRecipe(qfactory=saved_by_torch),
]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("made", STATELESS, ids=lambda made: type(made).__name__)
def test_stateless_recipes_are_ignored(made: recipe.Recipe, protocol: int) -> None:
    # The Bomb is a part of an ignored payload, so it must not be unpickled.
    data = pickle.dumps({"recipe": made, "more": [made, Bomb()]}, protocol)
    assert should_load_extra_state_pickle(data, "fc1") is False


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_names_of_the_model_are_known_too(protocol: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks states saved by TransformerEngine, which contain the names of its module."""
    module = types.ModuleType("transformer_engine.common.recipe")
    for name in ("MXFP8BlockScaling", "DelayedScaling", "FutureScaling"):
        setattr(module, name, type(name, (), {"__module__": module.__name__}))
    for name in ("transformer_engine", "transformer_engine.common", module.__name__):
        monkeypatch.setitem(sys.modules, name, module)
    for name, state in (("MXFP8BlockScaling", False), ("DelayedScaling", True),
                        ("FutureScaling", True)):  # fmt: skip
        data = pickle.dumps({"recipe": getattr(module, name)()}, protocol)
        assert refuses(data) is state, name


def test_nothing_and_plain_containers_are_ignored() -> None:
    assert should_load_extra_state_pickle(b"", "fc1") is False
    for state in ({}, [], None, {"step": 3, "names": ("a", "b")}):
        assert should_load_extra_state_pickle(pickle.dumps(state), "fc1") is False


@pytest.mark.parametrize(
    "state",
    [
        {"recipe": recipe.DelayedScaling()},
        {"recipe": recipe.MXFP8BlockScaling(), "other": recipe.DelayedScaling()},
        {"recipe": recipe.MXFP8BlockScaling(), "scale_fwd": 1.0},
        {"recipe": recipe.CustomRecipe(qfactory=saved_by_torch), "amax_history_bwd": [0.0]},
        {"scale_fwd": [1.0], "amax_history_fwd": [0.0]},
        {"anything": Bomb()},
        {"MXFP8BlockScaling": Bomb(), "recipe": None},
        recipe.MXFP8BlockScaling(),
    ],
    ids=range(8),
)
@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_state_and_the_unknown_need_trust(
    state: object, protocol: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = pickle.dumps(state, protocol)
    assert refuses(data) is True
    monkeypatch.setenv(UNSAFE_PICKLE_EXTRA_STATE_ENV, "1")
    assert should_load_extra_state_pickle(data, "fc1") is True
    monkeypatch.setenv(UNSAFE_PICKLE_EXTRA_STATE_ENV, "0")
    assert refuses(data) is True


def test_what_is_no_pickle_needs_trust() -> None:
    for data in (b"\x00\x01", b"hello", pickle.dumps({"recipe": STATELESS[1]})[:-5]):
        assert refuses(data) is True
    delayed = {"recipe": recipe.DelayedScaling(), "scale_fwd": torch.ones(3)}
    assert refuses(saved_by_torch(delayed)) is True


def test_stateless_recipes() -> None:
    assert [is_stateless_recipe(made) for made in STATELESS] == [True] * 4 + [False]
    assert not is_stateless_recipe(recipe.DelayedScaling())


def test_every_recipe_has_a_policy_under_both_names() -> None:
    policies = extra_state.CheckpointExtraStatePolicy
    for name in recipe.__all__:
        kind = getattr(recipe, name)
        if not issubclass(kind, recipe.Recipe) or kind is recipe.Recipe:
            continue
        wanted = policies.STATEFUL if kind.delayed() else policies.STATELESS
        for package in ("narrowfloat", "transformer_engine"):
            assert extra_state._RECIPE_POLICIES[f"{package}.common.recipe", name] is wanted
