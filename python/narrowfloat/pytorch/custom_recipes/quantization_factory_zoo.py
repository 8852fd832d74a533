# SPDX-License-Identifier: Apache-2.0
"""The older name of quantizer_factory_zoo, with the older names of its functions."""

from narrowfloat.pytorch.custom_recipes import quantizer_factory_zoo as zoo

high_precision_fwd_mxfp8_bwd_quantizer_factory = zoo.high_precision_fwd_mxfp8_bwd_factory
mxfp8_fwd_high_precision_bwd_quantizer_factory = zoo.mxfp8_fwd_high_precision_bwd_factory
mxfp8_fwd_nvfp4_bwd_quantizer_factory = zoo.mxfp8_fwd_nvfp4_bwd_factory
nvfp4_1d_weight_quantizer_factory = zoo.nvfp4_1d_weight_factory
nvfp4_linear_fp8_dpa_quantizer_factory = zoo.nvfp4_linear_fp8_dpa_factory
nvfp4_row_scaled_fwd_high_precision_bwd_quantizer_factory = (
    zoo.nvfp4_row_scaled_fwd_high_precision_bwd_factory
)
nvfp4_row_scaled_fwd_mxfp8_bwd_quantizer_factory = zoo.nvfp4_row_scaled_fwd_mxfp8_bwd_factory
