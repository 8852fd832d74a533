# SPDX-License-Identifier: Apache-2.0
"""Packs booleans into bytes; the first of eight is the lowest bit."""

import torch
from torch.nn import functional

__all__: list[str] = []

BITS = 8


def _weights(device: torch.device) -> torch.Tensor:
    return torch.tensor([1 << bit for bit in range(BITS)], dtype=torch.uint8, device=device)


def pack(booleans: torch.Tensor) -> torch.Tensor:
    """Packs the last dimension into bytes, padded with False."""
    filled = functional.pad(booleans, (0, -booleans.shape[-1] % BITS))
    groups = filled.unflatten(-1, (-1, BITS)) if filled.numel() else filled[..., None]
    return (groups * _weights(booleans.device)).sum(-1, dtype=torch.uint8)


def unpack(packed: torch.Tensor, length: int) -> torch.Tensor:
    """Returns the first `length` booleans of the bytes of the last dimension."""
    return (packed[..., None] & _weights(packed.device)).ne(0).flatten(-2)[..., :length]
