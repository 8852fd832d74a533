# SPDX-License-Identifier: Apache-2.0
"""Tests that a job's result is not mixed with a checkpoint that OUT held before."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from cli import folder_bytes, run, run_json, sharded, write_file, write_model

MARK = ".narrowfloat.unfinished"
INDEX = "model.safetensors.index.json"
SCHEME = ("--scheme", "mxfp8_e4m3")


def shards(count: int) -> list[str]:
    return [f"model-{i + 1:05}-of-{count:05}.safetensors" for i in range(count)]


def single(folder: Path) -> Path:
    """Returns a model of one file, with the configuration of `sharded`."""
    folder.mkdir()
    write_model(folder)
    (folder / "config.json").write_text('{"model_type": "test"}')
    return folder


def model(folder: Path, files: int) -> Path:
    return single(folder) if files == 1 else sharded(folder, files)


@pytest.mark.parametrize(
    ("before", "after", "removed"),
    [
        (2, 1, [*shards(2), INDEX]),
        (1, 2, ["model.safetensors"]),
        (3, 2, shards(3)),
    ],
)
def test_files_of_another_checkpoint_go(
    before: int, after: int, removed: list[str], tmp_path: Path
) -> None:
    old, new = tmp_path / "old", model(tmp_path / "new", after)
    source = model(tmp_path / "source", before)
    old.mkdir()
    for name in removed:  # without files that the job replaces
        shutil.copy(source / name, old)
    held = folder_bytes(old)
    message = run_json("quantize", new, old, *SCHEME, code=2)["error"]["message"]
    assert message == (
        f"quantize: {old} must have no files of another checkpoint, got {removed[0]}; "
        "--overwrite removes them"
    )
    assert folder_bytes(old) == held
    again = shutil.copytree(old, tmp_path / "again")
    assert run_json("quantize", new, old, *SCHEME, "--overwrite")["removed"] == removed
    said = run("quantize", new, again, *SCHEME, "--overwrite").stdout
    assert f"\nremoved from OUT, where another checkpoint left them: {', '.join(removed)}\n" in said
    made = run_json("quantize", new, tmp_path / "fresh", *SCHEME)
    assert made["removed"] == []
    assert folder_bytes(old) == folder_bytes(again) == folder_bytes(tmp_path / "fresh")


def test_they_go_with_the_last_part(tmp_path: Path) -> None:
    new, out = sharded(tmp_path / "new", 2), single(tmp_path / "out")
    old = (out / "model.safetensors").read_bytes()
    job = ("quantize", new, out, *SCHEME)
    assert run_json(*job, "--overwrite", "--part", "2/2")["removed"] == []
    assert (out / MARK).exists() and (out / "model.safetensors").read_bytes() == old
    message = run_json(*job, "--part", "1/2", code=2)["error"]["message"]
    assert message.endswith("got model.safetensors; --overwrite removes them"), "it was not asked"
    last = run_json(*job, "--overwrite", "--part", "1/2")
    assert last["removed"] == ["model.safetensors"] and last["complete"]
    run("quantize", new, tmp_path / "fresh", *SCHEME)
    assert folder_bytes(out) == folder_bytes(tmp_path / "fresh")


def test_an_index_names_its_files(tmp_path: Path) -> None:
    new, out = single(tmp_path / "new"), tmp_path / "out"
    out.mkdir()
    for name in ("y", "z", "c"):
        write_file(out / f"{name}.safetensors", {f"{name}.weight": np.ones((2, 2), np.float32)})
    names = {"y.weight": "y.safetensors", "z.weight": "z.safetensors"}
    (out / "other.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    held = folder_bytes(out)
    message = run_json("quantize", new, out, *SCHEME, "--overwrite", code=2)["error"]["message"]
    assert message == (
        f"quantize: {out} must have no other safetensors file beside the result, which has no "
        "index, got c.safetensors"
    )
    assert folder_bytes(out) == held
    (out / "c.safetensors").unlink()
    made = run_json("quantize", new, out, *SCHEME, "--overwrite")
    expected = ["y.safetensors", "z.safetensors", "other.safetensors.index.json"]
    assert made["removed"] == expected, "the index goes last: it names the others"
    (out / INDEX).write_text("{")
    assert run_json("quantize", new, out, *SCHEME, "--overwrite")["removed"] == [INDEX]


def test_files_of_other_names_stay(tmp_path: Path) -> None:
    new, out = sharded(tmp_path / "new", 2), tmp_path / "out"
    (out / "old").mkdir(parents=True)
    kept = ("lora.safetensors", "old/model.safetensors", ".model.safetensors", "model.bin",
            "config.yaml")  # fmt: skip
    for name in kept:
        (out / name).write_text(name)
    assert run_json("quantize", new, out, *SCHEME)["removed"] == []
    assert run_json("quantize", new, out, *SCHEME, "--overwrite")["removed"] == []
    assert [(out / name).read_text() for name in kept] == list(kept)


DESCRIPTIONS = {
    "hf_quant_config.json": {"producer": {"name": "modelopt"}},
    "config.json": {"quantization_config": {"quant_method": "modelopt"}},
    "params.json": {"dim": 8, "quantization": {"qformat_weight": "fp8_e4m3"}},
}


@pytest.mark.parametrize("name", DESCRIPTIONS)
def test_descriptions_of_another_checkpoint_go(name: str, tmp_path: Path) -> None:
    source, out = single(tmp_path / "in"), tmp_path / "out"
    (source / "config.json").unlink()
    run("quantize", source / "model.safetensors", tmp_path / "q.safetensors", *SCHEME)
    quantized = tmp_path / "quantized"
    quantized.mkdir()
    (tmp_path / "q.safetensors").rename(quantized / "model.safetensors")
    out.mkdir()
    (out / name).write_text(json.dumps(DESCRIPTIONS[name]))
    message = run_json("dequantize", quantized, out, code=2)["error"]["message"]
    assert message == (
        f"dequantize: {out} must have no files of another checkpoint, got {name}; --overwrite "
        "removes them"
    )
    assert run_json("dequantize", quantized, out, "--overwrite")["removed"] == [name]
    assert run_json("inspect", out)["convention"] == "plain"
    (out / "config.json").write_text("{}")
    (out / "params.json").write_text("{}")
    assert run_json("dequantize", quantized, out, "--overwrite")["removed"] == []
    assert sorted(folder_bytes(out)) == ["config.json", "model.safetensors", "params.json"]


def test_a_float_model_over_one_of_modelopt(tmp_path: Path) -> None:
    source, out = single(tmp_path / "in"), tmp_path / "out"
    run("quantize", source, tmp_path / "q", *SCHEME)
    take = ("--exclude", "*", "--include", "*.dense.weight")
    run("quantize", source, out, *SCHEME, "--convention", "modelopt", *take)
    assert run_json("dequantize", tmp_path / "q", out, "--overwrite")["removed"] == [
        "hf_quant_config.json"
    ]
    assert run_json("inspect", out)["convention"] == "plain"
    run("dequantize", tmp_path / "q", tmp_path / "fresh")
    assert folder_bytes(out) == folder_bytes(tmp_path / "fresh")
