# SPDX-License-Identifier: Apache-2.0
"""Gathers the enumerations of TransformerEngine's native module for JAX, with its numbers."""

from narrowfloat.common.enums import (
    NVTE_Bias_Type,
    NVTE_Fused_Attn_Backend,
    NVTE_Mask_Type,
    NVTE_QKV_Format,
    NVTE_QKV_Layout,
    NVTE_Softmax_Type,
    numbered,
)

__all__ = [
    "DType",
    "JAXX_Collective_Op",
    "JAXX_Quantize_Layout",
    "JAXX_Routing_Map_Format",
    "JAXX_Scaling_Mode",
    "JAXX_Score_Function",
    "NVTE_Activation_Type",
    "NVTE_Bias_Type",
    "NVTE_Fused_Attn_Backend",
    "NVTE_Mask_Type",
    "NVTE_Norm_Type",
    "NVTE_QKV_Format",
    "NVTE_QKV_Layout",
    "NVTE_Softmax_Type",
]

DType = numbered(
    __name__,
    "DType",
    "Type of a buffer's elements.",
    "kByte kInt16 kInt32 kInt64 kFloat32 kFloat16 kBFloat16 kFloat8E4M3 kFloat8E5M2 kFloat8E8M0 "
    "kFloat4E2M1",
)
JAXX_Scaling_Mode = numbered(
    __name__,
    "JAXX_Scaling_Mode",
    "How a quantized tensor is scaled.",
    "NO_SCALING DELAYED_TENSOR_SCALING MXFP8_1D_SCALING CURRENT_TENSOR_SCALING NVFP4_1D_SCALING "
    "NVFP4_2D_SCALING",
)
JAXX_Quantize_Layout = numbered(
    __name__,
    "JAXX_Quantize_Layout",
    "Which buffers a handler writes.",
    "ROWWISE COLWISE ROWWISE_COLWISE",
)
JAXX_Collective_Op = numbered(
    __name__,
    "JAXX_Collective_Op",
    "Which collective is in a product.",
    "NONE ALL_GATHER REDUCE_SCATTER",
)
JAXX_Score_Function = numbered(
    __name__,
    "JAXX_Score_Function",
    "What a router makes scores with.",
    "SIGMOID SOFTMAX SQRTSOFTPLUS",
)
JAXX_Routing_Map_Format = numbered(
    __name__,
    "JAXX_Routing_Map_Format",
    "How a routing map stores its booleans.",
    "BYTEMAP BITMAP_U8",
)
NVTE_Norm_Type = numbered(__name__, "NVTE_Norm_Type", "Which norm is taken.", "LayerNorm RMSNorm")
NVTE_Activation_Type = numbered(
    __name__,
    "NVTE_Activation_Type",
    "Which activation is taken.",
    "GELU GEGLU GLU SILU SWIGLU RELU REGLU QGELU QGEGLU SRELU SREGLU CLAMPED_SWIGLU",
)
