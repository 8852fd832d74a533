# SPDX-License-Identifier: Apache-2.0
"""Compares whole messages about files that no other test reaches."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from cli import program, run, write_file
from foreign_model import codes, method, packed, powers, scales, write_model
from test_checkpoint import write_raw

import narrowfloat as nf

NV = {"a.weight": packed((64, 64))[0], "a.weight_scale": scales((64, 4)).astype("float8_e4m3fn")}
FP8 = {"a.weight": codes((64, 64)), "a.weight_scale_inv": scales((1, 1))}
COMFY = {"a.weight": codes((64, 64)), "a.weight_scale": np.ones((), np.float32)}


def text(data: str) -> np.ndarray:
    return np.frombuffer(data.encode(), np.uint8)


CASES = {
    "global": (NV | {"a.weight_scale_2": np.ones(2, np.float32)}, "modelopt",
               "read: {IN}: 'a.weight_scale_2' must be one F32, got F32 2"),
    "empty": ({"a.weight": codes((0, 64)), "a.weight_scale_inv": scales((1, 1))}, "fp8",
              "read: {IN}: 'a.weight' must not be empty"),
    "vector": ({"a.weight": codes((64,)), "a.weight_scale_inv": scales((1, 1))}, "fp8",
               "read: {IN}: 'a.weight' must have two dimensions or more, got shape 64"),
    "block size": (FP8, {"quant_method": "fp8", "weight_block_size": [0, 128]},
                   "config: the block size of weights must be two integers of 1 to 2^31, "
                   "got [0,128]"),
    "block text": (FP8, {"quant_method": "fp8", "weight_block_size": "128x"},
                   "config: the block size of weights must be two integers of 1 to 2^31, "
                   'got "128x"'),
    "no format": (COMFY | {"a.comfy_quant": text("{}")}, None,
                  "read: 'a.comfy_quant': needs a format, got {}"),
    "no bytes": (COMFY | {"a.comfy_quant": np.zeros(70000, np.uint8)}, None,
                 "read: 'a.comfy_quant' must be at most 65536 bytes of U8, got 70000 of U8"),
    "no scale": (FP8 | {"a.weight_scale_inv": scales((1, 1)).astype("float8_e5m2")}, "fp8",
                 "read: {IN}: 'a.weight_scale_inv' must be a scale, got F8_E5M2"),
    "no object": (COMFY, None,
                  "read: model.safetensors: _quantization_metadata: needs an object of layers"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_damaged_weights(tmp_path: Path, name: str) -> None:
    tensors, config, message = CASES[name]
    if isinstance(config, str):
        config = {"quant_method": config}
    if config is None:
        source = tmp_path / "model.safetensors"
        metadata = {"_quantization_metadata": '{"layers": 3}'} if name == "no object" else None
        write_file(source, tensors, metadata)
    else:
        source = write_model(tmp_path / "in", [tensors], {"quantization_config": config})
    refused = run("dequantize", source, tmp_path / "out", code=2)
    assert refused.stderr == f"narrowfloat: {message.replace('{IN}', str(source))}\n"
    assert not (tmp_path / "out").exists()


def test_rows_of_half_bytes(tmp_path: Path) -> None:
    entries = {
        "a.weight": {"dtype": "F4", "shape": [2, 33], "data_offsets": [0, 33]},
        "a.weight_scale_inv": {"dtype": "F8_E8M0", "shape": [2, 2], "data_offsets": [33, 37]},
    }
    source = write_raw(tmp_path / "in.safetensors", entries, bytes(37))
    refused = run("dequantize", source, tmp_path / "out", "--from", "fp8", code=2)
    assert refused.stderr == (
        f"narrowfloat: read: {source}: 'a.weight' must have rows of an even number of values, got "
        "33\n"
    )


def test_unknown_conventions(tmp_path: Path) -> None:
    source = write_model(tmp_path / "in", [FP8], method("bitnet"))
    refused = run("dequantize", source, tmp_path / "out", code=3)
    assert refused.stderr == (
        f"narrowfloat: dequantize: {source} is written as 'bitnet' (config.json), this build reads "
        "narrowfloat, fp8, mxfp8, deepseek-v4, fbgemm_fp8, compressed-tensors, modelopt, mxfp4, "
        "quark, comfyui, torchao, unscaled-fp8\n"
    )


def test_values_that_no_tile_holds(tmp_path: Path) -> None:
    exponents = powers((128, 4)) * 0 + 120
    exponents[0, 0] = 160
    tensors = {"a.weight_packed": packed((128, 128))[0], "a.weight_scale": exponents}
    source = write_model(tmp_path / "in", [tensors], method("compressed-tensors"))
    refused = run(
        "requantize", source, tmp_path / "out", "--scale-format", "f32", code=2,
    )  # fmt: skip
    assert refused.stderr == (
        "narrowfloat: requantize: 'a.weight': the values of the tile [0, 0] must be E4M3 numbers "
        "times one power of two; --leave-misfits with --to deepseek-v4 keeps such tensors as they "
        "are\n"
    )
    fp8 = FP8 | {"a.weight_scale_inv": np.full((1, 1), -1, np.float32)}
    source = write_model(tmp_path / "negative", [fp8], method("fp8"))
    refused = run("requantize", source, tmp_path / "out", "--scale-format", "ue8m0", code=2)
    assert refused.stderr.splitlines()[-1] == (
        "narrowfloat: requantize: 'a.weight': the scale of the tile [0, 0] must be positive and "
        "finite, or zero over codes of zero, got -1"
    )


def test_names_that_two_files_would_have(tmp_path: Path) -> None:
    shards = [{"w": np.ones((32, 32), np.float32)}, {"w.rowwise_data": np.ones(3, np.float32)}]
    source = write_model(tmp_path / "in", shards, {})
    refused = run(
        "quantize", source, tmp_path / "out", "--scheme", "fp8_e4m3", "--include", "w", code=2
    )
    files = [tmp_path / "out" / f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    assert refused.stderr == (
        f"narrowfloat: write: 'w.rowwise_data' would be in both {files[0]} and {files[1]}\n"
    )


def test_shapes_that_a_scheme_does_not_take(tmp_path: Path) -> None:
    source = write_file(tmp_path / "in", {"w": np.ones((8, 9), np.float32)})
    refused = run(
        "quantize", source, tmp_path / "out", "--scheme", "nvfp4", "--include", "w", code=2
    )
    with pytest.raises(ValueError, match="nvfp4 packs") as raised:
        nf.quantize(np.ones((8, 9), np.float32), "nvfp4")
    rule = str(raised.value)
    assert refused.stderr == (
        f"narrowfloat: {rule} (tensor 'w' of shape 8x9; --exclude leaves it as it is)\n"
    )


def test_output_that_takes_nothing() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [program(), "schemes"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 4
    assert done.stderr == f"narrowfloat: write: standard output, {os.strerror(28)}\n"


def test_buffers_of_other_names() -> None:
    with pytest.raises(ValueError, match="unknown buffer") as raised:
        nf.from_buffers("fp8_e4m3", (2, 2), {"codes": np.zeros(4, np.uint8)})
    assert str(raised.value) == (
        "from_buffers: unknown buffer 'codes'; there are: rowwise_data, rowwise_scale_inv, "
        "columnwise_data, columnwise_scale_inv, scale, amax_rowwise, amax_columnwise"
    )
