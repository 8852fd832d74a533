# SPDX-License-Identifier: Apache-2.0
"""Tests what commands report about configurations that contradict the tensors beside them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from cli import run, run_json
from foreign_model import BF16, method, write_model

FLOATS = {"a.weight": np.ones((128, 128), BF16)}
MODELOPT = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}}
SCHEME = ("--scheme", "mxfp8_e4m3")
STALE = "says that weights are quantized, but no tensor holds codes; if they are floats, remove "


def whole_findings(path: Path) -> list[str]:
    done = run_json("check", path, code=1)
    assert all(item["name"] == "" and not item["note"] for item in done["findings"])
    return [item["what"] for item in done["findings"]]


@pytest.mark.parametrize(
    ("config", "owners", "told"),
    [
        (method("fp8"), None, f"config.json {STALE}its quantization_config"),
        ({"text_config": method("fp8")}, None,
         f"config.json {STALE}its text_config.quantization_config"),
        ({}, MODELOPT, f"hf_quant_config.json {STALE}this file"),
        (method("narrowfloat"), None, f"config.json {STALE}its quantization_config"),
    ],
    ids=["fp8", "text model", "modelopt", "narrowfloat"],
)  # fmt: skip
def test_a_description_of_codes_that_are_gone(
    config: dict, owners: dict | None, told: str, tmp_path: Path
) -> None:
    source, out = write_model(tmp_path / "in", [FLOATS], config), tmp_path / "out"
    if owners:
        (source / "hf_quant_config.json").write_text(json.dumps(owners))
    assert run("quantize", source, out, *SCHEME, code=2).stderr == (
        f"narrowfloat: quantize: IN must be a float checkpoint: {source}: {told}\n"
    )
    assert run("dequantize", source, out, code=2).stderr == (
        f"narrowfloat: dequantize: IN must hold quantized tensors, {source} has none: {told}\n"
    )
    assert whole_findings(source) == [told]
    (source / told.split()[0]).write_text("{}")
    run("check", source)
    run("quantize", source, out, *SCHEME)


@pytest.mark.parametrize("config", [method("bitnet"), {"quantization_config": {"bits": 4}}])
def test_an_unknown_description_of_codes_that_are_gone(config: dict, tmp_path: Path) -> None:
    source, out = write_model(tmp_path / "in", [FLOATS], config), tmp_path / "out"
    told = f"config.json {STALE}its quantization_config\n"
    assert run("quantize", source, out, *SCHEME, code=2).stderr.endswith(told)
    refused = run("dequantize", source, out, code=3).stderr
    assert refused.endswith(f", unscaled-fp8; {told}")


@pytest.mark.parametrize("described", [True, False])
def test_a_quantized_cache_is_no_contradiction(described: bool, tmp_path: Path) -> None:
    cache = {"l.0.self_attn.k_scale": np.ones(1, np.float32)}
    scheme = {"kv_cache_scheme": {"num_bits": 8}} if described else {}
    tensors = FLOATS if described else FLOATS | cache
    source = write_model(tmp_path / "in", [tensors], method("compressed-tensors", **scheme))
    run("check", source)
    refused = run("quantize", source, tmp_path / "out", *SCHEME, code=2).stderr
    assert "is already quantized as 'compressed-tensors' (config.json)" in refused
