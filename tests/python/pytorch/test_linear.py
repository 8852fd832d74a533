# SPDX-License-Identifier: Apache-2.0
"""Compares Linear with torch.nn.Linear and with LinearByHand."""

import copy
import io
import pickle
from collections.abc import Callable

import numpy as np
import pytest
import torch
from linear_by_hand import RECIPES, LinearByHand, sums_of_strips
from narrowfloat.common.recipe import (
    DelayedScaling,
    Float8CurrentScaling,
    MXFP8BlockScaling,
    NVFP4BlockScaling,
)
from narrowfloat.pytorch import (
    Float8Tensor,
    GroupedLinear,
    Linear,
    MXFP8Tensor,
    autocast,
    quantized_model_init,
)
from narrowfloat.pytorch.module import Linear as FromModule
from narrowfloat.pytorch.quantization import FP8GlobalStateManager

BF16 = torch.bfloat16


@pytest.fixture(autouse=True)
def fresh_state() -> None:
    FP8GlobalStateManager.reset()


def pair(*args: object, **kwargs: object) -> tuple[Linear, torch.nn.Linear]:
    """Returns both layers with the same initial values, from the same seed."""
    torch.manual_seed(7)
    ours = Linear(*args, **kwargs)
    torch.manual_seed(7)
    return ours, torch.nn.Linear(*args, **kwargs)


def run(layer: torch.nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """Returns the result of a pass, and the gradients of the input and the parameters."""
    x = x.detach().requires_grad_()
    layer.zero_grad()
    y = layer(x)
    (y.float() * torch.linspace(-1, 1, y.numel()).reshape(y.shape)).sum().backward()
    return [y.detach(), x.grad, *(p.grad for p in layer.parameters() if p.grad is not None)]


def assert_same(found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == b.dtype and torch.equal(a, b)


# A replacement for torch.nn.Linear.


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, BF16, torch.float64])
@pytest.mark.parametrize("shape", [(5, 24), (24,), (0, 24), (2, 3, 4, 24)], ids=str)
def test_without_a_recipe_it_is_nn_linear(
    shape: tuple[int, ...], dtype: torch.dtype, bias: bool
) -> None:
    ours, theirs = pair(24, 16, bias, "cpu", dtype)
    assert repr(ours) == repr(theirs)
    assert {k for k in ours.state_dict() if k != "_extra_state"} == set(theirs.state_dict())
    x = torch.randn(shape, dtype=dtype)
    assert_same(run(ours, x), run(theirs, x))


def test_under_torch_autocast_without_a_recipe_it_is_nn_linear() -> None:
    ours, theirs = pair(24, 16)
    with torch.autocast("cpu", BF16):
        x = torch.randn(8, 24)
        assert_same(run(ours, x), run(theirs, x))


def test_names_and_module_paths() -> None:
    assert FromModule is Linear
    assert Linear(4, 4, name="mine").name == "mine"
    first, second = (int(Linear(4, 4).name.removeprefix("Layer_")) for _ in range(2))
    assert second == first + 1


def test_the_meta_device() -> None:
    layer = Linear(16, 8, device="meta")
    assert layer.weight.is_meta
    layer.to_empty(device="cpu")
    torch.manual_seed(3)
    layer.reset_parameters()
    torch.manual_seed(3)
    assert torch.equal(layer.weight, Linear(16, 8).weight)
    layer = Linear(16, 8, device="meta")
    layer.reset_parameters(defer_init=True)
    assert layer.weight.is_meta
    torch.manual_seed(3)
    layer.reset_parameters()
    torch.manual_seed(3)
    expected = Linear(16, 8)
    assert torch.equal(layer.weight, expected.weight)
    assert torch.equal(layer.bias, expected.bias)


# The same bits as LinearByHand.


def network(dtype: torch.dtype) -> list[Linear]:
    torch.manual_seed(11)
    return [Linear(64, 96, dtype=dtype), Linear(96, 32, dtype=dtype)]


@pytest.mark.parametrize("name", RECIPES)
def test_training_is_that_of_quantizers_and_products(name: str) -> None:
    recipe, rate, losses = RECIPES[name](), 0.05, []
    layers = network(BF16)
    model = torch.nn.Sequential(layers[0], torch.nn.ReLU(), layers[1])
    hands = [LinearByHand(layer.weight, layer.bias, recipe) for layer in layers]
    x, target = torch.randn(64, 64, dtype=BF16), torch.randn(64, 32, dtype=BF16)
    for _ in range(5):
        with autocast(recipe=recipe):
            y = model(x)
        loss = (y.float() - target.float()).square().mean()
        model.zero_grad()
        loss.backward()
        losses.append(loss.item())
        inside = hands[0].forward(x)
        result = hands[1].forward(torch.relu(inside))
        assert torch.equal(result, y)
        for hand in hands:
            hand.step("forward")
        dy = ((result.float() - target.float()) * 2 / y.numel()).to(BF16)
        hands[0].backward(torch.where(inside > 0, hands[1].backward(dy), 0.0))
        for layer, hand in zip(layers, hands, strict=True):
            hand.step("backward")
            assert torch.equal(layer.weight.grad, hand.weight_grad)
            assert torch.equal(layer.bias.grad, hand.bias_grad)
            with torch.no_grad():
                for mine, theirs in (
                    (layer.weight, hand.weight_grad), (layer.bias, hand.bias_grad)
                ):  # fmt: skip
                    mine -= rate * theirs
                hand.weight.copy_(layer.weight)
                hand.bias.copy_(layer.bias)
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("override", ["high_precision", "dequantized"])
@pytest.mark.parametrize("kind", [Float8CurrentScaling, MXFP8BlockScaling])
def test_a_backward_override(kind: type, override: str) -> None:
    (layer, _), x = pair(64, 32, dtype=BF16), torch.randn(32, 64, dtype=BF16)
    with autocast(recipe=kind(backward_override=override)):
        y, dx, dw, db = run(layer, x)
    with autocast(recipe=kind()):
        assert torch.equal(run(layer, x)[0], y)
    hand = LinearByHand(layer.weight, layer.bias, kind())
    hand.forward(x)
    dy = torch.linspace(-1, 1, y.numel()).reshape(y.shape).to(BF16)
    read = [hand.x.dequantize(dtype=BF16), hand.w.dequantize(dtype=BF16)]
    if override == "high_precision":
        read = [x, layer.weight]
    # The plain product of general_gemm: fp32 sums, rounded once.
    assert torch.equal(dx, (dy.float() @ read[1].float()).to(BF16))
    assert torch.equal(dw, (dy.float().t() @ read[0].float()).to(BF16))
    assert torch.equal(db, dy.sum(0, dtype=torch.float32).to(BF16))


def test_torch_autocast_chooses_the_type() -> None:
    recipe = Float8CurrentScaling()
    layer, _ = pair(64, 32)
    x = torch.randn(16, 64)
    with autocast(recipe=recipe), torch.autocast("cpu", BF16):
        y, dx, dw, db = run(layer, x)
    assert y.dtype == BF16 and {t.dtype for t in (dx, dw, db)} == {torch.float32}
    hand = LinearByHand(layer.weight, layer.bias.to(BF16), recipe)
    assert torch.equal(hand.forward(x.to(BF16)), y)
    dy = torch.linspace(-1, 1, y.numel()).reshape(y.shape).to(BF16)
    assert torch.equal(hand.backward(dy).float(), dx)
    assert torch.equal(hand.weight_grad.float(), dw)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        (Float8CurrentScaling, torch.float32),
        (Float8CurrentScaling, BF16),
        (MXFP8BlockScaling, torch.float32),
        (NVFP4BlockScaling, BF16),
    ],
)
def test_the_gradient_of_a_bias_has_its_order_at_any_number_of_threads(
    kind: type, dtype: torch.dtype
) -> None:
    (layer, _), x = pair(32, 64), torch.randn(416, 32, dtype=dtype)
    dy = torch.linspace(-1, 1, 416 * 64).reshape(416, 64).to(dtype)
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            with autocast(recipe=kind()), torch.autocast("cpu", BF16, enabled=dtype == BF16):
                run(layer, x)
            assert torch.equal(layer.bias.grad, sums_of_strips(dy)), "float32, not rounded"
    finally:
        torch.set_num_threads(before)


# Several passes, second-order gradients, copies, and changes of inputs and recipes.


def test_microbatches_share_a_kept_weight() -> None:
    recipe = Float8CurrentScaling()
    (layer, _), x = pair(32, 16), torch.randn(8, 32)
    with autocast(recipe=recipe):
        first = layer(x, is_first_microbatch=True)
        kept = layer._fp8_workspaces["weight"]
        with torch.no_grad():
            layer.weight.zero_()
        assert torch.equal(layer(x, is_first_microbatch=False), first)
        assert layer._fp8_workspaces["weight"] is kept
        assert torch.equal(layer(x, is_first_microbatch=True), layer.bias.expand(8, 16))
        assert layer._fp8_workspaces["weight"] is kept
    layer.load_state_dict(pair(32, 16)[1].state_dict())
    with autocast(recipe=recipe):
        assert torch.equal(layer(x, is_first_microbatch=False), first)


@pytest.mark.parametrize(
    "recipe", [DelayedScaling(), MXFP8BlockScaling()], ids=lambda recipe: type(recipe).__name__
)
def test_two_forward_passes_before_their_backward_passes(recipe: object) -> None:
    (layer, _), xs = pair(32, 32), torch.randn(2, 32, 32)
    apart = copy.deepcopy(layer)
    with autocast(recipe=recipe):
        ys = [layer(x) for x in xs]
    ys[0].sum().backward()
    first = layer.weight.grad.clone()
    ys[1].sum().backward()
    with autocast(recipe=recipe):
        y = apart(xs[0])
    y.sum().backward()
    assert torch.equal(apart.weight.grad, first)
    assert not torch.equal(layer.weight.grad, first)


def test_a_kept_graph_takes_a_second_backward_pass() -> None:
    (layer, _), x = pair(32, 32), torch.randn(32, 32)
    with autocast(recipe=MXFP8BlockScaling()):
        y = layer(x)
    y.sum().backward(retain_graph=True)
    first = layer.weight.grad.clone()
    y.sum().backward()
    assert torch.equal(layer.weight.grad, first + first)


NO_SECOND_ORDER = (
    r": second-order gradients are not supported in quantized products; call backward\(\) or "
    r"torch.autograd.grad\(\) without create_graph=True, or run the layer without a recipe$"
)


@pytest.mark.parametrize("activation", [torch.tanh, lambda y: y], ids=["tanh", "linear"])
@pytest.mark.parametrize("wanted", ["input", "weight"])
@pytest.mark.parametrize("kind", [Linear, GroupedLinear])
def test_second_order_gradients_raise_under_a_recipe(
    kind: type, wanted: str, activation: Callable
) -> None:
    layer = kind(*((1,) if kind is GroupedLinear else ()), 64, 32)
    x = torch.randn(32, 64, requires_grad=True)
    with autocast(recipe=MXFP8BlockScaling()):
        y = activation(layer(x, [32]) if kind is GroupedLinear else layer(x))
    of = x if wanted == "input" else next(layer.parameters())
    (first,) = torch.autograd.grad(y.sum(), of, retain_graph=True)
    (gradient,) = torch.autograd.grad(y.sum(), of, create_graph=True)
    assert torch.equal(first, gradient)
    with pytest.raises(RuntimeError, match=NO_SECOND_ORDER):
        gradient.square().sum().backward()


@pytest.mark.parametrize("wanted", ["dy", "x", "weight"])
@pytest.mark.parametrize("of", ["x", "weight", "bias"])
@pytest.mark.parametrize("kind", [Linear, GroupedLinear])
def test_gradients_have_no_derivative_by_any_tensor(kind: type, of: str, wanted: str) -> None:
    """Checks errors with allow_unused, since torch.autograd.functional takes None for zero."""
    grouped = kind is GroupedLinear
    layer = kind(*((1,) if grouped else ()), 64, 32)
    x, dy = torch.randn(32, 64, requires_grad=True), torch.randn(32, 32, requires_grad=True)
    x_of_another = x * 1
    with autocast(recipe=MXFP8BlockScaling()):
        y = layer(x_of_another, [32]) if grouped else layer(x_of_another)
    weight, bias = layer.parameters()
    tensors = {"x": x, "weight": weight, "bias": bias, "dy": dy}
    (gradient,) = torch.autograd.grad(y, tensors[of], dy, create_graph=True)
    with pytest.raises(RuntimeError, match=NO_SECOND_ORDER):
        torch.autograd.grad(gradient.sum(), tensors[wanted], allow_unused=True)


@pytest.mark.parametrize("function", ["vhp", "hvp", "jvp"])
@pytest.mark.parametrize(
    "recipe",
    [
        MXFP8BlockScaling(),
        Float8CurrentScaling(),
        MXFP8BlockScaling(backward_override="high_precision"),
    ],
    ids=["mxfp8", "current", "override"],
)
def test_functions_of_second_order_raise_under_a_recipe(recipe: object, function: str) -> None:
    layer, x = Linear(64, 64), torch.randn(32, 64)

    def loss(given: torch.Tensor) -> torch.Tensor:
        with autocast(recipe=recipe):
            return layer(given).square().sum()

    with pytest.raises(RuntimeError, match=NO_SECOND_ORDER):
        getattr(torch.autograd.functional, function)(loss, x, x)


def test_second_order_gradients_that_are_constants_need_no_graph() -> None:
    layer = Linear(64, 32).requires_grad_(False)
    x = torch.randn(32, 64, requires_grad=True)
    with autocast(recipe=MXFP8BlockScaling()):
        y = layer(x)
    (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    assert not gradient.requires_grad


def test_second_order_gradients_without_a_recipe_are_those_of_nn_linear() -> None:
    found = []
    for layer in pair(64, 32):
        x = torch.linspace(-1, 1, 32 * 64).reshape(32, 64).requires_grad_()
        (gradient,) = torch.autograd.grad(layer(x).tanh().sum(), x, create_graph=True)
        gradient.square().sum().backward()
        found.append([x.grad, layer.weight.grad])
    assert_same(*found)


def test_gradients_that_nobody_wants_are_not_made() -> None:
    layer, _ = pair(32, 16)
    layer.weight.requires_grad_(False)
    with autocast(recipe=Float8CurrentScaling()):
        _, dx, db = run(layer, torch.randn(8, 32))
        assert layer.weight.grad is None and dx.shape == (8, 32) and db.shape == (16,)
        with torch.no_grad():
            assert not layer(torch.randn(8, 32)).requires_grad
        layer.requires_grad_(False)
        assert not layer(torch.randn(8, 32)).requires_grad


def test_tied_weights() -> None:
    first, second = Linear(32, 32), Linear(32, 32)
    second.weight = first.weight
    model = torch.nn.Sequential(first, second)
    assert len(list(model.parameters())) == 3
    with autocast(recipe=Float8CurrentScaling()):
        model(torch.randn(4, 32)).sum().backward()
    assert first.weight.grad is second.weight.grad
    twin = copy.deepcopy(model)
    assert twin[0].weight is twin[1].weight


@pytest.mark.parametrize("way", ["deepcopy", "pickle", "torch.save"])
def test_a_copy_goes_on_like_the_layer(way: str) -> None:
    recipe, x = DelayedScaling(amax_history_len=3), torch.randn(8, 32)
    layer, _ = pair(32, 16)

    def step(module: Linear) -> list[torch.Tensor]:
        with autocast(recipe=recipe):
            y = module(x)
        y.sum().backward()
        return [y.detach(), module.weight.grad.clone()]

    step(layer)
    if way == "deepcopy":
        twin = copy.deepcopy(layer)
    elif way == "pickle":
        twin = pickle.loads(pickle.dumps(layer))
    else:
        file = io.BytesIO()
        torch.save(layer, file)
        file.seek(0)
        twin = torch.load(file, weights_only=False)
    layer.weight.grad = twin.weight.grad = None
    expected = step(layer)
    assert_same(step(twin), expected)


def test_a_quantized_input_stays_as_it_is() -> None:
    (layer, _), x = pair(64, 32), torch.randn(32, 64)
    recipe = MXFP8BlockScaling()
    hand = LinearByHand(layer.weight, layer.bias, recipe)
    q = hand.input(x)
    with autocast(recipe=recipe):
        assert torch.equal(layer(q), layer(x))
    assert q.get_usages() == {"rowwise": True, "columnwise": True}
    plain = layer(q)
    assert torch.equal(plain, torch.nn.functional.linear(q.dequantize(), layer.weight, layer.bias))


def test_quantized_results() -> None:
    (layer, _), x = pair(64, 32, dtype=BF16), torch.randn(32, 64, dtype=BF16, requires_grad=True)
    with autocast(recipe=Float8CurrentScaling()):
        y = layer(x, fp8_output=True)
        assert isinstance(y, Float8Tensor) and y.shape == (32, 32)
        y.dequantize().sum().backward()
        assert x.grad.shape == x.shape
        expected = layer(x)
    assert torch.equal(y.dequantize(), LinearByHand(
        layer.weight, layer.bias, Float8CurrentScaling()).weights(expected.detach()).dequantize()
    )  # fmt: skip


@pytest.mark.parametrize("inp", [None, np.ones((32, 64), np.float32)], ids=["None", "array"])
@pytest.mark.parametrize("quantizes", [False, True])
def test_an_input_that_is_no_tensor_is_named(inp: object, quantizes: bool) -> None:
    layer, group = Linear(64, 32), GroupedLinear(1, 64, 32)
    with autocast(enabled=quantizes, recipe=MXFP8BlockScaling()):
        for call in (lambda: layer(inp), lambda: group(inp, [32])):
            with pytest.raises(
                TypeError, match=f"must be a torch.Tensor, got {type(inp).__name__}"
            ):
                call()


def test_types_must_agree() -> None:
    layer, _ = pair(32, 16)
    with autocast(recipe=Float8CurrentScaling()), pytest.raises(TypeError) as raised:
        layer(torch.randn(8, 32, dtype=BF16))
    assert str(raised.value) == (
        "Linear: the input and weight must have the same dtype outside torch.autocast, got "
        "torch.bfloat16 and torch.float32"
    )


def test_a_change_of_recipe_makes_new_quantizers() -> None:
    (layer, _), x = pair(32, 32), torch.randn(32, 32)
    found = []
    for recipe in (Float8CurrentScaling(), MXFP8BlockScaling(), Float8CurrentScaling()):
        with autocast(recipe=recipe):
            found.append(layer(x, is_first_microbatch=False))
    assert torch.equal(found[0], found[2]) and not torch.equal(found[0], found[1])
    made = layer.quantizers["scaling_fwd"]
    with autocast(recipe=Float8CurrentScaling()):  # another object of the same recipe
        layer(x)
    assert layer.quantizers["scaling_fwd"] is made


# Quantized parameters.


@pytest.mark.parametrize(
    "recipe",
    [Float8CurrentScaling(), MXFP8BlockScaling()],
    ids=lambda recipe: type(recipe).__name__,
)
def test_quantized_parameters(recipe: object) -> None:
    torch.manual_seed(7)
    with quantized_model_init(recipe=recipe, preserve_high_precision_init_val=True):
        layer = Linear(64, 32)
    plain, x = pair(64, 32)[1], torch.randn(32, 64)
    assert isinstance(layer.weight, (Float8Tensor, MXFP8Tensor))
    assert torch.equal(layer.weight.get_high_precision_init_val(), plain.weight)
    layer.float()  # swaps the parameter's attributes with another tensor's
    assert torch.equal(layer.weight.get_high_precision_init_val(), plain.weight)
    layer.weight.clear_high_precision_init_val()
    assert layer.weight.get_high_precision_init_val() is None
    ours = Linear(64, 32)
    ours.load_state_dict(plain.state_dict())
    with autocast(recipe=recipe):
        assert_same(run(layer, x), run(ours, x))
    wrong = NVFP4BlockScaling(disable_rht=True)
    with autocast(recipe=wrong), pytest.raises(RuntimeError, match="Recipe mismatch for 'weight'"):
        layer(x)


def test_without_preservation_no_values_are_kept() -> None:
    with quantized_model_init(recipe=MXFP8BlockScaling()):
        assert not hasattr(Linear(32, 32).weight, "get_high_precision_init_val")


def test_quantized_parameters_from_the_meta_device() -> None:
    with quantized_model_init(recipe=MXFP8BlockScaling()):
        layer = Linear(64, 32, device="meta")
    layer.to_empty(device="cpu")
    torch.manual_seed(7)
    layer.reset_parameters()
    torch.manual_seed(7)
    with quantized_model_init(recipe=MXFP8BlockScaling()):
        expected = Linear(64, 32).weight
    assert isinstance(layer.weight, MXFP8Tensor)
    assert torch.equal(layer.weight._rowwise_data, expected._rowwise_data)
    torch.manual_seed(7)
    parameter = layer.weight
    layer.reset_parameters()
    assert layer.weight is parameter
    assert torch.equal(layer.weight._rowwise_data, expected._rowwise_data)
