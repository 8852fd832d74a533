# SPDX-License-Identifier: Apache-2.0
"""Tests that layers in torch.utils.checkpoint have the same bytes in the second pass."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from narrowfloat.common.recipe import (
    DelayedScaling,
    Float8CurrentScaling,
    MXFP8BlockScaling,
    Recipe,
)
from narrowfloat.pytorch import DType, GroupedLinear, Linear, MXFP8Quantizer, autocast
from narrowfloat.pytorch.quantization import FP8GlobalStateManager
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

RECIPES = [DelayedScaling(amax_history_len=4), Float8CurrentScaling(), MXFP8BlockScaling()]


@pytest.fixture(autouse=True)
def fresh_state() -> None:
    FP8GlobalStateManager.reset()


class Grouped(GroupedLinear):
    """A GroupedLinear with one half of the rows for each of two weights."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x, [x.shape[0] // 2] * 2)


def blocks() -> list[torch.nn.Module]:
    torch.manual_seed(0)
    return [
        torch.nn.Sequential(Linear(32, 32), torch.nn.ReLU(), Grouped(2, 32, 32)) for _ in range(2)
    ]


Wrapped = Callable[[Callable, torch.Tensor], torch.Tensor]


def train(run: Wrapped, recipe: Recipe, inside: bool, passes: int = 1) -> list[torch.Tensor]:
    """Returns results and gradients of three steps. inside: each block enters the autocast itself.

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
@pytest.mark.parametrize("inside", [False, True], ids=["around", "inside"])
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: type(recipe).__name__)
def test_a_plain_pass_of_a_layer_stays_plain(recipe: Recipe, inside: bool, reentrant: bool) -> None:
    def trained(run: Wrapped) -> list[torch.Tensor]:
        FP8GlobalStateManager.reset()
        torch.manual_seed(0)
        layer, found = Linear(32, 32), []

        def block(x: torch.Tensor) -> torch.Tensor:
            with autocast(enabled=False):
                x = layer(x)
            with autocast(recipe=recipe) if inside else nullcontext():
                return layer(torch.relu(x))

        for _ in range(2):
            x = torch.randn(32, 32, requires_grad=True)
            with nullcontext() if inside else autocast(recipe=recipe):
                y = run(block, x)
            y.square().sum().backward()
            found += [y.detach(), x.grad, layer.weight.grad.clone()]
        return found

    expected = trained(plain)
    for a, b in zip(trained(again(reentrant)), expected, strict=True):
        assert torch.equal(a, b)


def keeping_relu(block: Callable, x: torch.Tensor) -> torch.Tensor:
    kept = [torch.ops.aten.relu.default]
    contexts = partial(create_selective_checkpoint_contexts, kept)
    return checkpoint(block, x, use_reentrant=False, context_fn=contexts)


@pytest.mark.parametrize("inside", [False, True], ids=["around", "inside"])
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: type(recipe).__name__)
@pytest.mark.parametrize("passes", [1, 2])
def test_selective_checkpoints_run_layers_again(recipe: Recipe, inside: bool, passes: int) -> None:
    expected = train(plain, recipe, inside, passes)
    for a, b in zip(train(keeping_relu, recipe, inside, passes), expected, strict=True):
        assert torch.equal(a, b)


def test_selective_checkpoints_run_quantizers_again() -> None:
    quantizer = MXFP8Quantizer(DType.kFloat8E4M3)

    def block(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(quantizer(x).dequantize()).square()

    for _ in range(2):  # the first call fills caches of the quantizer
        x = torch.randn(64, 32, requires_grad=True)
        keeping_relu(block, x).sum().backward()
        (expected,) = torch.autograd.grad(block(x).sum(), x)
        assert torch.equal(x.grad, expected)


def test_selective_checkpoints_keep_products_of_layers_without_a_recipe() -> None:
    layer, seen = Linear(32, 32), []

    def policy(_: object, operator: object, *args: object, **kwargs: object) -> CheckpointPolicy:
        seen.append(operator)
        return CheckpointPolicy.MUST_SAVE

    contexts = partial(create_selective_checkpoint_contexts, policy)
    x = torch.randn(64, 32, requires_grad=True)
    checkpoint(layer, x, use_reentrant=False, context_fn=contexts).sum().backward()
    assert torch.ops.aten.addmm.default in seen


@pytest.mark.parametrize("reentrant", [False, True], ids=["hooks", "reentrant"])
@pytest.mark.parametrize("inside", [False, True], ids=["around", "inside"])
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: type(recipe).__name__)
def test_compiled_functions_in_checkpoints(recipe: Recipe, inside: bool, reentrant: bool) -> None:
    if inside and isinstance(recipe, DelayedScaling):
        pytest.skip("an autocast of delayed scaling is around the compiled function")
    torch._dynamo.reset()

    def run(block: Callable, x: torch.Tensor) -> torch.Tensor:
        function = torch.compile(block, backend="aot_eager")
        return checkpoint(function, x, use_reentrant=reentrant)

    expected = train(plain, recipe, inside)
    for a, b in zip(train(run, recipe, inside), expected, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: type(recipe).__name__)
def test_checkpoints_in_compiled_functions(recipe: Recipe) -> None:
    torch._dynamo.reset()
    (model, _), x = blocks(), torch.randn(64, 32, requires_grad=True)
    in_graph = not isinstance(recipe, DelayedScaling)  # its first layer counts the pass
    compiled = torch.compile(again(False), backend="aot_eager", fullgraph=in_graph)
    with autocast(recipe=recipe):
        y = compiled(model, x)
    y.square().sum().backward()
    found = x.grad.clone()
    (model, _), x.grad = blocks(), None
    with autocast(recipe=recipe):
        expected = model(x)
    expected.square().sum().backward()
    assert torch.equal(y, expected) and torch.equal(x.grad, found)


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
