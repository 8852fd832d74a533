# SPDX-License-Identifier: Apache-2.0
"""Gathers the entries about communication that overlaps with products: queries, and refusals."""

from typing import Any

from narrowfloat.pytorch.tex._absent import refusal

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

_NEED = "communication that overlaps with products on a GPU"


class CommOverlapHelper:
    """Names the processes that share buffers on GPUs; cannot be made."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise refusal("CommOverlapHelper", _NEED)


class CommOverlapCore:
    """Is the base of buffers that products share with collectives; cannot be made."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise refusal(type(self).__name__, _NEED)


class CommOverlapBase(CommOverlapCore):
    """Is the base of buffers of collectives; cannot be made."""


class CommOverlapP2PBase(CommOverlapCore):
    """Is the base of buffers of rings of processes; cannot be made."""


class CommOverlap(CommOverlapBase):
    """Is a buffer of a collective; cannot be made."""


class CommOverlapP2P(CommOverlapP2PBase):
    """Is a buffer of a ring of processes; cannot be made."""


def device_supports_multicast(device_id: int = -1) -> bool:
    """Returns False: there is no GPU whose memory others write."""
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
