# SPDX-License-Identifier: Apache-2.0
"""Recipes of FP8 with one scale per tensor."""

import warnings
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from typing import Any, ClassVar

from narrowfloat.common.recipe.base import Recipe
from narrowfloat.common.recipe.parameters import (
    FAST_ACCUMULATOR,
    SPLIT_ACCUMULATOR,
    Format,
    MMParams,
    QParams,
    flag_of_environment,
    require,
)


@dataclass(repr=False)
class DelayedScaling(Recipe):
    """Computes scales from the amaxes of earlier steps.

    margin: divides scales by 2**margin. fp8_format: E4M3, or HYBRID with E5M2 for gradients.
    amax_history_len: the number of steps in the history. amax_compute_algo: "max" or "most_recent"
    of the history, or a function of a history that returns one amax per tensor.
    scaling_factor_compute_algo: None, or a function of (amax, scale, fp8_max, recipe) that returns
    the scale. reduce_amax: reduces amaxes over all processes.
    backward_override: must be None. fp8_dpa, fp8_mha: as in Recipe.
    """

    kind: ClassVar[str] = "delayed"

    margin: int = 0
    fp8_format: Format = Format.HYBRID
    amax_history_len: int = 1024
    amax_compute_algo: str | Callable[[Any], Any] = "max"
    scaling_factor_compute_algo: Callable[..., Any] | None = None
    reduce_amax: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.backward_override is None,
            "DelayedScaling: backward_override must be None, its scales follow what the backward "
            f"pass quantizes, got {self.backward_override!r}",
        )
        algo = self.amax_compute_algo
        require(
            callable(algo) or algo in ("max", "most_recent"),
            f"DelayedScaling: amax_compute_algo must be max, most_recent or a function, "
            f"got {algo!r}",
        )


@dataclass(repr=False)
class Float8CurrentScaling(Recipe):
    """Computes each tensor's scale from its own amax.

    use_power_2_scales: default NVTE_FP8_CURRENT_SCALING_POWER_2_SCALES == 1. The three fp8_quant_*
    follow it and may be replaced once the recipe is made. fp8_format: E4M3, or HYBRID with E5M2 for
    gradients. fp8_gemm_fprop, fp8_gemm_dgrad, fp8_gemm_wgrad: how GPUs sum the three products; sums
    are always kept in fp32 here. margin: has no effect; a value other than 0 warns.
    backward_override, fp8_dpa, fp8_mha: as in Recipe.
    """

    kind: ClassVar[str] = "current"

    use_power_2_scales: bool = field(
        default_factory=lambda: flag_of_environment("NVTE_FP8_CURRENT_SCALING_POWER_2_SCALES")
    )
    fp8_format: Format = Format.HYBRID
    fp8_gemm_fprop: MMParams = FAST_ACCUMULATOR
    fp8_gemm_dgrad: MMParams = SPLIT_ACCUMULATOR
    fp8_gemm_wgrad: MMParams = SPLIT_ACCUMULATOR
    margin: InitVar[float] = field(default=0, kw_only=True)

    def __post_init__(self, margin: float) -> None:
        super().__post_init__()
        if margin:
            warnings.warn(
                f"Float8CurrentScaling: margin has no effect, got {margin!r}", stacklevel=3
            )
        self.fp8_quant_fwd_inp = QParams(power_2_scale=self.use_power_2_scales)
        self.fp8_quant_fwd_weight = QParams(power_2_scale=self.use_power_2_scales)
        self.fp8_quant_bwd_grad = QParams(power_2_scale=self.use_power_2_scales)
