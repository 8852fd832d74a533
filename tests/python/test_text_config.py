# SPDX-License-Identifier: Apache-2.0
"""Tests the places in which configuration files state how a model is quantized."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from cli import TYPES, run, run_json
from foreign_cases import case
from foreign_model import codes, method, read_model, scales, spread, write_model

import narrowfloat as nf

# A text whose other members no JSON printer reproduces.
CONFIG = """{
    "big": 1000000000000000019884624838656,
    "text_config" : {"rope": [1e-05,  NaN], "dtype": "float32"%s},
    "vision_config": {"dtype":"float16"}%s
}
"""
PLACES = ["quantization_config", "compression_config"]


def texts(key: str, in_text: bool, method_: str) -> tuple[str, str]:
    """Returns a config.json that names the method, and the same without it."""
    said = f', "{key}": {{"quant_method": "{method_}", "ignore": ["lm_head"]}}'
    return CONFIG % ((said, "") if in_text else ("", said)), CONFIG % ("", "")


@pytest.mark.parametrize("in_text", [True, False], ids=["text model", "model"])
@pytest.mark.parametrize("key", PLACES)
def test_the_float_model_does_not_claim_to_be_quantized(
    key: str, in_text: bool, tmp_path: Path
) -> None:
    tensors, _, values = case("ct bf16 scale")
    source = write_model(tmp_path / "in", [tensors])
    quantized, plain = texts(key, in_text, "compressed-tensors")
    (source / "config.json").write_text(quantized)
    found = run_json("inspect", source)
    assert found["convention"] == "compressed-tensors"
    assert found["convention_reason"] == "config.json"
    run("dequantize", source, tmp_path / "out")
    assert (tmp_path / "out" / "config.json").read_text() == plain
    (array,) = read_model(tmp_path / "out").values()
    assert array.dtype == np.float32, "the type of the text model"
    assert array.tobytes() == values["a.weight"].tobytes()


@pytest.mark.parametrize("in_text", [True, False], ids=["text model", "model"])
@pytest.mark.parametrize("key", PLACES)
def test_a_converted_model_names_one_convention(key: str, in_text: bool, tmp_path: Path) -> None:
    tensors, _, _ = case("ct bf16 scale")
    source = write_model(tmp_path / "in", [tensors])
    quantized, plain = texts(key, in_text, "compressed-tensors")
    (source / "config.json").write_text(quantized)
    run("convert", source, tmp_path / "out", "--to", "modelopt")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config.pop("quantization_config")["quant_method"] == "modelopt"
    assert str(config) == str(json.loads(plain)), "NaN is not equal to itself"
    held = {"a.weight": nf.quantize(np.ones((32, 32), np.float32), "mxfp8_e4m3")}
    nf.save(tmp_path / "py", held, convention="modelopt", config=json.loads(quantized))
    config = json.loads((tmp_path / "py" / "config.json").read_text())
    assert config.pop("quantization_config")["quant_method"] == "modelopt"
    assert str(config) == str(json.loads(plain))


@pytest.mark.parametrize("key", PLACES)
def test_the_block_size_of_the_text_model(key: str, tmp_path: Path) -> None:
    w, s = codes((200, 320)), scales((2, 3))
    quantization = method("fp8", weight_block_size=[192, 128])["quantization_config"]
    config = {"text_config": {key: quantization, "torch_dtype": "float32"}}
    tensors = {"a.weight": w, "a.weight_scale_inv": s}
    source = write_model(tmp_path / "in", [tensors], config)
    run("dequantize", source, tmp_path / "out")
    expected = w.astype(np.float32) * spread(s, 192, 128, w.shape)
    assert read_model(tmp_path / "out")["a.weight"].tobytes() == expected.tobytes()
    assert json.loads((tmp_path / "out" / "config.json").read_text()) == {
        "text_config": {"torch_dtype": "float32"}
    }


def test_the_model_s_own_type_goes_before_the_text_model_s(tmp_path: Path) -> None:
    tensors, config, _ = case("deepseek")
    config = config | {"dtype": "float16", "text_config": {"dtype": "float32"}}
    source = write_model(tmp_path / "in", [tensors], config)
    run("dequantize", source, tmp_path / "out")
    assert read_model(tmp_path / "out")["a.weight"].dtype == TYPES["F16"]


@pytest.mark.parametrize("command", [("dequantize",), ("convert", "--to", "modelopt")])
def test_mistral_s_file_does_not_name_the_old_convention(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    tensors, config, _ = case("deepseek")
    source = write_model(tmp_path / "in", [tensors], config)
    (source / "params.json").write_text(
        '{"dim": 4096,\n "quantization": {"qformat_weight": "fp8_e4m3"}, "rope_theta": 1e6}\n'
    )
    verb, *options = command
    run(verb, source, tmp_path / "out", *options)
    left = (tmp_path / "out" / "params.json").read_text()
    assert left == '{"dim": 4096, "rope_theta": 1e6}\n'
