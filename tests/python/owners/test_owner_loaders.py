# SPDX-License-Identifier: Apache-2.0
"""Loads models in other conventions by the libraries that own them; compares logits with ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli import run, run_json

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("compressed_tensors", reason="compressed-tensors is not installed")

from tiny_models import CONFIGS, loader, logits, write_tiny_model

import narrowfloat as nf

# compressed-tensors decodes its other formats to bfloat16, whatever the model's type is.
CASES = [
    ("fp8", "fp8_block128x128_e4m3"),
    ("fp8", "mxfp8_e4m3"),
    ("mxfp8", "mxfp8_e4m3"),
    ("compressed-tensors", "fp8_e4m3"),
    ("fp8", "fp8_e4m3"),
]
KINDS = [kind for kind in CONFIGS if kind != "gpt-oss"]


def owner_model(kind: str, folder: Path) -> Any:
    """Returns the model that the owner's loader loads, on the CPU."""
    model = loader(kind).from_pretrained(folder)
    assert model.is_quantized or not hasattr(model, "hf_quantizer")
    return model


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("convention", "scheme"), CASES)
def test_logits_are_those_of_our_values(
    kind: str, convention: str, scheme: str, tmp_path: Path
) -> None:
    write_tiny_model(kind, tmp_path / "float")
    run("quantize", tmp_path / "float", tmp_path / "ours", "--scheme", scheme)
    run("convert", tmp_path / "ours", tmp_path / "theirs", "--to", convention)
    run("dequantize", tmp_path / "theirs", tmp_path / "plain")
    plain = loader(kind).from_pretrained(tmp_path / "plain")
    assert torch.equal(logits(owner_model(kind, tmp_path / "theirs")), logits(plain))
    again = tmp_path / "again"
    run("dequantize", tmp_path / "ours", again)
    assert torch.equal(logits(loader(kind).from_pretrained(again)), logits(plain))


@pytest.mark.parametrize(
    ("convention", "scheme"),
    [("fp8", "fp8_block128x128_e4m3"), ("compressed-tensors", "fp8_e4m3")],
)
def test_a_folder_that_save_writes(convention: str, scheme: str, tmp_path: Path) -> None:
    write_tiny_model("llama", tmp_path / "float")
    model = dict(nf.load(tmp_path / "float"))
    layers = [name for name in model if name.endswith("_proj.weight")]
    tensors = model | {name: nf.quantize(model[name], scheme) for name in layers}
    config = json.loads((tmp_path / "float" / "config.json").read_text())
    nf.save(tmp_path / "theirs", tensors, convention=convention, config=config)
    run("dequantize", tmp_path / "theirs", tmp_path / "plain")
    plain = loader("llama").from_pretrained(tmp_path / "plain")
    assert torch.equal(logits(owner_model("llama", tmp_path / "theirs")), logits(plain))


def test_transformers_takes_other_blocks_as_the_note_says(tmp_path: Path) -> None:
    sizes = {"hidden_size": 192, "intermediate_size": 256, "num_hidden_layers": 1}
    config = transformers.LlamaConfig(**sizes, num_attention_heads=4, vocab_size=96)
    loader("llama").from_config(config).save_pretrained(tmp_path / "float")
    scheme = ("--scheme", "fp8_block128x128_e4m3:force_pow_2_scales=0", "--convention", "fp8")
    note = run_json("quantize", tmp_path / "float", tmp_path / "theirs", *scheme)["notes"][0]
    name = "'model.layers.0.mlp.down_proj.weight'"
    assert f"{name} (192x256; blocks must be 128x128, it uses 96x128)" in note
    run("dequantize", tmp_path / "theirs", tmp_path / "plain")
    name = "model.layers.0.mlp.down_proj.weight"
    theirs = owner_model("llama", tmp_path / "theirs").state_dict()[name]
    values = torch.from_numpy(nf.load(tmp_path / "plain", dtype="float32")[name])
    assert torch.equal(theirs[:96], values[:96]) and torch.equal(theirs[128:], values[128:])
    assert not torch.equal(theirs[96:128], values[96:128])


def test_experts_of_gpt_oss(tmp_path: Path) -> None:
    write_tiny_model("gpt-oss", tmp_path / "float")
    run("quantize", tmp_path / "float", tmp_path / "theirs", "--scheme", "mxfp4",
        "--convention", "mxfp4", "--exclude", "*", "--include", "*.experts.*_proj")  # fmt: skip
    method = json.loads((tmp_path / "theirs" / "config.json").read_text())["quantization_config"]
    assert method["quant_method"] == "mxfp4"
    run("dequantize", tmp_path / "theirs", tmp_path / "plain")
    config = transformers.Mxfp4Config(dequantize=True)
    model = loader("gpt-oss").from_pretrained(tmp_path / "theirs", quantization_config=config)
    plain = loader("gpt-oss").from_pretrained(tmp_path / "plain", dtype=model.dtype)
    assert torch.equal(logits(model), logits(plain))
