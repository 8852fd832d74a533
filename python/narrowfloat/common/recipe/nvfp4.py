# SPDX-License-Identifier: Apache-2.0
"""The recipe of NVFP4."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

from narrowfloat.common.recipe.base import Recipe, text_of
from narrowfloat.common.recipe.parameters import Format, QParams, flag_of_environment, require

SCOPES = ("none", "weights", "activations", "all")
ERROR_MODES = ("MAE", "MSE")


def _flag(name: str) -> bool:
    return field(default_factory=lambda: flag_of_environment(f"NVTE_NVFP4_{name}"))


def _word(name: str, default: str, change: Callable[[str], str]) -> str:
    return field(default_factory=lambda: change(os.environ.get(f"NVTE_NVFP4_{name}", default)))


@dataclass(repr=False)
class NVFP4BlockScaling(Recipe):
    """Quantizes to NVFP4: inputs with the random Hadamard transform, weights in tiles, gradients
    with the transform and stochastic rounding.

    disable_rht: no transform. disable_stochastic_rounding: rounds gradients to nearest.
    disable_2d_quantization: weights in 1x16 blocks. row_scaled_activation: one amax per row of
    inputs. nvfp4_4over6: tensors with a choice of two scales per block: none, weights, activations,
    all. nvfp4_4over6_e4m3_use_256: those of them with a largest block scale of 256 instead of 448.
    nvfp4_4over6_err_mode: MAE or MSE, the error that the choice compares.
    fp4_format, fp8_format: E2M1 and E4M3, of codes and of block scales.
    backward_override, fp8_dpa, fp8_mha: as in Recipe.

    The defaults come from environment variables named NVTE_NVFP4_ and: DISABLE_RHT,
    DISABLE_STOCHASTIC_ROUNDING, DISABLE_2D_QUANTIZATION, ROW_SCALED_ACTIVATION (1 or not); 4OVER6,
    4OVER6_E4M3_USE_256, 4OVER6_ERR_MODE.
    """

    kind: ClassVar[str] = "fp4_block"

    disable_rht: bool = _flag("DISABLE_RHT")
    disable_stochastic_rounding: bool = _flag("DISABLE_STOCHASTIC_ROUNDING")
    disable_2d_quantization: bool = _flag("DISABLE_2D_QUANTIZATION")
    row_scaled_activation: bool = _flag("ROW_SCALED_ACTIVATION")
    nvfp4_4over6: str = _word("4OVER6", "none", str.lower)
    nvfp4_4over6_e4m3_use_256: str = _word("4OVER6_E4M3_USE_256", "all", str.lower)
    nvfp4_4over6_err_mode: str = _word("4OVER6_ERR_MODE", "MAE", str.upper)
    fp4_format: Format = Format.E2M1
    fp8_format: Format = Format.E4M3

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("nvfp4_4over6", "nvfp4_4over6_e4m3_use_256"):
            value = getattr(self, name)
            require(
                value in SCOPES,
                f"NVFP4BlockScaling: {name} must be one of {', '.join(SCOPES)}, got {value!r}",
            )
        require(
            self.nvfp4_4over6_err_mode in ERROR_MODES,
            f"NVFP4BlockScaling: nvfp4_4over6_err_mode must be MAE or MSE, "
            f"got {self.nvfp4_4over6_err_mode!r}",
        )
        for name, only in (("fp4_format", Format.E2M1), ("fp8_format", Format.E4M3)):
            value = getattr(self, name)
            require(
                value is only,
                f"NVFP4BlockScaling: {name} must be {only.name}, got {text_of(value)}",
            )
        self.fp4_quant_fwd_inp = QParams(random_hadamard_transform=not self.disable_rht)
        self.fp4_quant_fwd_weight = QParams(fp4_2d_quantization=not self.disable_2d_quantization)
        self.fp4_quant_bwd_grad = QParams(
            random_hadamard_transform=not self.disable_rht,
            stochastic_rounding=not self.disable_stochastic_rounding,
        )
