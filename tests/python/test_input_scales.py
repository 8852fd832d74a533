# SPDX-License-Identifier: Apache-2.0
"""Tests scales of layers' inputs: ModelOpt's FP8 needs them, other written formats have none."""

from __future__ import annotations

import json
import re
from pathlib import Path
from warnings import catch_warnings

import numpy as np
import pytest
from cli import folder_bytes, run, run_json
from foreign_model import BF16, codes, method, read_model, scales, write_model

import narrowfloat as nf

PER_TENSOR = {"a.weight": codes((200, 320)), "a.weight_scale": np.float32(0.3).reshape(())}
NAMES = {"modelopt": "input_scale", "compressed-tensors": "input_scale",
               "fp8": "activation_scale", "quark": "input_scale"}  # fmt: skip


@pytest.mark.parametrize("owner", NAMES)
@pytest.mark.parametrize("dtype", [np.float32, BF16, np.float16])
def test_modelopt_gets_the_scales_of_inputs(tmp_path: Path, owner: str, dtype: type) -> None:
    """Checks that scales are kept: ModelOpt's FP8 readers use them and check for no missing one."""
    one = np.full((1,), 0.75, dtype)
    tensors = {f"{name}.{key}": value for name in "ab" for key, value in
               {"weight": codes((200, 320)), "weight_scale": scales(()).reshape(()),
                NAMES[owner]: one}.items()}  # fmt: skip
    shards = [{"a.weight": tensors.pop("a.weight")}, tensors]
    source = write_model(tmp_path / "in", shards, method(owner))
    done = run_json("convert", source, tmp_path / "out", "--to", "modelopt")
    assert (done["format"], done["tensors_converted"], done["tensors_dropped"]) == ("FP8", 4, 0)
    found = read_model(tmp_path / "out")
    assert found.keys() == {f"{name}.{key}" for name in "ab" for key in
                            ("weight", "weight_scale", "input_scale")}  # fmt: skip
    for name in "ab":
        scale = found[f"{name}.input_scale"]
        assert (scale.dtype, scale.shape, float(scale)) == (np.float32, (), 0.75)
        assert found[f"{name}.weight_scale"].tobytes() == tensors[f"{name}.weight_scale"].tobytes()
    run("convert", tmp_path / "out", tmp_path / "again", "--to", "modelopt")
    assert folder_bytes(tmp_path / "again") == folder_bytes(tmp_path / "out")
    for to in ("fp8", "compressed-tensors", "narrowfloat"):
        converted = run_json("convert", source, tmp_path / to, "--to", to)
        assert (converted["tensors_converted"], converted["tensors_dropped"]) == (2, 2)
        text = json.dumps(json.loads((tmp_path / to / "config.json").read_text()))
        assert '"static"' not in text, "no reader looks for them"


@pytest.mark.parametrize("scale", [None, np.ones(2, np.float32), np.ones(1, np.int32)])
def test_weights_without_scales_of_inputs_are_named(
    tmp_path: Path, scale: np.ndarray | None
) -> None:
    whole = {key.replace("a.", "b."): value for key, value in PER_TENSOR.items()}
    tensors = PER_TENSOR | whole | {"b.input_scale": np.float32(2).reshape(())}
    if scale is not None:
        tensors["a.input_scale"] = scale
    source, out = write_model(tmp_path / "in", [tensors], method("modelopt")), tmp_path / "out"
    message = "readers of modelopt FP8 quantize inputs by '.input_scale', missing for"
    said = run("convert", source, out, "--to", "modelopt").stderr
    assert said.splitlines()[0] == f"convert: {message} 'a.weight'"
    assert read_model(out).keys() == {"a.weight", "a.weight_scale", "b.weight", "b.weight_scale",
                                      "b.input_scale"}  # fmt: skip
    values = {f"{name}.weight": np.ones((200, 320), np.float32) for name in "ab"}
    plain = write_model(tmp_path / "float", [values])
    quantize = ("quantize", plain, tmp_path / "q", "--scheme", "fp8_e4m3", "--convention")
    said = run(*quantize, "modelopt", "--dry-run").stderr
    assert said.splitlines()[0] == f"quantize: {message} 'a.weight' and 1 more"
    assert message not in run(*quantize, "compressed-tensors", "--dry-run").stderr
    tensor = nf.quantize(values["a.weight"], "fp8_e4m3")
    with pytest.warns(UserWarning, match=re.escape(f"save: {message} 'w.weight'")) as warnings:
        nf.save(tmp_path / "saved", {"w.weight": tensor}, convention="modelopt")
    assert [Path(warning.filename).name for warning in warnings] == [Path(__file__).name]
    with pytest.raises(UserWarning, match="missing for"), catch_warnings(action="error"):
        nf.save(tmp_path / "none", {"w.weight": tensor}, convention="modelopt")
    assert not (tmp_path / "none" / "model.safetensors").exists()


def test_a_tile_without_a_scale_of_its_inputs_stays_a_tile(tmp_path: Path) -> None:
    tensors = {"a.weight": codes((128, 128)), "a.weight_scale": scales((1, 1))}
    source = write_model(tmp_path / "in", [tensors], method("modelopt"))
    assert run_json("convert", source, tmp_path / "o", "--to", "modelopt")["format"] == "FP8_PB_WO"
    tensors["a.input_scale"] = np.ones((), np.float32)
    static = write_model(tmp_path / "static", [tensors], method("modelopt"))
    done = run_json("requantize", static, tmp_path / "r", "--scale-format", "f32",
                    "--to", "modelopt")  # fmt: skip
    assert (done["format"], done["tensors_dropped"]) == ("FP8_PB_WO", 1)
    assert read_model(tmp_path / "r").keys() == {"a.weight", "a.weight_scale"}
