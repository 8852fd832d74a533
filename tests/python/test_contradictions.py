# SPDX-License-Identifier: Apache-2.0
"""Tests what commands report about configurations that contradict the tensors beside them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from cli import run, run_json
from foreign_model import BF16, codes, method, scales, write_model
from test_checkpoint import write_raw

FLOATS = {"a.weight": np.ones((128, 128), BF16)}
MODELOPT = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}}
SCHEME = ("--scheme", "mxfp8_e4m3")
STALE = "states that weights are quantized, but no tensor holds codes; if they are floats, remove "


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
def test_a_description_of_codes_that_no_tensor_has(
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
def test_an_unknown_description_of_codes_that_no_tensor_has(config: dict, tmp_path: Path) -> None:
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


def test_a_missing_part_names_the_convention_and_its_file(tmp_path: Path) -> None:
    tensors = {"a.weight": codes((256, 256)), "a.weight_scale_inv": scales((2, 2))}
    source, out = write_model(tmp_path / "in", [tensors], method("fp8")), tmp_path / "out"
    (source / "hf_quant_config.json").write_text(json.dumps(MODELOPT))
    assert run("dequantize", source, out, code=2).stderr == (
        f"narrowfloat: read: {source}: 'a.weight' holds codes and needs its scale "
        "'a.weight_scale', which is missing; it is read as 'modelopt' (hf_quant_config.json), "
        "--from (in Python, from_=) names another\n"
    )
    run("dequantize", source, out, "--from", "fp8")
    named = run("dequantize", source, tmp_path / "no", "--from", "modelopt", code=2).stderr
    assert named.endswith("'a.weight_scale', which is missing\n")


@pytest.mark.parametrize(
    ("shape", "block"), [((2, 2), "128x128"), ((256, 1), "1x256"), ((4, 4), "")]
)
def test_blocks_of_another_size_than_stated(
    shape: tuple[int, int], block: str, tmp_path: Path
) -> None:
    tensors = {"a.weight": codes((256, 256)), "a.weight_scale_inv": scales(shape)}
    config = method("fp8", weight_block_size=[64, 64])
    source = write_model(tmp_path / "in", [tensors], config)
    if not block:
        run("check", source)
        return
    assert whole_findings(source) == [
        "config.json states blocks of 64x64, the scales of 1 weight fit only others: 'a.weight' is "
        f"read with blocks of {block}"
    ]


def test_fp4_experts_have_blocks_of_their_own(tmp_path: Path) -> None:
    tensors = {
        "a.weight": codes((256, 256)), "a.scale": scales((2, 2)),
        "experts.weight": np.ones((64, 32), np.int8),
        "experts.scale": np.ones((64, 2), "float8_e8m0fnu"),
    }  # fmt: skip
    config = method("deepseek-v4", weight_block_size=[128, 128])
    run("check", write_model(tmp_path / "in", [tensors], config))


@pytest.mark.parametrize("dtype", ["F8_E4M3FNUZ", "F8_E5M2FNUZ"])
def test_codes_of_a_type_that_no_convention_has(dtype: str, tmp_path: Path) -> None:
    entries = {
        "a.weight": {"dtype": dtype, "shape": [2, 4], "data_offsets": [0, 8]},
        "a.weight_scale": {"dtype": "F32", "shape": [1], "data_offsets": [8, 12]},
    }
    source = write_raw(tmp_path / "in.safetensors", entries, bytes(12))
    assert run("dequantize", source, tmp_path / "out", "--from", "fp8", code=3).stderr == (
        f"narrowfloat: read: {source}: 'a.weight' is not supported, no convention has codes of "
        f"{dtype}\n"
    )
