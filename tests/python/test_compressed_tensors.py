# SPDX-License-Identifier: Apache-2.0
"""Tests that compressed-tensors reads the files that the command line writes for it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from cli import run
from foreign_model import BF16, read_model, write_model

torch = pytest.importorskip("torch", reason="compressed-tensors needs PyTorch")
pytest.importorskip("compressed_tensors", reason="compressed-tensors is not installed")


def owner_weight(folder: Path) -> np.ndarray:
    """Returns the weight of the model's only layer, decompressed by compressed-tensors."""
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.quantization import QuantizationConfig, apply_quantization_config
    from safetensors.torch import load_file

    text = json.loads((folder / "config.json").read_text())["quantization_config"]
    config = QuantizationConfig.model_validate(text)
    model = torch.nn.Sequential()
    model.add_module("a", torch.nn.Linear(320, 256, bias=False))
    apply_quantization_config(model, config)
    compressor = ModelCompressor(quantization_config=config)
    compressor.compress_model(model)
    (shard,) = folder.glob("*.safetensors")
    missing, unexpected = model.load_state_dict(load_file(shard), strict=False)
    assert not missing and not unexpected
    compressor.decompress_model(model)
    return model.a.weight.detach().float().numpy()


@pytest.mark.parametrize("scheme", ["fp8_e4m3", "fp8_block128x128_e4m3", "mxfp8_e4m3", "nvfp4"])
def test_the_owner_reads_the_values_that_we_wrote(tmp_path: Path, scheme: str) -> None:
    weight = np.random.default_rng(5).standard_normal((256, 320)).astype(np.float32)
    source = write_model(tmp_path / "in", [{"a.weight": weight}], {})
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    run("quantize", source, ours, "--scheme", scheme)
    run("convert", ours, theirs, "--to", "compressed-tensors")
    run("dequantize", theirs, tmp_path / "values", "--dtype", "f32")
    values = read_model(tmp_path / "values")["a.weight"]
    if scheme == "nvfp4":  # the owner rounds its values to bfloat16, once
        values = values.astype(BF16).astype(np.float32)
    np.testing.assert_array_equal(owner_weight(theirs), values)
