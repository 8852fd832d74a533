# SPDX-License-Identifier: Apache-2.0
"""Scaling modes, quantized tensors and quantizers, as TransformerEngine's JAX package has them."""

from narrowfloat.jax.quantize import quantizer, serialization, tensor  # noqa: F401
from narrowfloat.jax.quantize.factory import (
    QuantizerFactory,
    QuantizerSet,
    noop_quantizer_set,
)
from narrowfloat.jax.quantize.hadamard import apply_rht, get_rht_matrix, invert_rht
from narrowfloat.jax.quantize.helper import (
    NVTE_FP8_COLLECTION_NAME,
    get_supported_scaling_modes,
    is_fp8_available,
    is_scaling_mode_supported,
    update_collections,
)
from narrowfloat.jax.quantize.metadata import QuantizeMeta, QuantizeMetaSet
from narrowfloat.jax.quantize.quantizer import (
    AmaxComputeAlgo,
    BlockScaleQuantizer,
    CurrentScaleQuantizer,
    DelayedScaleQuantizer,
    GroupedQuantizer,
    NVFP4Quantizer,
    Quantizer,
    compute_scale_from_amax,
)
from narrowfloat.jax.quantize.recipe_config import (
    QuantizeConfig,
    TensorSource,
    autocast,
    fp8_autocast,
    get_global_quantize_recipe,
    get_quantization_recipe,
    get_quantize_config_with_recipe,
    get_supported_quantization_recipes,
    is_quantize_recipe_supported,
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
)
from narrowfloat.jax.quantize.tensor_factory import ScaledTensorFactory

# TransformerEngine has these names in two modules that here are imported by their definitions.
vars(quantizer).update(
    QuantizerFactory=QuantizerFactory,
    QuantizerSet=QuantizerSet,
    noop_quantizer_set=noop_quantizer_set,
)
vars(tensor).update(ScaledTensorFactory=ScaledTensorFactory)

__all__ = [
    "NVTE_FP8_COLLECTION_NAME",
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
    "QuantizeConfig",
    "QuantizeLayout",
    "QuantizeMeta",
    "QuantizeMetaSet",
    "Quantizer",
    "QuantizerFactory",
    "QuantizerSet",
    "ScaledTensor",
    "ScaledTensor1x",
    "ScaledTensor2x",
    "ScaledTensorFactory",
    "ScalingMode",
    "TensorSource",
    "TensorUsage",
    "apply_padding_to_scale_inv",
    "apply_rht",
    "autocast",
    "compute_scale_from_amax",
    "fp8_autocast",
    "get_global_quantize_recipe",
    "get_quantization_recipe",
    "get_quantize_config_with_recipe",
    "get_rht_matrix",
    "get_supported_quantization_recipes",
    "get_supported_scaling_modes",
    "invert_rht",
    "is_fp8_available",
    "is_quantize_recipe_supported",
    "is_scaling_mode_supported",
    "noop_quantizer_set",
    "remove_padding_from_scale_inv",
    "update_collections",
]
