# SPDX-License-Identifier: Apache-2.0
"""Tests files that two conventions read with different values, and parts of no convention."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from cli import read_file, run, run_json, write_file
from foreign_model import E2M1, method, swizzle, write_model

import narrowfloat as nf

E4M3, E8M0 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e8m0fnu
RANDOM = np.random.default_rng(11)
PACKED = RANDOM.integers(0, 256, (128, 128), np.uint8)
CODES = RANDOM.integers(0, 0x7F, (128, 256), np.uint8).view(E4M3)
NV_SCALES = RANDOM.lognormal(0, 1, (128, 16)).astype(E4M3)
MX_SCALES = RANDOM.integers(110, 140, (128, 8), np.uint8)
WHOLE = np.float32(0.007).reshape(())
OPEN = {
    "nvfp4": {"a.weight": PACKED, "a.weight_scale": NV_SCALES, "a.weight_scale_2": WHOLE},
    "mxfp8": {"a.weight": CODES, "a.weight_scale": MX_SCALES},
    "mxfp8 e8m0": {"a.weight": CODES, "a.weight_scale": MX_SCALES.view(E8M0)},
}


def by_row(scales: np.ndarray) -> np.ndarray:
    """Returns swizzled scales row by row: the inverse of `swizzle`."""
    place = np.arange(scales.size, dtype=np.uint32).reshape(scales.shape)
    tiles = place.reshape(-1, 4, 32, scales.shape[1] // 4, 4).transpose(0, 3, 2, 1, 4)
    plain = np.empty(scales.size, np.uint8)
    plain[tiles.ravel()] = scales.view(np.uint8).ravel()
    return plain.reshape(scales.shape).view(scales.dtype)


def values(kind: str, convention: str) -> np.ndarray:
    """Returns the values as a convention reads them."""
    in_tiles = convention == "comfyui"
    if kind == "nvfp4":
        scales = by_row(NV_SCALES) if in_tiles else NV_SCALES
        halves = (PACKED >> 4, PACKED & 15) if in_tiles else (PACKED & 15, PACKED >> 4)
        codes = np.stack(halves, -1).reshape(128, 256)
        return E2M1[codes] * np.repeat(scales.astype(np.float32) * WHOLE, 16, 1)
    scales = by_row(MX_SCALES) if in_tiles else MX_SCALES
    powers = np.exp2(scales.astype(np.float32) - 127)
    return CODES.astype(np.float32) * np.repeat(powers, 32, 1)


def test_the_inverse_of_swizzle() -> None:
    assert by_row(swizzle(MX_SCALES)).tobytes() == MX_SCALES.tobytes()


@pytest.mark.parametrize("kind", OPEN)
def test_two_readings_are_asked_for(kind: str, tmp_path: Path) -> None:
    source = write_file(tmp_path / "in.safetensors", OPEN[kind])
    out = tmp_path / "out.safetensors"
    message = (
        f"{source}: the scales 'a.weight_scale' may lie row by row (modelopt, compressed-tensors) "
        "or in tiles (comfyui); --from (in Python, from_=) must name one"
    )
    for command in (
        ("dequantize", source, out), ("convert", source, out, "--to", "modelopt"),
        ("requantize", source, out, "--scale-format", "f32"), ("inspect", source),
        ("diff", source, source), ("check", source),
    ):  # fmt: skip
        assert f"{command[0]}: {message}" in run(*command, code=2).stderr
    already = f"{source} is already quantized as 'modelopt or comfyui'"
    assert already in run("quantize", source, out, "--scheme", "nvfp4", code=2).stderr
    with pytest.raises(ValueError, match=r"^load: .* must name one$"):
        nf.load(source, from_="auto")
    with pytest.raises(ValueError, match=r"^convert: .* must name one$"):
        nf.convert(source, out, "modelopt")
    assert [path.name for path in tmp_path.iterdir()] == ["in.safetensors"]


@pytest.mark.parametrize("convention", ["modelopt", "comfyui"])
@pytest.mark.parametrize("kind", OPEN)
def test_the_answer_decides_the_values(kind: str, convention: str, tmp_path: Path) -> None:
    source = write_file(tmp_path / "in.safetensors", OPEN[kind])
    expected = values(kind, convention).astype(np.float32)
    named = ("--from", convention)
    run("dequantize", source, tmp_path / "out.safetensors", "--dtype", "f32", *named)
    assert read_file(tmp_path / "out.safetensors")[0]["a.weight"].tobytes() == expected.tobytes()
    loaded = nf.load(source, from_=convention, dtype="float32")["a.weight"]
    assert loaded.tobytes() == expected.tobytes()
    run("convert", source, tmp_path / "ct.safetensors", "--to", "modelopt", *named)
    back = nf.load(tmp_path / "ct.safetensors", from_="modelopt", dtype="float32")["a.weight"]
    assert back.tobytes() == expected.tobytes()
    shown = run_json("inspect", source, *named)
    assert (shown["convention"], shown["convention_reason"]) == (convention, "named by the caller")
    assert run_json("inspect", source, *named)["tensors"][0]["shape"] == [128, 256]
    run("check", source, *named)
    run("diff", source, source, "--from-a", convention, "--from-b", convention)
    if values(kind, "modelopt").tobytes() != values(kind, "comfyui").tobytes():
        run("diff", source, source, "--from-a", "modelopt", "--from-b", "comfyui", code=1)


@pytest.mark.parametrize(("rows", "tiled", "convention"), [
    (200, False, "modelopt"), (200, True, "comfyui"),
])  # fmt: skip
def test_a_shape_of_one_order_tells_it(
    rows: int, tiled: bool, convention: str, tmp_path: Path
) -> None:
    scales = RANDOM.lognormal(0, 1, (rows, 20)).astype(E4M3)
    packed = RANDOM.integers(0, 256, (rows, 160), np.uint8)
    tensors = OPEN["nvfp4"] | {
        "b.weight": packed, "b.weight_scale": swizzle(scales) if tiled else scales,
        "b.weight_scale_2": WHOLE,
    }  # fmt: skip
    source = write_file(tmp_path / "in.safetensors", tensors)
    assert run_json("inspect", source)["convention"] == convention
    loaded = nf.load(source, from_="auto", dtype="float32")
    assert loaded["a.weight"].tobytes() == values("nvfp4", convention).tobytes()
    order = (packed >> 4, packed & 15) if tiled else (packed & 15, packed >> 4)
    codes = np.stack(order, -1).reshape(rows, 320)
    expected = E2M1[codes] * np.repeat(scales.astype(np.float32) * WHOLE, 16, 1)
    assert loaded["b.weight"].tobytes() == expected.tobytes()


def test_an_unknown_name_lists_the_known_ones(tmp_path: Path) -> None:
    source = write_file(tmp_path / "in.safetensors", OPEN["nvfp4"])
    known = "unknown convention 'x'; there are: narrowfloat, fp8, mxfp8, deepseek-v4, "
    for command in ("inspect", "check"):
        assert f"{command}: {known}" in run(command, source, "--from", "x", code=2).stderr
    with pytest.raises(ValueError, match=f"^load: {known}"):
        nf.load(source, from_="x")


def test_codes_beside_weights_are_not_copied_as_plain(tmp_path: Path) -> None:
    weight = {"a.weight": CODES, "a.weight_scale_inv": np.ones((1, 2), np.float32)}
    rest = {"a.codes": CODES, "a.codes_scale": np.ones(128, np.float32)}
    source = write_file(tmp_path / "in.safetensors", weight | rest)
    refused = run("dequantize", source, tmp_path / "out.safetensors", code=2)
    message = "'a.codes' (F8_E4M3) must be a part of a weight, 'fp8' has none of its name"
    assert message in refused.stderr
    alone = write_file(tmp_path / "alone.safetensors", rest)
    assert run_json("inspect", alone)["convention"] == "unknown"
    for command in ("dequantize", "quantize"):
        options = ("--scheme", "nvfp4") if command == "quantize" else ()
        run(command, alone, tmp_path / "out.safetensors", *options, code=2 if options else 3)
    assert not (tmp_path / "out.safetensors").exists()


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("a.pre_quant_scale", np.ones(256, np.float32)),
        ("a.svdquant_lora_a", np.ones((8, 256), np.float32)),
        ("a.weight_quantizer._svdquant_lora_b", np.ones((128, 8), np.float32)),
        ("a.weight_zero_point", np.array([0, 0, 1], np.int8)),
    ],
)
def test_parts_that_change_what_a_weight_means_are_refused(
    tmp_path: Path, part: str, value: np.ndarray
) -> None:
    source = write_file(tmp_path / "in.safetensors", OPEN["nvfp4"] | {part: value})
    refused = run("dequantize", source, tmp_path / "out", "--from", "modelopt", code=3)
    assert f"'{part}' is not supported, it changes what its weight means" in refused.stderr
    assert not (tmp_path / "out").exists()


def test_experts_alone_tell_deepseek(tmp_path: Path) -> None:
    fp4 = {"a.weight": PACKED.view(np.int8), "a.scale": MX_SCALES.view(E8M0)}
    source = write_file(tmp_path / "v4.safetensors", fp4)
    assert run_json("inspect", source)["convention"] == "deepseek-v4"
    loaded = nf.load(source, from_="auto", dtype="float32")["a.weight"]
    codes = np.stack((PACKED & 15, PACKED >> 4), -1).reshape(128, 256)
    powers = np.exp2(MX_SCALES.astype(np.float32) - 127)
    assert loaded.tobytes() == (E2M1[codes] * np.repeat(powers, 32, 1)).tobytes()
    stacked = {
        "m.experts.down_proj": CODES.reshape(1, 128, 256),
        "m.experts.down_proj_scale_inv": np.full((1, 1, 2), 0.5, np.float32),
    }
    source = write_file(tmp_path / "v3.safetensors", stacked)
    loaded = nf.load(source, from_="auto", dtype="float32")["m.experts.down_proj"]
    assert loaded.tobytes() == (CODES.astype(np.float32) / 2).tobytes()


def test_long_texts_of_files_are_cut_in_messages(tmp_path: Path) -> None:
    long = "x" * 100_000
    layer = np.frombuffer(json.dumps({"format": long[:50_000]}).encode(), np.uint8)
    comfy = {"a.comfy_quant": layer, "a.weight": CODES, "a.weight_scale": WHOLE}
    record = {"narrowfloat.w": json.dumps({"spec": long, "shape": [1], "dtype": "float32"})}
    torchao = {"tensor_names": json.dumps(["w"]), "w": json.dumps({"_type": long})}
    files = [(comfy, None, 3), ({"v": WHOLE}, record, 2), ({"v": WHOLE}, torchao, 3)]
    for tensors, metadata, code in files:
        source = write_file(tmp_path / "in.safetensors", tensors, metadata)
        refused = run("dequantize", source, tmp_path / "out.safetensors", code=code)
        assert len(refused.stderr) < 3000 and "xxx..." in refused.stderr


@pytest.mark.parametrize("name", ["plain", "modelopt or comfyui", "narrowfloat without metadata"])
def test_a_method_with_a_name_of_this_library_is_an_unknown_one(name: str, tmp_path: Path) -> None:
    tensors = {"a.weight": CODES, "b.weight": np.ones((32, 32), np.float32)}
    source, out = write_model(tmp_path / "in", [tensors], method(name)), tmp_path / "out"
    quantize = run("quantize", source, out, "--scheme", "mxfp8_e4m3", code=2).stderr
    assert f"is already quantized as '{name}' (config.json)" in quantize
    dequantize = run("dequantize", source, out, code=3).stderr
    assert f"is written as '{name}' (config.json), this build reads" in dequantize
    assert run_json("inspect", source)["convention"] == name
    assert not out.exists()
