# SPDX-License-Identifier: Apache-2.0
"""Tests that a part which reads the same files differently belongs to another job."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from cli import folder_bytes, run, run_json
from foreign_model import E4M3, Tensors, codes, method, scales, write_model

RANDOM = np.random.default_rng(3)


def refuse(out: Path, *command: object) -> None:
    """Runs a part of another job; checks that it is refused and changes no file."""
    before = folder_bytes(out)
    message = run_json(*command, code=2)["error"]["message"]
    assert f"{out} must not have the mark of another job" in message
    assert folder_bytes(out) == before


def nvfp4(name: str) -> Tensors:
    """Returns a weight that modelopt and comfyui read with other values."""
    return {
        f"{name}.weight": RANDOM.integers(0, 256, (128, 128), np.uint8),
        f"{name}.weight_scale": RANDOM.lognormal(0, 1, (128, 16)).astype(E4M3),
        f"{name}.weight_scale_2": np.float32(0.007).reshape(()),
    }


@pytest.mark.parametrize(
    "command", [("dequantize",), ("convert", "--to", "compressed-tensors")], ids=lambda c: c[0]
)
def test_another_convention(tmp_path: Path, command: tuple[str, ...]) -> None:
    source, out = write_model(tmp_path / "in", [nvfp4("a"), nvfp4("b")]), tmp_path / "out"
    verb, *options = command
    job = (verb, source, out, *options)
    run(*job, "--from", "modelopt", "--part", "1/2")
    refuse(out, *job, "--from", "comfyui", "--part", "2/2")
    assert run_json(*job, "--from", "modelopt", "--part", "2/2")["complete"]


def block_fp8(name: str) -> Tensors:
    return {f"{name}.weight": codes((256, 256)), f"{name}.weight_scale_inv": scales((2, 2))}


@pytest.mark.parametrize(
    "changed",
    [method("fp8", weight_block_size=[200, 200]),
     method("fp8", weight_block_size=[128, 128]) | {"dtype": "float16"}],
    ids=["blocks", "dtype"],
)  # fmt: skip
def test_another_configuration(tmp_path: Path, changed: dict) -> None:
    config = method("fp8", weight_block_size=[128, 128])
    source = write_model(tmp_path / "in", [block_fp8("a"), block_fp8("b")], config)
    job = ("dequantize", source, tmp_path / "out", "--part")
    run(*job, "1/2")
    (source / "config.json").write_text(json.dumps(changed))
    refuse(tmp_path / "out", *job, "2/2")
    (source / "config.json").write_text(json.dumps(config))
    assert run_json(*job, "2/2")["complete"]
