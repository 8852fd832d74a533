# SPDX-License-Identifier: Apache-2.0
"""Entries for products, and for queries about their libraries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from narrowfloat.pytorch._autograd import without_gradients
from narrowfloat.pytorch._slow_products import FEW_LINES, SLOW_DTYPES
from narrowfloat.pytorch._types import TensorLike
from narrowfloat.pytorch.constants import DType, TE_DType, TE_DType_To_Torch
from narrowfloat.pytorch.cpp_extensions.operands import (
    Codes,
    Layout,
    is_scheme,
    nominal_dtype,
    product_sizes,
    unwrap_tensor,
)
from narrowfloat.pytorch.cpp_extensions.product import Epilogue, multiply
from narrowfloat.pytorch.quantized_tensor import Quantizer
from narrowfloat.pytorch.tensor._hosted import hosted, native
from narrowfloat.pytorch.tensor.storage.grouped_tensor_storage import GroupedTensorStorage

__all__ = [
    "generic_gemm",
    "get_cublasLt_version",
    "get_grouped_gemm_setup_workspace_size",
    "get_num_cublas_streams",
    "te_general_grouped_gemm",
    "te_general_grouped_gemm_for_discrete_in",
    "te_general_grouped_gemm_for_discrete_out",
    "te_general_grouped_gemm_for_grouped_tensor",
]

_CUBLASLT_VERSION = 130300  # a version with every format that TransformerEngine's Python uses


@without_gradients
def generic_gemm(
    A: TensorLike,
    transA: bool,
    B: TensorLike,
    transB: bool,
    D: TensorLike | None,
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
    """Returns [result, bias gradient, input of gelu, None], with the meaning of general_gemm().

    A is read rowwise if it is transposed, B if it is not. No workspace is needed. Errors: as
    general_gemm.
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
    first, second = unwrap_tensor(A, usage_a), unwrap_tensor(B, usage_b)
    if not _has_few_lines(second, layout):
        first, second = _widened(first), _widened(second)
    y, bias_grad, gelu_input = multiply(first, second, layout, epilogue, native(D))
    return [hosted(y), bias_grad, gelu_input, None]


def _has_few_lines(operand: Codes, layout: Layout) -> bool:
    """Returns whether a product has few lines and sums along both last dimensions."""
    is_plain = isinstance(operand, torch.Tensor) and not is_scheme(operand)
    sums_last = layout.transa and not layout.transb
    return is_plain and sums_last and operand.shape[:-1].numel() <= FEW_LINES


def _widened(operand: Codes) -> Codes:
    """Converts a plain tensor of a dtype with slow products to float32."""
    is_plain = isinstance(operand, torch.Tensor) and not is_scheme(operand)
    return operand.float() if is_plain and operand.dtype in SLOW_DTYPES else operand


def te_general_grouped_gemm(
    A: Sequence[Any],
    transa: bool,
    B: Sequence[Any],
    transb: bool,
    D: Sequence[torch.Tensor] | None,
    D_type: DType,
    m_splits: Sequence[int],
    bias: Sequence[torch.Tensor],
    bias_type: DType,
    single_output: bool,
    pre_gelu_out: Sequence[torch.Tensor],
    grad: bool,
    workspace: Sequence[torch.Tensor],
    workspaceSize: int,
    accumulate: bool,
    use_split_accumulator: bool,
    math_sm_count: int = 0,
) -> Sequence[torch.Tensor]:
    """Runs generic_gemm() of A[i] and B[i] into D[i], for each i; returns `bias`.

    single_output: D is a list of one tensor, whose rows receive all results in order.
    bias, pre_gelu_out: one per product; an empty one means None. With grad, bias gradients are
    written to `bias`, else the inputs of gelu are written to `pre_gelu_out`.
    Errors: ValueError unless the lists have one length and D is given; as general_gemm.
    """
    if D is None:
        raise ValueError("te_general_grouped_gemm: needs D, got None")
    outputs = list(D[0].split(_rows_of(B, transb, A, transa))) if single_output else list(D)
    lists = (A, B, outputs, bias, pre_gelu_out)
    if len({len(each) for each in lists}) != 1:
        raise ValueError(
            "te_general_grouped_gemm: A, B, D, bias and pre_gelu_out must have the same length, "
            f"got {', '.join(str(len(each)) for each in lists)}"
        )
    for a, b, out, vector, point in zip(*lists, strict=True):
        if 0 in (native(a).shape.numel(), native(b).shape.numel()):
            _clear_result(out, vector, point, grad, accumulate)
        else:
            options = (vector, bias_type, point, grad, accumulate)
            _multiply_into(a, transa, b, transb, out, D_type, *options)
    return bias


def _rows_of(B: Sequence[Any], transb: bool, A: Sequence[Any], transa: bool) -> list[int]:
    """Returns the rows of each product."""
    layout = Layout(bool(transa), bool(transb))
    return [product_sizes(native(a), native(b), layout).rows for a, b in zip(A, B, strict=True)]


def _clear_result(
    out: torch.Tensor, bias: torch.Tensor, gelu_input: torch.Tensor, grad: bool, accumulate: bool
) -> None:
    """Writes the result of a product without terms: zeros, without a bias."""
    if not accumulate:
        out.zero_()
    if grad:
        bias.zero_()
    gelu_input.zero_()


def _multiply_into(
    a: TensorLike,
    transa: bool,
    b: TensorLike,
    transb: bool,
    out: torch.Tensor,
    dtype: DType,
    bias: torch.Tensor,
    bias_type: DType,
    point: torch.Tensor,
    grad: bool,
    accumulate: bool,
) -> None:
    """Computes one product of te_general_grouped_gemm()."""
    gelu, with_bias = point.numel() > 0, bias.numel() > 0
    _, bias_grad, gelu_input, _ = generic_gemm(
        a,
        transa,
        b,
        transb,
        out,
        None,
        dtype,
        bias if with_bias else None,
        bias_type,
        gelu,
        point if gelu and grad else None,
        grad,
        accumulate=accumulate,
    )
    if grad and with_bias:
        bias.copy_(bias_grad)
    if gelu and not grad:
        point.copy_(gelu_input)


@torch.no_grad()
def te_general_grouped_gemm_for_grouped_tensor(
    A: GroupedTensorStorage | Sequence[TensorLike],
    transa: bool,
    B: GroupedTensorStorage | Sequence[TensorLike],
    transb: bool,
    D: GroupedTensorStorage | Sequence[torch.Tensor],
    bias: GroupedTensorStorage | None,
    bias_scale: torch.Tensor | None,
    alpha: torch.Tensor,
    beta: torch.Tensor,
    workspace_setup: torch.Tensor | None = None,
    workspace_cublas: torch.Tensor | None = None,
    use_split_accumulator: bool = False,
    math_sm_count: int = 0,
) -> GroupedTensorStorage | Sequence[torch.Tensor]:
    """Writes alpha * B[i] A[i] + beta * D[i] for the members of groups to D, and returns D.

    A, B, D: groups or lists. alpha, beta: one number, or one per member. bias: a group of vectors,
    added to the rounded results, times `bias_scale`, which has one number per row of all results.
    Errors: ValueError unless all have the same number of members; as general_gemm.
    """
    first, second, outputs = (_members(each) for each in (A, B, D))
    biases = [None] * len(outputs) if bias is None else _members(bias)
    if len({len(first), len(second), len(outputs), len(biases)}) != 1:
        raise ValueError(
            "te_general_grouped_gemm: groups must have the same number of members, got "
            f"{len(first)}, {len(second)}, {len(outputs)} and {len(biases)}"
        )
    factors, kept = (each.expand(len(outputs)).tolist() for each in (alpha, beta))
    row = 0
    for i, out in enumerate(outputs):
        _member_product(first[i], transa, second[i], transb, out, factors[i], kept[i])
        rows = out.shape[0]
        vector = biases[i]
        if vector is not None and out.numel() > 0:
            _add_bias(out, vector, None if bias_scale is None else bias_scale[row : row + rows])
        row += rows
    return D


def _members(group: GroupedTensorStorage | Sequence[TensorLike]) -> list[Any]:
    """Returns the members of a group or of a list."""
    if isinstance(group, Sequence):
        return list(group)
    return native(group)._split()


def _member_product(
    a: TensorLike,
    transa: bool,
    b: TensorLike,
    transb: bool,
    out: torch.Tensor,
    alpha: float,
    beta: float,
) -> None:
    """Writes alpha * B A + beta * out to `out`."""
    if out.numel() == 0:
        return
    if 0 in (native(a).shape.numel(), native(b).shape.numel()):
        out.mul_(beta) if beta != 0 else out.zero_()
        return
    accumulate = beta != 0
    generic_gemm(
        a,
        transa,
        b,
        transb,
        out,
        None,
        TE_DType[out.dtype],
        None,
        None,
        False,
        None,
        False,
        accumulate=accumulate,
        alpha=alpha,
        beta=beta if accumulate else None,
    )


def _add_bias(out: torch.Tensor, bias: torch.Tensor, scale: torch.Tensor | None) -> None:
    """Adds a vector to every row, times the scale of the row, in float32."""
    added = bias.reshape(1, -1).float()
    if scale is not None:
        added = added * scale.reshape(-1, 1).float()
    out.copy_(out.float() + added)


te_general_grouped_gemm_for_discrete_in = te_general_grouped_gemm_for_grouped_tensor
te_general_grouped_gemm_for_discrete_out = te_general_grouped_gemm_for_grouped_tensor


def get_cublasLt_version() -> int:
    """Returns the cuBLASLt version with the supported products, as there is no cuBLASLt."""
    return _CUBLASLT_VERSION


def get_num_cublas_streams() -> int:
    """Returns the number of streams of grouped products: one."""
    return 1


def get_grouped_gemm_setup_workspace_size(num_tensors: int) -> int:
    """Returns 1: a grouped product needs no setup workspace, but its size must not be 0."""
    return 1
