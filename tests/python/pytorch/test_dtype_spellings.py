# SPDX-License-Identifier: Apache-2.0
"""Tests that each face accepts a format as torch's, NumPy's or narrowfloat's type, or by name."""

import jax.numpy as jnp
import ml_dtypes
import narrowfloat.pytorch as nfp
import numpy as np
import pytest
import torch
from narrowfloat.common.recipe import Format
from narrowfloat.jax.quantize import QuantizerFactory, ScalingMode
from narrowfloat.pytorch.constants import DType

import narrowfloat as nf

E4M3 = [
    "e4m3",
    "E4M3",
    "float8_e4m3fn",
    torch.float8_e4m3fn,
    ml_dtypes.float8_e4m3fn,
    np.dtype(ml_dtypes.float8_e4m3fn),
    jnp.float8_e4m3fn,
    DType.kFloat8E4M3,
]
E2M1 = [
    "e2m1",
    "E2M1",
    torch.float4_e2m1fn_x2,
    ml_dtypes.float4_e2m1fn,
    np.dtype(ml_dtypes.float4_e2m1fn),
    DType.kFloat4E2M1,
]


@pytest.mark.parametrize("dtype", [*E4M3, Format.E4M3], ids=str)
def test_numpy(dtype: object) -> None:
    quantizers = (
        nf.MXFP8Quantizer(dtype),
        nf.Float8CurrentScalingQuantizer(dtype),
        nf.Float8BlockQuantizer(dtype, rowwise=True, columnwise=True),
    )
    assert all(quantizer.scheme.endswith("e4m3") for quantizer in quantizers)


@pytest.mark.parametrize("dtype", E2M1, ids=str)
def test_numpy_of_four_bits(dtype: object) -> None:
    assert nf.NVFP4Quantizer(dtype).scheme == nf.NVFP4Quantizer().scheme


@pytest.mark.parametrize("dtype", [*E4M3, int(DType.kFloat8E4M3)], ids=str)
def test_pytorch(dtype: object) -> None:
    assert DType.cast(dtype) is DType.kFloat8E4M3
    ones = torch.ones(128, 128)
    tensor = nfp.MXFP8Quantizer(dtype)(ones)
    assert tensor._fp8_dtype is DType.kFloat8E4M3 and torch.equal(tensor.dequantize(), ones)


@pytest.mark.parametrize("dtype", [d for d in E2M1 if not isinstance(d, torch.dtype)], ids=str)
def test_pytorch_of_four_bits(dtype: object) -> None:
    assert DType.cast(dtype) is DType.kFloat4E2M1


@pytest.mark.parametrize("dtype", [*E4M3, Format.E4M3], ids=str)
def test_jax(dtype: object) -> None:
    assert ScalingMode.MXFP8_1D_SCALING.get_scheme(dtype).endswith("e4m3")
    quantizer = QuantizerFactory.create(1, ScalingMode.MXFP8_1D_SCALING, dtype)
    assert quantizer.q_dtype == np.dtype(ml_dtypes.float8_e4m3fn)


def test_names_of_other_types_are_refused() -> None:
    names = (
        "DType: dtype must be 'e4m3', 'e5m2', 'e2m1' or one of uint8, float8_e4m3fn, float8_e5m2, "
        "int32, float32, float16, bfloat16, float4_e2m1fn, got 'e3m4'"
    )
    with pytest.raises(ValueError) as raised:
        nfp.MXFP8Quantizer("e3m4")
    assert str(raised.value) == names
    message = (
        "fp8_dtype must be 'e4m3', 'e5m2' or the ml_dtypes type of one of them, got torch.float32"
    )
    with pytest.raises(TypeError) as refused:
        nf.MXFP8Quantizer(torch.float32)
    assert str(refused.value) == message
