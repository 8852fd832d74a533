# SPDX-License-Identifier: Apache-2.0
"""Tests DeepSeek-V4, gpt-oss and MXFP8, read and written, and other codes of the same values."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from cli import read_file, run, run_json, write_file
from foreign_cases import case
from foreign_model import (
    E8M0,
    codes,
    method,
    packed,
    power_values,
    powers,
    read_model,
    write_model,
)

import narrowfloat as nf


def quantization(folder: Path) -> dict:
    return json.loads((folder / "config.json").read_text())["quantization_config"]


def assert_same_tensors(one: Path, other: Path) -> None:
    a, b = read_model(one), read_model(other)
    assert a.keys() == b.keys()
    for name in a:
        assert a[name].dtype == b[name].dtype and a[name].tobytes() == b[name].tobytes(), name


@pytest.mark.parametrize(("to", "kept"), [("fp8", True), ("compressed-tensors", False)])
def test_a_model_that_rounds_inputs_to_powers_of_two_keeps_saying_so(
    tmp_path: Path, to: str, kept: bool
) -> None:
    """Checks models like DeepSeek-V3.1, whose fp32 scales are all powers of two."""
    tensors = {"a.weight": codes((200, 320)), "a.weight_scale_inv": power_values(powers((2, 3)))}
    for value in ("ue8m0", None):
        source = write_model(tmp_path / f"in{value}", [tensors], method("fp8", scale_fmt=value))
        done = run_json("convert", source, tmp_path / f"out{value}", "--to", to)
        assert done["format"] == ("block" if kept else "FP8_BLOCK")
        written = quantization(tmp_path / f"out{value}")
        assert written.get("scale_fmt") == (value if kept else None)
        assert ("scale_fmt" in written) == (kept and value is not None)
    run("convert", tmp_path / "inue8m0", tmp_path / "ct", "--to", "compressed-tensors")
    run("convert", tmp_path / "ct", tmp_path / "back", "--to", "fp8")
    assert "scale_fmt" not in quantization(tmp_path / "back"), "nothing says it of the scales"


def test_requantize_and_the_format_of_scales(tmp_path: Path) -> None:
    scales = power_values(powers((2, 3)))
    tensors = {"a.weight": codes((200, 320)), "a.weight_scale_inv": scales}
    source = write_model(tmp_path / "in", [tensors], method("fp8", scale_fmt="float"))
    run("requantize", source, tmp_path / "powers", "--scale-format", "ue8m0")
    assert quantization(tmp_path / "powers")["scale_fmt"] == "ue8m0"
    run("requantize", tmp_path / "powers", tmp_path / "floats", "--scale-format", "f32")
    assert quantization(tmp_path / "floats")["scale_fmt"] == "ue8m0", "the values are the same"
    written = read_model(tmp_path / "floats")["a.weight_scale_inv"]
    assert written.tobytes() == scales.tobytes()
    config = json.loads((source / "config.json").read_text())
    tensor = nf.load(source, from_="auto")["a.weight"]
    said = nf.quantization_config({"a.weight": tensor}, "fp8", config=config)
    assert "scale_fmt" not in said, "the config.json is another model's"


def test_deepseek_v4_has_fp4_for_experts_alone(tmp_path: Path) -> None:
    tensors = {"a.weight_packed": packed((64, 64))[0], "a.weight_scale": powers((64, 2))}
    tensors |= {f"e.experts.0.{key}": value for key, value in tensors.items()}
    source = write_model(tmp_path / "in", [tensors], method("compressed-tensors"))
    message = (
        "'a.weight' must be a part of a module 'experts' to be written as deepseek-v4 fp4 experts"
    )
    refused = run("convert", source, tmp_path / "out", "--to", "deepseek-v4", code=3).stderr
    assert refused == f"narrowfloat: convert: {message}\n"
    weights = {name: np.ones((64, 64), np.float32) for name in ("a.weight", "e.experts.0.weight")}
    plain = write_model(tmp_path / "plain", [weights])
    quantize = ("quantize", plain, tmp_path / "out", "--scheme", "mxfp4", "--convention",
                "deepseek-v4")  # fmt: skip
    assert run(*quantize, code=3).stderr == f"narrowfloat: quantize: {message}\n"
    assert not (tmp_path / "out").exists()
    run(*quantize, "--exclude", "a.*")
    assert read_model(tmp_path / "out").keys() == {
        "a.weight", "e.experts.0.weight", "e.experts.0.scale",
    }  # fmt: skip


def v4(folder: Path, exponents: np.ndarray | None = None) -> Path:
    """Writes a model in the form of DeepSeek-V4: block FP8 beside experts in FP4."""
    scales = powers((200, 10)) if exponents is None else exponents
    tensors = {
        "a.weight": codes((200, 320)),
        "a.scale": powers((2, 3)).view(E8M0),
        "e.experts.0.w1.weight": packed((200, 320))[0].view(np.int8),
        "e.experts.0.w1.scale": scales.view(E8M0),
        "norm.weight": np.ones(5, np.float32),
    }
    config = method(
        "fp8", fmt="e4m3", activation_scheme="dynamic", scale_fmt="ue8m0",
        weight_block_size=[128, 128], expert_dtype="fp4", modules_to_not_convert=[],
    )  # fmt: skip
    return write_model(folder, [tensors], config)


def test_deepseek_v4_is_written_as_it_is_read(tmp_path: Path) -> None:
    source = v4(tmp_path / "in")
    converted = run_json("convert", source, tmp_path / "out", "--to", "deepseek-v4")
    assert converted["format"] == "block ue8m0, fp4 experts"
    assert_same_tensors(source, tmp_path / "out")
    assert quantization(tmp_path / "out") == quantization(source)


def test_gpt_oss_is_written_as_it_is_read(tmp_path: Path) -> None:
    tensors, config, _ = case("gpt-oss")
    source = write_model(tmp_path / "in", [tensors], config)
    run("convert", source, tmp_path / "out", "--to", "mxfp4")
    assert_same_tensors(source, tmp_path / "out")
    assert quantization(tmp_path / "out")["quant_method"] == "mxfp4"
    message = run("convert", source, tmp_path / "no", "--to", "deepseek-v4", code=3).stderr
    assert message == (
        "narrowfloat: convert: 'experts.gate_up_proj' must end in '.weight' to be written as "
        "deepseek-v4 fp4 experts\n"
    )
    assert not (tmp_path / "no").exists()


def test_only_experts_are_written_for_gpt_oss(tmp_path: Path) -> None:
    tensors, config, _ = case("deepseek-v4")
    source = write_model(tmp_path / "in", [tensors], config)
    message = run("convert", source, tmp_path / "no", "--to", "mxfp4", code=3).stderr
    assert "must be experts stored as [experts, inputs, outputs]" in message


@pytest.mark.parametrize("name", ["fp8", "mxfp8"])
def test_mxfp8_has_two_names(tmp_path: Path, name: str) -> None:
    tensors, _, _ = case("mxfp8")
    block = [1, 32]
    source = write_model(
        tmp_path / "in", [tensors], method(name, weight_block_size=block, scale_fmt="ue8m0")
    )
    run("convert", source, tmp_path / "out", "--to", name)
    assert_same_tensors(source, tmp_path / "out")
    assert quantization(tmp_path / "out")["quant_method"] == name
    assert quantization(tmp_path / "out")["weight_block_size"] == block
    tiles, config, _ = case("deepseek")
    refused = write_model(tmp_path / "tiles", [tiles], config)
    message = run("convert", refused, tmp_path / "no", "--to", "mxfp8", code=3).stderr
    assert "has no form in 'mxfp8' with the same codes" in message


def test_powers_of_two_widen_where_there_is_no_place_for_them(tmp_path: Path) -> None:
    tensors, config, expected = case("deepseek ue8m0")
    source = write_model(tmp_path / "in", [tensors], config)
    run("convert", source, tmp_path / "out", "--to", "compressed-tensors")
    assert read_model(tmp_path / "out")["a.weight_scale"].dtype == np.float32
    run("dequantize", tmp_path / "out", tmp_path / "values", "--dtype", "f32")
    found = read_model(tmp_path / "values")["a.weight"]
    assert found.tobytes() == expected["a.weight"].tobytes()


@pytest.mark.parametrize(("scale_format", "to"), [("ue8m0", "fp8"), ("f32", "fp8"),
                                                  ("ue8m0", "deepseek-v4"),
                                                  ("f32", "compressed-tensors")])  # fmt: skip
def test_mxfp4_becomes_block_fp8_without_loss(tmp_path: Path, scale_format: str, to: str) -> None:
    exponents = np.random.default_rng(3).integers(110, 125, (200, 10), np.uint8)
    source = v4(tmp_path / "in", exponents)
    out = tmp_path / "out"
    done = run_json("requantize", source, out, "--scale-format", scale_format, "--to", to)
    assert (done["tensors_requantized"], done["tensors_left"], done["values_changed"]) == (2, 0, 0)
    scales = [a for name, a in read_model(out).items() if "scale" in name]
    assert [scale.shape for scale in scales] == [(2, 3), (2, 3)]
    assert {scale.dtype for scale in scales} == {
        E8M0 if scale_format == "ue8m0" else np.dtype("float32")
    }
    assert "expert_dtype" not in quantization(out)
    for folder, values in ((source, tmp_path / "a"), (out, tmp_path / "b")):
        run("dequantize", folder, values, "--dtype", "f32")
    assert_same_tensors(tmp_path / "a", tmp_path / "b")


def test_a_tile_that_does_not_fit_is_named_or_left(tmp_path: Path) -> None:
    exponents = np.full((200, 10), 120, np.uint8)
    exponents[150, 5] = 140
    source = v4(tmp_path / "in", exponents)
    arguments = ("requantize", source, tmp_path / "out", "--scale-format", "ue8m0")
    message = run(*arguments, code=2).stderr
    assert "'e.experts.0.w1.weight': the values of the tile [1, 1] must be E4M3" in message
    assert not (tmp_path / "out").exists()
    left = (*arguments, "--leave-misfits")
    assert "has no form in 'fp8' with the same codes" in run(*left, code=3).stderr
    done = run_json(*left, "--to", "deepseek-v4")
    assert (done["tensors_requantized"], done["tensors_left"]) == (1, 1)
    assert_same_tensors(source, tmp_path / "out")
    assert quantization(tmp_path / "out")["expert_dtype"] == "fp4"


def test_block_fp8_to_powers_of_two_says_what_is_lost(tmp_path: Path) -> None:
    tensors, config, expected = case("deepseek")
    source = write_model(tmp_path / "in", [tensors], config)
    out = tmp_path / "out"
    done = run_json("requantize", source, out, "--scale-format", "ue8m0")
    assert done["values_rounded"] == 200 * 320
    run("dequantize", out, tmp_path / "values", "--dtype", "f32")
    before, after = expected["a.weight"], read_model(tmp_path / "values")["a.weight"]
    assert done["values_changed"] == np.count_nonzero(before != after) > 0
    where = before != 0
    change = np.abs(after[where].astype(np.float64) - before[where]) / np.abs(before[where])
    assert done["largest_relative_change"] == pytest.approx(change.max(), rel=1e-12)
    assert read_model(out)["a.weight_scale_inv"].dtype == E8M0
    again = run_json("requantize", out, tmp_path / "again", "--scale-format", "ue8m0")
    assert again["values_changed"] == 0, "powers of two keep their codes"
    assert_same_tensors(out, tmp_path / "again")
    run("requantize", out, tmp_path / "wide", "--scale-format", "f32")
    run("dequantize", tmp_path / "wide", tmp_path / "same", "--dtype", "f32")
    assert_same_tensors(tmp_path / "same", tmp_path / "values")


def scales_of_last_shard(folder: Path, scale: float, code: int) -> Path:
    """Writes two block FP8 weights, of which the last has that scale and codes in a tile."""
    first, last = codes((256, 256)), codes((256, 256))
    last.view(np.uint8)[128:, :128] = code
    scales = np.float32([[1.5, 0.7], [scale, 3]])
    shards = [
        {"a.weight": first, "a.weight_scale_inv": np.full((2, 2), 0.3, np.float32)},
        {"b.weight": last, "b.weight_scale_inv": scales},
    ]
    return write_model(folder, shards, method("fp8"))


@pytest.mark.parametrize(
    ("scale", "code", "got"), [(np.nan, 1, "nan"), (np.nan, 0, "nan"), (0, 1, "0"), (-0.0, 0, "-0")]
)
def test_scales_without_powers_of_two_are_found_before_anything_is_written(
    scale: float, code: int, got: str, tmp_path: Path
) -> None:
    source, out = scales_of_last_shard(tmp_path / "in", scale, code), tmp_path / "out"
    out.mkdir()
    (out / "model-00001-of-00002.safetensors").write_bytes(b"kept")
    job = ("requantize", source, out, "--overwrite", "--scale-format")
    refused = run(*job, "ue8m0", code=2).stderr
    assert refused.splitlines()[-1] == (
        "narrowfloat: requantize: 'b.weight': the scale of the tile [1, 0] must be positive and "
        f"finite, or zero over codes of zero, got {got}"
    )
    assert [path.read_bytes() for path in out.iterdir()] == [b"kept"]
    run(*job, "f32")
    assert_same_tensors(source, out)


@pytest.mark.parametrize("code", [0, 0x80])
def test_a_scale_of_zero_over_zeros_becomes_the_smallest_power_of_two(
    code: int, tmp_path: Path
) -> None:
    source, out = scales_of_last_shard(tmp_path / "in", 0, code), tmp_path / "out"
    run("requantize", source, out, "--scale-format", "ue8m0")
    found = read_model(out)
    assert found["b.weight_scale_inv"].view(np.uint8)[1, 0] == 0
    assert (found["b.weight"].view(np.uint8)[128:, :128] == code).all()


def test_scales_of_zero_beside_padding_are_found_in_this_library_s_convention(
    tmp_path: Path,
) -> None:
    plain = write_model(tmp_path / "plain", [{"a.weight": np.ones((128, 640), np.float32)}])
    run("quantize", plain, tmp_path / "in", "--scheme", "fp8_block128x128_e4m3")
    job = ("requantize", tmp_path / "in", tmp_path / "out", "--scale-format", "ue8m0")
    assert run_json(*job)["values_rounded"] == 0
    file = tmp_path / "in" / "model-00001-of-00001.safetensors"
    tensors, metadata = read_file(file)
    tensors["a.weight.rowwise_scale_inv"] = np.zeros((1, 8), np.float32)
    write_file(file, tensors, metadata)
    refused = run(*job, "--overwrite", code=2).stderr
    assert "'a.weight': the scale of the tile [0, 0] must be positive and finite" in refused


def test_a_resumed_run_says_nothing_of_values_that_it_did_not_see(tmp_path: Path) -> None:
    tensors, config, _ = case("deepseek")
    other = {name.replace("a.", "b.", 1): array for name, array in tensors.items()}
    source, out = write_model(tmp_path / "in", [tensors, other], config), tmp_path / "out"
    job = ("requantize", source, out, "--scale-format", "ue8m0")
    assert run_json(*job, "--part", "1/2")["values_changed"] > 0
    part = run_json(*job, "--part", "1/2")
    assert (part["files_written"], part["files_skipped"]) == (0, 1)
    lost = ("values_rounded", "values_changed", "largest_relative_change")
    assert [part[key] for key in lost] == [None] * 3
    said = run(*job).stdout
    assert said.endswith("changes of values are unknown, because files were already there\n")


def test_tensors_that_are_left_count_in_their_part_alone(tmp_path: Path) -> None:
    exponents = np.full((200, 10), 120, np.uint8)
    exponents[150, 5] = 140
    fp4 = {
        "e.experts.0.w1.weight": packed((200, 320))[0].view(np.int8),
        "e.experts.0.w1.scale": exponents.view(E8M0),
    }
    fp8 = {"a.weight": codes((256, 512)), "a.scale": powers((2, 4)).view(E8M0)}
    config = method("fp8", weight_block_size=[128, 128], expert_dtype="fp4", scale_fmt="ue8m0")
    source, out = write_model(tmp_path / "in", [fp8, fp4], config), tmp_path / "out"
    job = ("requantize", source, out, "--scale-format", "ue8m0", "--to", "deepseek-v4",
           "--leave-misfits", "--part")  # fmt: skip
    found = [run_json(*job, part) for part in ("1/2", "2/2")]
    counts = [(part["tensors_requantized"], part["tensors_left"]) for part in found]
    assert counts == [(1, 0), (0, 1)]


def test_other_formats_are_refused(tmp_path: Path) -> None:
    tensors, config, _ = case("mxfp8")
    source = write_model(tmp_path / "in", [tensors], config)
    arguments = ("requantize", source, tmp_path / "out", "--scale-format", "ue8m0")
    assert run(*arguments, code=3).stderr == (
        "narrowfloat: requantize: 'a.weight' (e4m3 1x32 F8_E8M0) must be MXFP4 or block FP8 to "
        "become block FP8; dequantize takes any\n"
    )


def test_experts_of_gpt_oss_are_quantized_along_their_inputs(tmp_path: Path) -> None:
    name = "model.layers.0.mlp.experts.gate_up_proj"
    experts = np.random.default_rng(8).standard_normal((3, 96, 64)).astype(np.float32)
    tensors = {name: experts, "a.q_proj.weight": experts[0], "b.experts.w1.weight": experts[0]}
    source = write_model(tmp_path / "in", [tensors], {"model_type": "gpt_oss", "dtype": "float32"})
    out = tmp_path / "out"
    done = run_json("quantize", source, out, "--scheme", "mxfp4", "--convention", "mxfp4")
    assert (done["tensors_quantized"], done["tensors_copied"]) == (1, 2)
    assert read_model(out)[f"{name}_blocks"].shape == (3, 64, 3, 16)
    assert read_model(out)[f"{name}_scales"].shape == (3, 64, 3)
    run("dequantize", out, tmp_path / "values")
    values = read_model(tmp_path / "values")[name]
    for found, expert in zip(values, experts, strict=True):
        turned = np.ascontiguousarray(expert.T)
        assert found.T.tobytes() == nf.quantize(turned, "mxfp4").dequantize().tobytes()
    run("requantize", out, tmp_path / "no", "--scale-format", "ue8m0", code=3)


EXPERTS = "model.layers.0.mlp.experts.gate_up_proj"


def gpt_oss(folder: Path) -> Path:
    tensors = {
        f"{EXPERTS}_blocks": np.full((2, 128, 4, 16), 0x22, np.uint8),
        f"{EXPERTS}_scales": np.full((2, 128, 4), 120, np.uint8),
    }
    return write_model(folder, [tensors], {"quantization_config": {"quant_method": "mxfp4"}})


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (
            "fp8",
            f"'{EXPERTS}' must be stored as [outputs, inputs] to be written as fp8 block, got "
            "shape 2x128x128 of [.., inputs, outputs]",
        ),
        (
            "deepseek-v4",
            f"'{EXPERTS}' (e4m3 matrix F32) has no form in 'deepseek-v4' with the same codes",
        ),
        (
            "narrowfloat",
            "OUT must be in another convention than this library's own, got 'narrowfloat'; "
            "convert --to narrowfloat takes the result of --to fp8",
        ),
    ],
)
def test_the_experts_of_gpt_oss_become_no_block_fp8(
    tmp_path: Path, target: str, message: str
) -> None:
    options = ("--scale-format", "f32", "--to", target)
    refused = run("requantize", gpt_oss(tmp_path / "in"), tmp_path / "out", *options, code=3)
    assert refused.stderr == f"narrowfloat: requantize: {message}\n"
    assert not (tmp_path / "out").exists()


def test_an_invalid_number_of_threads_is_refused_before_anything_is_written(
    tmp_path: Path,
) -> None:
    tensors = {
        "plain": np.zeros(4, np.float32),
        "z.weight": codes((128, 128)),
        "z.weight_scale_inv": np.full((1, 1), 0.3, np.float32),
    }
    source, out = write_model(tmp_path / "in", [tensors], method("fp8")), tmp_path / "out"
    refused = run(
        "requantize", source, out, "--scale-format", "ue8m0",
        code=2, env=os.environ | {"NF_NUM_THREADS": "many"},
    )  # fmt: skip
    assert refused.stderr == (
        "narrowfloat: threads: NF_NUM_THREADS must be an integer from 1 to 2147483647, got 'many'\n"
    )
    assert not out.exists()
