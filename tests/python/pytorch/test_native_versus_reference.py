# SPDX-License-Identifier: Apache-2.0
"""Compares the bytes of quantizers with references in plain torch operations."""

import pytest
import torch
from narrowfloat.pytorch.constants import DType
from narrowfloat.pytorch.custom_recipes.nvfp4_blocks import RHT_SIGNS, hadamard_matrix
from narrowfloat.pytorch.custom_recipes.reference_blockwise import Float8BlockQuantizerRef
from narrowfloat.pytorch.custom_recipes.reference_current_scaling import (
    CurrentScalingQuantizerRef,
)
from narrowfloat.pytorch.custom_recipes.reference_nvfp4 import NVFP4QuantizerRef
from narrowfloat.pytorch.tensor.float8_blockwise_tensor import Float8BlockQuantizer
from narrowfloat.pytorch.tensor.float8_tensor import Float8CurrentScalingQuantizer
from narrowfloat.pytorch.tensor.nvfp4_tensor import NVFP4Quantizer
from torch_golden import assert_tensor

FP8 = {torch.float8_e4m3fn: DType.kFloat8E4M3, torch.float8_e5m2: DType.kFloat8E5M2}
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def boundaries(rows: int, cols: int) -> torch.Tensor:
    """Returns rows of pairs just below and just above evenly spaced values from -12 to 12."""
    base = torch.linspace(-12.0, 12.0, cols // 2)
    row = torch.stack((base - 1e-3, base + 1e-3), dim=1).reshape(-1)
    return row.expand(rows, cols).contiguous()


INPUTS = {
    "normal": lambda: torch.randn(160, 256),
    "transposed": lambda: torch.randn(256, 160).t(),
    "boundaries": lambda: boundaries(32, 128),
    "zeros": lambda: torch.zeros(128, 128),
    "outliers": lambda: torch.randn(128, 144) * torch.randint(-12, 12, (128, 144)).exp2(),
}


def input_of(name: str, dtype: torch.dtype) -> torch.Tensor:
    torch.manual_seed(31)
    return INPUTS[name]().to(dtype)


def largest(dtype: torch.dtype) -> torch.Tensor:
    return torch.full((128, 128), torch.finfo(dtype).max, dtype=dtype)


@pytest.mark.parametrize("x_dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dtype", list(FP8), ids=str)
@pytest.mark.parametrize(("power", "eps"), [(False, 0.0), (True, 0.0), (False, 4.0)])
def test_current_scaling(dtype: torch.dtype, x_dtype: torch.dtype, power: bool, eps: float) -> None:
    native = Float8CurrentScalingQuantizer(FP8[dtype], force_pow_2_scales=power, amax_epsilon=eps)
    reference = CurrentScalingQuantizerRef(dtype, pow_2_scales=power, eps=eps)
    for x in [*(input_of(name, x_dtype) for name in INPUTS), largest(x_dtype)]:
        q, want = native(x), reference.quantize(x)
        assert_tensor(q._data.view(dtype), want.data, "data")
        assert_tensor(q._transpose.view(dtype), want.data_t, "transpose")
        assert_tensor(q._scale_inv, want.scale, "scale_inv")


@pytest.mark.parametrize("x_dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dtype", list(FP8), ids=str)
@pytest.mark.parametrize("dim", [1, 2])
@pytest.mark.parametrize("power", [False, True])
def test_block_scaling(dtype: torch.dtype, x_dtype: torch.dtype, dim: int, power: bool) -> None:
    native = Float8BlockQuantizer(
        FP8[dtype], rowwise=True, columnwise=True, force_pow_2_scales=power, block_scaling_dim=dim
    )
    reference = Float8BlockQuantizerRef(dtype, pow_2_scales=power, block_scaling_dim=dim)
    for x in [*(input_of(name, x_dtype) for name in INPUTS), largest(x_dtype)]:
        q, want = native(x), reference.quantize(x)
        for way, data, scale in (("row", want.data, want.scale), ("column", want.data_t,
                                                                  want.scale_t)):  # fmt: skip
            assert_tensor(getattr(q, f"_{way}wise_data").view(dtype), data, way)
            stored = getattr(q, f"_{way}wise_scale_inv")
            turned = stored.t() if dim == 1 else stored
            rows, cols = scale.shape
            assert_tensor(turned[:rows, :cols].contiguous(), scale, f"{way} scale_inv")


NVFP4 = {
    "1d": ({}, {}),
    "2d": ({"with_2d_quantization": True}, {"quant_tile_shape": (16, 16)}),
    "row_scaled": ({"row_scaled_nvfp4": True, "columnwise": False},
                   {"row_scaled_nvfp4": True, "columnwise": False}),
    "4over6_mae_448": ({"nvfp4_use_4over6": True}, {"nvfp4_use_4over6": True}),
    "4over6_mse_256": (
        {"nvfp4_use_4over6": True, "nvfp4_4over6_err_mode": "MSE", "nvfp4_e4m3_max": 256},
        {"nvfp4_use_4over6": True, "nvfp4_4over6_err_mode": "MSE", "nvfp4_e4m3_max": 256},
    ),
    "columnwise_2d": ({"with_2d_quantization": True, "rowwise": False},
                      {"quant_tile_shape": (16, 16), "rowwise": False}),
    "rht": ({"with_rht": True, "with_post_rht_amax": True}, {"with_rht": True}),
    "rht_no_signs": (
        {"with_rht": True, "with_post_rht_amax": True, "with_random_sign_mask": False},
        {"with_rht": True, "with_random_sign_mask": False},
    ),
}  # fmt: skip


def without_signs_of_zero(packed: torch.Tensor) -> torch.Tensor:
    """Replaces code 8, -0, by 0 in both halves, since the reference has no sign of zeros."""
    low, high = packed & 0xF, packed >> 4
    return torch.where(low == 8, 0, low) + 16 * torch.where(high == 8, 0, high)


@pytest.mark.parametrize("kind", list(NVFP4))
@pytest.mark.parametrize("x_dtype", DTYPES[:2], ids=str)
def test_nvfp4(kind: str, x_dtype: torch.dtype) -> None:
    if "rht" in kind and x_dtype is not torch.bfloat16:
        pytest.skip("NVFP4Quantizer transforms bfloat16 alone, as TransformerEngine's does")
    options, reference_options = NVFP4[kind]
    native, reference = NVFP4Quantizer(**options), NVFP4QuantizerRef(**reference_options)
    for x in [*(input_of(name, x_dtype) for name in INPUTS), largest(x_dtype)]:
        q, want = native(x), reference.quantize(x)
        for way, data, scale, amax in (
            ("row", want.data, want.scale, want.global_amax_row),
            ("column", want.data_t, want.scale_t, want.global_amax_col),
        ):
            codes, stored = (getattr(q, f"_{way}wise_{part}") for part in ("data", "scale_inv"))
            assert (codes is None) == (data is None)
            if codes is None:
                continue
            assert_tensor(without_signs_of_zero(codes), without_signs_of_zero(data), way)
            rows, cols = scale.shape
            block = stored[:rows, :cols].contiguous().view(torch.float8_e4m3fn)
            assert_tensor(block, scale, f"{way} scale_inv")
            assert_tensor(getattr(q, f"_amax_{way}wise"), amax, f"{way} amax")


def test_the_transform_is_the_quantizers() -> None:
    native = NVFP4Quantizer(with_rht=True, with_post_rht_amax=True)
    assert_tensor(native.rht_matrix, hadamard_matrix(True).bfloat16(), "matrix")
    negative = sum(1 << i for i, sign in enumerate(RHT_SIGNS) if sign < 0)
    assert native.rht_matrix_random_sign_mask_t == negative == 0xD7E8
