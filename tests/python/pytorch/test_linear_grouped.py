# SPDX-License-Identifier: Apache-2.0
"""Tests that GroupedLinear has the results of one Linear per weight."""

import pytest
import torch
from narrowfloat.common.recipe import (
    CustomRecipe,
    DelayedScaling,
    Float8BlockScaling,
    Float8CurrentScaling,
    MXFP8BlockScaling,
    NVFP4BlockScaling,
    Recipe,
)
from narrowfloat.pytorch import GroupedLinear, Linear, autocast, quantized_model_init
from narrowfloat.pytorch.quantization import FP8GlobalStateManager, QuantizerRole

from narrowfloat import pytorch as nfp

BF16 = torch.bfloat16
RECIPES = [
    None,
    DelayedScaling(amax_history_len=3),
    Float8CurrentScaling(),
    MXFP8BlockScaling(),
    Float8BlockScaling(),
    NVFP4BlockScaling(disable_stochastic_rounding=True),
    MXFP8BlockScaling(backward_override="high_precision"),
    Float8CurrentScaling(backward_override="dequantized"),
]


@pytest.fixture(autouse=True)
def fresh_state() -> None:
    FP8GlobalStateManager.reset()


def layers(count: int, bias: bool = True) -> tuple[GroupedLinear, list[Linear]]:
    """Returns a grouped layer, and one layer per weight with the same values."""
    torch.manual_seed(5)
    grouped = GroupedLinear(count, 64, 32, bias=bias, dtype=BF16)
    torch.manual_seed(5)
    return grouped, [Linear(64, 32, bias, dtype=BF16) for _ in range(count)]


def step(recipe: Recipe | None, forward: object, x: torch.Tensor, gradient: torch.Tensor) -> list:
    x = x.detach().requires_grad_()
    with autocast(enabled=recipe is not None, recipe=recipe):
        y = forward(x)
    y.backward(gradient)
    return [y.detach(), x.grad]


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda r: type(r).__name__)
@pytest.mark.parametrize("splits", [[32, 0, 64], [0, 0, 96], [32, 32, 32], [0, 0, 0]], ids=str)
def test_it_is_several_linear_layers(recipe: Recipe | None, splits: list[int]) -> None:
    grouped, singles = layers(3)
    x, gradient = torch.randn(sum(splits), 64, dtype=BF16), torch.randn(sum(splits), 32, dtype=BF16)

    def apart(rows: torch.Tensor) -> torch.Tensor:
        parts = zip(singles, rows.split(splits), strict=True)
        return torch.cat([layer(part) for layer, part in parts])

    for _ in range(3):
        found = step(recipe, lambda rows: grouped(rows, splits), x, gradient)
        for a, b in zip(found, step(recipe, apart, x, gradient), strict=True):
            assert torch.equal(a, b)
        x = x * 3
    for i, layer in enumerate(singles):
        assert torch.equal(getattr(grouped, f"weight{i}").grad, layer.weight.grad)
        assert torch.equal(getattr(grouped, f"bias{i}").grad, layer.bias.grad)


def test_splits_may_be_a_tensor_and_rows_may_have_several_dimensions() -> None:
    grouped, _ = layers(2)
    x = torch.randn(4, 8, 64, dtype=BF16)
    with autocast(recipe=Float8CurrentScaling()):
        y = grouped(x, torch.tensor([8, 24]))
        assert y.shape == (4, 8, 32)
        assert torch.equal(y.reshape(32, 32), grouped(x.reshape(32, 64), [8, 24]))


def test_fp8_workspaces_and_returned_biases() -> None:
    grouped, _ = layers(2)
    x = torch.randn(32, 64, dtype=BF16)
    grouped.return_bias = True
    with autocast(recipe=Float8CurrentScaling()):
        y, biases = grouped(x, [16, 16], is_first_microbatch=True)
        with torch.no_grad():
            grouped.weight0.zero_()
        again, _ = grouped(x, [16, 16], is_first_microbatch=False)
    assert torch.equal(y, again)
    assert [torch.equal(biases[i], getattr(grouped, f"bias{i}")) for i in range(2)] == [True] * 2
    grouped.return_bias = False
    with autocast(recipe=Float8CurrentScaling()):
        y = grouped(x, [16, 16])
    assert torch.equal(y[:16], grouped.bias0.expand(16, 32))


def test_names_of_parameters() -> None:
    grouped, _ = layers(2)
    assert [n for n, _ in grouped.named_parameters()] == ["weight0", "bias0", "weight1", "bias1"]
    assert repr(grouped) == "GroupedLinear(num_gemms=2, in_features=64, out_features=32, bias=True)"
    bare, _ = layers(2, bias=False)
    assert [n for n, _ in bare.named_parameters()] == ["weight0", "weight1"]
    assert bare(torch.zeros(4, 64, dtype=BF16), [2, 2]).abs().max() == 0


def test_quantized_parameters() -> None:
    recipe = MXFP8BlockScaling()
    torch.manual_seed(5)
    with quantized_model_init(recipe=recipe):
        quantized = GroupedLinear(2, 64, 32, dtype=BF16)
    plain, _ = layers(2)
    x = torch.randn(64, 64, dtype=BF16)
    with autocast(recipe=recipe):
        assert torch.equal(quantized(x, [32, 32]), plain(x, [32, 32]))


def test_what_it_refuses() -> None:
    grouped, _ = layers(2)
    x = torch.zeros(4, 64, dtype=BF16)
    for splits in ([4], [1, 2], [5, -1]):
        with pytest.raises(ValueError) as raised:
            grouped(x, splits)
        assert str(raised.value) == (
            f"GroupedLinear: m_splits must have 2 sizes that add up to 4 rows, got {splits}"
        )
    with autocast(recipe=Float8CurrentScaling()):
        _, single = layers(1)
        quantized = single[0](x, fp8_output=True)
    with pytest.raises(
        TypeError, match=r"^GroupedLinear: the input must be plain, got Float8Tensor$"
    ):
        grouped(quantized, [2, 2])
    with pytest.raises(ValueError, match=r"^GroupedLinear: num_gemms must be positive, got 0$"):
        GroupedLinear(0, 4, 4)


@pytest.mark.parametrize("kind", ["input", "weight", "grad_output"])
@pytest.mark.parametrize("hybrid", [False, True])
def test_directions_in_high_precision_are_those_of_all_weights(kind: str, hybrid: bool) -> None:
    asked = []

    def factory(role: QuantizerRole | None) -> nfp.Quantizer:
        made = nfp.MXFP8Quantizer(nfp.DType.kFloat8E4M3)
        if role is None or role.tensor_type != kind:
            return made
        asked.append(role)
        if len(asked) > 1:
            return made
        plain = nfp.IdentityQuantizer()
        if not hybrid:
            return plain
        return nfp.HybridQuantizer(rowwise_quantizer=made, columnwise_quantizer=plain)

    layer = GroupedLinear(2, 64, 64)
    names = {"input": "activation", "grad_output": "gradient"}
    message = (
        f"^GroupedLinear: {names.get(kind, kind)} quantizers must not mix Identity-backed and "
        "quantized directions, got .*Quantizer and .*Quantizer$"
    )
    with pytest.raises(ValueError, match=message), autocast(recipe=CustomRecipe(qfactory=factory)):
        layer(torch.ones(64, 64), [32, 32])
