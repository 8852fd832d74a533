# SPDX-License-Identifier: Apache-2.0
"""Entries that quantize and dequantize one tensor at a time.

Quantizers and quantized tensors may be narrowfloat's or TransformerEngine's; results are of the
quantizer's package.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from narrowfloat.pytorch import _swizzle
from narrowfloat.pytorch._autograd import count_write, keep_saved, without_gradients
from narrowfloat.pytorch._native import column_sums, skips
from narrowfloat.pytorch._types import Quantized, TensorLike
from narrowfloat.pytorch.constants import DType, TE_DType_To_Torch
from narrowfloat.pytorch.quantized_tensor import QuantizedTensorStorage, Quantizer
from narrowfloat.pytorch.tensor._hosted import HostedView, hosted, native
from narrowfloat.pytorch.tensor._scheme_quantizer import SchemeQuantizer
from narrowfloat.pytorch.tensor.nvfp4_tensor import NVFP4Quantizer

__all__ = [
    "bgrad_quantize",
    "create_empty_quantized_tensor",
    "dequantize",
    "multi_tensor_quantize",
    "multi_tensor_swizzle_scales_for_gemm_",
    "multi_tensor_swizzle_scales_for_gemm_unchecked_",
    "nvfp4_quantize_with_amax",
    "quantize",
    "split_quantize",
    "swizzle_scales_for_gemm_",
]

# The multiples that a GPU's kernels with swizzled scales need.
_RHT_KERNEL_ROWS = 64
_TILE_KERNEL_ROWS = 128
_KERNEL_COLUMNS = 128


def plain(tensor: TensorLike) -> torch.Tensor:
    """Returns the values of a plain or quantized tensor, outside of autograd."""
    own = native(tensor)
    if isinstance(own, QuantizedTensorStorage):
        return own.dequantize()
    return own.detach()


@without_gradients
def quantize(
    tensor: torch.Tensor,
    quantizer: Quantizer | None,
    output: TensorLike | None = None,
    noop: torch.Tensor | None = None,
) -> TensorLike:
    """Returns `tensor` quantized, outside of autograd, in `output` or in a new tensor.

    Without a quantizer the values do not change. With noop == 1 `output` does not change, and a new
    tensor is uninitialised.
    """
    tensor = plain(tensor)
    if quantizer is None:
        return tensor if output is None else output.copy_(tensor)
    own = native(quantizer)
    if output is not None:
        into: Any = native(output)
        keep_saved(into)
        _update(own, tensor, into, not isinstance(output, torch.Tensor), noop)
        count_write(into, noop)
        return output
    if noop is None:
        return hosted(own.quantize_impl(tensor))
    if not noop.is_cuda:
        stopped = skips(noop)
        return hosted(_made_empty(own, tensor) if stopped else own.quantize_impl(tensor))
    # A flag in device memory is only read by a kernel.
    made = _made_empty(own, tensor)
    _update(own, tensor, made, not isinstance(made, torch.Tensor), noop)
    return hosted(made)


def _update(
    quantizer: Quantizer,
    tensor: torch.Tensor,
    output: Any,  # noqa: ANN401  # of any family
    is_bare: bool,
    noop: torch.Tensor | None,
) -> None:
    by_scheme = is_bare and isinstance(quantizer, SchemeQuantizer)
    update = quantizer.update_storage if by_scheme else quantizer.update_quantized
    update(tensor, output, noop_flag=noop)


def _made_empty(quantizer: Quantizer, tensor: torch.Tensor) -> Any:  # noqa: ANN401  # of any family
    return quantizer.make_empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)


def require_nvfp4(entry: str, quantizer: Quantizer | None, **amaxes: torch.Tensor | None) -> None:
    """Raises ValueError unless the quantizer is for NVFP4 and the amaxes are float32."""
    if not isinstance(quantizer, NVFP4Quantizer):
        raise ValueError(f"{entry}: needs an NVFP4Quantizer, got {type(quantizer).__name__}")
    for name, amax in amaxes.items():
        dtype = None if amax is None else amax.dtype
        if dtype != torch.float32:
            raise ValueError(f"{entry}: {name} must be float32, got {dtype}")


@torch.no_grad()
def nvfp4_quantize_with_amax(
    tensor: torch.Tensor,
    quantizer: Quantizer,
    rowwise_amax: torch.Tensor,
    columnwise_amax: torch.Tensor,
) -> Quantized:
    """Returns `tensor` quantized with given amaxes of one element, which the result stores.

    Errors: ValueError for another quantizer, or for amaxes of another size or dtype.
    """
    entry, own, tensor = "nvfp4_quantize_with_amax", native(quantizer), plain(tensor)
    require_nvfp4(entry, own, rowwise_amax=rowwise_amax, columnwise_amax=columnwise_amax)
    if (rowwise_amax.numel(), columnwise_amax.numel()) != (1, 1):
        raise ValueError(
            f"{entry}: amaxes must have one element, got {rowwise_amax.numel()} and "
            f"{columnwise_amax.numel()}"
        )
    made = own.make_empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    given = {"_amax_rowwise": rowwise_amax, "_amax_columnwise": columnwise_amax}
    for name, amax in given.items():
        if made.__dict__[name] is not None:
            made.__dict__[name] = amax
    if tensor.numel() > 0:
        own._fill_given(tensor, made, rowwise_amax, columnwise_amax)
    return hosted(made)


@without_gradients
def create_empty_quantized_tensor(
    quantizer: Quantizer | None,
    shape: Sequence[int],
    dtype: torch.dtype,
    device: torch.device | str | None = None,
    pin_memory: bool = False,
) -> TensorLike:
    """Returns an uninitialised tensor of the quantizer, plain without a quantizer; it is not pinned
    without a driver.
    """
    device = torch.get_default_device() if device is None else torch.device(device)
    pin_memory = pin_memory and torch.cuda.is_available()
    if quantizer is None:
        return torch.empty(tuple(shape), dtype=dtype, device=device, pin_memory=pin_memory)
    own = native(quantizer)
    made = hosted(own.make_empty(shape, dtype=dtype, device=device, pin_memory=pin_memory))
    if isinstance(own, HostedView) and isinstance(own, NVFP4Quantizer):
        made._with_gemm_swizzled_scales = _is_swizzled_at_once(own, torch.Size(shape))
    return made


def _is_swizzled_at_once(quantizer: NVFP4Quantizer, shape: torch.Size) -> bool:
    """Returns whether a GPU's kernel writes swizzled scales.

    Otherwise TransformerEngine swizzles later, and the new tensor is marked as not swizzled.
    """
    if not quantizer.optimize_for_gemm:
        return False
    tiles = quantizer.with_2d_quantization and not quantizer.row_scaled_nvfp4
    if not quantizer.with_rht and (not tiles or quantizer.nvfp4_use_4over6):
        return False
    rows, columns = shape[:-1].numel(), shape[-1]
    multiple = _RHT_KERNEL_ROWS if quantizer.with_rht else _TILE_KERNEL_ROWS
    return rows % multiple == 0 and columns % _KERNEL_COLUMNS == 0


@without_gradients
def dequantize(input: QuantizedTensorStorage, otype: DType) -> torch.Tensor:
    """Returns the values as a plain tensor of the given type."""
    return native(input).dequantize(dtype=TE_DType_To_Torch[DType.cast(otype)])


def multi_tensor_quantize(
    tensor_list: Sequence[torch.Tensor], quantizer_list: Sequence[Quantizer]
) -> list[Any]:
    """Returns quantize() of each tensor with its quantizer.

    Errors: ValueError unless their numbers are equal.
    """
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
    """Returns quantize() of consecutive sections of rows, each as a tensor of its own.

    disable_bulk_allocation: ignored; buffers of the results are always separate.
    Errors: ValueError unless there is one quantizer per section and sections add up to the rows.
    """
    if len(split_sections) != len(quantizer_list):
        raise ValueError(
            f"split_quantize: needs one quantizer per section, got {len(split_sections)} sections "
            f"and {len(quantizer_list)} quantizers"
        )
    if sum(split_sections) != tensor.shape[0]:
        raise ValueError(
            f"split_quantize: sections must add up to the rows, got {list(split_sections)} for "
            f"{tensor.shape[0]} rows"
        )
    return multi_tensor_quantize(tensor.split(list(split_sections)), quantizer_list)


def bgrad_quantize(input: torch.Tensor, quantizer: Quantizer | None) -> tuple[torch.Tensor, Any]:
    """Returns the sum of `input` over its rows, in its dtype, and quantize()."""
    return column_sums(input.detach()).to(input.dtype), quantize(input, quantizer)


def swizzle_scales_for_gemm_(
    tensor: QuantizedTensorStorage, rowwise: bool = True, columnwise: bool = True
) -> None:
    """Swizzles the scales of the given directions in place, if they are present.

    Does nothing if they are swizzled already. Padding becomes zero.
    Errors: ValueError for a format without such a layout.
    """
    storage: Any = native(tensor)
    _swizzle.swizzle_scales_for_gemm_(storage, rowwise, columnwise)


def multi_tensor_swizzle_scales_for_gemm_(
    tensors: Sequence[QuantizedTensorStorage], rowwise_usage: bool, columnwise_usage: bool
) -> None:
    """Runs swizzle_scales_for_gemm_() on each tensor."""
    for tensor in tensors:
        swizzle_scales_for_gemm_(tensor, rowwise_usage, columnwise_usage)


multi_tensor_swizzle_scales_for_gemm_unchecked_ = multi_tensor_swizzle_scales_for_gemm_
