# SPDX-License-Identifier: Apache-2.0
"""Stands in for TransformerEngine's native module: its entries, over the one implementation."""

from collections.abc import Sequence
from typing import Any

import torch

from narrowfloat.pytorch import _native
from narrowfloat.pytorch._grouped import (
    group_dequantize,
    group_quantize,
    group_requantize_inplace,
    grouped_swizzle_for_gemm,
    parts_of,
)
from narrowfloat.pytorch._swizzle import swizzle_scales_for_gemm_
from narrowfloat.pytorch.constants import (
    DType,
    FP8BwdTensorIdx,
    FP8FwdTensorIdx,
    TE_DType_To_Torch,
)
from narrowfloat.pytorch.cpp_extensions.operands import Layout, nominal_dtype, unwrap_tensor
from narrowfloat.pytorch.cpp_extensions.product import Epilogue, multiply
from narrowfloat.pytorch.quantization.delayed_update import fused_update
from narrowfloat.pytorch.quantization.dtypes import largest_code_value
from narrowfloat.pytorch.quantized_tensor import QuantizedTensorStorage, Quantizer
from narrowfloat.pytorch.tensor._scheme_quantizer import SchemeQuantizer
from narrowfloat.pytorch.tensor.storage.grouped_tensor_storage import GroupedTensorStorage

FP8FwdTensors = FP8FwdTensorIdx
FP8BwdTensors = FP8BwdTensorIdx


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


def bgrad_group_quantize(
    tensor: torch.Tensor,
    quantizer: Quantizer,
    num_tensors: int,
    first_dims: torch.Tensor | None,
    noop_flag: torch.Tensor | None = None,
) -> tuple[GroupedTensorStorage, torch.Tensor]:
    """group_quantize() of groups of rows, and the sum of each group over its rows.

    Shapes: the sums are (num_tensors, columns), in the dtype of `tensor`.
    """
    grouped = group_quantize(tensor, quantizer, num_tensors, first_dims, noop_flag=noop_flag)
    sums = [part.float().sum(0) for part in parts_of(grouped, tensor)]
    return grouped, torch.stack(sums).to(tensor.dtype)


def compute_amax(input: torch.Tensor, amax: torch.Tensor) -> None:
    """Writes the largest magnitude of `input` to `amax`, float32 of one element; NaN is ignored."""
    _native.verbs.amax(input.detach(), amax, _native.threads())


def generic_gemm(
    A: Any,
    transA: bool,
    B: Any,
    transB: bool,
    D: Any,
    quantizer: Quantizer | None,
    output_dtype: DType | None,
    bias: torch.Tensor | None,
    bias_type: DType | None,
    gelu: bool,
    gelu_in: torch.Tensor | None,
    grad: bool,
    workspace: torch.Tensor | None = None,
    workspace_size: int = 0,
    accumulate: bool = False,
    use_split_accumulator: bool = False,
    comm_overlap: object = None,
    comm_type: object = None,
    extra_output: torch.Tensor | None = None,
    bulk_overlap: bool = False,
    alpha: float = 1.0,
    beta: float | None = None,
) -> list[Any]:
    """[result, bias gradient, what gelu was applied to, None]; the meaning is general_gemm's.

    A is read rowwise if it is transposed, B if it is not. No workspace is needed.
    Errors: as general_gemm.
    """
    if comm_overlap is not None or extra_output is not None or bulk_overlap:
        raise NotImplementedError("generic_gemm: overlap with communication needs a GPU")
    layout = Layout(bool(transA), bool(transB))
    usage_a, usage_b = layout.usages
    if output_dtype is not None:
        out_dtype = TE_DType_To_Torch[DType.cast(output_dtype)]
    else:
        out_dtype = nominal_dtype(A) if D is None else nominal_dtype(D)
    epilogue = Epilogue(
        out_dtype=out_dtype,
        bias=bias,
        gelu=gelu,
        gelu_in=gelu_in,
        grad=grad,
        alpha=alpha,
        beta=beta,
        accumulate=accumulate,
        quantizer=quantizer,
    )
    operands = unwrap_tensor(A, usage_a), unwrap_tensor(B, usage_b)
    y, bias_grad, gelu_input = multiply(*operands, layout, epilogue, D)
    return [y, bias_grad, gelu_input, None]


def fused_amax_and_scale_update_after_reduction(
    amax_reduction_buffer: torch.Tensor,
    amax_histories: Sequence[torch.Tensor],
    scales: Sequence[torch.Tensor],
    amax_compute_algo: str,
    fp8_dtype: DType,
    margin: float,
) -> None:
    """One step of delayed scaling of several states, in place.

    Shapes: histories float32 (L, n_i), scales (n_i,); the buffer holds the newest amaxes over all
    processes, state after state, sum of n_i.
    Errors: ValueError unless the sizes add up; as narrowfloat.update_delayed_scale.
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


class FP8TensorMeta:
    """Holds the fp32 state of delayed scaling: scale, scale_inv (n,) and amax_history (L, n)."""

    scale: torch.Tensor
    scale_inv: torch.Tensor
    amax_history: torch.Tensor


__all__ = [
    "DType",
    "FP8BwdTensors",
    "FP8FwdTensors",
    "FP8TensorMeta",
    "bgrad_group_quantize",
    "bgrad_quantize",
    "compute_amax",
    "dequantize",
    "fused_amax_and_scale_update_after_reduction",
    "generic_gemm",
    "group_dequantize",
    "group_quantize",
    "group_requantize_inplace",
    "grouped_swizzle_for_gemm",
    "multi_tensor_quantize",
    "quantize",
    "split_quantize",
    "swizzle_scales_for_gemm_",
]
