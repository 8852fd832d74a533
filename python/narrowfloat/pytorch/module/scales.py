# SPDX-License-Identifier: Apache-2.0
"""Copies of delayed scaling's scales, to repeat the quantization of an earlier pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from narrowfloat.pytorch.module.watching import Slots
from narrowfloat.pytorch.quantized_tensor import Quantizer

# The tensors that a forward pass quantizes; gradients are quantized only once.
FORWARD = ("activation", "weight", "output")
Scales = dict[str, torch.Tensor | None]


def scales_of(slots: Sequence[Slots]) -> list[Scales]:
    """Returns copies of the scales of each set, None for quantizers without state."""
    return [{name: _scale(getattr(each, name)) for name in FORWARD} for each in slots]


def with_scales(slots: Sequence[Slots], scales: Sequence[Scales]) -> list[Slots]:
    """Returns the quantizers with those scales; their amaxes are discarded."""
    return [
        each._replace(**{name: _with_scale(getattr(each, name), of[name]) for name in FORWARD})
        for each, of in zip(slots, scales, strict=True)
    ]


def is_delayed(quantizer: Quantizer | None) -> bool:
    """Returns whether delayed scaling computes the quantizer's scale."""
    return getattr(quantizer, "SCALE_IS_GIVEN", False)


def _scale(quantizer: Quantizer | None) -> torch.Tensor | None:
    own: Any = getattr(quantizer, "parent_quantizer", quantizer)
    return own.scale.clone() if is_delayed(own) else None


def _with_scale(quantizer: Quantizer | None, scale: torch.Tensor | None) -> Quantizer | None:
    if quantizer is None or scale is None or not is_delayed(quantizer):
        return quantizer
    copy = quantizer.copy()
    copy.scale, copy.amax = scale, torch.zeros_like(quantizer.amax)
    return copy
