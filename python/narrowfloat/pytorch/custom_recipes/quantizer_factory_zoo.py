# SPDX-License-Identifier: Apache-2.0
"""Factories that mix formats: one for the forward pass, another for the backward pass.

A weight or an input is read rowwise by the forward product and columnwise by a backward one, so its
two directions may differ (HybridQuantizer). Its columns are then made of the rowwise codes' values
(`rowwise_dequantized`): both passes see one tensor. Gradients belong to the backward pass alone;
both their directions come from the gradient itself.
"""

from collections.abc import Callable

from narrowfloat.pytorch.custom_recipes.quantizer_factories import (
    current_scaling_factory,
    high_precision_factory,
    mxfp8_factory,
    nvfp4_factory,
)
from narrowfloat.pytorch.quantization.roles import (
    BACKWARD_TYPES,
    DelayedScalingRequest,
    QuantizerRole,
)
from narrowfloat.pytorch.quantized_tensor import Quantizer
from narrowfloat.pytorch.tensor.hybrid_tensor import HybridQuantizer
from narrowfloat.pytorch.tensor.nvfp4_tensor import NVFP4Quantizer

Factory = Callable[[QuantizerRole | None], Quantizer]


def _by_pass(role: QuantizerRole | None, forward: Factory, backward: Factory) -> Quantizer:
    if role is not None and role.tensor_type in BACKWARD_TYPES:
        return backward(role)
    return HybridQuantizer(
        rowwise_quantizer=forward(role),
        columnwise_quantizer=backward(role),
        columnwise_source="rowwise_dequantized",
    )


def _row_scaled_factory(role: QuantizerRole | None) -> Quantizer:
    """NVFP4 with an amax a row; weights keep one amax."""
    return NVFP4Quantizer(row_scaled_nvfp4=role is None or role.tensor_type != "weight")


def high_precision_fwd_mxfp8_bwd_factory(role: QuantizerRole | None) -> Quantizer:
    """The forward pass as it is, the backward pass in MXFP8."""
    return _by_pass(role, high_precision_factory, mxfp8_factory)


def mxfp8_fwd_nvfp4_bwd_factory(role: QuantizerRole | None) -> Quantizer:
    """The forward pass in MXFP8, the backward pass in NVFP4."""
    return _by_pass(role, mxfp8_factory, nvfp4_factory)


def mxfp8_fwd_high_precision_bwd_factory(role: QuantizerRole | None) -> Quantizer:
    """The forward pass in MXFP8, the backward pass on the values it saw, not quantized again."""
    return _by_pass(role, mxfp8_factory, high_precision_factory)


def nvfp4_row_scaled_fwd_mxfp8_bwd_factory(role: QuantizerRole | None) -> Quantizer:
    """The forward pass in NVFP4 with an amax a row, the backward pass in MXFP8."""
    return _by_pass(role, _row_scaled_factory, mxfp8_factory)


def nvfp4_row_scaled_fwd_high_precision_bwd_factory(role: QuantizerRole | None) -> Quantizer:
    """The same forward pass, the backward pass not quantized again."""
    return _by_pass(role, _row_scaled_factory, high_precision_factory)


def nvfp4_1d_weight_factory(role: QuantizerRole | None) -> Quantizer:
    """NVFP4 with runs for weights too, without the transform."""
    if role is not None and role.is_linear_weight():
        return NVFP4Quantizer()
    return nvfp4_factory(role)


def nvfp4_linear_fp8_dpa_factory(
    role: QuantizerRole | None,
) -> Quantizer | DelayedScalingRequest:
    """Linear layers in NVFP4, attention in FP8: delayed scaling for its inner s and dp."""
    if role is None:
        return nvfp4_factory(role)
    # A linear layer beside attention says so by the name of the slot that faces it.
    faces = role.name.endswith(("dpa_output", "dpa_grad_input"))
    if role.module_type != "dpa" and not faces:
        return nvfp4_factory(role)
    if role.tensor_type in ("s", "dp"):
        return DelayedScalingRequest()
    gradient = role.tensor_type == "do" or role.name.endswith("dpa_grad_input")
    return current_scaling_factory(QuantizerRole(tensor_type="grad_output" if gradient else ""))


__all__ = [
    "high_precision_fwd_mxfp8_bwd_factory",
    "mxfp8_fwd_high_precision_bwd_factory",
    "mxfp8_fwd_nvfp4_bwd_factory",
    "nvfp4_1d_weight_factory",
    "nvfp4_linear_fp8_dpa_factory",
    "nvfp4_row_scaled_fwd_high_precision_bwd_factory",
    "nvfp4_row_scaled_fwd_mxfp8_bwd_factory",
]
