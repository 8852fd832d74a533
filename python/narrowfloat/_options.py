# SPDX-License-Identifier: Apache-2.0
"""Types of the options that the verbs take as keywords.

Type checkers read them through `_core.pyi`. At run time the core checks names and values.
"""

from typing import SupportsFloat, TypeAlias, TypedDict

import numpy as np

Number: TypeAlias = SupportsFloat | np.ndarray  # an array is float32 of one element


class ThreadOptions(TypedDict, total=False):
    """The option of verbs that compute on the CPU's threads."""

    threads: int | None


class SpecOptions(TypedDict, total=False):
    """The options of a spec; `narrowfloat schemes` lists the options of each scheme."""

    amax: Number | tuple[Number, Number]
    amax_columnwise: Number
    amax_epsilon: Number
    e4m3_max: Number
    force_pow_2_scales: bool
    four_over_six: str
    four_over_six_fast_error: bool
    offset: int
    rht: bool
    rht_sign_mask: int
    row_scaled: bool
    scale: Number
    seed: int
    stochastic_rounding: bool
    swizzled: bool


class QuantizeOptions(SpecOptions, ThreadOptions, total=False):
    """The options of verbs that quantize."""

    noop: Number | None
