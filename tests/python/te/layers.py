# SPDX-License-Identifier: Apache-2.0
"""Makes TransformerEngine's modules and recipes, and trains them for tests."""

from collections.abc import Callable
from typing import Any, NamedTuple

import narrowfloat.te  # noqa: F401  before TransformerEngine
import torch

import transformer_engine.pytorch as te  # isort: skip
from transformer_engine.common import recipe  # isort: skip

WIDTH, TOKENS, BATCH = 128, 32, 4
BF16 = torch.bfloat16


def current_scaling(role: object) -> te.Quantizer:
    """Returns the quantizer of the tensor with this role, for a custom recipe."""
    dtype = te.DType.kFloat8E5M2 if "grad" in str(role) else te.DType.kFloat8E4M3
    return te.Float8CurrentScalingQuantizer(dtype, device="cpu")


RECIPES: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "delayed": recipe.DelayedScaling,
    "current": recipe.Float8CurrentScaling,
    "mxfp8": recipe.MXFP8BlockScaling,
    "block": recipe.Float8BlockScaling,
    "nvfp4": recipe.NVFP4BlockScaling,
    "custom": lambda: recipe.CustomRecipe(qfactory=current_scaling),
}


def layer(**options: Any) -> torch.nn.Module:
    """Returns a TransformerLayer without dropout."""
    fixed = {"hidden_dropout": 0.0, "attention_dropout": 0.0, "params_dtype": BF16}
    return te.TransformerLayer(WIDTH, 4 * WIDTH, 4, **fixed, **options)


def llama_layer() -> torch.nn.Module:
    """Returns a layer with the choices of llama-style models."""
    return layer(
        normalization="RMSNorm",
        activation="swiglu",
        bias=False,
        num_gqa_groups=2,
        self_attn_mask_type="causal",
        attn_input_format="bshd",
    )


def sequential() -> torch.nn.Module:
    """Returns a network of TransformerEngine's operations."""
    return te.ops.Sequential(
        te.ops.LayerNorm(WIDTH, dtype=BF16),
        te.ops.Linear(WIDTH, 4 * WIDTH, dtype=BF16),
        te.ops.GELU(),
        te.ops.Linear(4 * WIDTH, WIDTH, dtype=BF16),
    )


def mlp(**options: Any) -> torch.nn.Module:
    """Returns a LayerNormMLP."""
    return te.LayerNormMLP(WIDTH, 4 * WIDTH, params_dtype=BF16, **options)


def norm_linear(**options: Any) -> torch.nn.Module:
    """Returns a LayerNormLinear."""
    return te.LayerNormLinear(WIDTH, 2 * WIDTH, params_dtype=BF16, **options)


MODULES: dict[str, Callable[[], torch.nn.Module]] = {
    "Linear": lambda: te.Linear(WIDTH, WIDTH, params_dtype=BF16),
    "LayerNormLinear": norm_linear,
    "RMSNormLinear": lambda: norm_linear(normalization="RMSNorm"),
    "LayerNormMLP": mlp,
    "RMSNormSwigluMLP": lambda: mlp(activation="swiglu", normalization="RMSNorm"),
    "TransformerLayer": layer,
    "LlamaLayer": llama_layer,
    "GroupedLinear": lambda: te.GroupedLinear(4, WIDTH, WIDTH, params_dtype=BF16),
    "ops.Sequential": sequential,
}


class Trained(NamedTuple):
    """The results of some steps: the losses, the last output and all parameters."""

    losses: list[float]
    output: torch.Tensor
    parameters: list[torch.Tensor]


def forward(module: torch.nn.Module, x: torch.Tensor, chosen: Any) -> torch.Tensor:
    """Runs a module under a recipe."""
    with te.autocast(enabled=chosen is not None, recipe=chosen):
        if isinstance(module, te.GroupedLinear):
            return module(x.reshape(-1, WIDTH), [TOKENS, 2 * TOKENS, 0, TOKENS])
        return module(x)


def sample() -> torch.Tensor:
    """Returns an input that requires a gradient."""
    return torch.randn(TOKENS, BATCH, WIDTH).to(BF16).requires_grad_()


def train(module_name: str, recipe_name: str, steps: int = 3) -> Trained:
    """Trains a new module from a fixed seed."""
    torch.manual_seed(1)
    module, chosen, x = MODULES[module_name](), RECIPES[recipe_name](), sample()
    optimizer = torch.optim.SGD(module.parameters(), 1e-2)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        output = forward(module, x, chosen)
        loss = output.float().square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert torch.isfinite(x.grad).all()
    return Trained(losses, output.detach(), [p.detach().clone() for p in module.parameters()])
