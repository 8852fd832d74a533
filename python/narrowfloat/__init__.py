# SPDX-License-Identifier: Apache-2.0
"""Quantized tensors in narrow floats, byte for byte as TransformerEngine makes them, on NumPy."""

from narrowfloat._core import (
    QuantizedTensor,
    __version__,
    backends,
    block_scales_to_mxfp8,
    dequantize,
    fake_quantize,
    from_buffers,
    grouped_quantize,
    hadamard_transform,
    qgemm,
    quantize,
    quantize_dbias,
    requantize,
    save,
    schemes,
    swizzle,
    unswizzle,
    update_delayed_scale,
)
from narrowfloat.checkpoint import load
from narrowfloat.quantizers import (
    Float8BlockQuantizer,
    Float8CurrentScalingQuantizer,
    Float8Quantizer,
    MXFP8Quantizer,
    NVFP4Quantizer,
)

__all__ = [
    "Float8BlockQuantizer",
    "Float8CurrentScalingQuantizer",
    "Float8Quantizer",
    "MXFP8Quantizer",
    "NVFP4Quantizer",
    "QuantizedTensor",
    "__version__",
    "backends",
    "block_scales_to_mxfp8",
    "dequantize",
    "fake_quantize",
    "from_buffers",
    "grouped_quantize",
    "hadamard_transform",
    "load",
    "qgemm",
    "quantize",
    "quantize_dbias",
    "requantize",
    "save",
    "schemes",
    "swizzle",
    "unswizzle",
    "update_delayed_scale",
]
