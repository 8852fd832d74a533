# SPDX-License-Identifier: Apache-2.0
"""Tests models that conversions refuse: without weights, of empty tensors, of integers, with
scales that no scheme supports.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cli import run, run_json, write_file
from foreign_model import E4M3, Tensors, codes, method, packed, powers, scales, write_model

import narrowfloat as nf

TARGETS = ["fp8", "modelopt", "compressed-tensors", "deepseek-v4", "narrowfloat"]
FROZEN = method("compressed-tensors", quantization_status="frozen")


@pytest.mark.parametrize("to", TARGETS)
@pytest.mark.parametrize("kind", ["frozen", "file"])
def test_a_model_without_quantized_weights_is_refused(tmp_path: Path, kind: str, to: str) -> None:
    tensors = {"a.weight": np.ones((64, 64), np.float32)}
    if kind == "frozen":
        source, out = write_model(tmp_path / "in", [tensors], FROZEN), tmp_path / "out"
        more: tuple[str, ...] = ()
    else:
        source = write_file(tmp_path / "in.safetensors", tensors)
        out, more = tmp_path / "out.safetensors", ("--from", "modelopt")
    done = run("convert", source, out, "--to", to, *more, code=2)
    message = {
        "file": f"{source} must have at least one tensor to convert, got none",
        "frozen": f"IN must hold quantized tensors, {source} has none: config.json states that "
        "weights are quantized, but no tensor holds codes; if they are floats, remove its "
        "quantization_config",
    }
    assert done.stderr == f"narrowfloat: convert: {message[kind]}\n"
    assert not out.exists()


EMPTY = {"no rows": (0, 64), "no columns": (64, 0), "no matrices": (0, 32, 64)}
SCHEMES = {"fp8_e4m3": "fp8", "fp8_block128x128_e4m3": "fp8", "mxfp8_e4m3": "modelopt",
           "mxfp4": "compressed-tensors", "nvfp4": "compressed-tensors"}  # fmt: skip


@pytest.mark.parametrize("shape", EMPTY.values(), ids=EMPTY)
@pytest.mark.parametrize(("scheme", "to"), SCHEMES.items())
def test_empty_tensors_have_no_other_convention(
    tmp_path: Path, scheme: str, to: str, shape: tuple[int, ...]
) -> None:
    source = write_file(tmp_path / "in.safetensors", {"a.weight": np.zeros(shape, np.float32)})
    ours, out = tmp_path / "q.safetensors", tmp_path / "out.safetensors"
    run("quantize", source, ours, "--scheme", scheme, "--include", "*")
    assert run_json("check", ours)["findings"] == []
    message = (
        f"'a.weight' must be a matrix or a stack of matrices that is not empty to be written in "
        f"'{to}', got shape {'x'.join(map(str, shape))}"
    )
    assert message in run("convert", ours, out, "--to", to, code=3).stderr
    direct = ("quantize", source, out, "--scheme", scheme, "--include", "*", "--convention", to)
    assert message in run(*direct, code=3).stderr
    assert not out.exists()
    with pytest.raises(NotImplementedError, match="a stack of matrices that is not empty"):
        nf.save(out, nf.load(ours), convention=to)


@pytest.mark.parametrize("shape", [(0, 16, 2), (0, 16), (16, 0)])
@pytest.mark.parametrize("to", TARGETS)
def test_empty_tensors_of_cast_models_are_refused(
    tmp_path: Path, shape: tuple[int, ...], to: str
) -> None:
    source = write_file(tmp_path / "in.safetensors", {"a.weight": np.zeros(shape, E4M3)})
    out = tmp_path / "out.safetensors"
    refused = run("convert", source, out, "--to", to, "--from", "unscaled-fp8", code=3)
    assert "convert: 'a.weight'" in refused.stderr and not out.exists()


@pytest.mark.parametrize(
    ("scheme", "to"),
    [("nvfp4", "compressed-tensors"), ("mxfp8_e4m3", "modelopt"), ("mxfp4", "deepseek-v4")],
)
def test_tensors_of_four_dimensions_have_no_other_convention(
    tmp_path: Path, scheme: str, to: str
) -> None:
    tensors = {"a.weight": np.ones((2, 2, 32, 32), np.float32)}
    source, out = write_file(tmp_path / "in.safetensors", tensors), tmp_path / "out.safetensors"
    choice = ("--scheme", scheme, "--include", "*")
    run("quantize", source, tmp_path / "q.safetensors", *choice)
    message = f"not empty to be written in '{to}', got shape 2x2x32x32"
    for command in (("convert", tmp_path / "q.safetensors", out, "--to", to),
                    ("quantize", source, out, *choice, "--convention", to)):  # fmt: skip
        assert message in run(*command, code=3).stderr
    assert not out.exists()


@pytest.mark.parametrize(
    ("scheme", "to", "block"),
    [("nvfp4", "compressed-tensors", 16), ("nvfp4", "modelopt", 16), ("mxfp8_e4m3", "fp8", 32),
     ("mxfp8_e4m3", "modelopt", 32), ("mxfp4", "compressed-tensors", 32)],
)  # fmt: skip
def test_rows_that_end_within_a_block_have_no_other_convention(
    tmp_path: Path, scheme: str, to: str, block: int
) -> None:
    """Checks 48 values per row: transformers spreads two scales over them, others refuse them."""
    tensors = {"a.weight": np.ones((64, block * 3 // 2), np.float32)}
    source, out = write_file(tmp_path / "in.safetensors", tensors), tmp_path / "out.safetensors"
    ours = tmp_path / "q.safetensors"
    run("quantize", source, ours, "--scheme", scheme)
    rule = f"'a.weight' must have rows of whole blocks of {block} values to be written in '{to}'"
    rule += f", got rows of {block * 3 // 2}"
    for command in (("convert", ours, out, "--to", to),
                    ("quantize", source, out, "--scheme", scheme, "--convention", to)):  # fmt: skip
        assert run(*command, code=3).stderr == f"narrowfloat: {command[0]}: {rule}\n"
    assert not out.exists()
    with pytest.raises(NotImplementedError, match=rule):
        nf.save(out, nf.load(ours), convention=to)


def test_experts_of_gpt_oss_have_inputs_in_whole_blocks(tmp_path: Path) -> None:
    """Checks whole blocks, because the codes of a block are a separate dimension."""
    name = "model.layers.0.mlp.experts.gate_up_proj"
    source = write_model(tmp_path / "in", [{name: np.ones((2, 48, 64), np.float32)}])
    (source / "config.json").write_text('{"model_type": "gpt_oss"}')
    out, scheme = tmp_path / "out", ("--scheme", "mxfp4", "--convention", "mxfp4")
    assert run("quantize", source, out, *scheme, code=3).stderr == (
        f"narrowfloat: quantize: '{name}' must have rows of whole blocks of 32 values to be "
        "written in 'mxfp4', got rows of 48\n"
    )
    assert not out.exists()


@pytest.mark.parametrize("shape", [(32,), ()])
@pytest.mark.parametrize("to", ["fp8", "modelopt", "compressed-tensors", "narrowfloat"])
def test_vectors_of_cast_models_are_refused(
    tmp_path: Path, shape: tuple[int, ...], to: str
) -> None:
    tensors = {"a.weight": codes((32, 32)), "b.weight": codes(shape)}
    source, out = write_file(tmp_path / "in.safetensors", tensors), tmp_path / "out.safetensors"
    refused = run("convert", source, out, "--to", to, code=3)
    assert "'b.weight'" in refused.stderr and not out.exists()


def scaled_twice(kind: str) -> tuple[Tensors, dict]:
    """Returns a weight with a scale 4 of the whole tensor, which its scheme does not have."""
    if kind == "mxfp4":
        tensors = {"a.weight_packed": packed((64, 64))[0], "a.weight_scale": powers((64, 2))}
        tensors["a.weight_global_scale"] = np.full(1, 4, np.float32)
        return tensors, method("compressed-tensors")
    scale = scales(()) if kind == "tensor" else scales((1, 1))
    tensors = {"a.weight": codes((64, 64)), "a.weight_scale": np.asarray(scale, np.float32)}
    tensors["a.weight_scale_2"] = np.float32(4).reshape(())
    return tensors, method("modelopt")


@pytest.mark.parametrize("kind", ["mxfp4", "tensor", "tile"])
def test_a_scale_of_the_whole_tensor_is_not_lost(tmp_path: Path, kind: str) -> None:
    tensors, config = scaled_twice(kind)
    source, out = write_model(tmp_path / "in", [tensors], config), tmp_path / "out"
    refused = run("convert", source, out, "--to", "narrowfloat", code=3)
    message = "has no scheme with such blocks and scales; dequantize, in Python dtype=, gives its"
    assert message in refused.stderr and not out.exists()
    with pytest.raises(NotImplementedError, match="has no scheme with such blocks and scales"):
        nf.load(source, from_="auto")["a.weight"]
    without = {key: value for key, value in tensors.items() if "global" not in key}
    without.pop("a.weight_scale_2", None)
    once = write_model(tmp_path / "once", [without], config)
    run("dequantize", source, tmp_path / "values", "--dtype", "f32")
    values = nf.load(tmp_path / "values")["a.weight"]
    expected = nf.load(once, from_="auto", dtype="float32")["a.weight"]
    assert np.array_equal(values, expected * np.float32(0.25 if kind == "mxfp4" else 4))


GROUPS = {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, "strategy": "channel"}}}
ROTATION = {"type": "hadamard", "apply": [{"targets": ["Linear"], "location": "input"}]}


@pytest.mark.parametrize("place", ["quantization_config", "compression_config", "text_config"])
def test_rotated_weights_are_refused(tmp_path: Path, place: str) -> None:
    """Checks weights whose layers rotate inputs at run time; nothing else has such weights."""
    tensors = {"a.weight": codes((64, 64)), "a.weight_scale": scales((64, 1))}

    def source(transforms: object) -> Path:
        more = {"config_groups": GROUPS, "transform_config": transforms}
        config = method("compressed-tensors", format="float-quantized", **more)
        quantization = config.pop("quantization_config")
        nested = {"quantization_config": quantization}
        config[place] = nested if place == "text_config" else quantization
        return write_model(tmp_path / f"in{len(list(tmp_path.iterdir()))}", [tensors], config)

    rotated, out = source({"config_groups": {"R1": ROTATION}}), tmp_path / "out"
    message = f"read: {rotated}: transform_config is not supported, it changes what weights mean"
    for command in (("dequantize", rotated, out), ("convert", rotated, out, "--to", "modelopt"),
                    ("check", rotated), ("inspect", rotated)):  # fmt: skip
        refused = run(*command, code=3)
        assert refused.stderr == f"narrowfloat: {message}\n" and refused.stdout == ""
    with pytest.raises(NotImplementedError, match="transform_config is not supported"):
        nf.load(rotated, from_="auto")["a.weight"]
    assert (
        message.replace(str(rotated), str(unknown := source([ROTATION])))
        in run("check", unknown, code=3).stderr
    ), "another form of the key"
    for transforms in (None, {}, {"config_groups": {}}):
        assert run_json("convert", source(transforms), out, "--to", "modelopt", "--overwrite")


@pytest.mark.parametrize("owner", ["compressed-tensors", "quark", "modelopt"])
@pytest.mark.parametrize("dtype", [np.int8, np.float32, E4M3])
def test_zero_points_of_float_codes_must_be_zero(tmp_path: Path, owner: str, dtype: type) -> None:
    tensors = {"a.weight": codes((64, 64)), "a.weight_scale": scales((64, 1))}
    source = write_model(tmp_path / "in", [tensors], method(owner))
    zeros = tensors | {"a.weight_zero_point": np.zeros((64, 1), dtype)}
    zero = write_model(tmp_path / "zero", [zeros], method(owner))
    for folder in (source, zero):
        run("dequantize", folder, tmp_path / f"{folder.name}_values")
    converted = run_json("convert", zero, tmp_path / "out", "--to", "compressed-tensors")
    assert converted["tensors_dropped"] == 1 and converted["tensors_copied"] == 0
    assert run_json("diff", tmp_path / "in_values", tmp_path / "zero_values")["equal"] == 1
    zeros["a.weight_zero_point"] = np.zeros(70000, dtype)  # read in several pieces
    zeros["a.weight_zero_point"][-1] = 3
    refused = run("check", write_model(tmp_path / "three", [zeros], method(owner)), code=3).stderr
    assert "'a.weight_zero_point' is not supported, it changes what its weight means" in refused


# By name: a tensor to be copied beside the weights: type, target, exit code, message.
COPIES = {
    "stray": (E4M3, "modelopt", 2, "(F8_E4M3) must be a part of a weight, 'modelopt' has none of "
              "its name"),
    "b.weight": (np.uint8, "fp8", 2, "(U8) must have another name to be copied, in 'fp8' it is a "
                 "part of a weight"),
    "lm_head.weight_scale": (np.float32, "modelopt", 2, "(F32) must have another name to be "
                             "copied, in 'modelopt' it is a part of a weight"),
    "norm.weight_scale_inv": (np.float32, "fp8", 2, "(F32) must have another name to be copied, in "
                              "'fp8' it is a part of a weight"),
    "x.pre_quant_scale": (np.float32, "modelopt", 3, "is not supported, it changes what its weight "
                          "means"),
    "x.weight_zero_point": (np.int8, "compressed-tensors", 3, "is not supported, it changes what "
                            "its weight means"),
}  # fmt: skip
KINDS: dict[int, type[Exception]] = {2: ValueError, 3: NotImplementedError}


@pytest.mark.parametrize("name", COPIES)
def test_copies_that_the_result_would_not_be_read_with_are_refused(
    tmp_path: Path, name: str
) -> None:
    dtype, to, code, text = COPIES[name]
    scheme, out = "fp8_block128x128_e4m3", tmp_path / "out.safetensors"
    weight = {"a.weight": np.ones((128, 128), np.float32)}
    stray = {name: np.ones(4, dtype)}
    ours = tmp_path / "ours.safetensors"
    nf.save(ours, {"a.weight": nf.quantize(weight["a.weight"], scheme)} | stray)
    message = f"narrowfloat: {{}}: '{name}' {text}\n"
    refused = run("convert", ours, out, "--to", to, code=code)
    assert refused.stderr == message.format("convert") and not out.exists()
    if to == "fp8":
        again = ("requantize", ours, out, "--to", to, "--scale-format", "f32")
        assert run(*again, code=code).stderr == message.format("requantize") and not out.exists()
    with pytest.raises(KINDS[code], match="save: '"):
        nf.save(out, nf.load(ours), convention=to)
    assert not out.exists()
    if dtype is E4M3:
        return  # `quantize` accepts no model with codes
    source = write_file(tmp_path / "in.safetensors", weight | stray)
    direct = ("quantize", source, out, "--scheme", scheme, "--convention", to)
    assert run(*direct, code=code).stderr == message.format("quantize") and not out.exists()


def test_parts_of_a_weight_are_no_copies(tmp_path: Path) -> None:
    """Checks names that are scales in one convention, and plain tensors in another."""
    tensors = {"a.weight": codes((128, 128)), "a.weight_scale": scales((1, 1))}
    tensors |= {"norm.weight_scale_inv": scales((4,)), "norm.scale": scales((4,))}
    source = write_model(tmp_path / "in", [tensors], method("compressed-tensors"))
    refused = run("convert", source, tmp_path / "out", "--to", "fp8", code=2).stderr
    assert "'norm.weight_scale_inv' (F32) must have another name to be copied" in refused
    assert run_json("convert", source, tmp_path / "out", "--to", "modelopt")["complete"]
    assert run_json("inspect", tmp_path / "out")["convention"] == "modelopt"


INTEGERS: dict[str, tuple[Tensors, dict, str, str]] = {
    "pack-quantized": (
        {"a.weight_packed": np.zeros((64, 8), np.int32), "a.weight_shape": np.array([64, 64]),
         "a.weight_scale": scales((64, 2))},
        method("compressed-tensors", format="pack-quantized"), "a.weight_packed", "I32",
    ),
    "int-quantized": (
        {"a.weight": np.zeros((64, 64), np.int8), "a.weight_scale": scales((64, 1))},
        method("compressed-tensors", format="int-quantized"), "a.weight", "I8",
    ),
    "W4A16_AWQ": (
        {"a.weight": np.zeros((32, 64), np.uint8), "a.weight_scale": scales((64, 1))},
        method("modelopt", quant_algo="W4A16_AWQ"), "a.weight", "U8",
    ),
    "with integers": (
        {"a.weight": np.zeros((64, 64), np.int8), "a.weight_scale": scales((64, 1))},
        method("quark"), "a.weight", "I8",
    ),
}  # fmt: skip


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("name", INTEGERS)
def test_weights_of_integers_are_unsupported(tmp_path: Path, name: str, nested: bool) -> None:
    tensors, config, part, dtype = INTEGERS[name]
    source = write_model(tmp_path / "in", [tensors], {"text_config": config} if nested else config)
    owner = config["quantization_config"]["quant_method"]
    message = (
        f"{source} is written as '{owner} {name}' ({part}: {dtype} codes that are integers), this "
        "build reads narrowfloat, fp8,"
    )
    out = tmp_path / "out"
    for command in (("dequantize", source, out), ("convert", source, out, "--to", "modelopt"),
                    ("check", source)):  # fmt: skip
        refused = run(*command, code=3)
        assert message in refused.stderr and refused.stdout == ""
    with pytest.raises(NotImplementedError, match="codes that are integers"):
        nf.load(source, from_="auto")["a.weight"]
    inspected = run_json("inspect", source)
    assert inspected["convention"] == f"{owner} {name}"
    assert {tensor["name"] for tensor in inspected["tensors"]} == set(tensors)
    assert inspected["bits_per_parameter"] is None
    said = run("dequantize", source, out, "--from", owner, code=3)
    assert f"'{part}' ({dtype}) is not supported, its codes are integers" in said.stderr
    assert not out.exists()
