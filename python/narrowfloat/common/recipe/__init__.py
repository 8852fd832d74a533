# SPDX-License-Identifier: Apache-2.0
"""Recipes, which define how the tensors of a network are quantized, as in TransformerEngine."""

from narrowfloat.common.recipe.base import Recipe
from narrowfloat.common.recipe.block import Float8BlockScaling, MXFP8BlockScaling
from narrowfloat.common.recipe.custom import CustomRecipe
from narrowfloat.common.recipe.nvfp4 import NVFP4BlockScaling
from narrowfloat.common.recipe.parameters import Format, FormatRange, MMParams, QParams
from narrowfloat.common.recipe.per_tensor import DelayedScaling, Float8CurrentScaling

__all__ = [
    "CustomRecipe",
    "DelayedScaling",
    "Float8BlockScaling",
    "Float8CurrentScaling",
    "Format",
    "FormatRange",
    "MMParams",
    "MXFP8BlockScaling",
    "NVFP4BlockScaling",
    "QParams",
    "Recipe",
]
