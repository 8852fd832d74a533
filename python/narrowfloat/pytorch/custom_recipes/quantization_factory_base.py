# SPDX-License-Identifier: Apache-2.0
"""The older name of quantizer_factories, with the older names of its functions."""

from narrowfloat.pytorch.custom_recipes import quantizer_factories

current_scaling_quantizer_factory = quantizer_factories.current_scaling_factory
delayed_scaling_quantizer_factory = quantizer_factories.delayed_scaling_factory
float8_block_scaling_quantizer_factory = quantizer_factories.float8_block_scaling_factory
high_precision_quantizer_factory = quantizer_factories.high_precision_factory
mxfp8_quantizer_factory = quantizer_factories.mxfp8_factory
nvfp4_quantizer_factory = quantizer_factories.nvfp4_factory
