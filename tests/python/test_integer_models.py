# SPDX-License-Identifier: Apache-2.0
"""Tests that models with integer codes are not taken for float models."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from cli import TYPES, folder_bytes, run, run_json, write_file

M = "model.layers.0.self_attn.q_proj."
PLAIN = {"model.layers.0.mlp.up_proj.weight": np.ones((64, 64), TYPES["BF16"])}
ONES = np.ones(64, np.float32)
MLX = {
    f"{M}weight": np.ones((64, 8), np.uint32),
    f"{M}scales": np.ones((64, 1), TYPES["BF16"]),
    f"{M}biases": np.ones((64, 1), TYPES["BF16"]),
}
# By the name of the convention: the tensors, and the words of its reason.
MODELS = {
    "int8": (
        {f"{M}weight": np.ones((64, 64), np.int8), f"{M}weight_scale": ONES.reshape(64, 1)},
        f"{M}weight: I8, '{M}weight_scale' may be its scale",
    ),
    "awq": (
        {
            f"{M}qweight": np.ones((64, 8), np.int32), f"{M}qzeros": np.ones((1, 8), np.int32),
            f"{M}scales": np.ones((1, 64), np.float16),
        },
        f"{M}qweight: I32, '{M}scales' may be its scale",
    ),
    "bitsandbytes": (
        {f"{M}weight": np.ones((2048, 1), np.uint8), f"{M}weight.absmax": ONES},
        f"{M}weight: U8, '{M}weight.absmax' may be its scale",
    ),
    "gpt-oss original": (
        {
            "block.0.mlp.mlp1_weight.blocks": np.ones((2, 64, 1, 16), np.uint8),
            "block.0.mlp.mlp1_weight.scales": np.ones((2, 64, 1), np.uint8),
        },
        "block.0.mlp.mlp1_weight.blocks: U8, 'block.0.mlp.mlp1_weight.scales' may be its scale",
    ),
}  # fmt: skip


def refused(source: Path, name: str, reason: str) -> None:
    shown = run_json("inspect", source)
    assert (shown["convention"], shown["convention_reason"]) == (name, reason)
    assert shown["bits_per_parameter"] is None
    out = source.with_name("out")
    scheme = ("--scheme", "mxfp8_e4m3")
    assert run("quantize", source, out, *scheme, code=2).stderr == (
        f"narrowfloat: quantize: IN must be a float checkpoint, {source} is already quantized as "
        f"'{name}' ({reason})\n"
    )
    run("report", source, "-o", out, code=2)
    for command in (("dequantize", source, out), ("check", source), ("diff", source, source)):
        message = f"{command[0]}: {source} is written as '{name}' ({reason}), this build reads "
        assert message in run(*command, code=3).stderr
    assert not out.exists()


@pytest.mark.parametrize("model", MODELS)
def test_integer_codes_are_not_plain(model: str, tmp_path: Path) -> None:
    tensors, reason = MODELS[model]
    refused(write_file(tmp_path / "in.safetensors", tensors | PLAIN), "unknown", reason)


@pytest.mark.parametrize("key", ["quantization", "quantization_config"])
def test_a_model_of_mlx_is_named(key: str, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    write_file(folder / "model.safetensors", MLX | PLAIN, {"format": "mlx"})
    (folder / "config.json").write_text(json.dumps({key: {"group_size": 64, "bits": 4}}))
    before = folder_bytes(folder)
    refused(folder, "mlx", "config.json")
    assert folder_bytes(folder) == before


def test_integers_of_float_models_are_not_codes(tmp_path: Path) -> None:
    ids = np.arange(8, dtype=np.int32).reshape(1, 8)
    tensors = PLAIN | {
        "embeddings.position_ids": ids, "embeddings.token_type_ids": ids, "logit_scale": ONES[:1],
        "h.attn.bias": np.tri(8, dtype=np.uint8), "h.attn.relative_position_index": ids,
        "h.attn.logit_scale": ONES, "h.attn.weight_scale": ONES, "norm.scale": ONES,
    }  # fmt: skip
    source = write_file(tmp_path / "in.safetensors", tensors)
    assert run_json("inspect", source)["convention"] == "plain"
    out = tmp_path / "out.safetensors"
    assert run_json("quantize", source, out, "--scheme", "mxfp8_e4m3")["tensors_quantized"] == 1
