# SPDX-License-Identifier: Apache-2.0
"""Device queries, and small functions for several modules."""

from __future__ import annotations

import torch

_non_tn_fp8_gemm = False


def is_non_tn_fp8_gemm_supported() -> bool:
    """Returns whether a product reads per-tensor FP8 in any layout, without a stored transpose.

    On the CPU, tensors store explicit transposes.
    """
    return _non_tn_fp8_gemm


def get_device_compute_capability() -> tuple[int, int]:
    """Returns the emulated CUDA capability, 9.0; tensors of that one store explicit transposes."""
    return 9, 0


def is_bf16_available(return_reason: bool = False) -> bool | tuple[bool, str]:
    """Returns True, or (True, "") with `return_reason`: PyTorch supports bfloat16 on every CPU."""
    return (True, "") if return_reason else True


def get_cudnn_version() -> tuple[int, int, int]:
    """Returns (0, 0, 0): cuDNN is absent, so that programs choose code without it."""
    return 0, 0, 0


def interleave_glu_tensor(tensor: torch.Tensor, interleave_size: int) -> torch.Tensor:
    """Returns the halves of dimension 0 alternating: `interleave_size` rows of each in turn.

    Gated activations take the gate W and the linear part V as [W, V] or as [W0, V0, W1, V1, ...].
    Errors: ValueError unless dimension 0 is a multiple of 2 * interleave_size.
    """
    blocks = _glu_blocks("interleave_glu_tensor", tensor, interleave_size)
    return _swap_blocks(tensor, (2, blocks, interleave_size))


def deinterleave_glu_tensor(tensor: torch.Tensor, interleave_size: int) -> torch.Tensor:
    """Returns the result of interleave_glu_tensor() with its halves joined again.

    Errors: the same.
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
    """Sets the result of is_non_tn_fp8_gemm_supported(); returns the former one. For tests."""
    global _non_tn_fp8_gemm
    before, _non_tn_fp8_gemm = _non_tn_fp8_gemm, bool(supported)
    return before


def round_up_to_nearest_multiple(value: int, multiple: int) -> int:
    """Returns the smallest multiple of `multiple` not below `value`.

    Errors: ValueError for a multiple of 0.
    """
    if multiple == 0:
        raise ValueError("multiple cannot be zero.")
    return -(-value // multiple) * multiple


def empty_like_device(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor without elements on the device of `tensor`, to release its memory."""
    return torch.empty((0,), dtype=tensor.dtype, device=tensor.device)


def devices_match(device1: torch.device, device2: torch.device) -> bool:
    """Returns whether types and indices of both devices are equal; no index equals any index."""
    if device1.type != device2.type:
        return False
    return None in (device1.index, device2.index) or device1.index == device2.index
