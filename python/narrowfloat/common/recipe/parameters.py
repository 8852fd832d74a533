# SPDX-License-Identifier: Apache-2.0
"""The small values that recipes are made of."""

import os
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from narrowfloat import _core


class FormatRange(NamedTuple):
    """The largest value of the codes of the forward pass, and of the backward pass."""

    max_fwd: float
    max_bwd: float


class Format(Enum):
    """Which codes the two passes use; HYBRID is E4M3 forward and E5M2 backward."""

    E2M1 = FormatRange(_core.E2M1_MAX, _core.E2M1_MAX)
    E4M3 = FormatRange(_core.E4M3_MAX, _core.E4M3_MAX)
    E5M2 = FormatRange(_core.E5M2_MAX, _core.E5M2_MAX)
    HYBRID = FormatRange(_core.E4M3_MAX, _core.E5M2_MAX)


@dataclass(frozen=True)
class MMParams:
    """How a matrix product is made. A CPU always accumulates in fp32, whatever this says."""

    use_split_accumulator: bool = True


SPLIT_ACCUMULATOR = MMParams()
FAST_ACCUMULATOR = MMParams(use_split_accumulator=False)


@dataclass(frozen=True)
class QParams:
    """How one kind of tensor is quantized.

    power_2_scale: scales are powers of two. amax_epsilon: the least amax a scale is made of.
    random_hadamard_transform: of the columnwise direction. stochastic_rounding, and
    fp4_2d_quantization (tiles instead of runs): NVFP4 only. mxfp8_2d_quantization: tiles of MXFP8.
    """

    power_2_scale: bool = False
    amax_epsilon: float = 0.0
    random_hadamard_transform: bool = False
    stochastic_rounding: bool = False
    fp4_2d_quantization: bool = False
    mxfp8_2d_quantization: bool = False


def flag_of_environment(name: str) -> bool:
    """True if the variable is "1"."""
    return os.environ.get(name, "0") == "1"


def require(held: bool, rule: str) -> None:
    """AssertionError, as TransformerEngine's recipes raise it, unless `held`; also under -O."""
    if not held:
        raise AssertionError(rule)
