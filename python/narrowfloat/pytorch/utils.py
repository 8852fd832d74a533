# SPDX-License-Identifier: Apache-2.0
"""What the device can do, and small things that several modules ask for."""

from __future__ import annotations

import torch

_non_tn_fp8_gemm = False


def is_non_tn_fp8_gemm_supported() -> bool:
    """Whether a product reads per-tensor FP8 in any layout, so that no transpose is kept.

    The CPU keeps explicit transposes.
    """
    return _non_tn_fp8_gemm


def get_device_compute_capability() -> tuple[int, int]:
    """The CUDA generation that the CPU behaves as: one that keeps explicit transposes."""
    return 9, 0


def set_non_tn_fp8_gemm_supported(supported: bool) -> bool:
    """Chooses the answer of is_non_tn_fp8_gemm_supported(); returns the one before. For tests."""
    global _non_tn_fp8_gemm
    before, _non_tn_fp8_gemm = _non_tn_fp8_gemm, bool(supported)
    return before


def round_up_to_nearest_multiple(value: int, multiple: int) -> int:
    """The smallest multiple that is not below `value`. Errors: ValueError for a multiple of 0."""
    if multiple == 0:
        raise ValueError("multiple cannot be zero.")
    return -(-value // multiple) * multiple


def empty_like_device(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor without elements on the device of `tensor`, to take the place of its memory."""
    return torch.empty((0,), dtype=tensor.dtype, device=tensor.device)


def devices_match(first: torch.device, second: torch.device) -> bool:
    """Whether both are one device; an index that is not said counts as the current one."""
    if first.type != second.type:
        return False
    return first.index is None or second.index is None or first.index == second.index
