# SPDX-License-Identifier: Apache-2.0
"""Quantized tensors for JAX: XLA handlers on CPU and CUDA under TransformerEngine's names."""

from narrowfloat.jax import _extra  # noqa: F401  # isort: skip
from narrowfloat.jax._library import (
    cuda_registrations,
    ffi_library,
    register,
    registrations,
)

register()

# Registers targets first; then imports quantize, because the primitives import from it.
from narrowfloat.jax import quantize  # noqa: E402  # isort: skip
from narrowfloat.jax import cpp_extensions, sharding  # noqa: E402
from narrowfloat.jax.dense import dense  # noqa: E402
from narrowfloat.jax.fake_quantize import fake_quantize  # noqa: E402
from narrowfloat.jax.grouped_dense import grouped_dense  # noqa: E402
from narrowfloat.jax.product_mode import get_product_mode, product_mode  # noqa: E402
from narrowfloat.jax.quantize import autocast, fp8_autocast  # noqa: E402
from narrowfloat.jax.sharding import MeshResource  # noqa: E402

__all__ = [
    "MeshResource",
    "autocast",
    "cpp_extensions",
    "cuda_registrations",
    "dense",
    "fake_quantize",
    "ffi_library",
    "fp8_autocast",
    "get_product_mode",
    "grouped_dense",
    "product_mode",
    "quantize",
    "registrations",
    "sharding",
]
