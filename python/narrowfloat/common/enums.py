# SPDX-License-Identifier: Apache-2.0
"""Enumerations of TransformerEngine's native modules, for PyTorch and for JAX, with its numbers."""

from enum import IntEnum

NVTE_Bias_Type = IntEnum(
    "NVTE_Bias_Type",
    "NVTE_NO_BIAS NVTE_PRE_SCALE_BIAS NVTE_POST_SCALE_BIAS NVTE_ALIBI",
    start=0,
    module=__name__,
)
NVTE_Bias_Type.__doc__ = "Where attention adds a bias."
NVTE_Mask_Type = IntEnum(
    "NVTE_Mask_Type",
    "NVTE_NO_MASK NVTE_PADDING_MASK NVTE_CAUSAL_MASK NVTE_PADDING_CAUSAL_MASK "
    "NVTE_CAUSAL_BOTTOM_RIGHT_MASK NVTE_PADDING_CAUSAL_BOTTOM_RIGHT_MASK",
    start=0,
    module=__name__,
)
NVTE_Mask_Type.__doc__ = "Which keys a query of attention sees."
NVTE_Softmax_Type = IntEnum(
    "NVTE_Softmax_Type",
    "NVTE_VANILLA_SOFTMAX NVTE_OFF_BY_ONE_SOFTMAX NVTE_LEARNABLE_SOFTMAX",
    start=0,
    module=__name__,
)
NVTE_Softmax_Type.__doc__ = "What attention's softmax adds to its denominator."
NVTE_QKV_Format = IntEnum(
    "NVTE_QKV_Format",
    "NVTE_SBHD NVTE_BSHD NVTE_THD NVTE_BSHD_2SBHD NVTE_SBHD_2BSHD NVTE_THD_2BSHD "
    "NVTE_THD_2SBHD NVTE_BHSD NVTE_QKV_Format_NOT_SET",
    start=0,
    module=__name__,
)
NVTE_QKV_Format.__doc__ = (
    "Order of the dimensions of queries, keys and values: sequence, batch, head, d; t is packed."
)
NVTE_QKV_Layout = IntEnum(
    "NVTE_QKV_Layout",
    "NVTE_SB3HD NVTE_SBH3D NVTE_SBHD_SB2HD NVTE_SBHD_SBH2D NVTE_SBHD_SBHD_SBHD NVTE_BS3HD "
    "NVTE_BSH3D NVTE_BSHD_BS2HD NVTE_BSHD_BSH2D NVTE_BSHD_BSHD_BSHD NVTE_T3HD NVTE_TH3D "
    "NVTE_THD_T2HD NVTE_THD_TH2D NVTE_THD_THD_THD NVTE_SBHD_BSHD_BSHD NVTE_BSHD_SBHD_SBHD "
    "NVTE_THD_BSHD_BSHD NVTE_THD_SBHD_SBHD NVTE_Paged_KV_BSHD_BSHD_BSHD "
    "NVTE_Paged_KV_BSHD_SBHD_SBHD NVTE_Paged_KV_SBHD_BSHD_BSHD NVTE_Paged_KV_SBHD_SBHD_SBHD "
    "NVTE_Paged_KV_THD_BSHD_BSHD NVTE_Paged_KV_THD_SBHD_SBHD NVTE_BHSD_BHSD_BHSD "
    "NVTE_QKV_Layout_NOT_SET",
    start=0,
    module=__name__,
)
NVTE_QKV_Layout.__doc__ = "The layout of queries, keys and values in memory, together or apart."


class NVTE_Fused_Attn_Backend(IntEnum):
    """Kernels of fused attention."""

    NVTE_No_Backend = -1
    NVTE_F16_arbitrary_seqlen = 1
    NVTE_FP8 = 2
