# SPDX-License-Identifier: Apache-2.0
"""Tests that functions which a GPU's compiler fuses round only their results, like one kernel."""

import narrowfloat.te  # noqa: F401  before TransformerEngine
import pytest
import torch

pytest.importorskip("transformer_engine", reason="TransformerEngine is not installed")

from layers import BF16, te  # isort: skip
from narrowfloat.pytorch import tex  # isort: skip
from transformer_engine.pytorch import jit  # isort: skip

# Half a step of bf16 for the result, and 2^-20 for the roundings of float32 and of its tanh.
STEP = 2.0**-8 + 2.0**-20


def points() -> torch.Tensor:
    """Returns bf16 values for which GELU does not cancel."""
    return torch.linspace(-1, 3, 4096).to(BF16)


def test_gelu_is_rounded_once() -> None:
    x = points()
    want = torch.nn.functional.gelu(x.double(), approximate="tanh")
    got = jit.bias_gelu_fused(x, None)
    assert got.dtype == BF16
    assert ((got.double() - want).abs() <= STEP * want.abs()).all()


def test_gelu_of_a_bias_does_not_round_the_sum() -> None:
    x, bias = points(), torch.full((4096,), 2.0**-10, dtype=BF16)
    want = torch.nn.functional.gelu(x.double() + bias.double(), approximate="tanh")
    got = jit.bias_gelu_fused(x, bias)
    assert ((got.double() - want).abs() <= STEP * want.abs() + 2.0**-20).all()


def test_the_gradient_of_gelu_sums_unrounded_values() -> None:
    rows = 256
    x, grad = points().repeat(rows, 1), torch.ones(rows, 4096, dtype=BF16)
    bias = torch.full((4096,), 2.0**-10, dtype=BF16)
    point = (points().double() + bias.double()).requires_grad_()
    torch.nn.functional.gelu(point, approximate="tanh").sum().backward()
    bias_grad, got = jit.bgrad_dgelu_fused(grad, x, bias)
    bound = STEP * point.grad.abs() + 2.0**-20
    assert ((got.double() - point.grad).abs() <= bound).all()
    # All rows are equal: their sum is 256 times one of them, and float32's sum errs by 2^-16.
    bound = (STEP + 2.0**-16) * point.grad.abs() * rows + 2.0**-12
    assert ((bias_grad.double() - rows * point.grad).abs() <= bound).all()


@pytest.mark.parametrize("training", [False, True])
def test_a_residual_is_added_before_rounding(training: bool) -> None:
    x, bias, residual = torch.tensor([[1.0], [2.0**-8], [-1.0]]).to(BF16)
    run = jit.bias_dropout_add_fused_train if training else jit.bias_dropout_add_fused_inference
    # 1 + 2^-8 is halfway between two values of bf16: rounding it first loses it.
    assert run(x, bias, residual, 0.0).item() == 2.0**-8


def test_an_mlp_has_the_bytes_of_its_activation_alone() -> None:
    """Compares a layer whose GELU TransformerEngine fuses with calls of the native module."""
    torch.manual_seed(0)
    module = te.LayerNormMLP(64, 128, bias=False, params_dtype=BF16)
    x = torch.randn(16, 64, dtype=BF16)
    hidden = te.LayerNormLinear(64, 128, bias=False, params_dtype=BF16)
    with torch.no_grad():
        hidden.weight.copy_(module.fc1_weight)
        hidden.layer_norm_weight.copy_(module.layer_norm_weight)
        want = tex.gelu(hidden(x), None) @ module.fc2_weight.t()
        assert torch.equal(module(x), want)
