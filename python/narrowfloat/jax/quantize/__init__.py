# SPDX-License-Identifier: Apache-2.0
"""Scaling modes, quantized tensors and quantizers, as TransformerEngine's JAX package has them."""

from narrowfloat.jax.quantize.hadamard import apply_rht, get_rht_matrix, invert_rht
from narrowfloat.jax.quantize.helper import (
    get_supported_scaling_modes,
    is_scaling_mode_supported,
)
from narrowfloat.jax.quantize.quantizer import (
    AmaxComputeAlgo,
    BlockScaleQuantizer,
    CurrentScaleQuantizer,
    DelayedScaleQuantizer,
    GroupedQuantizer,
    NVFP4Quantizer,
    Quantizer,
    QuantizerFactory,
    QuantizerSet,
    compute_scale_from_amax,
    noop_quantizer_set,
)
from narrowfloat.jax.quantize.scale_padding import (
    apply_padding_to_scale_inv,
    remove_padding_from_scale_inv,
)
from narrowfloat.jax.quantize.scaling_modes import (
    JAXX_Quantize_Layout,
    JAXX_Scaling_Mode,
    QuantizeLayout,
    ScalingMode,
    TensorUsage,
)
from narrowfloat.jax.quantize.tensor import (
    AbstractBaseTensor,
    GroupedNoScaleTensor,
    GroupedScaledTensor1x,
    NoScaleTensor,
    ScaledTensor,
    ScaledTensor1x,
    ScaledTensor2x,
    ScaledTensorFactory,
)

__all__ = [
    "AbstractBaseTensor",
    "AmaxComputeAlgo",
    "BlockScaleQuantizer",
    "CurrentScaleQuantizer",
    "DelayedScaleQuantizer",
    "GroupedNoScaleTensor",
    "GroupedQuantizer",
    "GroupedScaledTensor1x",
    "JAXX_Quantize_Layout",
    "JAXX_Scaling_Mode",
    "NVFP4Quantizer",
    "NoScaleTensor",
    "QuantizeLayout",
    "Quantizer",
    "QuantizerFactory",
    "QuantizerSet",
    "ScaledTensor",
    "ScaledTensor1x",
    "ScaledTensor2x",
    "ScaledTensorFactory",
    "ScalingMode",
    "TensorUsage",
    "apply_padding_to_scale_inv",
    "apply_rht",
    "compute_scale_from_amax",
    "get_rht_matrix",
    "get_supported_scaling_modes",
    "invert_rht",
    "is_scaling_mode_supported",
    "noop_quantizer_set",
    "remove_padding_from_scale_inv",
]
