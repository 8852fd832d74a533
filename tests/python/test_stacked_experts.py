# SPDX-License-Identifier: Apache-2.0
"""Tests experts of one layer in one tensor, in the conventions that stack them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cli import run, run_json
from foreign_model import E4M3, codes, method, packed, read_model, scales, spread, write_model


@pytest.mark.parametrize("name", ["gate_up_proj", "down_proj"])
@pytest.mark.parametrize("globals_", [(3,), (3, 1, 1), ()])
def test_stacked_experts_of_modelopt(tmp_path: Path, name: str, globals_: tuple[int, ...]) -> None:
    """Checks names with a suffix after the weight's name, and a second scale for each expert."""
    (fp4, values), s = packed((3, 64, 128)), (64 * scales((3, 64, 8))).astype(E4M3)
    second = np.asarray(scales(globals_, 1), np.float32)
    wide = spread(s.astype(np.float32), 1, 16, values.shape)
    each = np.broadcast_to(second.reshape(-1, 1, 1), (3, 1, 1))
    whole = codes((3, 64, 128))
    fp8_name = {"gate_up_proj": "down_proj", "down_proj": "gate_up_proj"}[name]
    tensors = {
        f"e.experts.{name}": fp4,
        f"e.experts.{name}_weight_scale": s,
        f"e.experts.{name}_weight_scale_2": second,
        f"e.experts.{name}_input_scale": scales(()).reshape(()),
        f"e.experts.{fp8_name}": whole,
        f"e.experts.{fp8_name}_weight_scale": second,
    }
    source = write_model(tmp_path / "in", [tensors], method("modelopt", quant_algo="NVFP4"))
    run("dequantize", source, tmp_path / "out", "--dtype", "f32")
    found = read_model(tmp_path / "out")
    assert found.keys() == {f"e.experts.{name}", f"e.experts.{fp8_name}"}
    expected = values * (wide * each)
    assert found[f"e.experts.{name}"].tobytes() == expected.astype(np.float32).tobytes()
    expected = whole.astype(np.float32) * each
    assert found[f"e.experts.{fp8_name}"].tobytes() == expected.astype(np.float32).tobytes()
    run("check", source)
    if globals_ == (3,):  # a zero scale is a finding if codes are not zero
        second[2] = 0
        spoilt = write_model(tmp_path / "spoilt", [tensors], method("modelopt"))
        found = run("check", spoilt, code=1).stdout
        assert found.count("scales of zero over codes that are not zero") == 2
        fp4[2], s[2], whole[2] = 0, 0, 0
        run("check", write_model(tmp_path / "unused", [tensors], method("modelopt")))
    refused = run("convert", source, tmp_path / "no", "--to", "compressed-tensors", code=3).stderr
    assert "e.experts." in refused and not (tmp_path / "no").exists()
    wrong = {**tensors, f"e.experts.{name}_weight_scale_2": scales((2,))}
    source = write_model(tmp_path / "wrong", [wrong], method("modelopt"))
    message = (
        f"'e.experts.{name}_weight_scale_2' must be one F32, or one for each matrix, got F32 2"
    )
    assert message in run("inspect", source, code=2).stderr


def test_stacked_experts_keep_their_scales_apart(tmp_path: Path) -> None:
    weight = np.random.default_rng(4).standard_normal((3, 64, 320)).astype(np.float32)
    source = write_model(tmp_path / "in", [{"e.experts.w1.weight": weight}], {"dtype": "float32"})
    run("quantize", source, tmp_path / "ours", "--scheme", "mxfp8_e4m3")
    run("convert", tmp_path / "ours", tmp_path / "o", "--to", "fp8")
    assert read_model(tmp_path / "o")["e.experts.w1.weight_scale_inv"].shape == (3, 64, 10)
    run("dequantize", tmp_path / "o", tmp_path / "values", "--dtype", "f32")
    run("dequantize", tmp_path / "ours", tmp_path / "expected", "--dtype", "f32")
    assert run_json("diff", tmp_path / "values", tmp_path / "expected")["equal"] == 1
    tiles = ("quantize", source, tmp_path / "no", "--scheme", "fp8_block128x128_e4m3")
    assert run(*tiles, "--convention", "fp8", code=3).stderr == (
        "narrowfloat: 'e.experts.w1.weight' must be a matrix, or several that no block spans, to "
        "have scales that another convention holds, got shape 3x64x320\n"
    )
    assert not (tmp_path / "no").exists()
