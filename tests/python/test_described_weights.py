# SPDX-License-Identifier: Apache-2.0
"""Tests files that describe each weight themselves: torchao's, and ComfyUI's newer ones."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from cli import read_file, run, run_json, write_file
from foreign_model import E2M1, swizzle

import narrowfloat as nf

E4M3, E8M0 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e8m0fnu
ROWS, COLS = 200, 320
RANDOM = np.random.default_rng(5)
HALVES = RANDOM.integers(0, 16, (ROWS, COLS), np.uint8)
LOW_FIRST = HALVES[:, ::2] | HALVES[:, 1::2] << 4
HIGH_FIRST = HALVES[:, ::2] << 4 | HALVES[:, 1::2]
CODES = RANDOM.integers(0, 0x7F, (ROWS, COLS), np.uint8).view(E4M3)
NV_SCALES = RANDOM.lognormal(0, 1, (ROWS, COLS // 16)).astype(E4M3)
MX_SCALES = RANDOM.integers(110, 140, (ROWS, COLS // 32), np.uint8)
WHOLE = np.float32(0.007).reshape(())
NV_VALUES = E2M1[HALVES] * np.repeat(NV_SCALES.astype(np.float32) * WHOLE, 16, 1)
MX_POWERS = np.repeat(np.exp2(MX_SCALES.astype(np.float32) - 127), 32, 1)
MX_VALUES = CODES.astype(np.float32) * MX_POWERS


def layer(**options: object) -> np.ndarray:
    return np.frombuffer(json.dumps(options).encode(), np.uint8)


def comfy_nvfp4(**options: object) -> dict[str, np.ndarray]:
    return {
        "a.weight": HIGH_FIRST, "a.weight_scale": swizzle(NV_SCALES), "a.weight_scale_2": WHOLE,
        "a.comfy_quant": layer(format="nvfp4", **options),
    }  # fmt: skip


def comfy_mxfp8() -> dict[str, np.ndarray]:
    return {
        "a.weight": CODES, "a.weight_scale": swizzle(MX_SCALES).view(E8M0),
        "a.comfy_quant": layer(format="mxfp8"),
    }  # fmt: skip


def comfy_fp8() -> dict[str, np.ndarray]:
    return {
        "a.weight": CODES, "a.weight_scale": WHOLE, "a.input_scale": WHOLE,
        "a.comfy_quant": layer(format="float8_e4m3fn", full_precision_matrix_mult=True),
    }  # fmt: skip


def torchao(kind: str, names: list[str], **attributes: object) -> dict[str, str]:
    weight = {"_type": kind, "_data": attributes, "_tensor_data_names": names}
    plain = {"_type": "Tensor"}
    metadata = {"a.weight": weight, "a.bias": plain, "tensor_names": ["a.weight", "a.bias"]}
    return {key: json.dumps(value) for key, value in metadata.items()}


def torchao_nvfp4(swizzled: bool) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    scale = swizzle(NV_SCALES) if swizzled else NV_SCALES
    tensors = {
        "a._weight_qdata": LOW_FIRST, "a._weight_scale": scale,
        "a._weight_per_tensor_scale": WHOLE, "a._weight_act_per_tensor_scale": WHOLE,
        "a.bias": np.ones(ROWS, np.float32),
    }  # fmt: skip
    names = ["per_tensor_scale", "act_per_tensor_scale", "qdata", "scale"]
    return tensors, torchao("NVFP4Tensor", names, block_size=16, is_swizzled_scales=swizzled)


def torchao_mx(swizzled: bool) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    scale = swizzle(MX_SCALES) if swizzled else MX_SCALES
    element = {"_type": "torch.dtype", "_data": "float8_e4m3fn"}
    tensors = {"a._weight_qdata": CODES, "a._weight_scale": scale.view(E8M0)}
    tensors["a.bias"] = np.ones(ROWS, np.float32)
    metadata = torchao(
        "MXTensor", ["qdata", "scale"], block_size=32, elem_dtype=element,
        is_swizzled_scales=swizzled,
    )  # fmt: skip
    return tensors, metadata


CASES = {
    "comfyui nvfp4": (comfy_nvfp4(orig_shape=[ROWS, COLS]), None, NV_VALUES),
    "comfyui mxfp8": (comfy_mxfp8(), None, MX_VALUES),
    "comfyui fp8": (comfy_fp8(), None, CODES.astype(np.float32) * WHOLE),
    "torchao nvfp4": (*torchao_nvfp4(False), NV_VALUES),
    "torchao nvfp4 swizzled": (*torchao_nvfp4(True), NV_VALUES),
    "torchao mx": (*torchao_mx(False), MX_VALUES),
    "torchao mx swizzled": (*torchao_mx(True), MX_VALUES),
}


@pytest.mark.parametrize("name", CASES)
def test_values_are_codes_times_scales(name: str, tmp_path: Path) -> None:
    tensors, metadata, expected = CASES[name]
    source = write_file(tmp_path / "in.safetensors", tensors, metadata)
    assert run_json("inspect", source)["convention"] == name.split()[0]
    run("dequantize", source, tmp_path / "out.safetensors", "--dtype", "f32")
    found, _ = read_file(tmp_path / "out.safetensors")
    assert found["a.weight"].tobytes() == expected.astype(np.float32).tobytes()
    assert set(found) <= {"a.weight", "a.bias"}
    loaded = nf.load(source, from_="auto")["a.weight"]
    assert isinstance(loaded, nf.QuantizedTensor) and loaded.shape == (ROWS, COLS)
    values = nf.load(source, from_="auto", dtype="float32")["a.weight"]
    assert values.tobytes() == expected.astype(np.float32).tobytes()


def layers_in_metadata() -> tuple[dict[str, np.ndarray], dict[str, str]]:
    layers = {"layers": {"a": {"format": "float8_e4m3fn"}}}
    tensors = {"a.weight": CODES, "a.weight_scale": WHOLE, "a.bias": np.ones(ROWS, np.float32)}
    return tensors, {"_quantization_metadata": json.dumps(layers)}


@pytest.mark.parametrize("in_folder", [False, True])
@pytest.mark.parametrize("case", [torchao_mx(True), layers_in_metadata()], ids=["torchao", "comfy"])
def test_results_lose_the_descriptions_and_keep_the_rest(
    case: tuple[dict[str, np.ndarray], dict[str, str]], in_folder: bool, tmp_path: Path
) -> None:
    def path(name: str) -> Path:
        return tmp_path / name if in_folder else tmp_path / f"{name}.safetensors"

    def file(name: str) -> Path:
        return path(name) / "model.safetensors" if in_folder else path(name)

    file("in").parent.mkdir(exist_ok=True)
    tensors, metadata = case
    write_file(file("in"), tensors, metadata | {"format": "pt", "title": "kept", "b.weight": "{}"})
    run("dequantize", path("in"), path("float"))
    assert run_json("inspect", path("float"))["convention"] == "plain"
    run("quantize", path("float"), path("again"), "--scheme", "mxfp8_e4m3")
    run("convert", path("in"), path("other"), "--to", "modelopt")
    before = nf.load(path("in"), from_="auto", dtype="float32")["a.weight"]
    after = nf.load(path("other"), from_="modelopt", dtype="float32")["a.weight"]
    assert after.tobytes() == before.tobytes()
    for name in ("float", "other"):
        found = read_file(file(name))[1]
        assert found == {"format": "pt", "title": "kept", "b.weight": "{}"}


@pytest.mark.parametrize("name", CASES)
def test_convert_writes_codes_and_scales_by_row(name: str, tmp_path: Path) -> None:
    tensors, metadata, expected = CASES[name]
    source = write_file(tmp_path / "in.safetensors", tensors, metadata)
    run("convert", source, tmp_path / "out.safetensors", "--to", "modelopt")
    found, _ = read_file(tmp_path / "out.safetensors")
    codes = LOW_FIRST if "nvfp4" in name else CODES
    assert found["a.weight"].tobytes() == codes.tobytes()
    if "nvfp4" in name:
        assert found["a.weight_scale"].tobytes() == NV_SCALES.tobytes()
        assert found["a.weight_scale_2"].tobytes() == WHOLE.tobytes()
    elif "mx" in name:
        assert found["a.weight_scale"].tobytes() == MX_SCALES.tobytes()
    run("dequantize", tmp_path / "out.safetensors", tmp_path / "back.safetensors",
        "--from", "modelopt", "--dtype", "f32")  # fmt: skip
    values = read_file(tmp_path / "back.safetensors")[0]["a.weight"]
    assert values.tobytes() == expected.astype(np.float32).tobytes()


def test_layers_may_be_described_in_the_metadata(tmp_path: Path) -> None:
    tensors = {key: value for key, value in comfy_nvfp4().items() if key != "a.comfy_quant"}
    layers = {"format_version": "1.0", "layers": {"a": {"format": "nvfp4"}}}
    metadata = {"_quantization_metadata": json.dumps(layers)}
    source = write_file(tmp_path / "in.safetensors", tensors, metadata)
    loaded = nf.load(source, from_="auto", dtype="float32")["a.weight"]
    assert loaded.tobytes() == NV_VALUES.tobytes()


REFUSED = {
    "no description": (
        {key: value for key, value in comfy_nvfp4().items() if key != "a.comfy_quant"}
        | {"b.comfy_quant": layer(format="float8_e4m3fn"), "b.weight": CODES,
           "b.weight_scale": WHOLE},
        None, 2, "needs the tensor 'a.comfy_quant', which says how its scales lie",
    ),
    "rotated": (comfy_nvfp4(convrot=True), None, 3,
                "read: 'a.comfy_quant': weights must not be rotated (convrot)"),
    "padded": (
        comfy_nvfp4(orig_shape=[199, 318]), None, 3,
        "read: 'a.comfy_quant': 'a.weight' must have the values of orig_shape [199,318], got "
        "200x320",
    ),
    "other format": (
        comfy_fp8() | {"a.comfy_quant": layer(format="int8_tensorwise")}, None, 3,
        "'a.comfy_quant': format must be one of float8_e4m3fn, float8_e5m2, float8_e4m3fn_rowwise, "
        "float8_e4m3fn_blockwise, mxfp8, nvfp4, got 'int8_tensorwise'",
    ),
    "wrong format": (
        comfy_mxfp8() | {"a.comfy_quant": layer(format="nvfp4"), "a.weight_scale_2": WHOLE}, None,
        2, "'a.weight' must be U8, as its format is described, got F8_E4M3",
    ),
    "no json": (comfy_fp8() | {"a.comfy_quant": np.zeros(3, np.uint8)}, None, 2, "JSON"),
    "scales by row": (
        comfy_nvfp4() | {"a.weight_scale": NV_SCALES}, None, 2,
        "'a.weight_scale' of F8_E4M3 200x20 must have one scale for each block of 'a.weight' "
        "(U8 200x160): 256x20 in tiles for blocks of 1x16",
    ),
    "no metadata": (torchao_nvfp4(True)[0], None, 3, "written as 'torchao without metadata'"),
    "no scale": (
        {key: value for key, value in torchao_mx(True)[0].items() if key != "a._weight_scale"},
        torchao_mx(True)[1], 2, "'a.weight' needs 'a._weight_scale', which is missing",
    ),
    "not described": (
        torchao_mx(True)[0] | {"b._weight_qdata": CODES}, torchao_mx(True)[1], 2,
        "read: 'b._weight_qdata' holds codes and needs a description in __metadata__",
    ),
    "a name without metadata": (
        torchao_mx(False)[0], {"tensor_names": '["a.weight"]'}, 2,
        "metadata 'a.weight' is missing, tensor_names names it",
    ),
    "six bits": (
        torchao_mx(False)[0], torchao("MXTensor", ["qdata", "scale"], elem_dtype="fp6_e3m2"), 3,
        'elem_dtype must be one of float8_e4m3fn, float8_e5m2, float4_e2m1fn_x2, got "fp6_e3m2"',
    ),
    "blocks of nothing": (
        torchao_mx(False)[0], torchao("MXTensor", ["qdata", "scale"], block_size=0), 2,
        "metadata 'a.weight': block_size must be an integer of 1 to 2^31, got 0",
    ),
    "blocks beyond memory": (
        torchao_mx(False)[0], torchao("MXTensor", ["qdata", "scale"], block_size=2**64 - 1), 2,
        "block_size must be an integer of 1 to 2^31, got 18446744073709551615",
    ),
    "blocks of half bytes": (
        {"a._weight_qdata": np.zeros((2, 150), np.uint8),
         "a._weight_scale": np.zeros((2, 100), np.uint8).view(E8M0)},
        torchao("MXTensor", ["qdata", "scale"], block_size=3, elem_dtype="float4_e2m1fn_x2"), 2,
        "'a._weight_qdata' must have blocks of an even number of columns, got 1x3",
    ),
    "columns beyond memory": (
        {"a._weight_qdata": np.zeros((0, 2**62), np.uint8),
         "a._weight_scale": np.zeros(1, np.uint8)},
        torchao("MXTensor", ["qdata", "scale"], elem_dtype="float4_e2m1fn_x2"), 2,
        "'a._weight_qdata' must not be empty",
    ),
    "other class": (
        torchao_mx(False)[0], torchao("Int4Tensor", ["qdata", "scale"]), 3,
        "_type must be one of Tensor, Float8Tensor, MXTensor, NVFP4Tensor, got 'Int4Tensor'",
    ),
    "other data": (
        torchao_mx(False)[0], torchao("Float8Tensor", ["qdata", "scale", "act_pre_scale"]), 3,
        "data must be qdata, scale, per_tensor_scale or act_per_tensor_scale, got 'act_pre_scale'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_may_be_misread_is_refused(name: str, tmp_path: Path) -> None:
    tensors, metadata, code, message = REFUSED[name]
    source = write_file(tmp_path / "in.safetensors", tensors, metadata)
    refused = run("dequantize", source, tmp_path / "out.safetensors", code=code)
    assert message in refused.stderr
    assert not (tmp_path / "out.safetensors").exists()
