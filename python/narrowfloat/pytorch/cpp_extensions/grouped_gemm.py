# SPDX-License-Identifier: Apache-2.0
"""Several products at a time."""

from collections.abc import Sequence
from typing import Any

import torch

from narrowfloat.pytorch.cpp_extensions.gemm import general_gemm
from narrowfloat.pytorch.quantized_tensor import Quantizer


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
    D_dtype: Any = None,  # noqa: ANN401
    single_output: bool = False,
) -> tuple[Any, list[torch.Tensor | None], list[torch.Tensor | None]]:
    """general_gemm() of A[i] and B[i] into out[i], for each i.

    single_output: `out` is a list of one tensor, in whose rows the results lie one after another,
    m_splits[i] of them each. Returns the outputs (that one tensor), the biases or, with grad, their
    gradients, and what gelu was applied to.
    Errors: ValueError unless A, B and the outputs are as many; as general_gemm.
    """
    targets = list(out)
    if single_output:
        if m_splits is None:
            raise ValueError("general_grouped_gemm: single_output needs m_splits")
        flat = out[0].view(-1, out[0].shape[-1])
        targets = list(flat.split(list(m_splits)))
    if not len(A) == len(B) == len(targets):
        raise ValueError(
            f"general_grouped_gemm: A, B and out are as many, got {len(A)}, {len(B)} and "
            f"{len(targets)}"
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
