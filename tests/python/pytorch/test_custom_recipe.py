# SPDX-License-Identifier: Apache-2.0
"""Tests custom recipes: arguments and results of factories, and the sharing of states."""

import warnings

import pytest
import torch
from narrowfloat.common import recipe
from narrowfloat.common.recipe import Format
from narrowfloat.pytorch.constants import DType
from narrowfloat.pytorch.custom_recipes.reference_current_scaling import (
    CurrentScalingQuantizerRef,
    current_scaling_ref_quantizer_factory,
)
from narrowfloat.pytorch.quantization import (
    CustomRecipeState,
    DelayedScalingRequest,
    QuantizerRequest,
    QuantizerRole,
    RecipeState,
)
from narrowfloat.pytorch.tensor.float8_tensor import (
    Float8CurrentScalingQuantizer,
    Float8Quantizer,
)

FORWARD = [QuantizerRole("linear", t, "fc") for t in ("input", "weight", "output")]
E4M3 = DType.kFloat8E4M3


def quantizers(made: recipe.Recipe, mode: str, roles: list | None, n: int | None = None) -> list:
    n = len(roles) if n is None else n
    return RecipeState.create(made, mode=mode, num_quantizers=n, roles=roles).make_quantizers()


def delayed_factory(role: QuantizerRole) -> QuantizerRequest:
    return DelayedScalingRequest(amax_history_len=16)


def test_factory_is_called_once_a_slot_with_its_role() -> None:
    calls = []

    def factory(role: QuantizerRole) -> Float8CurrentScalingQuantizer:
        calls.append(role)
        return Float8CurrentScalingQuantizer(E4M3)

    state = RecipeState.create(
        recipe.CustomRecipe(qfactory=factory), mode="forward", num_quantizers=3, roles=FORWARD
    )
    assert type(state) is CustomRecipeState and calls == []
    made = state.make_quantizers()
    assert calls == FORWARD and all(a is b for a, b in zip(calls, FORWARD, strict=True))
    assert len({id(q) for q in made}) == 3
    assert state.delayed_state is None and state.scale is None and state.amax_history is None
    with pytest.warns(UserWarning) as warned:
        RecipeState.create(
            recipe.CustomRecipe(qfactory=factory), mode="forward", num_quantizers=2
        ).make_quantizers()
    assert str(warned[0].message) == (
        "CustomRecipeState: no roles were given, the factory gets "
        "QuantizerRole(module_type='', tensor_type='', name='') for each of 2 quantizers"
    )
    assert calls[3:] == [QuantizerRole()] * 2


def test_requests_share_one_delayed_state() -> None:
    state = RecipeState.create(
        recipe.CustomRecipe(qfactory=delayed_factory), mode="forward", num_quantizers=3,
        roles=FORWARD,
    )  # fmt: skip
    made = state.make_quantizers()
    assert state.delayed_state is not None
    assert state.scale.shape == (3,) and state.amax_history.shape == (16, 3)
    for i, q in enumerate(made):
        assert type(q) is Float8Quantizer
        assert q.scale.data_ptr() == state.scale[i].data_ptr()
        assert q.amax.data_ptr() == state.amax_history[0][i].data_ptr()
    inner = state.delayed_state.recipe
    assert isinstance(inner, recipe.DelayedScaling)
    assert (inner.amax_history_len, inner.fp8_format) == (16, Format.HYBRID)
    # A second call, and a state that inherits, keep the same buffers.
    kept = state.scale
    state.make_quantizers()
    assert state.scale is kept
    other = RecipeState.create(
        recipe.CustomRecipe(qfactory=delayed_factory), mode="forward", num_quantizers=3,
        roles=[FORWARD[0], FORWARD[1], QuantizerRole("dpa", "qkv")],
    )  # fmt: skip
    assert other.inherit_state_from(state) is True
    other.make_quantizers()
    assert other.scale is kept
    fewer = RecipeState.create(
        recipe.CustomRecipe(qfactory=delayed_factory), mode="forward", num_quantizers=2,
        roles=FORWARD[:2],
    )  # fmt: skip
    assert fewer.inherit_state_from(state) is True
    fewer.make_quantizers()
    assert fewer.scale is not kept and fewer.scale.shape == (2,)


def test_requests_beside_quantizers() -> None:
    def factory(role: QuantizerRole) -> object:
        if role.tensor_type == "weight":
            return DelayedScalingRequest()
        return Float8CurrentScalingQuantizer(E4M3)

    state = RecipeState.create(
        recipe.CustomRecipe(qfactory=factory), mode="forward", num_quantizers=3, roles=FORWARD
    )
    kinds = [type(q) for q in state.make_quantizers()]
    assert kinds == [Float8CurrentScalingQuantizer, Float8Quantizer, Float8CurrentScalingQuantizer]
    assert state.scale.shape == (1,) and state.amax_history.shape == (1024, 1)


def test_what_factories_may_not_return() -> None:
    def different(role: QuantizerRole) -> QuantizerRequest:
        return DelayedScalingRequest(margin=int(role.tensor_type == "weight"))

    class OtherRequest(QuantizerRequest):
        pass

    role = FORWARD[0]
    for factory, error, message in (
        (lambda role: None, ValueError,
         f"CustomRecipeState: the factory returned None for {role}"),
        (lambda role: 3, TypeError,
         "CustomRecipeState: the factory must return a Quantizer or a QuantizerRequest, got "
         f"<class 'int'> for {role}"),
        (lambda role: OtherRequest(), TypeError,
         f"CustomRecipeState: a {OtherRequest} is not supported, got one for {role}"),
        (different, ValueError,
         "CustomRecipeState: all requests of one state must be the same, got "
         f"{DelayedScalingRequest()!r} and {DelayedScalingRequest(margin=1)!r}"),
    ):  # fmt: skip
        state = RecipeState.create(
            recipe.CustomRecipe(qfactory=factory), mode="forward", num_quantizers=2,
            roles=FORWARD[:2],
        )  # fmt: skip
        with pytest.raises(error) as raised:
            state.make_quantizers()
        assert str(raised.value) == message


def test_any_recipe_with_a_factory() -> None:
    """Checks the tensor types without roles, which follow from the index of the quantizer."""
    made = recipe.Float8CurrentScaling()
    made.set_quantizer_factory(current_scaling_ref_quantizer_factory)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        forward = quantizers(made, "forward", None, 3)
        backward = quantizers(made, "backward", None, 2)
    assert all(type(q) is CurrentScalingQuantizerRef for q in forward + backward)
    assert [q.dtype for q in forward] == [torch.float8_e4m3fn] * 3
    assert [q.dtype for q in backward] == [torch.float8_e5m2, torch.float8_e4m3fn]
    made.set_quantizer_factory(None)
    assert type(quantizers(made, "forward", FORWARD)[0]) is Float8CurrentScalingQuantizer
