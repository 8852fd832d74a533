# SPDX-License-Identifier: Apache-2.0
"""Reads weights of ComfyUI's kernels in files of its form, and compares the values with its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli import run, run_json

torch = pytest.importorskip("torch", reason="torch is not installed")
tensors = pytest.importorskip("comfy_kitchen.tensor", reason="comfy-kitchen is not installed")

from safetensors.torch import load_file, save_file

import narrowfloat as nf

LAYOUTS = {
    "float8_e4m3fn": ("TensorCoreFP8Layout", "fp8_e4m3"),
    "mxfp8": ("TensorCoreMXFP8Layout", "mxfp8_e4m3"),
    "nvfp4": ("TensorCoreNVFP4Layout", "nvfp4"),
}


@pytest.mark.parametrize("rows", [96, 256])
@pytest.mark.parametrize("name", LAYOUTS)
def test_values_are_the_owners(name: str, rows: int, tmp_path: Path) -> None:
    layout, scheme = LAYOUTS[name]
    layout = getattr(tensors, layout)
    weight = torch.randn(rows, 320, generator=torch.Generator().manual_seed(rows))
    codes, parameters = layout.quantize(weight)
    parts = layout.state_dict_tensors(codes, parameters)
    description = json.dumps({"format": name}).encode()
    entries = {f"a.weight{suffix}": part for suffix, part in parts.items()}
    entries["a.comfy_quant"] = torch.tensor(list(description), dtype=torch.uint8)
    source = tmp_path / "theirs.safetensors"
    save_file(entries, source)
    assert run_json("inspect", source)["convention"] == "comfyui"
    run("dequantize", source, tmp_path / "out.safetensors", "--dtype", "f32")
    ours = load_file(tmp_path / "out.safetensors")
    assert set(ours) == {"a.weight"}
    assert torch.equal(ours["a.weight"], layout.dequantize(codes, parameters).float())
    loaded = nf.load(source, from_="comfyui")["a.weight"]
    assert isinstance(loaded, nf.QuantizedTensor) and loaded.spec == scheme
