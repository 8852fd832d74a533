# SPDX-License-Identifier: Apache-2.0
"""Tests graphs of make_fx and programs of torch.jit.trace, recorded on tensors with memory.

A graph contains only operators. Native code that is called without an operator would be missing.
"""

import re
from collections.abc import Callable

import pytest
import torch
from families import ALL, sample
from narrowfloat.common.recipe import DelayedScaling, Float8CurrentScaling, MXFP8BlockScaling
from narrowfloat.pytorch.quantization import FP8GlobalStateManager
from torch.fx.experimental.proxy_tensor import make_fx

from narrowfloat import pytorch as nfp


@pytest.fixture(autouse=True)
def fresh_state() -> None:
    FP8GlobalStateManager.reset()


def quantized(kind: str, seed: int) -> torch.Tensor:
    return ALL[kind]()(sample(64, 64, seed=seed)).detach()


def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.linear(x, w)


def values(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x + w.dequantize()


def rows(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x[:, :32] @ w[:32]


def written_copy(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x + w.clone().mul_(2)


def written(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return w.copy_(x) + x


functions = pytest.mark.parametrize("function", [product, values, rows, written_copy, written])
kinds = pytest.mark.parametrize("kind", list(ALL))


@kinds
def test_a_graph_quantizes_its_input(kind: str) -> None:
    quantizer, weight = ALL[kind](), quantized(kind, 1)

    def multiply(x: torch.Tensor) -> torch.Tensor:
        return quantizer(x) @ weight.t() + quantizer(x)

    graph = make_fx(multiply)(sample(64, 64))
    x = sample(64, 64, seed=2)
    assert torch.equal(graph(x), multiply(x))


@functions
@kinds
def test_a_graph_reads_quantized_arguments(kind: str, function: Callable) -> None:
    graph = make_fx(function)(sample(64, 64), quantized(kind, 1))
    x = sample(64, 64, seed=2)
    one, other = quantized(kind, 3), quantized(kind, 3)
    assert torch.equal(graph(x, one), function(x, other))
    assert torch.equal(one.dequantize(), other.dequantize())


@functions
@pytest.mark.parametrize("kind", ["float8_current", "mxfp8", "identity"])
def test_sizes_of_quantized_arguments_may_be_symbols(kind: str, function: Callable) -> None:
    graph = make_fx(function, tracing_mode="symbolic")(sample(64, 64), quantized(kind, 1))
    x = sample(64, 64, seed=2)
    assert torch.equal(graph(x, quantized(kind, 3)), function(x, quantized(kind, 3)))


@pytest.mark.parametrize("recipe", [Float8CurrentScaling(), MXFP8BlockScaling()])
def test_a_graph_has_both_passes_of_a_layer(recipe: object) -> None:
    layer = nfp.Linear(64, 64)

    def gradients(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with nfp.autocast(recipe=recipe):
            y = layer(x)
        return torch.autograd.grad(y.square().sum(), [x, *layer.parameters()])

    graph = make_fx(gradients)(sample(64, 64, requires_grad=True))
    x = sample(64, 64, requires_grad=True, seed=2)
    for found, expected in zip(graph(x), gradients(x), strict=True):
        assert torch.equal(found, expected)


@torch.no_grad()
def test_the_state_of_delayed_scaling_outlives_the_graph_that_made_it() -> None:
    recipe, layer, other = DelayedScaling(amax_history_len=4), nfp.Linear(64, 64), None
    other = nfp.Linear(64, 64)
    other.load_state_dict(layer.state_dict())
    with nfp.autocast(recipe=recipe):
        graph = make_fx(layer)(sample(64, 64))
        other(sample(64, 64))
    for step in range(3):
        x = sample(64, 64, seed=step) * (step + 2)
        with nfp.autocast(recipe=recipe):
            assert torch.equal(graph(x), other(x))
        assert torch.equal(layer.get_extra_state(), other.get_extra_state())


def test_an_autocast_of_delayed_scaling_must_be_around_the_graph() -> None:
    layer = nfp.Linear(64, 64)

    def run(x: torch.Tensor) -> torch.Tensor:
        with nfp.autocast(recipe=DelayedScaling()):
            return layer(x)

    message = (
        "autocast: DelayedScaling is not supported under make_fx; enter the autocast around "
        "make_fx and around each call of the graph"
    )
    with pytest.raises(RuntimeError, match=f"^{re.escape(message)}$"):
        make_fx(run)(sample(64, 64))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("requires_grad", [False, True])
def test_programs_of_jit_trace_cannot_quantize(requires_grad: bool) -> None:
    quantizer = ALL["mxfp8"]()
    message = (
        "quantize: torch.jit.trace is not supported, because its program would keep the codes of "
        "the example input; use torch.export"
    )
    with pytest.raises(NotImplementedError, match=f"^{re.escape(message)}$"):
        torch.jit.trace(lambda x: quantizer(x) * 2, sample(64, 64, requires_grad=requires_grad))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_programs_of_jit_trace_multiply_by_quantized_weights() -> None:
    layer = torch.nn.Linear(64, 64)
    layer.weight = torch.nn.Parameter(quantized("mxfp8", 1))
    program, x = torch.jit.trace(layer, sample(64, 64)), sample(64, 64, seed=2)
    assert torch.equal(program(x), layer(x))
