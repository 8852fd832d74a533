# SPDX-License-Identifier: Apache-2.0
"""Tests which layers convert_model replaces, and which of their attributes stay."""

import pytest
import torch
from narrowfloat.common.recipe import Float8CurrentScaling, MXFP8BlockScaling
from narrowfloat.pytorch import Linear, autocast, convert_model, quantized_model_init


class Special(torch.nn.Linear):
    """A subclass, which convert_model does not replace, since it may behave differently."""


def model() -> torch.nn.Sequential:
    torch.manual_seed(2)
    inner = torch.nn.Sequential(torch.nn.Linear(32, 32), Special(32, 32))
    return torch.nn.Sequential(torch.nn.Linear(32, 32, bias=False), torch.nn.ReLU(), inner)


def test_layers_are_replaced_in_place() -> None:
    net = model()
    parameters, before = list(net.parameters()), net(torch.ones(4, 32))
    net.eval()[2].train()
    net[0].weight.requires_grad_(False)
    assert convert_model(net) is net
    assert [type(m).__name__ for m in (net[0], net[2][0], net[2][1])] == [
        "Linear", "Linear", "Special"
    ]  # fmt: skip
    assert isinstance(net[0], Linear) and isinstance(net[2][0], Linear)
    assert [a is b for a, b in zip(net.parameters(), parameters, strict=True)] == [True] * 5
    assert not net[0].training and net[2][0].training and not net[0].weight.requires_grad
    assert [net[0].name, net[2][0].name] == ["0", "2.0"]
    assert net[0].bias is None and net[0].in_features == 32
    assert torch.equal(net(torch.ones(4, 32)), before)


def test_a_second_call_changes_nothing() -> None:
    net = convert_model(model())
    before = [id(module) for module in net.modules()]
    assert [id(module) for module in convert_model(net).modules()] == before


def test_a_filter_sees_names_and_layers() -> None:
    seen, net = [], model()

    def choose(name: str, layer: torch.nn.Module) -> bool:
        seen.append((name, layer.in_features))
        return name.startswith("2")

    convert_model(net, choose)
    assert seen == [("0", 32), ("2.0", 32)]
    assert type(net[0]) is torch.nn.Linear and type(net[2][0]) is Linear


def test_tied_weights_and_shared_layers_stay_so() -> None:
    shared = torch.nn.Linear(8, 8)
    tied = torch.nn.Linear(8, 8)
    tied.weight = shared.weight
    net = convert_model(torch.nn.ModuleDict({"a": shared, "b": shared, "c": tied}))
    assert net["a"] is net["b"] and type(net["a"]) is Linear
    assert net["c"].weight is net["a"].weight


def test_hooks_stay_and_can_be_removed() -> None:
    net, calls = torch.nn.Sequential(torch.nn.Linear(8, 8)), []
    handle = net[0].register_forward_hook(lambda layer, *_: calls.append(type(layer)))
    convert_model(net)
    net(torch.ones(1, 8))
    assert calls == [Linear]
    handle.remove()
    net(torch.ones(1, 8))
    assert calls == [Linear]


def test_a_layer_alone_is_returned() -> None:
    layer = torch.nn.Linear(8, 8)
    made = convert_model(layer)
    assert type(made) is Linear and made.weight is layer.weight


def test_an_optimizer_made_before_trains_the_new_layers() -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    convert_model(net)
    before = net[0].weight.detach().clone()
    with autocast(recipe=MXFP8BlockScaling()):
        y = net(torch.randn(32, 32))
    y.square().sum().backward()
    optimizer.step()
    assert not torch.equal(net[0].weight, before)


def test_a_transformer_layer_quantizes_in_inference_too() -> None:
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval()
    x = torch.randn(2, 16, 32)
    with torch.no_grad():
        exact = layer(x)
        convert_model(layer)
        assert type(layer.linear1) is Linear
        with autocast(recipe=Float8CurrentScaling()):
            quantized = layer(x)
    error = (quantized - exact).abs().max()
    assert 1e-3 < error < 1  # 0 on PyTorch's fused path, which does not quantize


def test_a_layer_with_a_forward_of_its_own_is_left_alone() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(8, 8))
    net[0].forward = lambda x: x
    assert type(convert_model(net)[0]) is torch.nn.Linear


def test_inside_quantized_model_init_it_is_refused() -> None:
    with quantized_model_init(), pytest.raises(RuntimeError) as raised:
        convert_model(model())
    assert str(raised.value) == (
        "convert_model: weights are shared with the old layers, so it must be called outside "
        "quantized_model_init"
    )
