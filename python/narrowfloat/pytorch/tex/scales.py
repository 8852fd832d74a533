# SPDX-License-Identifier: Apache-2.0
"""Entries that measure amaxes and derive scales from them."""

from collections.abc import Sequence

import torch

from narrowfloat.pytorch import _native
from narrowfloat.pytorch.constants import DType
from narrowfloat.pytorch.quantization.delayed_update import fused_update
from narrowfloat.pytorch.quantization.dtypes import largest_code_value

__all__ = ["compute_amax", "fused_amax_and_scale_update_after_reduction"]


def compute_amax(input: torch.Tensor, amax: torch.Tensor) -> None:
    """Writes the maximum magnitude of `input` to `amax`, float32 of one element; ignores NaN."""
    _native.verbs.amax(input.detach(), amax, _native.threads())


def fused_amax_and_scale_update_after_reduction(
    amax_reduction_buffer: torch.Tensor,
    amax_histories: Sequence[torch.Tensor],
    scales: Sequence[torch.Tensor],
    amax_compute_algo: str,
    fp8_dtype: DType,
    margin: float,
) -> None:
    """Runs one step of delayed scaling of several states, in place.

    Shapes: histories float32 (L, n_i), scales (n_i,); the buffer holds the newest amaxes over all
    processes, state after state, sum of n_i.
    Errors: ValueError unless the sizes add up; those of narrowfloat.update_delayed_scale.
    """
    sizes = [scale.numel() for scale in scales]
    if sum(sizes) != amax_reduction_buffer.numel() or len(sizes) != len(amax_histories):
        raise ValueError(
            "fused_amax_and_scale_update_after_reduction: needs one history and one amax per "
            f"scale, got {len(amax_histories)} histories and {amax_reduction_buffer.numel()} "
            f"amaxes for scales of {sizes}"
        )
    fp8_max = largest_code_value(DType.cast(fp8_dtype))
    parts = amax_reduction_buffer.split(sizes)
    for history, scale, newest in zip(amax_histories, scales, parts, strict=True):
        fused_update(history, scale, fp8_max, margin, amax_compute_algo, newest)
