# SPDX-License-Identifier: Apache-2.0
"""Quantizing and products, under the names of TransformerEngine's JAX package."""

from narrowfloat.jax.cpp_extensions.gemm import gemm
from narrowfloat.jax.cpp_extensions.grouped_gemm import grouped_gemm
from narrowfloat.jax.cpp_extensions.quantization import (
    dequantize,
    grouped_dbias,
    grouped_quantize,
    quantize,
    quantize_dbias,
)

__all__ = [
    "dequantize",
    "gemm",
    "grouped_dbias",
    "grouped_gemm",
    "grouped_quantize",
    "quantize",
    "quantize_dbias",
]
