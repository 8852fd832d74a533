# SPDX-License-Identifier: Apache-2.0
"""Tests the three products of a linear layer with recipes and factories."""

from collections.abc import Callable

import pytest
import torch
from narrowfloat.common import recipe
from narrowfloat.pytorch.cpp_extensions import general_gemm
from narrowfloat.pytorch.custom_recipes import quantizer_factories as factories
from narrowfloat.pytorch.custom_recipes import quantizer_factory_zoo as zoo
from narrowfloat.pytorch.custom_recipes.reference_blockwise import (
    float8_block_scaling_ref_factory,
)
from narrowfloat.pytorch.custom_recipes.reference_current_scaling import (
    current_scaling_ref_factory,
)
from narrowfloat.pytorch.custom_recipes.reference_nvfp4 import nvfp4_ref_rht_2d_factory
from narrowfloat.pytorch.quantization import QuantizerRole, RecipeState
from torch_golden import assert_tensor

FORWARD = [QuantizerRole("linear", t) for t in ("input", "weight")]
BACKWARD = [QuantizerRole("linear", "grad_output")]
# Rows and columns of the result, and the length of the sums, in the forward pass.
M, N, K = 128, 256, 384

RECIPES = {
    "delayed": recipe.DelayedScaling,
    "current": recipe.Float8CurrentScaling,
    "mxfp8": lambda: recipe.MXFP8BlockScaling(enable_2d_quantization=True),
    "block": recipe.Float8BlockScaling,
    "nvfp4": recipe.NVFP4BlockScaling,
    "nvfp4_4over6": lambda: recipe.NVFP4BlockScaling(
        disable_rht=True, disable_stochastic_rounding=True, nvfp4_4over6="all"
    ),
    **{
        function.__name__: lambda function=function: recipe.CustomRecipe(qfactory=function)
        for function in (
            factories.high_precision_factory,
            factories.delayed_scaling_factory,
            current_scaling_ref_factory,
            float8_block_scaling_ref_factory,
            nvfp4_ref_rht_2d_factory,
            zoo.high_precision_fwd_mxfp8_bwd_factory,
            zoo.mxfp8_fwd_nvfp4_bwd_factory,
            zoo.mxfp8_fwd_high_precision_bwd_factory,
            zoo.nvfp4_1d_weight_factory,
            zoo.nvfp4_row_scaled_fwd_high_precision_bwd_factory,
            zoo.nvfp4_row_scaled_fwd_mxfp8_bwd_factory,
            zoo.nvfp4_linear_fp8_dpa_factory,
        )
    },
}


def operands(made: recipe.Recipe) -> tuple[dict[str, torch.Tensor], dict[str, object]]:
    torch.manual_seed(41)
    shapes = {"x": (M, K), "w": (N, K), "dy": (M, N)}
    plain = {name: torch.randn(shape).to(torch.bfloat16) for name, shape in shapes.items()}
    forward = RecipeState.create(made, mode="forward", num_quantizers=2, roles=FORWARD)
    backward = RecipeState.create(made, mode="backward", roles=BACKWARD)
    makers = [*forward.make_quantizers(), *backward.make_quantizers()]
    return plain, {
        name: quantizer.quantize(plain[name]) for name, quantizer in zip(plain, makers, strict=True)
    }


PRODUCTS = {
    "y": ("TN", "w", "x", lambda p: p["x"] @ p["w"].t()),
    "dx": ("NN", "w", "dy", lambda p: p["dy"] @ p["w"]),
    "dw": ("NT", "x", "dy", lambda p: p["dy"].t() @ p["x"]),
}


@pytest.mark.parametrize("make", RECIPES.values(), ids=RECIPES)
def test_products_are_near_the_plain_ones(make: Callable[[], recipe.Recipe]) -> None:
    """Checks that errors are below 0.48. A wrong direction or scale gives 1 or more.

    The error of a code is uniform up to half a step, so its root mean square is step / sqrt(12).
    The widest step, of E2M1, is a third of the largest magnitude of the block. In blocks of up to
    256 normal numbers this magnitude is below 3.5 in the mean. The error is therefore at most 0.34
    for an operand, and sqrt(2) times that for two operands with independent errors.
    """
    plain, q = operands(make())
    exact = {name: tensor.double() for name, tensor in plain.items()}
    for name, (layout, a, b, want) in PRODUCTS.items():
        y = general_gemm(q[a], q[b], torch.float32, layout=layout, grad=name != "y")[0]
        wanted = want(exact)
        assert y.shape == wanted.shape
        error = (y.double() - wanted).norm() / wanted.norm()
        assert error < 0.48, f"{name}: {error}"


@pytest.mark.parametrize(
    "factory",
    [
        zoo.high_precision_fwd_mxfp8_bwd_factory,
        zoo.mxfp8_fwd_nvfp4_bwd_factory,
        zoo.mxfp8_fwd_high_precision_bwd_factory,
        zoo.nvfp4_row_scaled_fwd_high_precision_bwd_factory,
    ],
)
def test_each_product_reads_its_direction_of_a_hybrid(factory: Callable) -> None:
    _, q = operands(recipe.CustomRecipe(qfactory=factory))
    x, w, dy = q["x"], q["w"], q["dy"]
    y = general_gemm(w, x)[0]
    assert_tensor(y, general_gemm(w.rowwise_sub_storage, x.rowwise_sub_storage)[0], "fprop")
    dx = general_gemm(w, dy, layout="NN", grad=True)[0]
    assert_tensor(dx, general_gemm(w.columnwise_sub_storage, dy, layout="NN")[0], "dgrad")
    dw = general_gemm(x, dy, layout="NT", grad=True)[0]
    assert_tensor(dw, general_gemm(x.columnwise_sub_storage, dy, layout="NT")[0], "wgrad")


def test_high_precision_is_not_touched() -> None:
    plain, q = operands(recipe.CustomRecipe(qfactory=factories.high_precision_factory))
    for layout, a, b, _ in PRODUCTS.values():
        want = general_gemm(plain[a], plain[b], layout=layout)[0]
        assert_tensor(general_gemm(q[a], q[b], layout=layout)[0], want, layout)
