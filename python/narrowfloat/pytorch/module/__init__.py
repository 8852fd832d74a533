# SPDX-License-Identifier: Apache-2.0
"""Layers that quantize by a recipe."""

from narrowfloat.pytorch.module.linear import Linear

__all__ = ["Linear"]
