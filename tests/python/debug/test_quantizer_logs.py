# SPDX-License-Identifier: Apache-2.0
"""Runs features that inspect tensors through whole training steps of a layer."""

import re
from pathlib import Path

import pytest
import torch
from layer_sessions import messages, section, session, statistics
from narrowfloat.common.recipe import (
    CustomRecipe,
    DelayedScaling,
    Float8BlockScaling,
    Float8CurrentScaling,
    MXFP8BlockScaling,
    NVFP4BlockScaling,
    Recipe,
)
from narrowfloat.debug._statistic_names import QUANTIZED, TENSOR
from narrowfloat.pytorch import Linear, autocast, quantized_model_init
from narrowfloat.pytorch.custom_recipes.quantization_current_scaling import (
    current_scaling_ref_quantizer_factory,
)
from narrowfloat.pytorch.custom_recipes.quantizer_factories import mxfp8_factory

SIX = ["activation", "gradient", "weight", "output", "wgrad", "dgrad"]
OPERANDS = ["activation", "gradient", "weight"]
RECIPES = {
    "none": None,
    "delayed": DelayedScaling(),
    "current": Float8CurrentScaling(),
    "mxfp8": MXFP8BlockScaling(),
    "blocks": Float8BlockScaling(),
    "nvfp4": NVFP4BlockScaling(),
}


def of_quantized(stats: list[str], **more: object) -> dict:
    block = {"enabled": True, "tensors": OPERANDS, "stats": stats, **more}
    return section({"LogFp8TensorStats": block})


def of_tensors(stats: list, **more: object) -> dict:
    block = {"enabled": True, "tensors": SIX, "stats": stats, **more}
    return section({"LogTensorStats": block})


def train(
    host: object,
    model: Linear,
    inputs: list[torch.Tensor],
    recipe: Recipe | None,
) -> None:
    for x in inputs:
        with autocast(enabled=recipe is not None, recipe=recipe):
            y = model(x)
        y.float().sum().backward()
        host.step()


def prefixed() -> list[str]:
    """Returns every statistic of every recipe, prefixed by the recipe's name."""
    per_tensor, blocks = ("fp8_delayed_scaling", "fp8_current_scaling"), ("fp8_block_scaling",)
    names = [f"{recipe}_{stat}" for recipe in (*per_tensor, *blocks, "mxfp8") for stat in QUANTIZED]
    names += [f"{r}_{stat}_columnwise" for r in (*blocks, "mxfp8") for stat in QUANTIZED]
    return [*names, "fp8_delayed_scaling_overflows%"]


def test_every_statistic_of_every_recipe_is_logged(tmp_path: Path) -> None:
    config = of_quantized(prefixed(), freq=2, start_step=0, end_step=10)
    with session(config, tmp_path) as host:
        model = Linear(128, 128, dtype=torch.bfloat16)
        zeros = torch.zeros(128, 128, dtype=torch.bfloat16)
        train(host, model, [zeros] * 10, DelayedScaling())
        log = statistics(tmp_path)
    for tensor in OPERANDS:
        for stat in prefixed():
            assert f"{model.name}_{tensor}_{stat} " in log, (tensor, stat)
    assert {int(i) for i in re.findall(r"iteration=(\d+)", log)} == {0, 2, 4, 6, 8}


@pytest.mark.parametrize("recipe", list(RECIPES))
@pytest.mark.parametrize("sizes", [(0, 64), (64, 0, 0)])
def test_an_empty_batch_does_not_break_logging(tmp_path: Path, recipe: str, sizes: tuple) -> None:
    with session(of_tensors(list(TENSOR)), tmp_path) as host:
        model = Linear(128, 64, name="linear", dtype=torch.bfloat16)
        inputs = [torch.randn(size, 128, dtype=torch.bfloat16) for size in sizes]
        train(host, model, inputs, RECIPES[recipe])
        log = statistics(tmp_path)
    assert "linear_activation_max " in log and "nan" not in log
    assert model.weight.grad.shape == model.weight.shape


def test_a_quantized_parameter_has_scales_and_values(tmp_path: Path) -> None:
    blocks = {
        "LogTensorStats": {"enabled": True, "tensors": ["weight"], "stats": ["min"]},
        "LogFp8TensorStats": {
            "enabled": True,
            "tensors": ["weight"],
            "stats": ["scale_inv_min", "scale_inv_max"],
        },
    }
    recipe = Float8CurrentScaling()
    with session(section(blocks), tmp_path) as host:
        with quantized_model_init(recipe=recipe):
            model = Linear(64, 32, name="linear")
        train(host, model, [torch.randn(32, 64)] * 2, recipe)
        log = statistics(tmp_path)
    lowest = model.weight.dequantize().min().item()
    assert re.search(rf"linear_weight_min\s+iteration=000001\s+value={lowest:.4f}", log)
    assert "linear_weight_scale_inv_min " in log and "linear_weight_scale_inv_max " in log


def test_lines_come_in_the_iterations_of_their_features_only(tmp_path: Path) -> None:
    blocks = {
        "LogTensorStats": {"enabled": True, "tensors": SIX, "stats": ["max"], "freq": 3},
        "LogFp8TensorStats": {"enabled": True, "tensors": OPERANDS, "stats": ["mse"], "freq": 5},
    }
    with session(section(blocks), tmp_path) as host:
        model = Linear(64, 64, name="linear1")
        train(host, model, [torch.randn(32, 64)] * 20, Float8CurrentScaling())
        log = statistics(tmp_path)
    found = {int(i) for i in re.findall(r"iteration=(\d+)", log)}
    assert found == {i for i in range(20) if i % 3 == 0 or i % 5 == 0}
    assert "linear1_gradient_max " in log and "linear1_gradient_mse " in log


def test_another_recipes_statistics_are_there_under_nvfp4(tmp_path: Path) -> None:
    with session(of_quantized(["mxfp8_mse"]), tmp_path) as host:
        model = Linear(128, 128, name="linear", dtype=torch.bfloat16)
        inputs = [torch.randn(128, 128, dtype=torch.bfloat16)]
        train(host, model, inputs, NVFP4BlockScaling())
        log = statistics(tmp_path)
    assert all(f"linear_{tensor}_mxfp8_mse " in log for tensor in OPERANDS)


def test_statistics_are_those_of_the_tensors_themselves(tmp_path: Path) -> None:
    torch.manual_seed(5)
    with session(of_tensors(["max", "mean"]), tmp_path) as host:
        model = Linear(64, 32, name="linear")
        x = torch.randn(16, 64, requires_grad=True)
        y = model(x)
        (y.sum() * 2).backward()
        host.step()
        log = statistics(tmp_path)
    seen = {"activation": x, "weight": model.weight, "output": y, "dgrad": x.grad,
            "wgrad": model.weight.grad, "gradient": torch.full_like(y, 2.0)}  # fmt: skip
    for name, tensor in seen.items():
        for stat in ("max", "mean"):
            value = getattr(tensor, stat)().item()
            line = re.search(rf"linear_{name}_{stat}\s+iteration=000000\s+value=(\S+)", log)
            assert float(line[1]) == pytest.approx(value, abs=6e-5), (name, stat)


def everything() -> dict[str, dict]:
    """Returns one configuration for each way in which features change or observe a layer."""
    log = {**of_tensors(list(TENSOR), end_step=1)["section"]["transformer_engine"]}
    log |= of_quantized(["mxfp8_underflows%", "mxfp8_mse"], end_step=1)["section"][
        "transformer_engine"
    ]
    fake = {"enabled": True, "gemms": ["fprop", "dgrad", "wgrad"], "quant_format": "FP8E5M2"}
    fake["tensors"] = OPERANDS
    dump = {"enabled": True, "tensors": OPERANDS, "high_precision_tensor": True}
    dump["quantized_tensor"] = True
    return {
        "nothing": {},
        "logs": section(log),
        "fake quantization": section({"FakeQuant": fake}),
        "all at once": section(
            {
                "DisableQuantizationLayer": {"enabled": False},
                "DumpTensors": dump,
                "LogTensorStats": log["LogTensorStats"],
            }
        ),
    }


@pytest.mark.filterwarnings("ignore:.*Skipping stats collection")
@pytest.mark.parametrize("recipe", list(RECIPES))
@pytest.mark.parametrize("config", list(everything()))
def test_three_steps(tmp_path: Path, config: str, recipe: str) -> None:
    with session(everything()[config], tmp_path) as host:
        model = Linear(64, 64, dtype=torch.bfloat16)
        inputs = [torch.randn(4, 16, 64, dtype=torch.bfloat16) for _ in range(3)]
        train(host, model, inputs, RECIPES[recipe])
    assert torch.isfinite(model.weight.grad).all() and torch.isfinite(model.bias.grad).all()


@pytest.mark.parametrize("factory", [mxfp8_factory, current_scaling_ref_quantizer_factory])
def test_quantizers_of_a_factory_can_be_watched(tmp_path: Path, factory: object) -> None:
    recipe = CustomRecipe(qfactory=factory)
    torch.manual_seed(0)
    model, x = Linear(64, 64, name="linear"), torch.randn(32, 64)
    with autocast(recipe=recipe):
        expected = model(x)
    with session(of_tensors(["max"], end_step=3), tmp_path) as host:
        with autocast(recipe=recipe):
            y = model(x)
        y.sum().backward()
        host.step()
        assert "linear_weight_max " in statistics(tmp_path)
    assert torch.equal(y, expected)
    assert "LAYER=linear" in messages(tmp_path)
