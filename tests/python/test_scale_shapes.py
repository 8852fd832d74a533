# SPDX-License-Identifier: Apache-2.0
"""Tests FP8 scales whose shapes distinguish rows, tiles and whole tensors, in every convention."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from cli import read_file, run, run_json, write_file
from foreign_model import Tensors, codes, method, scales, write_model

import narrowfloat as nf

# One scale per row has the number of scales that tiles of 128x128 would have.
SHAPE = (32, 4096)
ROWS = scales((32, 1))


def groups(strategy: str, **more: object) -> dict:
    weights = {"num_bits": 8, "type": "float", "strategy": strategy, **more}
    return method("compressed-tensors", config_groups={"group_0": {"weights": weights}})


def described(block: list[int]) -> dict[str, str]:
    """Returns torchao's metadata for a weight of FP8."""
    weight = {
        "_type": "Float8Tensor",
        "_data": {"block_size": block},
        "_tensor_data_names": ["qdata", "scale"],
    }
    texts = {"a.weight": weight, "tensor_names": ["a.weight"]}
    return {key: json.dumps(value) for key, value in texts.items()}


def layer(form: str) -> np.ndarray:
    return np.frombuffer(json.dumps({"format": form}).encode(), np.uint8)


FILES: dict[str, tuple[Tensors, dict[str, str] | None]] = {
    "torchao": (
        {"a._weight_qdata": codes(SHAPE), "a._weight_scale": ROWS}, described([1, 4096]),
    ),
    "comfyui": (
        {"a.weight": codes(SHAPE), "a.weight_scale": ROWS,
         "a.comfy_quant": layer("float8_e4m3fn_rowwise")}, None,
    ),
    "names alone": ({"a.weight": codes(SHAPE), "a.weight_scale": ROWS}, None),
}  # fmt: skip
MODELS: dict[str, tuple[np.ndarray, dict]] = {
    "compressed-tensors channel": (ROWS, groups("channel")),
    "compressed-tensors": (ROWS, method("compressed-tensors")),
    "modelopt": (ROWS[:, 0], method("modelopt")),
    "fbgemm": (ROWS, method("fbgemm_fp8")),
    "fp8": (ROWS, method("fp8")),
}


@pytest.mark.parametrize("name", [*FILES, *MODELS])
def test_one_scale_per_row_of_a_short_matrix(name: str, tmp_path: Path) -> None:
    if name in FILES:
        source = write_file(tmp_path / "in.safetensors", *FILES[name])
        out = tmp_path / "out.safetensors"
        values = out
    else:
        scale, config = MODELS[name]
        tensors = {"a.weight": codes(SHAPE), "a.weight_scale": scale}
        source = write_model(tmp_path / "in", [tensors], config)
        out = tmp_path / "out"
        values = out / "model-00001-of-00001.safetensors"
    assert set(run_json("inspect", source)["counts"]) & {"e4m3 row F32"}
    run("dequantize", source, out, "--dtype", "f32")
    expected = codes(SHAPE).astype(np.float32) * ROWS
    assert read_file(values)[0]["a.weight"].tobytes() == expected.tobytes()
    loaded = nf.load(source, from_="auto", dtype="float32")["a.weight"]
    assert loaded.tobytes() == expected.tobytes()


def test_a_row_of_tiles_is_no_column_of_rows(tmp_path: Path) -> None:
    tiles = ROWS.reshape(1, 32)
    for name, scale in {"matrix": tiles, "four": tiles.reshape(1, 1, 32, 1)}.items():
        tensors = {"a.weight": codes(SHAPE), "a.weight_scale": scale}
        source = write_model(tmp_path / name, [tensors], method("modelopt"))
        run("dequantize", source, tmp_path / f"{name} out", "--dtype", "f32")
        out = tmp_path / f"{name} out" / "model-00001-of-00001.safetensors"
        expected = codes(SHAPE).astype(np.float32) * np.repeat(tiles, 128, 1)
        assert read_file(out)[0]["a.weight"].tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    ("config", "form"),
    [
        (method("compressed-tensors"), "e4m3 128x128 F32"),
        (groups("tensor"), "e4m3 tensor F32"),
        (groups("block", block_structure=[128, 128]), "e4m3 128x128 F32"),
        (groups("block", block_structure="128x128"), "e4m3 128x128 F32"),
    ],
)
def test_the_strategy_tells_a_tensor_from_a_block(tmp_path: Path, config: dict, form: str) -> None:
    tensors = {"a.weight": codes((64, 96)), "a.weight_scale": scales((1, 1))}
    source = write_model(tmp_path / "in", [tensors], config)
    assert set(run_json("inspect", source)["counts"]) == {form}


def test_the_strategy_tells_groups(tmp_path: Path) -> None:
    w, s = codes((64, 96)), scales((64, 2))
    config = groups("group", group_size=64)
    source = write_model(tmp_path / "in", [{"a.weight": w, "a.weight_scale": s}], config)
    values = nf.load(source, from_="auto", dtype="float32")["a.weight"]
    assert np.array_equal(values, w.astype(np.float32) * np.repeat(s, 64, 1)[:, :96])


def test_a_matrix_of_one_row_does_not_change_the_strategy(tmp_path: Path) -> None:
    """Checks a matrix whose one scale may be a block's; a ModelOpt model has one format."""
    tensors = {"a.weight": codes(SHAPE), "a.weight_scale": ROWS}
    tensors |= {"head.weight": codes((1, 96)), "head.weight_scale": scales((1, 1))}
    source = write_model(tmp_path / "in", [tensors], groups("channel"))
    done = run_json("convert", source, tmp_path / "out", "--to", "modelopt")
    assert done["format"] == "FP8_PER_CHANNEL_PER_TOKEN"


@pytest.mark.parametrize(
    ("block", "form"),
    [([64, 96], "tensor"), ([128, 128], "128x128"), ([-1, 96], "128x128"), ([96], "128x128")],
)
def test_torchao_states_the_size_of_a_block(tmp_path: Path, block: list[int], form: str) -> None:
    tensors = {"a._weight_qdata": codes((64, 96)), "a._weight_scale": scales((1, 1))}
    source = write_file(tmp_path / "in.safetensors", tensors, described(block))
    assert set(run_json("inspect", source)["counts"]) == {f"e4m3 {form} F32"}


def test_groups_of_two_strategies_say_nothing(tmp_path: Path) -> None:
    config = groups("channel")
    config["quantization_config"]["config_groups"]["group_1"] = {"weights": {"strategy": "tensor"}}
    tensors = {"a.weight": codes((64, 96)), "a.weight_scale": scales((1, 1))}
    source = write_model(tmp_path / "in", [tensors], config)
    assert set(run_json("inspect", source)["counts"]) == {"e4m3 128x128 F32"}


def test_scales_of_two_meanings_are_refused(tmp_path: Path) -> None:
    """Checks a stack of one matrix, whose scales may omit the dimension of the stack."""
    tensors = {"a.weight": codes((1, *SHAPE)), "a.weight_scale": ROWS.reshape(1, 32)}
    source = write_model(tmp_path / "in", [tensors], method("compressed-tensors"))
    refused = run("dequantize", source, tmp_path / "out", code=2)
    assert (
        "'a.weight_scale' of F32 1x32 needs a configuration that says its blocks, those of "
        "'a.weight' (F8_E4M3 1x32x4096) may be 128x128 or 1x4096" in refused.stderr
    )
    assert not (tmp_path / "out").exists()
    source = write_model(tmp_path / "said", [tensors], groups("channel"))
    assert set(run_json("inspect", source)["counts"]) == {"e4m3 row F32"}


def per_tensor(**more: np.ndarray) -> Tensors:
    """Returns a weight under the names of AutoFP8, with one scale and no blocks."""
    scale = np.float32(0.3).reshape(())
    return {"a.weight": codes((200, 320)), "a.weight_scale": scale, **more}


def test_fp8_per_tensor_of_vllm(tmp_path: Path) -> None:
    tensors = per_tensor() | {"a.input_scale": np.float32(2).reshape(())}
    config = method("fp8", activation_scheme="static")
    source = write_model(tmp_path / "in", [tensors], config)
    assert run_json("inspect", source)["counts"] == {"F32": 1, "e4m3 tensor F32": 1}
    done = run_json("dequantize", source, tmp_path / "out", "--dtype", "f32")
    assert done["tensors_dropped"] == 1
    found = read_file(tmp_path / "out" / "model-00001-of-00001.safetensors")[0]
    expected = tensors["a.weight"].astype(np.float32) * np.float32(0.3)
    assert found.keys() == {"a.weight"} and found["a.weight"].tobytes() == expected.tobytes()
    run("convert", source, tmp_path / "fp8", "--to", "fp8")
    differences = run_json("diff", source, tmp_path / "fp8", code=1)["differences"]
    assert [item["name"] for item in differences] == ["a.input_scale"]


@pytest.mark.parametrize(
    ("more", "lost", "code", "message"),
    [
        ({}, "a.weight_scale", 2,
         "'a.weight' holds codes and needs its scale 'a.weight_scale_inv', which is missing"),
        ({}, "a.weight", 2, "'a.weight_scale' is a scale and needs its codes, which are missing"),
        ({"a.weight_scale_2": np.float32(4).reshape(())}, "", 3,
         "'a.weight_scale_2' is not supported, it changes what its weight means"),
        ({"a.weight_global_scale": np.full(1, 4, np.float32)}, "", 3,
         "'a.weight_global_scale' is not supported, it changes what its weight means"),
    ],
)  # fmt: skip
def test_wrong_files_of_fp8_are_refused(
    tmp_path: Path, more: Tensors, lost: str, code: int, message: str
) -> None:
    tensors = {f"b.{key}": value for key, value in per_tensor().items()} | per_tensor(**more)
    tensors.pop(lost, None)
    source = write_model(tmp_path / "in", [tensors], method("fp8"))
    assert message in run("dequantize", source, tmp_path / "out", code=code).stderr
