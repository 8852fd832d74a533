# SPDX-License-Identifier: Apache-2.0
"""The three gemms of a linear layer by their names."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from narrowfloat.pytorch.cpp_extensions import general_gemm
from narrowfloat.pytorch.cpp_extensions.operands import LAYOUTS, unwrap_tensor
from narrowfloat.pytorch.quantized_tensor import QuantizedTensorStorage, Quantizer


class Product(NamedTuple):
    """A gemm as general_gemm reads it: first and second are the tensors behind B and A."""

    layout: str
    first: str
    second: str


PRODUCTS = {
    "fprop": Product("TN", "activation", "weight"),
    "dgrad": Product("NN", "gradient", "weight"),
    "wgrad": Product("NT", "gradient", "activation"),
}


def multiply(
    gemm: str,
    layer_name: str,
    first: Any,
    second: Any,
    dtype: torch.dtype,
    quantizer: Quantizer | None = None,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """fprop: x w^T + bias. dgrad: dy w. wgrad: dy^T x. quantizer: watches the result.

    first, second: plain, quantized or debug tensors, of which the gemm reads its form.
    Errors: RuntimeError, naming layer and gemm, if one is quantized and the other is not.
    """
    product = PRODUCTS[gemm]
    usages = LAYOUTS[product.layout].usages[::-1]
    operands = [
        unwrap_tensor(tensor, usage) for tensor, usage in zip((first, second), usages, strict=True)
    ]
    kinds = [isinstance(operand, QuantizedTensorStorage) for operand in operands]
    if kinds[0] != kinds[1]:
        words = ["quantized" if kind else "plain" for kind in kinds]
        raise RuntimeError(
            f"layer {layer_name}, gemm {gemm}: operands are both quantized or both plain, got "
            f"{words[0]} {product.first} and {words[1]} {product.second}; disable the gemm or "
            f"modify both tensors"
        )
    b, a = operands
    return general_gemm(
        a,
        b,
        dtype,
        quantization_params=quantizer,
        layout=product.layout,
        bias=bias,
        grad=gemm != "fprop",
    )[0]
