# SPDX-License-Identifier: Apache-2.0
"""Tests that layers in compiled functions are one graph and train with the bytes of eager mode."""

import copy
from collections.abc import Callable, Iterator
from contextlib import nullcontext

import pytest
import torch
from families import sample
from narrowfloat.common import recipe
from narrowfloat.pytorch.quantization import FP8GlobalStateManager
from torch._dynamo.testing import CompileCounterWithBackend
from torch.optim.sgd import sgd

from narrowfloat import pytorch as nfp


def mxfp8_weights(role: nfp.QuantizerRole) -> nfp.Quantizer:
    """Returns an MXFP8 quantizer: E5M2 for gradients, else E4M3."""
    gradient = role.tensor_type.startswith("grad")
    return nfp.MXFP8Quantizer(nfp.DType.kFloat8E5M2 if gradient else nfp.DType.kFloat8E4M3)


def some_delayed(role: nfp.QuantizerRole) -> object:
    """Returns a request of delayed scaling for weights, else a quantizer of current scaling."""
    if role.tensor_type == "weight":
        return nfp.DelayedScalingRequest(amax_history_len=2)
    return nfp.Float8CurrentScalingQuantizer(nfp.DType.kFloat8E4M3)


RECIPES: dict[str, Callable[[], recipe.Recipe]] = {
    "mxfp8": recipe.MXFP8BlockScaling,
    "current": recipe.Float8CurrentScaling,
    "block": recipe.Float8BlockScaling,
    "nvfp4": recipe.NVFP4BlockScaling,  # with the transform and stochastic rounding
    "custom": lambda: recipe.CustomRecipe(qfactory=mxfp8_weights),
    "high_precision": lambda: recipe.MXFP8BlockScaling(backward_override="high_precision"),
    "delayed": lambda: recipe.DelayedScaling(amax_history_len=2),
    "custom_delayed": lambda: recipe.CustomRecipe(qfactory=some_delayed),
}
# A graph cannot contain the update at the end of an autocast of delayed scaling.
INSIDE = [kind for kind in RECIPES if "delayed" not in kind]


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    FP8GlobalStateManager.reset()
    yield
    FP8GlobalStateManager.reset()


class Network(torch.nn.Module):
    """Two layers with a ReLU between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nfp.Linear(128, 256, dtype=torch.bfloat16)
        self.second = nfp.Linear(256, 128, dtype=torch.bfloat16, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)))


Call = Callable[[torch.nn.Module, torch.Tensor], torch.Tensor]


def within(chosen: recipe.Recipe) -> Call:
    """Returns a call of a network inside the recipe's autocast."""

    def run(net: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        with nfp.autocast(recipe=chosen):
            return net(x)

    return run


def plainly(net: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    return net(x)


def train(
    nets: tuple[torch.nn.Module, torch.nn.Module],
    calls: tuple[Call, Call],
    chosen: recipe.Recipe | None,
    rows: tuple[int, ...],
) -> None:
    """Trains one step per number of rows, and asserts that both networks agree in every bit.

    chosen: the recipe of an autocast around the calls.
    """
    optimizers = [torch.optim.AdamW(net.parameters(), lr=1e-2) for net in nets]
    for step, count in enumerate(rows):
        found = []
        for net, call, optimizer in zip(nets, calls, optimizers, strict=True):
            torch.manual_seed(step)
            x = sample(count, 128, dtype=torch.bfloat16, seed=step).requires_grad_()
            with nullcontext() if chosen is None else nfp.autocast(recipe=chosen):
                y = call(net, x)
            y.float().square().sum().backward()
            gradients = [parameter.grad.clone() for parameter in net.parameters()]
            optimizer.step()
            optimizer.zero_grad()
            found.append([y.detach(), x.grad, *gradients, *(p.detach() for p in net.parameters())])
        for i, (got, want) in enumerate(zip(*found, strict=True)):
            assert torch.equal(got, want), f"step {step}, tensor {i}"


def compare(
    call: Call, chosen: recipe.Recipe | None, backend: str = "aot_eager", dynamic: bool = False
) -> None:
    """Trains a network in one graph and its copy in eager mode, and compares them."""
    inside = Network()
    outside = copy.deepcopy(inside)
    counter = CompileCounterWithBackend(backend)
    compiled = torch.compile(call, backend=counter, fullgraph=True, dynamic=dynamic)
    rows = (64, 96, 64, 128) if dynamic else (64, 64, 64)
    train((inside, outside), (compiled, call), chosen, rows)
    assert counter.frame_count == 1
    for layer, other in ((inside.first, outside.first), (inside.second, outside.second)):
        states, expected = layer._states.export(), other._states.export()
        assert states.keys() == expected.keys()
        assert all(torch.equal(states[name], expected[name]) for name in states)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("kind", INSIDE)
def test_a_network_trains_in_one_graph(kind: str, dynamic: bool) -> None:
    compare(within(RECIPES[kind]()), None, dynamic=dynamic)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("kind", ["mxfp8", "delayed", "custom_delayed"])
def test_the_autocast_may_be_around_the_graph(kind: str, dynamic: bool) -> None:
    compare(plainly, RECIPES[kind](), dynamic=dynamic)


def has_compiler() -> bool:
    from torch._inductor.cpp_builder import get_cpp_compiler

    try:
        return bool(get_cpp_compiler())
    except Exception:
        return False


@pytest.mark.skipif(not has_compiler(), reason="inductor needs a C++ compiler")
@pytest.mark.parametrize("kind", ["nvfp4", "delayed"])
def test_inductor_trains_as_eager(kind: str) -> None:
    compare(plainly, RECIPES[kind](), "inductor")


@pytest.mark.parametrize("kind", ["current", "nvfp4", "delayed"])
def test_a_whole_step_is_one_graph(kind: str) -> None:
    """Compiles forward, loss, backward and the optimizer's step."""
    chosen, nets = RECIPES[kind](), [Network()]
    nets.append(copy.deepcopy(nets[0]))

    def step_of(net: Network) -> Callable[[torch.Tensor], torch.Tensor]:
        parameters = list(net.parameters())
        momenta = [torch.zeros_like(parameter) for parameter in parameters]

        def step(x: torch.Tensor) -> torch.Tensor:
            loss = net(x).float().square().mean()
            gradients = list(torch.autograd.grad(loss, parameters))
            with torch.no_grad():
                sgd(
                    parameters,
                    gradients,
                    momenta,
                    lr=1e-2,
                    momentum=0.9,
                    weight_decay=0.0,
                    dampening=0.0,
                    nesterov=False,
                    maximize=False,
                )
            return loss.detach()

        return step

    steps = [torch.compile(step_of(nets[0]), backend="aot_eager", fullgraph=True), step_of(nets[1])]
    for i in range(3):
        losses = []
        for step in steps:
            torch.manual_seed(i)
            with nfp.autocast(recipe=chosen), torch._dynamo.config.patch(trace_autograd_ops=True):
                losses.append(step(sample(64, 128, dtype=torch.bfloat16, seed=i)))
        assert torch.equal(*losses)
        for own, other in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
            assert torch.equal(own, other), i


def test_an_optimizer_breaks_graphs_of_its_own() -> None:
    """Checks that PyTorch's Optimizer.step() breaks a graph, even with plain parameters."""
    weight = torch.nn.Parameter(torch.ones(2, 2))
    weight.grad = torch.ones(2, 2)
    optimizer = torch.optim.SGD([weight], lr=0.5)
    with pytest.raises(torch._dynamo.exc.Unsupported, match="graph_break"):
        torch.compile(lambda: optimizer.step(), backend="eager", fullgraph=True)()


@pytest.mark.parametrize("kind", ["mxfp8", "delayed"])
def test_quantized_weights_in_one_graph(kind: str) -> None:
    chosen = RECIPES[kind]()
    with nfp.quantized_model_init(recipe=chosen):
        inside = Network()
    outside = copy.deepcopy(inside)
    compiled = torch.compile(plainly, backend="aot_eager", fullgraph=True)
    for i in range(3):
        x, found = sample(64, 128, dtype=torch.bfloat16, seed=i), []
        for net, call in ((inside, compiled), (outside, plainly)):
            with nfp.autocast(recipe=chosen):
                y = call(net, x)
            y.float().sum().backward()
            found.append([y, *(parameter.grad for parameter in net.parameters())])
        for got, want in zip(*found, strict=True):
            assert torch.equal(got, want), i


def test_groups_in_one_graph() -> None:
    chosen = recipe.MXFP8BlockScaling()
    inside = nfp.GroupedLinear(2, 128, 64, dtype=torch.bfloat16)
    outside = copy.deepcopy(inside)

    def run(layer: nfp.GroupedLinear, x: torch.Tensor) -> torch.Tensor:
        with nfp.autocast(recipe=chosen):
            return layer(x, [32, 64])

    compiled = torch.compile(run, backend="aot_eager", fullgraph=True)
    train((inside, outside), (compiled, run), None, (96, 96))


def test_graphs_follow_changes() -> None:
    """Checks results after another recipe, a changed recipe, new states and a renamed layer."""
    net = Network()
    twin = copy.deepcopy(net)
    x = sample(64, 128, dtype=torch.bfloat16)
    compiled = torch.compile(plainly, backend="aot_eager", fullgraph=True)

    def agree(chosen: recipe.Recipe) -> None:
        with torch.no_grad():
            found = []
            for module, call in ((net, compiled), (twin, plainly)):
                with nfp.autocast(recipe=chosen):
                    found.append(call(module, x))
        assert torch.equal(*found)

    delayed, changing = RECIPES["delayed"](), recipe.Float8CurrentScaling()
    agree(delayed)
    agree(changing)
    changing.backward_override = "dequantized"
    changing.fp8_quant_fwd_inp = recipe.QParams(power_2_scale=True)
    agree(changing)
    with nfp.autocast(recipe=delayed):  # makes new states, since the recipe changed
        net(x), twin(x)
    FP8GlobalStateManager.reset()
    agree(delayed)
    net.first.name = "another"
    agree(delayed)
    agree(delayed)


def test_graphs_follow_the_mode_of_products() -> None:
    layer = nfp.Linear(128, 64, dtype=torch.bfloat16)
    call = within(recipe.Float8CurrentScaling())
    compiled = torch.compile(call, backend="aot_eager", fullgraph=True)
    x = sample(64, 128, dtype=torch.bfloat16)
    for mode in ("reproducible", "fast", "reproducible"):
        with nfp.product_mode(mode):
            assert torch.equal(compiled(layer, x), call(layer, x)), mode


@pytest.mark.parametrize("option", ["fp8_output", "fp8_grad"])
@pytest.mark.parametrize("kind", ["mxfp8", "current", "delayed"])
def test_quantized_results_break_the_graph(kind: str, option: str) -> None:
    inside = nfp.Linear(128, 64, dtype=torch.bfloat16)
    outside, chosen, found = copy.deepcopy(inside), RECIPES[kind](), []

    def run(layer: nfp.Linear, x: torch.Tensor) -> torch.Tensor:
        return layer(x, **{option: True})

    for layer, call in ((inside, torch.compile(run, backend="aot_eager")), (outside, run)):
        x = sample(64, 128, dtype=torch.bfloat16).requires_grad_()
        with nfp.autocast(recipe=chosen):
            y = call(layer, x)
        assert isinstance(y, nfp.QuantizedTensor) == (option == "fp8_output")
        y = y.dequantize() if option == "fp8_output" else y
        y.float().square().sum().backward()
        found.append([y, x.grad.dequantize(), layer.weight.grad])
    for got, want in zip(*found, strict=True):
        assert torch.equal(got, want)


def test_eager_delayed_and_compiled_stateless_passes_of_one_layer() -> None:
    """Alternates passes of two recipes; one backward pass runs through both."""
    delayed, current, found = RECIPES["delayed"](), RECIPES["current"](), []
    inside = nfp.Linear(128, 64, dtype=torch.bfloat16)
    outside = copy.deepcopy(inside)
    compiled = torch.compile(plainly, backend="aot_eager", fullgraph=True)
    for layer, call in ((inside, compiled), (outside, plainly)):
        FP8GlobalStateManager.reset()
        results = []
        for seed in range(3):
            x = sample(64, 128, dtype=torch.bfloat16, seed=seed).requires_grad_()
            with nfp.autocast(recipe=delayed):
                y = layer(x)
            with nfp.autocast(recipe=current):
                z = call(layer, x)
            (y.float().square().sum() + z.float().square().sum()).backward()
            results += [y, z, x.grad]
        found.append([*results, layer.weight.grad, *layer._states.export().values()])
    for got, want in zip(*found, strict=True):
        assert torch.equal(got, want)


def test_a_second_pass_of_delayed_scaling_before_the_first_backward_raises() -> None:
    """Checks the error: the first backward pass updates scales that the second graph has saved."""
    layer = nfp.Linear(128, 64, dtype=torch.bfloat16)
    compiled, chosen, results = (
        torch.compile(plainly, backend="aot_eager"),
        RECIPES["delayed"](),
        [],
    )
    for seed in range(2):
        x = sample(64, 128, dtype=torch.bfloat16, seed=seed).requires_grad_()
        with nfp.autocast(recipe=chosen):
            results.append(compiled(layer, x))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        for y in results:
            y.float().sum().backward()


@pytest.mark.parametrize("is_first_microbatch", [True, False])
def test_kept_weights_break_the_graph(is_first_microbatch: bool) -> None:
    chosen = recipe.MXFP8BlockScaling()
    inside = nfp.Linear(128, 64, dtype=torch.bfloat16)
    outside = copy.deepcopy(inside)

    def run(layer: nfp.Linear, x: torch.Tensor) -> torch.Tensor:
        return layer(x, is_first_microbatch=is_first_microbatch) * 2

    compiled = torch.compile(run, backend="aot_eager")
    x = sample(64, 128, dtype=torch.bfloat16)
    with nfp.autocast(recipe=chosen):
        assert torch.equal(compiled(inside, x), run(outside, x))


class Doubling(nfp.Linear):
    """A layer that overrides forward() with other arguments."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x, is_first_microbatch=True) * 2


def test_the_forward_of_a_derived_layer_runs_once_where_the_graph_breaks() -> None:
    layer, x = Doubling(128, 64), sample(64, 128)
    compiled = torch.compile(layer, backend="aot_eager")
    with nfp.autocast(recipe=recipe.MXFP8BlockScaling()):
        assert torch.equal(compiled(x), layer(x))


class Scaled(nfp.Linear):
    """A layer that overrides forward() with the same arguments."""

    def forward(self, x: torch.Tensor, *args: object) -> torch.Tensor:
        return super().forward(x, *args) * 3


def test_the_result_of_a_derived_layer_is_changed_once_where_the_graph_breaks() -> None:
    layer, x = Scaled(128, 64), sample(64, 128)
    compiled = torch.compile(layer, backend="aot_eager")
    with nfp.autocast(recipe=recipe.MXFP8BlockScaling()):
        assert torch.equal(compiled(x, True), layer(x, True))


def test_delayed_scaling_inside_the_function_breaks_the_graph() -> None:
    run = within(RECIPES["delayed"]())
    inside = Network()
    outside = copy.deepcopy(inside)
    train((inside, outside), (torch.compile(run, backend="aot_eager"), run), None, (64, 64))


def test_layers_of_delayed_scaling_elsewhere_do_not_break_the_graph() -> None:
    other, delayed = nfp.Linear(64, 64), RECIPES["delayed"]()
    with nfp.autocast(recipe=delayed):
        other(sample(32, 64)).sum().backward()
    layer, x, mxfp8 = nfp.Linear(64, 64), sample(32, 64), RECIPES["mxfp8"]()

    def forward(x: torch.Tensor) -> torch.Tensor:
        with nfp.autocast(recipe=mxfp8):
            return layer(x)

    made = torch.compile(forward, backend="aot_eager", fullgraph=True)(x)
    assert torch.equal(made, forward(x))


def test_a_recipe_that_the_function_makes_breaks_the_graph() -> None:
    layer, x = nfp.Linear(64, 64), torch.randn(32, 64)

    def call(x: torch.Tensor) -> torch.Tensor:
        with nfp.autocast(recipe=recipe.MXFP8BlockScaling()):
            return layer(x)

    expected = call(x)
    assert torch.equal(torch.compile(call, backend="aot_eager")(x), expected)
    torch._dynamo.reset()
    rule = "autocast: the recipe must be made outside of the function that is compiled"
    with pytest.raises(torch._dynamo.exc.UserError, match=rule):
        torch.compile(call, backend="aot_eager", fullgraph=True)(x)


@pytest.mark.parametrize("rejected_first", [False, True])
@pytest.mark.parametrize("kind", ["mxfp8", "block"])
def test_a_rejected_call_leaves_no_trace(kind: str, rejected_first: bool) -> None:
    layer, chosen, x = nfp.Linear(128, 128), RECIPES[kind](), torch.randn(128, 128)
    compiled = torch.compile(within(chosen), backend="aot_eager")
    if not rejected_first:
        compiled(layer, x).sum().backward()
    with pytest.raises(TypeError, match="the input and weight must have the same dtype"):
        compiled(layer, x.double())
    compiled(layer, x).sum().backward()
    with torch.no_grad():
        assert torch.equal(compiled(layer, x), within(chosen)(layer, x))
