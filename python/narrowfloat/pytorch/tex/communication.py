# SPDX-License-Identifier: Apache-2.0
"""Entries for communication that overlaps with products: queries return False, others raise."""

from typing import Any

from narrowfloat.pytorch.tex._absent import NEEDS, refusal

__all__ = [
    "CommOverlap",
    "CommOverlapBase",
    "CommOverlapCore",
    "CommOverlapHelper",
    "CommOverlapP2P",
    "CommOverlapP2PBase",
    "device_supports_multicast",
    "ep_zero_copy_supported",
    "get_stream_priority_range",
    "nvte_built_with_cublasmp",
    "ubuf_built_with_mpi",
]

_NEED = NEEDS["bulk_overlap_ag_with_external_gemm"]


class CommOverlapHelper:
    """TransformerEngine's class for processes that share GPU buffers; its constructor raises."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise refusal("CommOverlapHelper", _NEED)


class CommOverlapCore:
    """The base of buffers shared by products and collectives; its constructor raises."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise refusal(type(self).__name__, _NEED)


class CommOverlapBase(CommOverlapCore):
    """The base of buffers of collectives; its constructor raises."""


class CommOverlapP2PBase(CommOverlapCore):
    """The base of buffers of rings of processes; its constructor raises."""


class CommOverlap(CommOverlapBase):
    """A buffer of a collective; its constructor raises."""


class CommOverlapP2P(CommOverlapP2PBase):
    """A buffer of a ring of processes; its constructor raises."""


def device_supports_multicast(device_id: int = -1) -> bool:
    """Returns False: multicast needs GPUs that write each other's memory."""
    return False


def get_stream_priority_range(device_id: int = -1) -> tuple[int, int]:
    """Returns the lowest and highest priority of streams, which are equal."""
    return 0, 0


def ubuf_built_with_mpi() -> bool:
    """Returns False: processes are started by PyTorch."""
    return False


def nvte_built_with_cublasmp() -> bool:
    """Returns False: there is no cuBLASMp."""
    return False


def ep_zero_copy_supported() -> bool:
    """Returns False: there is no NCCL."""
    return False
