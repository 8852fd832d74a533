# SPDX-License-Identifier: Apache-2.0
"""A linear layer of only quantizers and general_gemm. Tests compare nfp.Linear with it."""

from collections.abc import Callable

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
from narrowfloat.pytorch.cpp_extensions import general_gemm
from narrowfloat.pytorch.custom_recipes import quantizer_factory_zoo as zoo
from narrowfloat.pytorch.custom_recipes.quantizer_factories import mxfp8_factory
from narrowfloat.pytorch.quantization import QuantizerRole, RecipeState

# One function per kind of recipe, which makes the recipe.
RECIPES: dict[str, Callable[[], Recipe]] = {
    "delayed": lambda: DelayedScaling(amax_history_len=4),
    "current": Float8CurrentScaling,
    "current_e4m3_pow2": lambda: Float8CurrentScaling(use_power_2_scales=True),
    "mxfp8": MXFP8BlockScaling,
    "mxfp8_tiles": lambda: MXFP8BlockScaling(enable_2d_quantization=True),
    "float8_block": Float8BlockScaling,
    "nvfp4": lambda: NVFP4BlockScaling(disable_stochastic_rounding=True),
    "custom_mxfp8": lambda: CustomRecipe(qfactory=mxfp8_factory),
    "hybrid": lambda: CustomRecipe(qfactory=zoo.high_precision_fwd_mxfp8_bwd_factory),
}


def sums_of_strips(rows: torch.Tensor) -> torch.Tensor:
    """Returns the sums of columns in the order of docs/numerics.md: strips of 128 rows first."""
    total = torch.zeros(rows.shape[1])
    for strip in rows.float().split(128):
        part = torch.zeros(rows.shape[1])
        for row in strip:
            part = part + row
        total = total + part
    return total


class LinearByHand:
    """Computes y = x w^T + b and its gradients. step() updates the state of delayed scaling."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor, recipe: Recipe) -> None:
        self.weight, self.bias, self.recipe = weight.detach().clone(), bias.detach().clone(), recipe
        roles = {
            "forward": [QuantizerRole("linear", name) for name in ("input", "weight")] + [None],
            "backward": [QuantizerRole("linear", "grad_output"), None],
        }
        self.states = {
            mode: RecipeState.create(recipe, mode=mode, num_quantizers=len(r), roles=r)
            for mode, r in roles.items()
        }
        self.input, self.weights, _ = self.states["forward"].make_quantizers()
        self.gradient, _ = self.states["backward"].make_quantizers()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.x, self.w = self.input(x.detach()), self.weights(self.weight)
        return general_gemm(self.w, self.x, x.dtype, bias=self.bias)[0]

    def backward(self, dy: torch.Tensor) -> torch.Tensor:
        """Sets weight_grad and bias_grad and returns the gradient of x."""
        q = self.gradient(dy)
        rows = dy.reshape(-1, dy.shape[-1])
        self.bias_grad = sums_of_strips(rows).to(dy.dtype)
        self.weight_grad = general_gemm(self.x, q, dy.dtype, layout="NT", grad=True)[0]
        return general_gemm(self.w, q, dy.dtype, layout="NN", grad=True)[0]

    def step(self, mode: str) -> None:
        """Updates the state of delayed scaling at the end of a pass."""
        if hasattr(self.states[mode], "update"):
            self.states[mode].update()
