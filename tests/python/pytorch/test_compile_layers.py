# SPDX-License-Identifier: Apache-2.0
"""Layers in compiled functions: the bytes of eager, over steps of training."""

import copy

import pytest
import torch
from families import sample
from narrowfloat.common import recipe

from narrowfloat import pytorch as nfp

RECIPES = {
    "mxfp8": recipe.MXFP8BlockScaling,
    "current": recipe.Float8CurrentScaling,
    "block": recipe.Float8BlockScaling,
    "nvfp4": lambda: recipe.NVFP4BlockScaling(disable_stochastic_rounding=True),
    "delayed": lambda: recipe.DelayedScaling(amax_history_len=2),
}


@pytest.mark.parametrize("kind", list(RECIPES))
def test_a_compiled_layer_trains_as_eager(kind: str) -> None:
    torch._dynamo.reset()
    chosen = RECIPES[kind]()
    inside = nfp.Linear(128, 256, dtype=torch.bfloat16)
    outside = copy.deepcopy(inside)

    def run(layer: nfp.Linear, x: torch.Tensor) -> torch.Tensor:
        with nfp.autocast(enabled=True, recipe=chosen):
            return layer(x)

    compiled = torch.compile(run, backend="aot_eager")
    for i in range(3):
        found = []
        for layer, function in ((inside, compiled), (outside, run)):
            x = ((i + 1) * sample(64, 128, dtype=torch.bfloat16, seed=i)).requires_grad_()
            y = function(layer, x)
            y.float().square().sum().backward()
            found.append((y.detach(), x.grad, layer.weight.grad, layer.bias.grad))
            with torch.no_grad():
                for parameter in layer.parameters():
                    parameter -= 1e-3 * parameter.grad
                    parameter.grad = None
        for got, want in zip(*found, strict=True):
            assert torch.equal(got, want), i
