# SPDX-License-Identifier: Apache-2.0
"""The types of the fields of recipes."""

import os
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from narrowfloat import _core


class FormatRange(NamedTuple):
    """The range of a format.

    max_fwd, max_bwd: the largest value of the codes of the forward and of the backward pass.
    """

    max_fwd: float
    max_bwd: float


class Format(Enum):
    """The codes of the two passes; HYBRID is E4M3 forward and E5M2 backward."""

    E2M1 = FormatRange(_core.E2M1_MAX, _core.E2M1_MAX)
    E4M3 = FormatRange(_core.E4M3_MAX, _core.E4M3_MAX)
    E5M2 = FormatRange(_core.E5M2_MAX, _core.E5M2_MAX)
    HYBRID = FormatRange(_core.E4M3_MAX, _core.E5M2_MAX)


@dataclass(frozen=True)
class MMParams:
    """Describes how a GPU sums a matrix product. A CPU always sums in fp32.

    use_split_accumulator: whether partial sums are added in fp32.
    """

    use_split_accumulator: bool = True


SPLIT_ACCUMULATOR = MMParams()
FAST_ACCUMULATOR = MMParams(use_split_accumulator=False)


@dataclass(frozen=True)
class QParams:
    """Describes how one kind of tensor is quantized.

    power_2_scale: rounds scales to powers of two. amax_epsilon: the smallest amax that a scale is
    computed from. random_hadamard_transform: transforms the columnwise direction.
    stochastic_rounding: of NVFP4. fp4_2d_quantization, mxfp8_2d_quantization: tiles in NVFP4 and in
    MXFP8.
    """

    power_2_scale: bool = False
    amax_epsilon: float = 0.0
    random_hadamard_transform: bool = False
    stochastic_rounding: bool = False
    fp4_2d_quantization: bool = False
    mxfp8_2d_quantization: bool = False


def flag_of_environment(name: str) -> bool:
    """Returns True if the variable is "1"."""
    return os.environ.get(name, "0") == "1"


def require(held: bool, rule: str) -> None:
    """Raises AssertionError, as TransformerEngine's recipes do, unless `held` is true; also under
    -O.
    """
    if not held:
        raise AssertionError(rule)
