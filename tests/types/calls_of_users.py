# SPDX-License-Identifier: Apache-2.0
"""Calls as users write them, with the types that mypy must infer. mypy checks this file.

A line with `type: ignore` must be an error: mypy reports an ignore that is not used.
"""

from typing import assert_type

import narrowfloat.pytorch as nfp
import numpy as np
import torch

import narrowfloat as nf

x = torch.randn(64, 64)

assert_type(nfp.MXFP8Quantizer("e4m3")(x), nfp.MXFP8Tensor)
assert_type(nfp.NVFP4Quantizer().quantize(x), nfp.NVFP4Tensor)
assert_type(nfp.Float8CurrentScalingQuantizer(torch.float8_e4m3fn)(x), nfp.Float8Tensor)
assert_type(
    nfp.Float8BlockQuantizer("e4m3", rowwise=True, columnwise=True)(x), nfp.Float8BlockwiseQTensor
)
assert_type(nfp.IdentityQuantizer().make_empty((64, 64)), nfp.IdentityTensor)
assert_type(nfp.MXFP8Quantizer("e4m3").copy(), nfp.MXFP8Quantizer)
assert_type(nfp.MXFP8Quantizer("e4m3")(x).dequantize(), torch.Tensor)


def quantized_by(quantizer: nfp.Quantizer) -> nfp.QuantizedTensor | nfp.QuantizedTensorStorage:
    """Returns the result of a quantizer of any family."""
    return quantizer(x)


quantized_by(nfp.MXFP8Quantizer("e4m3"))
nfp.MXFP8Quantizer("e4m3", columwise=False)  # type: ignore[call-arg]

array = np.zeros((64, 64), np.float32)
assert_type(nf.quantize(array, "mxfp8_e4m3", swizzled=True, threads=2), nf.QuantizedTensor)
nf.quantize(array, "mxfp8_e4m3", swizled=True)  # type: ignore[call-arg]
nf.quantize(array, "nvfp4", rht="yes")  # type: ignore[arg-type]
nf.dequantize(nf.quantize(array, "nvfp4"), threads=2)
nf.dequantize(nf.quantize(array, "nvfp4"), swizzled=True)  # type: ignore[call-arg]
