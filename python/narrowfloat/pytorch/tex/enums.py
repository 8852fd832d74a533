# SPDX-License-Identifier: Apache-2.0
"""Gathers the enumerations of TransformerEngine's native module, with its numbers."""

from enum import IntEnum

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


NVTERoutingMapFormat = numbered(
    __name__, "NVTERoutingMapFormat", "How a routing map stores its booleans.", "BYTEMAP BITMAP_U8"
)
NVTEQBHistogramMode = numbered(
    __name__, "NVTEQBHistogramMode", "How the router counts scores.", "TWO_KERNEL FUSED_ATOMIC"
)
Float8BlockScaleTensorFormat = numbered(
    __name__,
    "Float8BlockScaleTensorFormat",
    "Layout of block scales.",
    "GEMM_READY COMPACT INVALID",
)
CommOverlapType = numbered(
    __name__, "CommOverlapType", "Which collective overlaps a product.", "RS AG"
)
CommOverlapAlgo = numbered(
    __name__,
    "CommOverlapAlgo",
    "How a collective overlaps a product.",
    "BULK_OVERLAP_AG BULK_OVERLAP_RS SPLIT_PIPELINED_AG_P2P SPLIT_PIPELINED_RS "
    "SPLIT_PIPELINED_RS_P2P ATOMIC_GEMM_RS ATOMIC_GEMM_AG_P2P ATOMIC_GEMM_RS_P2P "
    "EXTERNAL_BULK_OVERLAP_AG",
)


class NVTEScalingMode(IntEnum):
    """How a quantized tensor is scaled."""

    NVTE_DELAYED_TENSOR_SCALING = 0
    NVTE_MXFP8_1D_SCALING = 1
    NVTE_BLOCK_SCALING_1D = 2
    NVTE_BLOCK_SCALING_2D = 3
    NVTE_NVFP4_1D_SCALING = 4
    NVTE_INVALID_SCALING = 100
