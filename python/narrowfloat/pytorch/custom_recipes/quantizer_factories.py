# SPDX-License-Identifier: Apache-2.0
"""Factories for CustomRecipe that make the quantizers of the recipes in their names.

Each takes a QuantizerRole, or None for an unknown slot, and returns a quantizer or a request. Use
them as parts of your own factories.
"""

from narrowfloat.pytorch.constants import DType
from narrowfloat.pytorch.quantization.roles import DelayedScalingRequest, QuantizerRole
from narrowfloat.pytorch.quantized_tensor import Quantizer
from narrowfloat.pytorch.tensor.float8_blockwise_tensor import Float8BlockQuantizer
from narrowfloat.pytorch.tensor.float8_tensor import Float8CurrentScalingQuantizer
from narrowfloat.pytorch.tensor.identity_tensor import IdentityQuantizer
from narrowfloat.pytorch.tensor.mxfp8_tensor import MXFP8Quantizer
from narrowfloat.pytorch.tensor.nvfp4_tensor import NVFP4Quantizer


def _is_gradient(role: QuantizerRole | None) -> bool:
    return role is not None and role.tensor_type == "grad_output"


def _is_weight(role: QuantizerRole | None) -> bool:
    return role is not None and role.is_linear_weight()


def high_precision_factory(role: QuantizerRole | None) -> Quantizer:
    """Returns an IdentityQuantizer, which does not quantize."""
    return IdentityQuantizer()


def delayed_scaling_factory(role: QuantizerRole | None) -> DelayedScalingRequest:
    """Returns a request for delayed scaling with the defaults of its recipe."""
    return DelayedScalingRequest()


def current_scaling_factory(role: QuantizerRole | None) -> Quantizer:
    """Returns a quantizer of FP8 with current scaling: E5M2 for gradients of outputs, else E4M3."""
    dtype = DType.kFloat8E5M2 if _is_gradient(role) else DType.kFloat8E4M3
    return Float8CurrentScalingQuantizer(dtype, device=None)


def float8_block_scaling_factory(role: QuantizerRole | None) -> Quantizer:
    """Returns a quantizer of block-scaled FP8, E4M3, with power-of-two scales: tiles for weights,
    else blocks of 1x128.
    """
    return Float8BlockQuantizer(
        DType.kFloat8E4M3,
        rowwise=True,
        columnwise=True,
        force_pow_2_scales=True,
        block_scaling_dim=2 if _is_weight(role) else 1,
    )


def mxfp8_factory(role: QuantizerRole | None) -> Quantizer:
    """Returns a quantizer of MXFP8, E4M3."""
    return MXFP8Quantizer(DType.kFloat8E4M3)


def nvfp4_factory(role: QuantizerRole | None) -> Quantizer:
    """Returns a quantizer of NVFP4: tiles for weights; else the transform, and stochastic rounding
    for gradients.
    """
    if _is_weight(role):
        return NVFP4Quantizer(with_2d_quantization=True)
    return NVFP4Quantizer(
        with_rht=True, with_post_rht_amax=True, stochastic_rounding=_is_gradient(role)
    )
