# SPDX-License-Identifier: Apache-2.0
"""The enumerations of TransformerEngine's native module for JAX, with its numbers."""

from enum import IntEnum

from narrowfloat.common.enums import (
    NVTE_Bias_Type,
    NVTE_Fused_Attn_Backend,
    NVTE_Mask_Type,
    NVTE_QKV_Format,
    NVTE_QKV_Layout,
    NVTE_Softmax_Type,
)
from narrowfloat.jax.quantize.scaling_modes import JAXX_Quantize_Layout, JAXX_Scaling_Mode

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

DType = IntEnum(
    "DType",
    "kByte kInt16 kInt32 kInt64 kFloat32 kFloat16 kBFloat16 kFloat8E4M3 kFloat8E5M2 "
    "kFloat8E8M0 kFloat4E2M1",
    start=0,
    module=__name__,
)
DType.__doc__ = "Type of a buffer's elements."
JAXX_Collective_Op = IntEnum(
    "JAXX_Collective_Op",
    "NONE ALL_GATHER REDUCE_SCATTER",
    start=0,
    module=__name__,
)
JAXX_Collective_Op.__doc__ = "Which collective is in a product."
JAXX_Score_Function = IntEnum(
    "JAXX_Score_Function",
    "SIGMOID SOFTMAX SQRTSOFTPLUS",
    start=0,
    module=__name__,
)
JAXX_Score_Function.__doc__ = "What a router makes scores with."
JAXX_Routing_Map_Format = IntEnum(
    "JAXX_Routing_Map_Format",
    "BYTEMAP BITMAP_U8",
    start=0,
    module=__name__,
)
JAXX_Routing_Map_Format.__doc__ = "How a routing map stores its booleans."
NVTE_Norm_Type = IntEnum("NVTE_Norm_Type", "LayerNorm RMSNorm", start=0, module=__name__)
NVTE_Norm_Type.__doc__ = "Which norm is taken."
NVTE_Activation_Type = IntEnum(
    "NVTE_Activation_Type",
    "GELU GEGLU GLU SILU SWIGLU RELU REGLU QGELU QGEGLU SRELU SREGLU CLAMPED_SWIGLU",
    start=0,
    module=__name__,
)
NVTE_Activation_Type.__doc__ = "Which activation is taken."
