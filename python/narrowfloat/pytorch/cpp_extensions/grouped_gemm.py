# SPDX-License-Identifier: Apache-2.0
"""Several products in one call."""

from collections.abc import Sequence
from typing import Any

import torch

from narrowfloat.pytorch.cpp_extensions.single_gemm import general_gemm
from narrowfloat.pytorch.quantized_tensor import Quantizer
from narrowfloat.pytorch.tensor.storage.grouped_tensor_storage import GroupedTensorStorage


def general_grouped_gemm(
    A: Sequence[Any],
    B: Sequence[Any],
    out: Sequence[torch.Tensor],
    quantization_params: Sequence[Quantizer | None] | None = None,
    out_dtype: torch.dtype | None = None,
    layout: str = "TN",
    m_splits: Sequence[int] | None = None,
    gelu: bool = False,
    grad: bool = False,
    accumulate: bool = False,
    bias: Sequence[torch.Tensor | None] | None = None,
    use_bias: bool = False,
    use_split_accumulator: bool = False,
    D_dtype: object = None,
    single_output: bool = False,
) -> tuple[Any, list[torch.Tensor | None], list[torch.Tensor | None]]:
    """Returns general_gemm() of A[i] and B[i] into out[i], for each i.

    single_output: `out` is a list of one tensor, whose rows hold the results one after another,
    m_splits[i] rows each. Returns the outputs (or the one tensor), the biases or, with grad, their
    gradients, and the inputs of gelu.
    Errors: ValueError unless A, B and the outputs have one length; as general_gemm.
    """
    targets = list(out)
    if single_output:
        if m_splits is None:
            raise ValueError("general_grouped_gemm: single_output needs m_splits, got None")
        flat = out[0].view(-1, out[0].shape[-1])
        targets = list(flat.split(list(m_splits)))
    if not len(A) == len(B) == len(targets):
        raise ValueError(
            f"general_grouped_gemm: A, B and out must have the same length, "
            f"got {len(A)}, {len(B)} and {len(targets)}"
        )
    biases = list(bias) if use_bias and bias is not None else [None] * len(A)
    quantizers = list(quantization_params or [None] * len(A))
    results, gradients, gelu_inputs = [], [], []
    for a, b, target, vector, quantizer in zip(A, B, targets, biases, quantizers, strict=True):
        y, gradient, gelu_input, _ = general_gemm(
            a,
            b,
            out_dtype=target.dtype if target is not None else out_dtype,
            quantization_params=quantizer,
            gelu=gelu,
            accumulate=accumulate,
            layout=layout,
            out=target,
            bias=vector,
            use_split_accumulator=use_split_accumulator,
            grad=grad,
        )
        results.append(y)
        gradients.append(gradient if grad else vector)
        gelu_inputs.append(gelu_input)
    return out[0] if single_output else results, gradients, gelu_inputs


def general_grouped_gemm_for_grouped_tensor(
    A: GroupedTensorStorage | Sequence[Any],
    B: GroupedTensorStorage | Sequence[Any],
    out: GroupedTensorStorage | Sequence[torch.Tensor],
    *,
    layout: str = "TN",
    accumulate: bool = False,
    use_split_accumulator: bool = False,
    bias: GroupedTensorStorage | Sequence[torch.Tensor | None] | None = None,
    grad: bool = False,
    alpha: torch.Tensor | Sequence[float] | None = None,
    beta: torch.Tensor | Sequence[float] | None = None,
) -> GroupedTensorStorage | Sequence[torch.Tensor]:
    """Writes general_gemm() of the members of A and B to the members of `out`, and returns `out`.

    Each of A, B, out and bias is a grouped tensor or a list. alpha, beta: one number per member.
    Errors: ValueError unless all have one length; as general_gemm.
    """
    members = [_members(each) for each in (A, B, out)]
    count = len(members[0])
    lists = [*members, *(_given(each, count) for each in (bias, alpha, beta))]
    if any(len(each) != count for each in lists):
        raise ValueError(
            "general_grouped_gemm_for_grouped_tensor: A, B, out, bias, alpha and beta must have "
            f"one length, got {', '.join(str(len(each)) for each in lists)}"
        )
    for a, b, target, vector, factor, kept in zip(*lists, strict=True):
        general_gemm(
            a,
            b,
            out_dtype=target.dtype,
            alpha=None if factor is None else float(factor),
            beta=None if kept is None else float(kept),
            accumulate=accumulate,
            layout=layout,
            out=target,
            bias=vector,
            use_split_accumulator=use_split_accumulator,
            grad=grad,
        )
    return out


def _members(group: GroupedTensorStorage | torch.Tensor | Sequence[Any]) -> list[Any]:
    if isinstance(group, GroupedTensorStorage):
        return group._split()
    return list(group)


def _given(
    values: GroupedTensorStorage | torch.Tensor | Sequence[Any] | None, count: int
) -> list[Any]:
    return [None] * count if values is None else _members(values)
