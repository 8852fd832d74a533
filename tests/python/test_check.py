# SPDX-License-Identifier: Apache-2.0
"""Tests that `check` reads every buffer of this library's tensors, and every float type."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from cli import TYPES, read_file, run, run_json, sharded, write_file

FAMILIES = ["mxfp8_e4m3", "mxfp8_2d_e5m2", "mxfp4", "nvfp4", "nvfp4_2d", "fp8_block1x128_e4m3",
            "fp8_block128x128_e5m2"]  # fmt: skip
SWIZZLED = ["mxfp8_e4m3:columnwise=1,swizzled=1", "nvfp4:columnwise=1,swizzled=1",
            "nvfp4:row_scaled=1"]  # fmt: skip
NAN = {"F32": np.nan, "F8_E8M0": 0xFF, "F8_E4M3": 0x7F, "F8_E5M2": 0x7F}
CODES = "codes that are NaN or infinite: 1"
SCALES = "scales that are NaN or infinite: 1"


def weight(rows: int = 160, cols: int = 288) -> np.ndarray:
    """Returns a matrix whose first 32 rows and columns are zeros, and no other item."""
    array = np.random.default_rng(2).uniform(1, 2, (rows, cols)).astype(np.float32)
    array[:32], array[:, :32] = 0, 0
    return array


def quantized(tmp_path: Path, scheme: str, array: np.ndarray | None = None) -> Path:
    source = write_file(tmp_path / "in", {"w": weight() if array is None else array})
    run("quantize", source, tmp_path / "q", "--scheme", scheme, "--include", "w")
    return tmp_path / "q"


def findings(path: Path, code: int = 1) -> list[str]:
    found = run_json("check", path, code=code)["findings"]
    return [each["what"] for each in found if not each["note"]]


def planted(path: Path, role: str, at: tuple[int, ...], value: float) -> list[str]:
    """Returns the findings after one item of a buffer has become `value`, a byte or an F32."""
    tensors, metadata = read_file(path)
    buffer = tensors[f"w.{role}"].copy()
    (buffer if buffer.dtype == np.float32 else buffer.view(np.uint8))[at] = value
    return findings(write_file(path.with_name("bad"), tensors | {f"w.{role}": buffer}, metadata))


def nan_of(path: Path, role: str) -> float:
    dtype = read_file(path)[0][f"w.{role}"].dtype
    (name,) = (name for name, known in TYPES.items() if known == dtype)
    return NAN[name]


@pytest.mark.parametrize("shape", [(160, 288), (128, 512), (2, 64), (3, 32, 96), (0, 32)])
@pytest.mark.parametrize("scheme", [*FAMILIES, *SWIZZLED, "fp8_e4m3", "fp8_e5m2:columnwise=1"])
def test_nothing_is_found_where_nothing_is_wrong(
    scheme: str, shape: tuple[int, ...], tmp_path: Path
) -> None:
    array = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
    assert findings(quantized(tmp_path, scheme, array), code=0) == []


@pytest.mark.parametrize("options", ["", ",rowwise=0"])
@pytest.mark.parametrize("scheme", FAMILIES)
def test_columnwise_codes_and_scales(scheme: str, options: str, tmp_path: Path) -> None:
    path = quantized(tmp_path, f"{scheme}:columnwise=1{options}")
    if "fp4" not in scheme:  # E2M1 has no NaN
        nan = nan_of(path, "columnwise_data")
        assert planted(path, "columnwise_data", (40, 50), nan) == [f"columnwise {CODES}"]
    nan = nan_of(path, "columnwise_scale_inv")
    assert planted(path, "columnwise_scale_inv", (1, 1), nan) == [f"columnwise {SCALES}"]


@pytest.mark.parametrize("scheme", FAMILIES)
def test_rowwise_codes_and_scales(scheme: str, tmp_path: Path) -> None:
    path = quantized(tmp_path, f"{scheme}:columnwise=1")
    if "fp4" not in scheme:
        nan = nan_of(path, "rowwise_data")
        assert planted(path, "rowwise_data", (40, 50), nan) == [CODES]
    nan = nan_of(path, "rowwise_scale_inv")
    assert planted(path, "rowwise_scale_inv", (1, 1), nan) == [SCALES]


@pytest.mark.parametrize("scheme", SWIZZLED)
def test_scales_in_another_order(scheme: str, tmp_path: Path) -> None:
    path = quantized(tmp_path, scheme)
    assert planted(path, "rowwise_scale_inv", (0, 0), nan_of(path, "rowwise_scale_inv")) == [SCALES]


@pytest.mark.parametrize("direction", ["rowwise", "columnwise"])
@pytest.mark.parametrize("scheme", ["fp8_block1x128_e4m3", "fp8_block128x128_e4m3"])
def test_scales_that_are_not_positive(scheme: str, direction: str, tmp_path: Path) -> None:
    path = quantized(tmp_path, f"{scheme}:columnwise=1", weight(256, 384))
    role, prefix = f"{direction}_scale_inv", "columnwise " if direction == "columnwise" else ""
    place = (1, 1)  # 128x128: row and column of the tile
    if "1x128" in scheme:  # (block, line); the first 32 lines are zeros
        assert planted_zero_is_fine(path, role)
        place = (1, 40)
    assert planted(path, role, place, -1) == [f"{prefix}negative scales: 1"]
    zero = f"{prefix}scales of zero over codes that are not zero: 1"
    assert planted(path, role, place, 0) == [zero]


def planted_zero_is_fine(path: Path, role: str) -> bool:
    tensors, metadata = read_file(path)
    scale = tensors[f"w.{role}"].copy()
    scale[1, 5] = 0
    fine = write_file(path.with_name("fine"), tensors | {f"w.{role}": scale}, metadata)
    return findings(fine, code=0) == []


@pytest.mark.parametrize("role", ["scale", "amax_rowwise"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -1])
def test_numbers_of_the_whole_tensor(role: str, value: float, tmp_path: Path) -> None:
    path = quantized(tmp_path, "fp8_e4m3:columnwise=1")
    assert planted(path, role, (0,), value) == [
        f"numbers of {role} that are NaN, infinite or negative: 1"
    ]


@pytest.mark.parametrize("direction", ["rowwise", "columnwise"])
def test_amaxes_of_nvfp4_are_a_part_of_its_scales(direction: str, tmp_path: Path) -> None:
    path = quantized(tmp_path, "nvfp4:columnwise=1")
    prefix = "columnwise " if direction == "columnwise" else ""
    assert planted(path, f"amax_{direction}", (0,), np.nan) == [f"{prefix}{SCALES}"]
    zero = f"{prefix}scales of zero over codes that are not zero: 1"
    assert planted(path, f"amax_{direction}", (0,), 0) == [zero]


@pytest.mark.parametrize("direction", ["rowwise", "columnwise"])
def test_finite_codes_and_scales_of_infinite_values(direction: str, tmp_path: Path) -> None:
    path = quantized(tmp_path, "mxfp8_e4m3:columnwise=1")
    tensors, metadata = read_file(path)
    codes = tensors[f"w.{direction}_data"].copy().view(np.uint8)
    block = np.s_[40, 64:96] if direction == "rowwise" else np.s_[64:96, 40]
    codes[block] = 0x7E
    tensors[f"w.{direction}_data"] = codes.view(TYPES["F8_E4M3"])
    write_file(path, tensors, metadata)
    at = (40, 2) if direction == "rowwise" else (2, 40)
    prefix = "columnwise " if direction == "columnwise" else ""
    what = f"{prefix}values that are infinite, of finite codes and scales: 32"
    assert planted(path, f"{direction}_scale_inv", at, 254) == [what]
    assert findings(path, code=0) == []


def test_infinite_values_of_another_convention(tmp_path: Path) -> None:
    codes = np.full((4, 32), 0x22, np.uint8)  # E2M1 codes of 1
    codes[1, 3] = 0x72  # 1 and 6
    scale = np.full((4, 2), 253, np.uint8)
    scale[2] = 100
    tensors = {"a.weight_packed": codes, "a.weight_scale": scale}
    assert findings(write_file(tmp_path / "a", tensors)) == [
        "values that are infinite, of finite codes and scales: 1"
    ]


@pytest.mark.parametrize("name", ["F64", "C64", "F32", "F16", "BF16"])
def test_plain_tensors_of_every_float_type(name: str, tmp_path: Path) -> None:
    array = np.ones(9, TYPES[name])
    assert findings(write_file(tmp_path / "good", {"x": array}), code=0) == []
    array[2], array[5] = np.nan, np.inf
    assert findings(write_file(tmp_path / "bad", {"x": array})) == [
        "values that are NaN or infinite: 2"
    ]


def test_a_tensor_that_the_index_does_not_name(tmp_path: Path) -> None:
    folder = sharded(tmp_path / "in")
    assert findings(folder, code=0) == []
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    shard = index["weight_map"].pop("layer.1.dense.bias")
    path.write_text(json.dumps(index))
    assert run_json("check", folder, code=1)["findings"] == [
        {
            "name": "layer.1.dense.bias",
            "what": f"it is in {shard}, the index must name it",
            "note": False,
        }
    ]


def test_a_wrong_variable_is_no_finding(tmp_path: Path) -> None:
    path = write_file(tmp_path / "f", {"a": np.ones(3, TYPES["BF16"])})
    done = run("check", path, code=2, env=os.environ | {"NF_NUM_THREADS": "x"})
    assert done.stdout == "" and "threads: NF_NUM_THREADS must be an integer" in done.stderr
