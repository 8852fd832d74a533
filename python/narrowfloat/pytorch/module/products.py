# SPDX-License-Identifier: Apache-2.0
"""The three products of a linear layer, by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from narrowfloat.pytorch._types import TensorLike
from narrowfloat.pytorch.cpp_extensions import general_grouped_gemm
from narrowfloat.pytorch.cpp_extensions.operands import LAYOUTS, unwrap_tensor
from narrowfloat.pytorch.quantized_tensor import QuantizedTensorStorage, Quantizer


class Product(NamedTuple):
    """A gemm of general_gemm: first and second are the tensors passed as B and A."""

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
    firsts: Sequence[Any],
    seconds: Sequence[Any],
    dtype: torch.dtype,
    quantizers: Sequence[Quantizer | None] | None = None,
    biases: Sequence[torch.Tensor | None] | None = None,
    outs: Sequence[torch.Tensor | None] | None = None,
    accumulate: bool = False,
) -> list[Any]:
    """Returns one result per pair. fprop: x w^T + bias. dgrad: dy w. wgrad: dy^T x.

    firsts, seconds: plain, quantized or debug tensors; the gemm reads its form of each.
    quantizers: quantize or debug the results. outs: receive results; accumulate adds to them.
    Errors: RuntimeError, naming layer and gemm, if one operand is quantized and the other plain.
    """
    product = PRODUCTS[gemm]
    usage_a, usage_b = LAYOUTS[product.layout].usages
    b = [unwrap_tensor(tensor, usage_b) for tensor in firsts]
    a = [unwrap_tensor(tensor, usage_a) for tensor in seconds]
    for first, second in zip(b, a, strict=True):
        _check_pair(gemm, layer_name, first, second)
    into: list[Any] = [None] * len(a) if outs is None else list(outs)
    return general_grouped_gemm(
        a,
        b,
        into,
        quantizers,
        dtype,
        layout=product.layout,
        grad=gemm != "fprop",
        accumulate=accumulate,
        bias=biases,
        use_bias=biases is not None,
    )[0]


def _check_pair(gemm: str, layer_name: str, first: TensorLike, second: TensorLike) -> None:
    kinds = [isinstance(operand, QuantizedTensorStorage) for operand in (first, second)]
    if kinds[0] == kinds[1]:
        return
    product = PRODUCTS[gemm]
    words = ["quantized" if kind else "plain" for kind in kinds]
    raise RuntimeError(
        f"layer {layer_name}, gemm {gemm}: operands must be both quantized or both plain, got "
        f"{words[0]} {product.first} and {words[1]} {product.second}; disable the gemm or "
        f"modify both tensors"
    )
