# SPDX-License-Identifier: Apache-2.0
"""Tests notes about weights that readers of a result may misread."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from cli import run, run_json
from foreign_model import codes, method, scales, write_model

import narrowfloat as nf

NOTE = (
    "weights that transformers decodes wrongly without an FP8 GPU: "
    "'a.weight' ({}; blocks must be 128x128, it uses {})"
)


def tiles(tmp_path: Path, *shapes: tuple[int, int]) -> Path:
    tensors = {}
    for name, (rows, cols) in zip("abc", shapes, strict=False):
        tensors[f"{name}.weight"] = codes((rows, cols))
        tensors[f"{name}.weight_scale_inv"] = scales((-(-rows // 128), -(-cols // 128)))
    return write_model(tmp_path / "in", [tensors], method("fp8", weight_block_size=[128, 128]))


@pytest.mark.parametrize(
    ("shape", "spread"),
    [((192, 128), "96x128"), ((64, 960), "128x120"), ((258, 160), "86x80"), ((192, 256), "96x128")],
)
def test_blocks_that_transformers_takes_for_others_are_named(
    tmp_path: Path, shape: tuple[int, int], spread: str
) -> None:
    source, out = tiles(tmp_path, (256, 128), shape), tmp_path / "out"
    note = NOTE.format(f"{shape[0]}x{shape[1]}", spread).replace("'a.", "'b.")
    assert run("convert", source, out, "--to", "fp8").stderr.splitlines()[0] == f"convert: {note}"
    assert run_json("convert", source, tmp_path / "json", "--to", "fp8")["notes"] == [note]
    assert run_json("convert", source, tmp_path / "ct", "--to", "compressed-tensors")["notes"] == []


@pytest.mark.parametrize("shape", [(576, 128), (64, 64), (256, 384), (192, 290)])
def test_blocks_that_transformers_reads_or_refuses_are_not(
    tmp_path: Path, shape: tuple[int, int]
) -> None:
    source = tiles(tmp_path, shape)
    assert run_json("convert", source, tmp_path / "out", "--to", "fp8")["notes"] == []


def test_every_way_to_write_has_the_notes(tmp_path: Path) -> None:
    values = {f"{name}.weight": np.ones((192, 128), np.float32) for name in "ab"}
    source = write_model(tmp_path / "in", [values])
    note = NOTE.format("192x128", "96x128") + " and 1 more"
    scheme = ("--scheme", "fp8_block128x128_e4m3")
    made = run_json("quantize", source, tmp_path / "fp8", *scheme, "--convention", "fp8")
    assert made["notes"] == [note]
    run("quantize", source, tmp_path / "q", *scheme)
    with pytest.warns(UserWarning, match=re.escape(f"convert: {note}")) as warnings:
        result = nf.convert(tmp_path / "q", tmp_path / "out", "fp8")
    assert [Path(warning.filename).name for warning in warnings] == [Path(__file__).name]
    assert result["notes"] == [note]
    requantize = ("requantize", tmp_path / "q", tmp_path / "again", "--scale-format", "ue8m0")
    assert run(*requantize).stderr.splitlines()[0] == f"requantize: {note}"
    with pytest.warns(UserWarning, match=re.escape(f"save: {note}")):
        nf.save(tmp_path / "saved", nf.load(tmp_path / "q"), convention="fp8", config={})


def test_python_warns_of_scales_that_readers_miss(tmp_path: Path) -> None:
    weight = {"a.weight": np.ones((64, 64), np.float32)}
    source = write_model(tmp_path / "in", [weight])
    run("quantize", source, tmp_path / "q", "--scheme", "fp8_e4m3")
    missing = "convert: readers of modelopt FP8 quantize inputs by '.input_scale', missing for"
    with pytest.warns(UserWarning, match=re.escape(missing)):
        nf.convert(tmp_path / "q", tmp_path / "out", "modelopt")
    cast = write_model(tmp_path / "cast", [{"a.weight": codes((64, 64))}])
    with pytest.warns(UserWarning, match="their codes are taken as values"):
        nf.convert(cast, tmp_path / "from-cast", "compressed-tensors")
    assert len(run_json("dequantize", cast, tmp_path / "plain")["notes"]) == 1


def test_tiles_of_one_column_of_scales_are_no_rows(tmp_path: Path) -> None:
    source = tiles(tmp_path, (256, 128), (64, 128))
    inspected = run_json("inspect", source)["counts"]
    assert inspected == {"e4m3 128x128 F32": 2}
