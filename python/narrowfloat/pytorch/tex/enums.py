# SPDX-License-Identifier: Apache-2.0
"""Enumerations of TransformerEngine's native module, with its numbers."""

from enum import IntEnum

from narrowfloat.common.enums import (
    NVTE_Bias_Type,
    NVTE_Fused_Attn_Backend,
    NVTE_Mask_Type,
    NVTE_QKV_Format,
    NVTE_QKV_Layout,
    NVTE_Softmax_Type,
)

__all__ = [
    "CommOverlapAlgo",
    "CommOverlapType",
    "Float8BlockScaleTensorFormat",
    "NVTEQBHistogramMode",
    "NVTERoutingMapFormat",
    "NVTEScalingMode",
    "NVTE_Bias_Type",
    "NVTE_Fused_Attn_Backend",
    "NVTE_Mask_Type",
    "NVTE_QKV_Format",
    "NVTE_QKV_Layout",
    "NVTE_Softmax_Type",
]


NVTERoutingMapFormat = IntEnum(
    "NVTERoutingMapFormat",
    "BYTEMAP BITMAP_U8",
    start=0,
    module=__name__,
)
NVTERoutingMapFormat.__doc__ = "How a routing map stores its booleans."
NVTEQBHistogramMode = IntEnum(
    "NVTEQBHistogramMode",
    "TWO_KERNEL FUSED_ATOMIC",
    start=0,
    module=__name__,
)
NVTEQBHistogramMode.__doc__ = "How the router counts scores."
Float8BlockScaleTensorFormat = IntEnum(
    "Float8BlockScaleTensorFormat",
    "GEMM_READY COMPACT INVALID",
    start=0,
    module=__name__,
)
Float8BlockScaleTensorFormat.__doc__ = "Layout of block scales."
CommOverlapType = IntEnum("CommOverlapType", "RS AG", start=0, module=__name__)
CommOverlapType.__doc__ = "Which collective overlaps a product."
CommOverlapAlgo = IntEnum(
    "CommOverlapAlgo",
    "BULK_OVERLAP_AG BULK_OVERLAP_RS SPLIT_PIPELINED_AG_P2P SPLIT_PIPELINED_RS "
    "SPLIT_PIPELINED_RS_P2P ATOMIC_GEMM_RS ATOMIC_GEMM_AG_P2P ATOMIC_GEMM_RS_P2P "
    "EXTERNAL_BULK_OVERLAP_AG",
    start=0,
    module=__name__,
)
CommOverlapAlgo.__doc__ = "How a collective overlaps a product."


class NVTEScalingMode(IntEnum):
    """The scaling of a quantized tensor."""

    NVTE_DELAYED_TENSOR_SCALING = 0
    NVTE_MXFP8_1D_SCALING = 1
    NVTE_BLOCK_SCALING_1D = 2
    NVTE_BLOCK_SCALING_2D = 3
    NVTE_NVFP4_1D_SCALING = 4
    NVTE_INVALID_SCALING = 100
