# SPDX-License-Identifier: Apache-2.0
"""Tests that calls of TransformerEngine's classes run with the arguments that programs use."""

import torch
from narrowfloat.common.recipe import Float8CurrentScaling
from narrowfloat.pytorch.custom_recipes.quantization_current_scaling import (
    CurrentScalingTensorRef,
    current_scaling_ref_quantizer_factory,
)
from narrowfloat.pytorch.quantization import RecipeState
from narrowfloat.pytorch.quantized_tensor import prepare_for_saving, restore_from_saved
from narrowfloat.pytorch.tensor.float8_tensor import (
    Float8CurrentScalingQuantizer,
    Float8Quantizer,
    Float8Tensor,
)
from torch_golden import assert_tensor

from narrowfloat import pytorch as nfp

torch.manual_seed(21)
X = torch.randn(32, 48)


def test_delayed_quantizer_by_keywords() -> None:
    scale, amax = torch.full((1,), 4.0), torch.zeros(1)
    q = Float8Quantizer(scale=scale, amax=amax, fp8_dtype=torch.float8_e4m3fn).quantize(X)
    assert isinstance(q, Float8Tensor) and amax.item() == X.abs().max().item()
    assert_tensor(q._scale_inv, torch.tensor([0.25]), "scale_inv")
    wanted = Float8Quantizer(scale, amax, nfp.DType.kFloat8E4M3)(X)
    assert_tensor(q._data, wanted._data, "a torch dtype means the same")


def test_current_quantizer_by_keywords() -> None:
    q = Float8CurrentScalingQuantizer(fp8_dtype=torch.float8_e5m2).quantize(X)
    assert q._fp8_dtype == nfp.DType.kFloat8E5M2
    with_device = Float8CurrentScalingQuantizer(torch.float8_e5m2, "cpu").quantize(X)
    by_name = Float8CurrentScalingQuantizer(torch.float8_e5m2, device=torch.device("cpu"))
    assert_tensor(with_device._data, q._data, "a device")
    assert_tensor(by_name.quantize(X)._data, q._data, "a device by name")


def test_tensor_by_keywords() -> None:
    q = Float8CurrentScalingQuantizer(fp8_dtype=torch.float8_e4m3fn).quantize(X)
    y = Float8Tensor(
        data=q._data,
        fp8_dtype=q._fp8_dtype,
        fp8_scale_inv=q._scale_inv,
        dtype=torch.bfloat16,
        shape=X.shape,
    ).dequantize(torch.float32)
    assert_tensor(y, q.dequantize().detach(), "values")


def test_reference_factory() -> None:
    for role, dtype in (("input", torch.float8_e4m3fn), ("weight", torch.float8_e4m3fn),
                        ("output", torch.float8_e5m2), ("grad_output", torch.float8_e5m2),
                        ("linear_input", torch.float8_e4m3fn)):  # fmt: skip
        q = current_scaling_ref_quantizer_factory(role).quantize(X)
        assert isinstance(q, CurrentScalingTensorRef) and q.data.dtype == dtype


def test_recipe_with_a_factory() -> None:
    recipe = Float8CurrentScaling()
    recipe.set_quantizer_factory(current_scaling_ref_quantizer_factory)
    with nfp.autocast(recipe=recipe):
        (quantizer,) = RecipeState.create(recipe, mode="forward").make_quantizers()
    assert isinstance(quantizer.quantize(X), CurrentScalingTensorRef)


def test_saving() -> None:
    x, q = X, Float8CurrentScalingQuantizer(fp8_dtype=torch.float8_e4m3fn).quantize(X)
    tensors, objects = prepare_for_saving(x, q, None)
    restored = restore_from_saved(objects, tensors)
    assert restored[0] is x and restored[1] is q and restored[2] is None
    internal = Float8CurrentScalingQuantizer(fp8_dtype=torch.float8_e4m3fn)
    internal.internal = True
    storage = internal.quantize(X)
    data = storage._data
    tensors, objects = prepare_for_saving(x, storage, None)
    assert len(tensors) == 5 and storage._data is None
    restored = restore_from_saved(objects, tensors)
    assert restored[1] is storage and storage._data is data
