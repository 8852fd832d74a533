# SPDX-License-Identifier: Apache-2.0
"""Gathers the enumerations of TransformerEngine's native module, with its numbers."""

from enum import IntEnum

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


def _numbered(name: str, doc: str, members: str, start: int = 0) -> type[IntEnum]:
    enum = IntEnum(name, members, start=start, module=__name__)
    enum.__doc__ = doc
    return enum


NVTE_Bias_Type = _numbered(
    "NVTE_Bias_Type",
    "Where attention adds a bias.",
    "NVTE_NO_BIAS NVTE_PRE_SCALE_BIAS NVTE_POST_SCALE_BIAS NVTE_ALIBI",
)
NVTE_Mask_Type = _numbered(
    "NVTE_Mask_Type",
    "Which keys a query of attention sees.",
    "NVTE_NO_MASK NVTE_PADDING_MASK NVTE_CAUSAL_MASK NVTE_PADDING_CAUSAL_MASK "
    "NVTE_CAUSAL_BOTTOM_RIGHT_MASK NVTE_PADDING_CAUSAL_BOTTOM_RIGHT_MASK",
)
NVTE_Softmax_Type = _numbered(
    "NVTE_Softmax_Type",
    "What attention's softmax adds to its denominator.",
    "NVTE_VANILLA_SOFTMAX NVTE_OFF_BY_ONE_SOFTMAX NVTE_LEARNABLE_SOFTMAX",
)
NVTE_QKV_Format = _numbered(
    "NVTE_QKV_Format",
    "Order of the dimensions of queries, keys and values: sequence, batch, head, d; t is packed.",
    "NVTE_SBHD NVTE_BSHD NVTE_THD NVTE_BSHD_2SBHD NVTE_SBHD_2BSHD NVTE_THD_2BSHD NVTE_THD_2SBHD "
    "NVTE_BHSD NVTE_QKV_Format_NOT_SET",
)
NVTE_QKV_Layout = _numbered(
    "NVTE_QKV_Layout",
    "How queries, keys and values lie in memory, together or apart.",
    "NVTE_SB3HD NVTE_SBH3D NVTE_SBHD_SB2HD NVTE_SBHD_SBH2D NVTE_SBHD_SBHD_SBHD NVTE_BS3HD "
    "NVTE_BSH3D NVTE_BSHD_BS2HD NVTE_BSHD_BSH2D NVTE_BSHD_BSHD_BSHD NVTE_T3HD NVTE_TH3D "
    "NVTE_THD_T2HD NVTE_THD_TH2D NVTE_THD_THD_THD NVTE_SBHD_BSHD_BSHD NVTE_BSHD_SBHD_SBHD "
    "NVTE_THD_BSHD_BSHD NVTE_THD_SBHD_SBHD NVTE_Paged_KV_BSHD_BSHD_BSHD "
    "NVTE_Paged_KV_BSHD_SBHD_SBHD NVTE_Paged_KV_SBHD_BSHD_BSHD NVTE_Paged_KV_SBHD_SBHD_SBHD "
    "NVTE_Paged_KV_THD_BSHD_BSHD NVTE_Paged_KV_THD_SBHD_SBHD NVTE_BHSD_BHSD_BHSD "
    "NVTE_QKV_Layout_NOT_SET",
)
NVTERoutingMapFormat = _numbered(
    "NVTERoutingMapFormat", "How a routing map stores its booleans.", "BYTEMAP BITMAP_U8"
)
NVTEQBHistogramMode = _numbered(
    "NVTEQBHistogramMode", "How the router counts scores.", "TWO_KERNEL FUSED_ATOMIC"
)
Float8BlockScaleTensorFormat = _numbered(
    "Float8BlockScaleTensorFormat", "Layout of block scales.", "GEMM_READY COMPACT INVALID"
)
CommOverlapType = _numbered("CommOverlapType", "Which collective overlaps a product.", "RS AG")
CommOverlapAlgo = _numbered(
    "CommOverlapAlgo",
    "How a collective overlaps a product.",
    "BULK_OVERLAP_AG BULK_OVERLAP_RS SPLIT_PIPELINED_AG_P2P SPLIT_PIPELINED_RS "
    "SPLIT_PIPELINED_RS_P2P ATOMIC_GEMM_RS ATOMIC_GEMM_AG_P2P ATOMIC_GEMM_RS_P2P "
    "EXTERNAL_BULK_OVERLAP_AG",
)


class NVTE_Fused_Attn_Backend(IntEnum):
    """Kernels of fused attention."""

    NVTE_No_Backend = -1
    NVTE_F16_arbitrary_seqlen = 1
    NVTE_FP8 = 2


class NVTEScalingMode(IntEnum):
    """How a quantized tensor is scaled."""

    NVTE_DELAYED_TENSOR_SCALING = 0
    NVTE_MXFP8_1D_SCALING = 1
    NVTE_BLOCK_SCALING_1D = 2
    NVTE_BLOCK_SCALING_2D = 3
    NVTE_NVFP4_1D_SCALING = 4
    NVTE_INVALID_SCALING = 100
