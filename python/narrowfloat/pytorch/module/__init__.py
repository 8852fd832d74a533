# SPDX-License-Identifier: Apache-2.0
"""Layers that quantize by a recipe."""

from narrowfloat.pytorch.module.convert import convert_model
from narrowfloat.pytorch.module.grouped_linear import GroupedLinear
from narrowfloat.pytorch.module.linear import Linear

__all__ = ["GroupedLinear", "Linear", "convert_model"]
