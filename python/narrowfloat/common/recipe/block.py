# SPDX-License-Identifier: Apache-2.0
"""Recipes of FP8 with one scale per block."""

from dataclasses import dataclass, field
from typing import ClassVar

from narrowfloat.common.recipe.base import Recipe
from narrowfloat.common.recipe.parameters import (
    SPLIT_ACCUMULATOR,
    Format,
    MMParams,
    QParams,
    flag_of_environment,
    require,
)


@dataclass(repr=False)
class MXFP8BlockScaling(Recipe):
    """Quantizes to MXFP8: blocks along each direction, power-of-two scales.

    margin: must be 0. fp8_format: E4M3, or HYBRID with E5M2 for gradients.
    enable_2d_quantization: quantizes weights of linear layers in tiles, so that both directions
    hold the same values.
    backward_override, fp8_dpa, fp8_mha: as in Recipe.
    """

    kind: ClassVar[str] = "mxfp8"

    margin: int = 0
    fp8_format: Format = Format.E4M3
    enable_2d_quantization: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.margin == 0,
            f"MXFP8BlockScaling: margin must be 0, scales follow each block, got {self.margin!r}",
        )
        self.fp8_quant_fwd_inp = QParams()
        self.fp8_quant_fwd_weight = QParams(mxfp8_2d_quantization=self.enable_2d_quantization)
        self.fp8_quant_bwd_grad = QParams()


@dataclass(repr=False)
class Float8BlockScaling(Recipe):
    """Quantizes to FP8 with an fp32 scale per block: 1x128 or 128x128.

    use_f32_scales: allows scales that are not powers of two; default
    NVTE_FP8_BLOCK_SCALING_FP32_SCALES == 1. fp8_format: E4M3, or HYBRID with E5M2 for gradients.
    x_block_scaling_dim, w_block_scaling_dim, grad_block_scaling_dim: 1 or 2, the dimensions of
    blocks of inputs, weights and gradients; at most one of them may be 2.
    fp8_gemm_fprop, fp8_gemm_dgrad, fp8_gemm_wgrad: must use a split accumulator.
    fp8_dpa, fp8_mha: must be False. backward_override: as in Recipe.
    """

    kind: ClassVar[str] = "float8_block"

    use_f32_scales: bool = field(
        default_factory=lambda: flag_of_environment("NVTE_FP8_BLOCK_SCALING_FP32_SCALES")
    )
    fp8_format: Format = Format.E4M3
    x_block_scaling_dim: int = 1
    w_block_scaling_dim: int = 2
    grad_block_scaling_dim: int = 1
    fp8_gemm_fprop: MMParams = SPLIT_ACCUMULATOR
    fp8_gemm_dgrad: MMParams = SPLIT_ACCUMULATOR
    fp8_gemm_wgrad: MMParams = SPLIT_ACCUMULATOR

    def __post_init__(self) -> None:
        super().__post_init__()
        self.fp8_quant_fwd_inp = QParams(power_2_scale=not self.use_f32_scales)
        self.fp8_quant_fwd_weight = QParams(power_2_scale=not self.use_f32_scales)
        self.fp8_quant_bwd_grad = QParams(power_2_scale=not self.use_f32_scales)
        self._check_blocks()
        for product in ("fp8_gemm_fprop", "fp8_gemm_dgrad", "fp8_gemm_wgrad"):
            require(
                getattr(self, product).use_split_accumulator,
                f"Float8BlockScaling: {product} needs use_split_accumulator=True",
            )
        require(
            not self.fp8_dpa and not self.fp8_mha,
            "Float8BlockScaling: fp8_dpa and fp8_mha are not supported",
        )

    def _check_blocks(self) -> None:
        dims = {
            "x": self.x_block_scaling_dim,
            "w": self.w_block_scaling_dim,
            "grad": self.grad_block_scaling_dim,
        }
        for name, dim in dims.items():
            require(
                dim in (1, 2),
                f"Float8BlockScaling: {name}_block_scaling_dim must be 1 or 2, got {dim!r}",
            )
        tiles = [f"{name}_block_scaling_dim" for name, dim in dims.items() if dim == 2]
        require(
            len(tiles) < 2,
            f"Float8BlockScaling: at most one operand of a product may be 2-D, "
            f"got {', '.join(tiles)}",
        )
