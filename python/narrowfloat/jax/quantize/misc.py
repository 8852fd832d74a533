# SPDX-License-Identifier: Apache-2.0
"""Gives QuantizeLayout under the name of TransformerEngine's module."""

from narrowfloat.jax.quantize.scaling_modes import QuantizeLayout

__all__ = ["QuantizeLayout"]
