# SPDX-License-Identifier: Apache-2.0
"""Returns the code types of a recipe's two passes, and the multiple for padding rows."""

import torch

from narrowfloat import _core
from narrowfloat.common.recipe import Format, Recipe
from narrowfloat.pytorch.constants import MXFP8_BLOCK_SCALING_SIZE, DType

# The multiple that rows are padded to for products of a recipe's codes; MXFP8 needs only whole
# blocks. TransformerEngine uses these values on GPUs, and shapes must agree with its shapes.
FP8_ALIGNMENT, NVFP4_ALIGNMENT = 16, 128


def get_fp8_te_dtype(fp8_recipe: Recipe, fprop_tensor: bool = True) -> DType:
    """Returns E4M3 or E5M2, for the forward (`fprop_tensor`) or the backward pass."""
    fp8_format = fp8_recipe.fp8_format
    if fp8_format is Format.E4M3 or (fp8_format is Format.HYBRID and fprop_tensor):
        return DType.kFloat8E4M3
    return DType.kFloat8E5M2


def get_fp8_torch_dtype(fp8_recipe: Recipe, fprop_tensor: bool = True) -> torch.dtype:
    """Returns the torch dtype of the same codes."""
    e4m3 = get_fp8_te_dtype(fp8_recipe, fprop_tensor) == DType.kFloat8E4M3
    return torch.float8_e4m3fn if e4m3 else torch.float8_e5m2


def get_fp4_te_dtype(fp4_recipe: Recipe) -> DType:
    """Returns E2M1. Raises ValueError for a recipe of another format."""
    if fp4_recipe.fp4_format is Format.E2M1:
        return DType.kFloat4E2M1
    raise ValueError(f"get_fp4_te_dtype: fp4_format must be E2M1, got {fp4_recipe.fp4_format.name}")


def largest_code_value(dtype: DType) -> float:
    """Returns the largest value of FP8 codes of that dtype."""
    return _core.E4M3_MAX if dtype == DType.kFloat8E4M3 else _core.E5M2_MAX


def get_fp8_max(fp8_recipe: Recipe, fprop_tensor: bool = True) -> float:
    """Returns the largest value of the codes of the forward or the backward pass."""
    limits = fp8_recipe.fp8_format.value
    return limits.max_fwd if fprop_tensor else limits.max_bwd


def get_align_size_for_quantization(recipe: Recipe) -> int:
    """Returns the multiple that a layer pads rows to; a CustomRecipe defines its own."""
    if recipe.custom():
        return recipe.quantization_alignment
    if recipe.mxfp8():
        return MXFP8_BLOCK_SCALING_SIZE
    return NVFP4_ALIGNMENT if recipe.nvfp4() else FP8_ALIGNMENT
