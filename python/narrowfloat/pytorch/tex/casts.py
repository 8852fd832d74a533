# SPDX-License-Identifier: Apache-2.0
"""Gathers the entries that quantize and decode one tensor at a time."""

from collections.abc import Sequence
from typing import Any

import torch

from narrowfloat.pytorch._swizzle import swizzle_scales_for_gemm_
from narrowfloat.pytorch.constants import DType, TE_DType_To_Torch
from narrowfloat.pytorch.quantized_tensor import QuantizedTensorStorage, Quantizer
from narrowfloat.pytorch.tensor._scheme_quantizer import SchemeQuantizer

__all__ = [
    "bgrad_quantize",
    "dequantize",
    "multi_tensor_quantize",
    "quantize",
    "split_quantize",
    "swizzle_scales_for_gemm_",
]


def quantize(
    tensor: torch.Tensor,
    quantizer: Quantizer,
    output: Any = None,
    noop: torch.Tensor | None = None,
) -> Any:
    """`tensor` quantized, outside of autograd: new, or into `output`.

    With noop == 1 `output` stays as it is, and what is new is not initialised.
    """
    with torch.no_grad():
        if output is not None:
            bare = isinstance(quantizer, SchemeQuantizer) and not isinstance(output, torch.Tensor)
            update = quantizer.update_storage if bare else quantizer.update_quantized
            return update(tensor, output, noop_flag=noop)
        if noop is not None and noop.item() == 1:
            return quantizer.make_empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
        return quantizer.quantize_impl(tensor)


def dequantize(input: QuantizedTensorStorage, otype: DType) -> torch.Tensor:
    """The values as a plain tensor of that type."""
    with torch.no_grad():
        return input.dequantize(dtype=TE_DType_To_Torch[DType.cast(otype)])


def multi_tensor_quantize(
    tensor_list: Sequence[torch.Tensor], quantizer_list: Sequence[Quantizer]
) -> list[Any]:
    """quantize() of each tensor by its quantizer. Errors: ValueError unless they are as many."""
    if len(tensor_list) != len(quantizer_list):
        raise ValueError(
            "multi_tensor_quantize: needs one quantizer per tensor, "
            f"got {len(tensor_list)} tensors and {len(quantizer_list)} quantizers"
        )
    return [quantize(t, q) for t, q in zip(tensor_list, quantizer_list, strict=True)]


def split_quantize(
    tensor: torch.Tensor,
    split_sections: Sequence[int],
    quantizer_list: Sequence[Quantizer],
    disable_bulk_allocation: bool = False,
) -> list[Any]:
    """quantize() of runs of rows that lie one after another, each as if it were alone.

    disable_bulk_allocation: buffers of the results are always apart.
    Errors: ValueError unless there is a quantizer a section and the sections add up.
    """
    if len(split_sections) != len(quantizer_list):
        raise ValueError(
            f"split_quantize: a quantizer a section, got {len(split_sections)} sections and "
            f"{len(quantizer_list)} quantizers"
        )
    if sum(split_sections) != tensor.shape[0]:
        raise ValueError(
            f"split_quantize: sections add up to the rows, got {list(split_sections)} for "
            f"{tensor.shape[0]} rows"
        )
    return multi_tensor_quantize(tensor.split(list(split_sections)), quantizer_list)


def bgrad_quantize(input: torch.Tensor, quantizer: Quantizer) -> tuple[torch.Tensor, Any]:
    """The sum of `input` over its rows, in its dtype, and quantize()."""
    rows = input.detach().reshape(-1, input.shape[-1])
    return rows.float().sum(0).to(input.dtype), quantize(input, quantizer)
