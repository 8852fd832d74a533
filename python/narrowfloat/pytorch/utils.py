# SPDX-License-Identifier: Apache-2.0
"""Answers about the device, and small functions that several modules use."""

from __future__ import annotations

import torch

_non_tn_fp8_gemm = False


def is_non_tn_fp8_gemm_supported() -> bool:
    """Returns whether a product reads per-tensor FP8 in any layout, so that no transpose is kept.

    The CPU keeps explicit transposes.
    """
    return _non_tn_fp8_gemm


def get_device_compute_capability() -> tuple[int, int]:
    """Returns the CUDA generation that the CPU behaves as: one that keeps explicit transposes."""
    return 9, 0


def is_bf16_available(return_reason: bool = False) -> bool | tuple[bool, str]:
    """Returns True, or (True, "") with `return_reason`: PyTorch has bfloat16 on every CPU."""
    return (True, "") if return_reason else True


def get_cudnn_version() -> tuple[int, int, int]:
    """Returns (0, 0, 0): there is no cuDNN, so that programs choose what does not need it."""
    return 0, 0, 0


def interleave_glu_tensor(tensor: torch.Tensor, interleave_size: int) -> torch.Tensor:
    """Returns the halves of dimension 0 in turns: `interleave_size` rows of one, then the other.

    Gated activations take the gate W and the linear part V as [W, V] or as [W0, V0, W1, V1, ...].
    Errors: ValueError unless dimension 0 is a multiple of 2 * interleave_size.
    """
    blocks = _glu_blocks("interleave_glu_tensor", tensor, interleave_size)
    return _swap_blocks(tensor, (2, blocks, interleave_size))


def deinterleave_glu_tensor(tensor: torch.Tensor, interleave_size: int) -> torch.Tensor:
    """Returns the halves one after the other, which interleave_glu_tensor() puts in turns.

    Errors: as there.
    """
    blocks = _glu_blocks("deinterleave_glu_tensor", tensor, interleave_size)
    return _swap_blocks(tensor, (blocks, 2, interleave_size))


def _glu_blocks(verb: str, tensor: torch.Tensor, size: int) -> int:
    if size <= 0:
        raise ValueError(f"{verb}: interleave_size must be positive, got {size}")
    if tensor.shape[0] % (2 * size) != 0:
        raise ValueError(
            f"{verb}: dimension 0 must be a multiple of 2 * interleave_size = {2 * size}, "
            f"got {tensor.shape[0]}"
        )
    return tensor.shape[0] // (2 * size)


def _swap_blocks(tensor: torch.Tensor, blocks: tuple[int, int, int]) -> torch.Tensor:
    parts = tensor.reshape(*blocks, *tensor.shape[1:])
    return parts.transpose(0, 1).contiguous().reshape(tensor.shape)


def set_non_tn_fp8_gemm_supported(supported: bool) -> bool:
    """Chooses the answer of is_non_tn_fp8_gemm_supported(); returns the one before. For tests."""
    global _non_tn_fp8_gemm
    before, _non_tn_fp8_gemm = _non_tn_fp8_gemm, bool(supported)
    return before


def round_up_to_nearest_multiple(value: int, multiple: int) -> int:
    """Returns the smallest multiple that is not below `value`.

    Errors: ValueError for a multiple of 0.
    """
    if multiple == 0:
        raise ValueError("multiple cannot be zero.")
    return -(-value // multiple) * multiple


def empty_like_device(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor without elements on the device of `tensor`, which replaces its memory."""
    return torch.empty((0,), dtype=tensor.dtype, device=tensor.device)


def devices_match(device1: torch.device, device2: torch.device) -> bool:
    """Returns whether both are one device; an index that is not said counts as the current one."""
    if device1.type != device2.type:
        return False
    return None in (device1.index, device2.index) or device1.index == device2.index
