# SPDX-License-Identifier: Apache-2.0
"""Tests the lists of plain modules: a convention's owner takes all others as quantized."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from cli import run, run_json
from foreign_model import Tensors, write_model

MATRIX = np.random.default_rng(5).standard_normal((64, 64)).astype(np.float32)
EXPERTS = np.stack([MATRIX, MATRIX])
LAYER = "model.layers.0"
EMBEDDING, LINEAR = "model.embed_tokens", f"{LAYER}.mlp.up_proj"


PREFIXES = ["", "model.", "language_model.", "model.language_model.", "language_model.model."]


def spelled(module: str) -> list[str]:
    return [f"{prefix}{module}" for prefix in PREFIXES]


def ignored(tmp_path: Path, tensors: Tensors, config: dict, *options: str) -> list[str]:
    source = write_model(tmp_path / "in", [tensors], config)
    run("quantize", source, tmp_path / "out", *options)
    written = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    found = written.get("ignore", written.get("modules_to_not_convert"))
    owner = tmp_path / "out" / "hf_quant_config.json"
    if owner.exists():
        assert json.loads(owner.read_text())["quantization"]["exclude_modules"] == found
    return found


@pytest.mark.parametrize("convention", ["compressed-tensors", "modelopt", "mxfp8"])
@pytest.mark.parametrize(
    "config",
    [{"model_type": "gemma2"}, {"text_config": {"tie_word_embeddings": True}},
     {"tie_word_embeddings": True}],
    ids=["by default", "text model", "stated"],
)  # fmt: skip
def test_a_tied_head(tmp_path: Path, convention: str, config: dict) -> None:
    tensors = {f"{EMBEDDING}.weight": MATRIX, f"{LINEAR}.weight": MATRIX}
    options = ("--scheme", "mxfp8_e4m3", "--convention", convention)
    found = ignored(tmp_path, tensors, config, *options)
    assert found[:2] == [EMBEDDING, "lm_head"]
    others = {*spelled("embed_tokens"), *spelled("lm_head")} if "tensors" in convention else found
    assert set(found) == {*others} and len(set(found)) == len(found)


@pytest.mark.parametrize("head", ["lm_head", "language_model.lm_head"])
def test_a_head_with_a_tensor_is_listed_once(tmp_path: Path, head: str) -> None:
    tensors = {f"{name}.weight": MATRIX for name in (EMBEDDING, LINEAR, head)}
    options = ("--scheme", "mxfp8_e4m3", "--convention", "fp8")
    assert ignored(tmp_path, tensors, {}, *options) == sorted([head, EMBEDDING])


@pytest.mark.parametrize(
    ("quantized", "plain", "spellings"),
    [
        ("language_model.model.layers.0.up_proj", "language_model.lm_head", ["lm_head"]),
        ("language_model.model.layers.0.up_proj", "vision_tower.fc1", ["model.vision_tower.fc1"]),
        ("language_model.model.layers.0.up_proj", "vision_tower.vision_model.fc1",
         ["model.vision_tower.fc1", "model.vision_tower.vision_model.fc1"]),
        ("model.layers.0.up_proj", "visual.fc1", ["model.visual.fc1"]),
        ("model.layers.0.up_proj", "model.layers.0.fc1",
         ["model.language_model.layers.0.fc1", "language_model.model.layers.0.fc1"]),
        ("model.language_model.layers.0.up_proj", "model.language_model.layers.0.fc1",
         ["language_model.model.layers.0.fc1", "layers.0.fc1"]),
    ],
)  # fmt: skip
def test_the_names_of_loaded_modules(
    tmp_path: Path, quantized: str, plain: str, spellings: list[str]
) -> None:
    tensors = {f"{name}.weight": MATRIX for name in (quantized, plain)}
    options = ("--scheme", "fp8_e4m3", "--convention", "compressed-tensors", "--exclude")
    found = ignored(tmp_path, tensors, {}, *options, f"{plain}.weight")
    assert found[0] == plain
    assert {*spellings} <= {*found}
    inner = quantized.removeprefix("model.").removeprefix("language_model.").removeprefix("model.")
    assert not {*spelled(inner)} & {*found}


def test_a_name_that_a_quantized_module_may_have(tmp_path: Path) -> None:
    tensors = {"visual.fc1.weight": MATRIX, "model.visual.fc1.weight": MATRIX}
    options = ("--scheme", "fp8_e4m3", "--convention", "compressed-tensors")
    found = ignored(tmp_path, tensors, {}, *options, "--exclude", "visual.fc1.weight")
    assert found == ["visual.fc1"]


def test_a_head_that_is_quantized_is_not_listed(tmp_path: Path) -> None:
    tensors = {f"{name}.weight": MATRIX for name in (EMBEDDING, LINEAR, "lm_head")}
    options = ("--scheme", "mxfp8_e4m3", "--convention", "fp8", "--include", "lm_head.weight")
    assert ignored(tmp_path, tensors, {}, *options) == [EMBEDDING]


def test_a_model_without_an_embedding_has_no_tied_head(tmp_path: Path) -> None:
    options = ("--scheme", "mxfp8_e4m3", "--convention", "fp8")
    assert ignored(tmp_path, {f"{LINEAR}.weight": MATRIX}, {}, *options) == []


def moe(*stacked: str) -> Tensors:
    return {
        f"{LAYER}.mlp.router.weight": MATRIX,
        f"{LAYER}.self_attn.q_proj.weight": MATRIX,
        **{f"{LAYER}.mlp.experts.{name}": EXPERTS for name in stacked},
        **{f"{LAYER}.mlp.experts.{name}_bias": EXPERTS[:, 0] for name in stacked},
    }


@pytest.mark.parametrize(
    ("model_type", "excluded"), [("gpt_oss", ()), ("qwen3_moe", ("--exclude", "*experts*"))]
)
def test_stacked_experts(tmp_path: Path, model_type: str, excluded: tuple[str, ...]) -> None:
    tensors = moe("gate_up_proj", "down_proj")
    options = ("--scheme", "mxfp8_e4m3", "--convention", "fp8", *excluded)
    found = ignored(tmp_path, tensors, {"model_type": model_type}, *options)
    assert found == [f"{LAYER}.mlp.experts", f"{LAYER}.mlp.router"]


@pytest.mark.parametrize("left", ["gate_up_proj", "down_proj"])
def test_experts_of_which_one_tensor_is_quantized(tmp_path: Path, left: str) -> None:
    options = ("--scheme", "mxfp8_e4m3", "--convention", "fp8", "--exclude", f"*.{left}")
    found = ignored(tmp_path, moe("gate_up_proj", "down_proj"), {}, *options)
    assert found == [f"{LAYER}.mlp.experts.{left}", f"{LAYER}.mlp.router"]


def test_long_lists_of_modules_are_read_again(tmp_path: Path) -> None:
    """Reads a config.json of more than 16 MiB, as the experts of large models make it."""
    one = np.ones((2, 2), np.float32)
    stem = f"model.{'deep.' * 30}layers.0.mlp.experts"
    tensors = {f"{stem}.{i}.up_proj.weight": one for i in range(20_000)}
    source = write_model(tmp_path / "in", [tensors], {"model_type": "test"})
    take = ("--exclude", "*", "--include", "*.experts.7.up_proj.weight")
    options = ("--scheme", "fp8_e4m3", "--convention", "compressed-tensors", *take)
    run("quantize", source, tmp_path / "out", *options)
    assert (tmp_path / "out" / "config.json").stat().st_size > 16 << 20
    assert run_json("inspect", tmp_path / "out")["convention"] == "compressed-tensors"


@pytest.mark.parametrize(
    ("count", "stem", "rule"),
    [
        (53_000, "a.", "config.json: JSON must have at most 524288 values, got more"),
        (10_000, "deep." * 80, r"config.json must have at most 33554432 bytes, got \d+"),
    ],
)
def test_lists_that_no_command_would_read_are_not_written(
    tmp_path: Path, count: int, stem: str, rule: str
) -> None:
    one = np.ones((1, 2), np.float32)
    shards = [{f"{stem}{part}.{i}.weight": one for i in range(count)} for part in "ab"]
    source = write_model(tmp_path / "in", shards, {"model_type": "test"})
    options = ("--scheme", "fp8_e4m3", "--exclude", "*", "--include", "*a.7.weight")
    convention = ("--convention", "compressed-tensors")
    refused = run("quantize", source, tmp_path / "out", *options, *convention, code=2).stderr
    assert re.fullmatch(f"narrowfloat: config: {rule}\n", refused)
    assert not (tmp_path / "out").exists()
