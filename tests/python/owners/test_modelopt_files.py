# SPDX-License-Identifier: Apache-2.0
"""Reads folders that ModelOpt exports, and compares the values with its tensors, bit for bit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli import run, run_json

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("modelopt", reason="nvidia-modelopt is not installed")

import modelopt.torch.quantization as mtq
from modelopt.torch.export import export_hf_checkpoint
from modelopt.torch.quantization.qtensor.fp8_tensor import FP8QTensor
from modelopt.torch.quantization.qtensor.mxfp8_tensor import MXFP8QTensor
from modelopt.torch.quantization.qtensor.nvfp4_tensor import NVFP4QTensor
from safetensors.torch import load_file
from tiny_models import VOCABULARY, loader, write_tiny_model

import narrowfloat as nf

Parts = dict[str, Any]


def fp8(shape: Any, parts: Parts) -> Any:
    return FP8QTensor(shape, torch.float32, parts["weight"]).dequantize(scale=parts["weight_scale"])


def mxfp8(shape: Any, parts: Parts) -> Any:
    return MXFP8QTensor(shape, torch.float32, parts["weight"]).dequantize(
        scale=parts["weight_scale"]
    )


def nvfp4(shape: Any, parts: Parts) -> Any:
    return NVFP4QTensor(shape, torch.float32, parts["weight"]).dequantize(
        scale=parts["weight_scale"],
        double_scale=parts["weight_scale_2"],
        block_sizes={-1: 16},
    )


CASES: dict[str, tuple[Callable, str]] = {
    "FP8": (fp8, "fp8_e4m3"),
    "MXFP8": (mxfp8, "mxfp8_e4m3"),
    "NVFP4": (nvfp4, "nvfp4"),
}


@pytest.mark.parametrize("name", CASES)
def test_values_are_the_owners(name: str, tmp_path: Path) -> None:
    decode, scheme = CASES[name]
    write_tiny_model("llama", tmp_path / "float")
    model = loader("llama").from_pretrained(tmp_path / "float", dtype=torch.bfloat16)
    tokens = torch.arange(24).reshape(2, 12) * 7 % VOCABULARY
    mtq.quantize(model, getattr(mtq, f"{name}_DEFAULT_CFG"), lambda m: m(input_ids=tokens))
    theirs = tmp_path / "theirs"
    export_hf_checkpoint(model, export_dir=theirs)
    assert run_json("inspect", theirs)["convention"] == "modelopt"
    assert run_json("check", theirs)["findings"] == []
    run("dequantize", theirs, tmp_path / "plain", "--dtype", "f32")
    stored = load_file(theirs / "model.safetensors")
    ours = load_file(tmp_path / "plain" / "model.safetensors")
    loaded = nf.load(theirs, from_="modelopt")
    names = [key.removesuffix("_scale") for key in stored if key.endswith(".weight_scale")]
    assert len(names) == 14
    for key in names:
        shape, stem = ours[key].shape, key.removesuffix("weight")
        parts = {part.removeprefix(stem): stored[part] for part in stored if part.startswith(stem)}
        assert torch.equal(ours[key], decode(shape, parts)), key
        assert loaded[key].spec == scheme


@pytest.mark.parametrize("name", CASES)
def test_what_we_write_is_described_as_they_do(name: str, tmp_path: Path) -> None:
    write_tiny_model("llama", tmp_path / "float")
    run("quantize", tmp_path / "float", tmp_path / "ours", "--scheme", CASES[name][1],
        "--convention", "modelopt")  # fmt: skip
    described = json.loads((tmp_path / "ours" / "hf_quant_config.json").read_text())
    # Only weights are quantized: ModelOpt has another name for NVFP4 without input scales.
    algorithm = {"NVFP4": "W4A16_NVFP4"}.get(name, name)
    assert described["quantization"]["quant_algo"] == algorithm
    assert described["quantization"]["exclude_modules"] == ["lm_head", "model.embed_tokens"]
