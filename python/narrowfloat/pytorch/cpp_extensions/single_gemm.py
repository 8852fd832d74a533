# SPDX-License-Identifier: Apache-2.0
"""general_gemm: one product of operands of any kind."""

from __future__ import annotations

from typing import Any

import torch

from narrowfloat.pytorch._types import TensorLike
from narrowfloat.pytorch.cpp_extensions._gemm_node import (
    GemmResult,
    gemm_has_node,
    multiply_as_node,
)
from narrowfloat.pytorch.cpp_extensions.custom_gemm import custom_gemm
from narrowfloat.pytorch.cpp_extensions.operands import LAYOUTS, nominal_dtype, unwrap_tensor
from narrowfloat.pytorch.cpp_extensions.product import Epilogue, multiply
from narrowfloat.pytorch.quantized_tensor import Quantizer


def validate_gemm_scale(scale: float | None, required: bool) -> float:
    """Returns the factor of a product: `scale`, or 1 if it is None and a factor is required.

    Errors: ValueError for a factor other than 0 if none is required.
    """
    if required:
        return 1.0 if scale is None else scale
    if scale not in (0.0, None):
        raise ValueError(f"validate_gemm_scale: scale must be zero, got {scale}")
    return 0.0


def _gemm_in_graph(
    tensors: dict[str, Any],
    quantizer: Quantizer | None,
    options: dict[str, Any],
    alpha: float | None,
    beta: float | None,
) -> GemmResult:
    """Runs general_gemm() as one node of a graph. The tracer traces into this function."""
    # Numbers may be symbols of the compiler, which are not constants.
    if alpha is not None and alpha != 1.0:
        tensors["alpha"] = alpha
    if beta is not None:
        tensors["beta"] = beta
    return multiply_as_node(general_gemm, tensors, quantizer, options)


def general_gemm(
    A: TensorLike,
    B: TensorLike,
    out_dtype: torch.dtype | None = None,
    quantization_params: Quantizer | None = None,
    gelu: bool = False,
    gelu_in: torch.Tensor | None = None,
    alpha: float | None = 1,  # an int: compilers first convert a default of 1.0 to a symbol
    beta: float | None = None,
    accumulate: bool = False,
    layout: str = "TN",
    out: TensorLike | None = None,
    bias: torch.Tensor | None = None,
    use_split_accumulator: bool = False,
    grad: bool = False,
    ub: object = None,
    ub_type: object = None,
    extra_output: torch.Tensor | None = None,
    bulk_overlap: bool = False,
) -> tuple[Any, torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
    """Returns alpha times the product of B and A; a layout for each product of a linear layer.

    layout:  "TN": B (M, K) times A (N, K) transposed, rowwise data of both (forward: A weight).
             "NN": B (M, N) times A (N, K), A columnwise (gradient of the input).
             "NT": B (M, N) transposed times A (M, K), both columnwise (gradient of the weight).
    Shapes:  leading dimensions are flattened; the result has B's, except in NT: a matrix.
    out_dtype: None is out's, else A's. out: contiguous; accumulate adds beta (None: 1) times it.
    bias:    1-D, added; with grad the second result is the sum of B over its rows instead.
    gelu:    the third result is its input; with grad the derivative at gelu_in.
    quantization_params: quantizer of the result.
    use_split_accumulator: sums are always kept in fp32. ub, ub_type, extra_output, bulk_overlap:
             overlap of products and communication, which a CPU does not have; they must be unset.
    Errors:  AssertionError for another layout; ValueError for sizes, out, beta; RuntimeError for an
             absent direction, or operands of two families; NotImplementedError for a quantizer that
             makes no outputs, or overlap.
    """
    if layout not in LAYOUTS:
        raise AssertionError(f"GEMM layout {layout} not supported.")
    if ub is not None or ub_type is not None or extra_output is not None or bulk_overlap:
        raise NotImplementedError("general_gemm: overlap with communication needs a GPU")
    if torch.compiler.is_dynamo_compiling():
        tensors = {"A": A, "B": B, "gelu_in": gelu_in, "out": out, "bias": bias}
        options = {
            "out_dtype": out_dtype,
            "gelu": gelu,
            "accumulate": accumulate,
            "layout": layout,
            "grad": grad,
        }
        if gemm_has_node(tensors, quantization_params):
            return _gemm_in_graph(tensors, quantization_params, options, alpha, beta)
    usage_a, usage_b = LAYOUTS[layout].usages
    a, b = unwrap_tensor(A, usage_a), unwrap_tensor(B, usage_b)
    # A debug quantizer wraps another one, and processes the result that the inner one quantizes.
    watcher = quantization_params if hasattr(quantization_params, "process_gemm_output") else None
    if watcher is not None:
        quantization_params = watcher.parent_quantizer
    if out_dtype is None and out is not None:
        out_dtype = nominal_dtype(out)
    if getattr(a, "custom", False) or getattr(b, "custom", False):
        into: Any = out
        y, bias_grad, gelu_input, _ = custom_gemm(
            a,
            b,
            out_dtype=out_dtype,
            quantization_params=quantization_params,
            gelu=gelu,
            gelu_in=gelu_in,
            accumulate=accumulate,
            layout=layout,
            out=into,
            bias=bias,
            use_split_accumulator=use_split_accumulator,
            grad=grad,
        )
    else:
        epilogue = Epilogue(
            out_dtype=nominal_dtype(A) if out_dtype is None else out_dtype,
            bias=bias,
            gelu=gelu,
            gelu_in=gelu_in,
            grad=grad,
            alpha=1.0 if alpha is None else alpha,
            beta=beta,
            accumulate=accumulate,
            quantizer=quantization_params,
        )
        y, bias_grad, gelu_input = multiply(a, b, LAYOUTS[layout], epilogue, out)
    if watcher is not None:
        y = watcher.process_gemm_output(y)
    return y, bias_grad, gelu_input, None
