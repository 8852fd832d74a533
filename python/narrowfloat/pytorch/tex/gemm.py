# SPDX-License-Identifier: Apache-2.0
"""Gathers the entries that multiply."""

from typing import Any

import torch

from narrowfloat.pytorch.constants import DType, TE_DType_To_Torch
from narrowfloat.pytorch.cpp_extensions.operands import Layout, nominal_dtype, unwrap_tensor
from narrowfloat.pytorch.cpp_extensions.product import Epilogue, multiply
from narrowfloat.pytorch.quantized_tensor import Quantizer
from narrowfloat.pytorch.tensor._hosted import hosted, native

__all__ = ["generic_gemm"]


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
        quantizer=native(quantizer),
    )
    operands = unwrap_tensor(A, usage_a), unwrap_tensor(B, usage_b)
    y, bias_grad, gelu_input = multiply(*operands, layout, epilogue, native(D))
    return [hosted(y), bias_grad, gelu_input, None]
