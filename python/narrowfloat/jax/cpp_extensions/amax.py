# SPDX-License-Identifier: Apache-2.0
"""Largest magnitudes, under TransformerEngine's names."""

from enum import Enum

from narrowfloat.jax.primitives.amax import (
    AmaxCalculationPrimitive,
    RHTAmaxCalculationPrimitive,
    calculate_amax,
    calculate_post_rht_amax,
)


class AmaxScope(Enum):
    """The devices of an amax. Here always all devices that hold a part of the tensor."""

    LOCAL = 1
    TPSP = 2
    FSDP = 3


__all__ = [
    "AmaxCalculationPrimitive",
    "AmaxScope",
    "RHTAmaxCalculationPrimitive",
    "calculate_amax",
    "calculate_post_rht_amax",
]
