# SPDX-License-Identifier: Apache-2.0
"""Factories that mix formats: one for the forward pass, another for the backward pass.

The forward product reads a weight or an input rowwise, and a backward product reads it columnwise,
so its two directions may have different formats (HybridQuantizer). With `rowwise_dequantized` the
columns are quantized from the values of the rowwise codes, so both passes use one tensor. The
formats, sources and roles are the same as in TransformerEngine's factories.
"""

from collections.abc import Callable, Container
from typing import NamedTuple

from narrowfloat.pytorch.custom_recipes.quantizer_factories import (
    current_scaling_factory,
    high_precision_factory,
    mxfp8_factory,
    nvfp4_factory,
)
from narrowfloat.pytorch.quantization.roles import (
    LINEAR_MODULES,
    DelayedScalingRequest,
    QuantizerRole,
)
from narrowfloat.pytorch.quantized_tensor import Quantizer
from narrowfloat.pytorch.tensor.hybrid_tensor import HybridQuantizer
from narrowfloat.pytorch.tensor.nvfp4_tensor import NVFP4Quantizer

Factory = Callable[[QuantizerRole | None], Quantizer]


class _Linear(NamedTuple):
    """The factories for tensors of linear layers; None is the `other` factory of make()."""

    input: Factory | None = None
    weight: Factory | None = None
    grad_output: Factory | None = None

    def make(
        self, role: QuantizerRole | None, other: Factory, modules: Container[str] = LINEAR_MODULES
    ) -> Quantizer:
        """Returns the quantizer of a role; `other` makes it for all other tensors and layers."""
        own = None
        if role is not None and role.module_type in modules and role.tensor_type in self._fields:
            own = getattr(self, role.tensor_type)
        return (own or other)(role)


def _hybrid(rowwise: Factory, columnwise: Factory, source: str = "rowwise_dequantized") -> Factory:
    return lambda role: HybridQuantizer(
        rowwise_quantizer=rowwise(role),
        columnwise_quantizer=columnwise(role),
        columnwise_source=source,
    )


def _runs_factory(role: QuantizerRole | None) -> Quantizer:
    """Returns a quantizer of NVFP4 with 1x16 blocks for every tensor, without the transform."""
    return NVFP4Quantizer()


def _row_scaled_factory(role: QuantizerRole | None) -> Quantizer:
    """Returns a quantizer of NVFP4 with one amax per row."""
    return NVFP4Quantizer(row_scaled_nvfp4=True)


def high_precision_fwd_mxfp8_bwd_factory(role: QuantizerRole | None) -> Quantizer:
    """Returns quantizers with the forward pass in high precision and the backward pass in MXFP8, of
    the same values.
    """
    other = _hybrid(high_precision_factory, mxfp8_factory, "original")
    return _Linear(grad_output=mxfp8_factory).make(role, other)


def mxfp8_fwd_nvfp4_bwd_factory(role: QuantizerRole | None) -> Quantizer:
    """Returns quantizers of MXFP8 for the forward pass and of NVFP4 for the backward pass.

    The transform of an input needs the input itself; a weight has no transform.
    """
    return _Linear(
        input=_hybrid(mxfp8_factory, nvfp4_factory, "original"),
        weight=_hybrid(mxfp8_factory, _runs_factory),
        grad_output=nvfp4_factory,
    ).make(role, mxfp8_factory)


def mxfp8_fwd_high_precision_bwd_factory(role: QuantizerRole | None) -> Quantizer:
    """Returns quantizers of MXFP8 for the forward pass; the backward pass uses the same values
    without quantizing them again.
    """
    seen = _hybrid(mxfp8_factory, high_precision_factory)
    return _Linear(seen, seen, high_precision_factory).make(role, mxfp8_factory)


def nvfp4_row_scaled_fwd_mxfp8_bwd_factory(role: QuantizerRole | None) -> Quantizer:
    """Returns quantizers for grouped layers: NVFP4 with one amax per row of the input, MXFP8 in the
    backward pass.

    Other tensors are MXFP8.
    """
    return _Linear(
        input=_hybrid(_row_scaled_factory, mxfp8_factory),
        weight=_hybrid(_runs_factory, mxfp8_factory),
    ).make(role, mxfp8_factory, modules=("grouped_linear",))


def nvfp4_row_scaled_fwd_high_precision_bwd_factory(role: QuantizerRole | None) -> Quantizer:
    """Returns quantizers of NVFP4 with one amax per row of the input; the backward pass does not
    quantize the values again.
    """
    return _Linear(
        input=_hybrid(_row_scaled_factory, high_precision_factory),
        weight=_hybrid(_runs_factory, high_precision_factory),
        grad_output=high_precision_factory,
    ).make(role, _runs_factory)


def nvfp4_1d_weight_factory(role: QuantizerRole | None) -> Quantizer:
    """Returns quantizers of NVFP4; weights have 1x16 blocks in both directions, without the
    transform.
    """
    return _Linear(weight=_hybrid(_runs_factory, _runs_factory)).make(role, nvfp4_factory)


def nvfp4_linear_fp8_dpa_factory(
    role: QuantizerRole | None,
) -> Quantizer | DelayedScalingRequest:
    """Returns quantizers of NVFP4 for linear layers and of FP8 for attention. Its inner tensors s
    and dp use the amax of the last step.
    """
    if role is None:
        return nvfp4_factory(role)
    # The slot's name shows whether a linear layer is next to attention.
    faces = [name for name in ("dpa_output", "dpa_grad_input") if name in role.name]
    if role.module_type != "dpa" and (role.module_type or not faces):
        return nvfp4_factory(role)
    if role.module_type == "dpa" and role.tensor_type in ("s", "dp"):
        return DelayedScalingRequest(amax_history_len=1, amax_compute_algo="most_recent")
    if role.module_type == "dpa":
        gradient = role.tensor_type in ("do", "dqkv")
    else:
        gradient = "dpa_grad_input" in faces
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
