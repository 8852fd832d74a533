# SPDX-License-Identifier: Apache-2.0
"""Layers under torch.utils.checkpoint: the second pass has the bytes of the first."""

from collections.abc import Callable

import pytest
import torch
from narrowfloat.common.recipe import (
    DelayedScaling,
    Float8CurrentScaling,
    MXFP8BlockScaling,
    Recipe,
)
from narrowfloat.pytorch import GroupedLinear, Linear, autocast
from narrowfloat.pytorch.quantization import FP8GlobalStateManager
from torch.utils.checkpoint import checkpoint

RECIPES = [DelayedScaling(amax_history_len=4), Float8CurrentScaling(), MXFP8BlockScaling()]


@pytest.fixture(autouse=True)
def fresh_state() -> None:
    FP8GlobalStateManager.reset()


class Grouped(GroupedLinear):
    """A GroupedLinear that halves its rows."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x, [x.shape[0] // 2] * 2)


def blocks() -> list[torch.nn.Module]:
    torch.manual_seed(0)
    return [
        torch.nn.Sequential(Linear(32, 32), torch.nn.ReLU(), Grouped(2, 32, 32)) for _ in range(2)
    ]


Wrapped = Callable[[Callable, torch.Tensor], torch.Tensor]


def train(run: Wrapped, recipe: Recipe, inside: bool, passes: int = 1) -> list[torch.Tensor]:
    """Results and gradients of three steps. inside: each block enters the autocast itself.

    passes: forward passes before their backward passes.
    """
    FP8GlobalStateManager.reset()
    found, models = [], blocks()

    def forward(x: torch.Tensor) -> torch.Tensor:
        for model in models:

            def block(x: torch.Tensor, model: torch.nn.Module = model) -> torch.Tensor:
                if not inside:
                    return model(x)
                with autocast(recipe=recipe):
                    return model(x)

            x = run(block, x)
        return x

    for step in range(3):
        xs = [torch.randn(64, 32) * (step + i + 1) for i in range(passes)]
        ys = []
        for x in xs:
            x.requires_grad_()
            if inside:
                ys.append(forward(x))
            else:
                with autocast(recipe=recipe):
                    ys.append(forward(x))
        for model in models:
            model.zero_grad()
        for y in ys:
            y.square().sum().backward()
        gradients = [p.grad for model in models for p in model.parameters()]
        found += [*(y.detach() for y in ys), *(x.grad for x in xs), *gradients]
    return found


def plain(block: Callable, x: torch.Tensor) -> torch.Tensor:
    return block(x)


def again(reentrant: bool) -> Wrapped:
    return lambda block, x: checkpoint(block, x, use_reentrant=reentrant)


@pytest.mark.parametrize("reentrant", [False, True], ids=["hooks", "reentrant"])
@pytest.mark.parametrize("inside", [False, True], ids=["around", "inside"])
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: type(recipe).__name__)
@pytest.mark.parametrize("passes", [1, 2])
def test_gradients_are_those_without_a_checkpoint(
    recipe: Recipe, inside: bool, reentrant: bool, passes: int
) -> None:
    expected = train(plain, recipe, inside, passes)
    found = train(again(reentrant), recipe, inside, passes)
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("reentrant", [False, True], ids=["hooks", "reentrant"])
def test_checkpoints_in_checkpoints(reentrant: bool) -> None:
    def nested(block: Callable, x: torch.Tensor) -> torch.Tensor:
        return again(reentrant)(lambda x: again(reentrant)(block, x), x)

    expected = train(plain, RECIPES[0], inside=False)
    for a, b in zip(train(nested, RECIPES[0], inside=False), expected, strict=True):
        assert torch.equal(a, b)


def test_a_second_pass_leaves_amaxes_alone() -> None:
    (model, _), x = blocks(), torch.randn(64, 32, requires_grad=True)
    with autocast(recipe=RECIPES[0]):
        y = checkpoint(model, x, use_reentrant=False)
    state = model[0].fp8_meta["scaling_fwd"]
    before = state.amax_history.clone(), state.scale.clone()
    y.sum().backward()
    assert torch.equal(state.amax_history, before[0]) and torch.equal(state.scale, before[1])
    assert not FP8GlobalStateManager.is_fp8_enabled()


def test_a_kept_graph_is_run_again_twice() -> None:
    (model, _), x = blocks(), torch.randn(64, 32, requires_grad=True)
    with autocast(recipe=MXFP8BlockScaling()):
        y = checkpoint(model, x, use_reentrant=False)
    y.sum().backward(retain_graph=True)
    first = x.grad.clone()
    y.sum().backward()
    assert torch.equal(x.grad, first + first)
