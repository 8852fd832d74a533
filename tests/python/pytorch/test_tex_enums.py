# SPDX-License-Identifier: Apache-2.0
"""Tests enumerations and queries of the native module."""

import pickle
from enum import IntEnum

import pytest
from narrowfloat.pytorch import tex
from narrowfloat.pytorch.tex import enums

# Numbers of enumerations that do not count from 0 in steps of 1, from the library's headers.
NUMBERS = {
    "NVTEScalingMode": [0, 1, 2, 3, 4, 100],
    "NVTE_Fused_Attn_Backend": [-1, 1, 2],
}
LAST = {
    "NVTE_QKV_Layout": ("NVTE_QKV_Layout_NOT_SET", 26),
    "NVTE_QKV_Format": ("NVTE_QKV_Format_NOT_SET", 8),
    "NVTE_Mask_Type": ("NVTE_PADDING_CAUSAL_BOTTOM_RIGHT_MASK", 5),
    "CommOverlapAlgo": ("EXTERNAL_BULK_OVERLAP_AG", 8),
}


@pytest.mark.parametrize("name", enums.__all__)
def test_members_have_the_librarys_numbers(name: str) -> None:
    enum = getattr(tex, name)
    assert issubclass(enum, IntEnum) and enum.__doc__
    expected = NUMBERS.get(name, list(range(len(enum))))
    assert [member.value for member in enum] == expected
    last, number = LAST.get(name, (list(enum)[-1].name, expected[-1]))
    assert enum[last] == number == expected[-1]
    assert pickle.loads(pickle.dumps(enum(expected[0]))) is enum(expected[0])


def test_formats_and_layouts_by_name() -> None:
    assert tex.NVTE_QKV_Format.NVTE_THD == 2 and tex.NVTE_QKV_Format.NVTE_BHSD == 7
    assert tex.NVTE_QKV_Layout.NVTE_BSHD_BSHD_BSHD == 9
    assert tex.NVTE_QKV_Layout.NVTE_Paged_KV_THD_SBHD_SBHD == 24


def test_queries_answer_that_there_is_no_gpu() -> None:
    assert not tex.device_supports_multicast() and not tex.ubuf_built_with_mpi()
    assert not tex.nvte_built_with_cublasmp() and not tex.ep_zero_copy_supported()
    assert tex.get_cudnn_version() >= 91800  # otherwise FP8 attention is refused, not emulated
    low, high = tex.get_stream_priority_range()
    assert low == high


@pytest.mark.parametrize(
    "name",
    [
        "CommOverlap",
        "CommOverlapBase",
        "CommOverlapCore",
        "CommOverlapHelper",
        "CommOverlapP2P",
        "CommOverlapP2PBase",
    ],
)
def test_buffers_of_overlapped_communication_cannot_be_made(name: str) -> None:
    with pytest.raises(NotImplementedError, match=rf"^transformer_engine_torch\.{name}: needs "):
        getattr(tex, name)([2, 2], helper=None)
