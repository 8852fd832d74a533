# SPDX-License-Identifier: Apache-2.0
"""Reads, writes and converts checkpoints in other projects' conventions by the command line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from cli import folder_bytes, run, run_json
from foreign_cases import CASES, case
from foreign_model import (
    BF16,
    E4M3,
    codes,
    method,
    powers,
    read_model,
    scales,
    write_model,
)

import narrowfloat as nf


@pytest.mark.parametrize("name", CASES)
def test_dequantize_gives_code_times_scale(tmp_path: Path, name: str) -> None:
    tensors, config, expected = case(name)
    plain = {"norm.weight": np.ones(5, np.float32)}
    first = dict([next(iter(tensors.items()))])
    rest = {key: value for key, value in tensors.items() if key not in first} | plain
    source = write_model(tmp_path / "in", [first, rest], config)  # scales in another shard
    (source / "hf_quant_config.json").write_text("{}")
    run("dequantize", source, tmp_path / "out", "--dtype", "f32")
    found = read_model(tmp_path / "out")
    assert found.keys() == (expected | plain).keys()
    for key, value in (expected | plain).items():
        assert found[key].dtype == np.float32 and found[key].tobytes() == value.tobytes(), key
    left = json.loads((tmp_path / "out" / "config.json").read_text()) if config else {}
    assert left == ({"dtype": "float32"} if config else {})
    assert not (tmp_path / "out" / "hf_quant_config.json").exists()
    run("dequantize", source, tmp_path / "bf16", "--dtype", "bf16")
    for key, value in expected.items():
        assert read_model(tmp_path / "bf16")[key].tobytes() == value.astype(BF16).tobytes()


@pytest.mark.parametrize("name", CASES)
def test_inspect_counts_weights_and_not_buffers(tmp_path: Path, name: str) -> None:
    tensors, config, expected = case(name)
    source = write_model(tmp_path / "in", [tensors], config)
    inspected = run_json("inspect", source)
    quantized = [tensor for tensor in inspected["tensors"] if tensor["quantized"]]
    assert {tensor["name"]: tuple(tensor["shape"]) for tensor in quantized} == {
        key: value.shape for key, value in expected.items()
    }
    assert inspected["parameters"] == sum(value.size for value in expected.values())
    assert inspected["bits_per_parameter"] == pytest.approx(
        8 * inspected["bytes"] / inspected["parameters"]
    )
    refused = run("quantize", source, tmp_path / "q", "--scheme", "nvfp4", code=2).stderr
    assert refused.startswith(
        f"narrowfloat: quantize: IN must be a float checkpoint, {source} is already quantized as '"
    )


@pytest.mark.parametrize(
    ("name", "lost", "message"),
    [
        ("deepseek", "a.weight_scale_inv",
         "'a.weight' holds codes and needs its scale 'a.weight_scale_inv', which is missing"),
        ("deepseek", "a.weight",
         "'a.weight_scale_inv' is a scale and needs its codes, which are missing"),
        ("nv modelopt", "a.weight_scale_2",
         "'a.weight_scale' needs a scale of the whole tensor beside it, which is missing"),
        ("nv ct", "a.weight_global_scale",
         "'a.weight_scale' needs a scale of the whole tensor beside it, which is missing"),
        ("gpt-oss", "experts.gate_up_proj_scales",
         "holds codes and needs its scale 'experts.gate_up_proj_scales', which is missing"),
    ],
)  # fmt: skip
def test_a_missing_part_is_an_error(tmp_path: Path, name: str, lost: str, message: str) -> None:
    tensors, config, _ = case(name)
    whole = {f"b.{key}": value for key, value in tensors.items()}
    broken = {key: value for key, value in tensors.items() if key != lost}
    source = write_model(tmp_path / "in", [whole | broken], config)
    for command in (("dequantize", source, tmp_path / "out"), ("inspect", source)):
        assert message in run(*command, code=2).stderr
    assert not (tmp_path / "out").exists()


CACHE_SCALES = [
    ("compressed-tensors", "fp8", "l.0.self_attn.k_scale", "l.0.self_attn.v_scale"),
    ("compressed-tensors", "fp8", "l.0.attention.k_scale", "l.0.attention.v_scale"),
    ("modelopt", "compressed-tensors", "l.0.attn.k_proj.k_scale", "l.0.attn.v_proj.v_scale"),
    ("fp8", "compressed-tensors", "l.0.attn.k_scale", "l.0.attn.v_scale"),
    ("fp8", "compressed-tensors", "l.0.attn.k_proj.output_scale", "l.0.attn.v_proj.output_scale"),
    ("fp8", "compressed-tensors", "l.0.attn.q_proj.output_scale", "l.0.attn.prob_output_scale"),
    ("quark", "compressed-tensors", "l.0.a.k_proj.output_scale", "l.0.a.v_proj.output_scale"),
    ("mxfp8", "compressed-tensors", "l.0.self_attn.k_scale", "l.0.self_attn.v_scale"),
    ("quark", "compressed-tensors", "l.0.self_attn.q_scale", "l.0.self_attn.prob_scale"),
    ("compressed-tensors", "fp8", "l.0.attn.qkv_proj.k_scale", "l.0.self_attn.kv_scale"),
    ("compressed-tensors", "fp8", "l.0.attn.k_global_scale", "l.0.attn.v_global_scale"),
    ("compressed-tensors", "fp8", "l.0.attn.k_zero_point", "l.0.attn.q_proj.q_scale"),
    ("compressed-tensors", "fp8", "l.0.a.kv_b_proj.k_scale", "l.0.a.kv_a_proj_with_mqa.k_scale"),
]


@pytest.mark.parametrize(("owner", "to", "keys", "values"), CACHE_SCALES)
def test_scales_of_a_kv_cache_are_dropped(
    tmp_path: Path, owner: str, to: str, keys: str, values: str
) -> None:
    scale = "a.weight_scale_inv" if owner == "fp8" else "a.weight_scale"
    tensors = {"a.weight": codes((200, 320)), scale: np.full((), 0.3, np.float32)}
    one = np.ones(1, np.float32)
    # Parameters whose names end similarly are the model's own.
    own = {"l.0.mask_scale": one, "l.0.k_scale": one, "l.0.self_attn.block_k_scale": one}
    own |= {"l.0.mlp.down_proj.output_scale": one, "l.0.mlp.prob_scale": one, "k_scale": one}
    config = method(owner, kv_cache_scheme={"num_bits": 8, "type": "float"})
    source = write_model(tmp_path / "in", [tensors | own | {keys: one, values: one}], config)
    message = "2 tensors dropped: scales of activations or of a KV cache, zero points, or markers\n"
    assert message in run("convert", source, tmp_path / "out", "--to", to).stdout
    assert message in run("dequantize", source, tmp_path / "plain").stdout
    for folder in ("out", "plain"):
        found = read_model(tmp_path / folder)
        assert found.keys() - {"a.weight", "a.weight_scale", "a.weight_scale_inv"} == own.keys()
    text = (tmp_path / "out" / "config.json").read_text()
    assert not json.loads(text)["quantization_config"].get("kv_cache_scheme")


def test_scales_of_other_shapes_are_an_error(tmp_path: Path) -> None:
    tensors = {"a.weight": codes((200, 320)), "a.weight_scale_inv": scales((3, 2))}
    source = write_model(tmp_path / "in", [tensors], method("fp8"))
    message = "'a.weight_scale_inv' of F32 3x2 must have one scale for each block of 'a.weight' "
    message += "(F8_E4M3 200x320): 2x3 for blocks of 128x128 or 1x1 for blocks of 200x320 or "
    message += "200x1 for blocks of 1x320 or 200x3 for blocks of 1x128\n"
    assert message in run("inspect", source, code=2).stderr


@pytest.mark.parametrize("owner", ["compressed-tensors", "quark"])
def test_mxfp6_is_unsupported(tmp_path: Path, owner: str) -> None:
    name = "a.weight" if owner == "quark" else "a.weight_packed"
    tensors = {name: powers((64, 96)), "a.weight_scale": powers((64, 4))}  # 128 codes of 6 bits
    config = method(owner, format="mxfp6-pack-quantized")
    source = write_model(tmp_path / "in", [tensors], config)
    refused = run("dequantize", source, tmp_path / "out", code=3).stderr
    assert f"'{name}' (U8 64x96) is not supported, its scales are those of MXFP6" in refused


def test_numbers_that_json_lacks_stay_in_config_json(tmp_path: Path) -> None:
    tensors, config, _ = case("deepseek")
    more = {"z": [0.0, float("inf")], "b": {"x": -float("inf"), "a": float("nan")}, "t": "NaN, 1"}
    source = write_model(tmp_path / "in", [tensors], {**more, **config, "e": 1e-5, "n": None})
    text = (source / "config.json").read_text()
    assert "Infinity" in text and "NaN" in text
    run("dequantize", source, tmp_path / "out")
    written = (tmp_path / "out" / "config.json").read_text()
    expected = {**more, "dtype": "float32", "e": 1e-5, "n": None}
    assert repr(json.loads(written)) == repr(expected), "in their order, NaN as NaN"
    run("quantize", tmp_path / "out", tmp_path / "q", "--scheme", "mxfp8_e4m3")
    again = json.loads((tmp_path / "q" / "config.json").read_text())
    assert again.pop("quantization_config")["quant_method"] == "narrowfloat"
    assert repr(again) == repr(expected)
    text = '{"length": 1000000000000000019884624838656, "eps":1e-05,\n   "dtype": "float32" }'
    (tmp_path / "out" / "config.json").write_text(text)
    run("quantize", tmp_path / "out", tmp_path / "kept", "--scheme", "mxfp8_e4m3")
    before, _, after = (tmp_path / "kept" / "config.json").read_text().partition(', "quantization')
    assert before + after[after.rindex("}") - 1 :] == text, "nothing else changes"
    for wrong in ('{"a": Inf}', "{NaN: 1}", '{"a": NaN1}', '{"a": -NaN}', '{"a": NaN NaN}'):
        (source / "config.json").write_text(wrong)
        assert "must be JSON, got a syntax error" in run("inspect", source, code=2).stderr


def test_from_names_the_convention(tmp_path: Path) -> None:
    tensors, _, expected = case("nv modelopt")
    source = write_model(tmp_path / "in", [tensors], method("nobodys"))
    assert "is written as 'nobodys'" in run("dequantize", source, tmp_path / "o", code=3).stderr
    run("dequantize", source, tmp_path / "o", "--from", "modelopt", "--dtype", "f32")
    assert read_model(tmp_path / "o")["a.weight"].tobytes() == expected["a.weight"].tobytes()


CONVERSIONS = [
    ("deepseek", "compressed-tensors", "FP8_BLOCK"), ("deepseek", "modelopt", "FP8_PB_WO"),
    ("deepseek ue8m0", "fp8", "block ue8m0"), ("tensor", "compressed-tensors", "FP8"),
    ("tensor", "modelopt", "FP8"), ("mxfp8", "compressed-tensors", "MXFP8"),
    ("mxfp8", "modelopt", "MXFP8"), ("rows", "compressed-tensors", "FP8_DYNAMIC"),
    ("ct bf16 scale", "modelopt", "FP8_PER_CHANNEL_PER_TOKEN"),
    ("nv ct", "modelopt", "W4A16_NVFP4"),
    ("nv modelopt", "compressed-tensors", "NVFP4"), ("deepseek-v4", "compressed-tensors", "MXFP4"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "to", "form"), CONVERSIONS)
def test_convert_keeps_codes_and_scales(tmp_path: Path, name: str, to: str, form: str) -> None:
    tensors, config, expected = case(name)
    plain = {"head.weight": np.ones((4, 4), np.float32)}
    source = write_model(tmp_path / "in", [tensors | plain], config)
    converted = run_json("convert", source, tmp_path / "out", "--to", to)
    assert (converted["to"], converted["format"], converted["tensors_converted"]) == (to, form, 1)
    inspected = run_json("inspect", tmp_path / "out")
    assert inspected["convention"] in (to, "fp8")
    run("dequantize", tmp_path / "out", tmp_path / "back", "--dtype", "f32")
    found = read_model(tmp_path / "back")["a.weight"]
    if name.startswith("nv"):  # the reciprocal of the tensor's scale rounds once
        # Two roundings of half an ulp each: the reciprocal, and the product with it.
        error = np.abs(found.astype(np.float64) - expected["a.weight"])
        assert np.all(error <= 2.0**-22 * np.abs(expected["a.weight"]))
    else:
        assert found.tobytes() == expected["a.weight"].tobytes()
    quantization = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    ignored = quantization.get("ignore", quantization.get("modules_to_not_convert"))
    assert ignored[0] == "head" and (len(ignored) == 1 or to == "compressed-tensors")
    owner = tmp_path / "out" / "hf_quant_config.json"
    assert owner.exists() == (to == "modelopt")
    if to == "modelopt":
        described = json.loads(owner.read_text())["quantization"]
        assert (described["quant_algo"], described["exclude_modules"]) == (form, ["head"])


@pytest.mark.parametrize("to", ["fp8", "modelopt", "compressed-tensors"])
def test_one_scale_is_one_scale_however_small_the_matrix_is(tmp_path: Path, to: str) -> None:
    """Checks the one format of a model in which a matrix of at most 128x128 may also be a tile."""
    sizes = {"a": (128, 128), "b": (64, 128), "c": (200, 320)}
    tensors = {f"{name}.weight": codes(size) for name, size in sizes.items()}
    whole = {f"{name}.weight_scale": np.float32(0.3).reshape(()) for name in sizes}
    inputs = {f"{name}.input_scale": np.float32(2).reshape(()) for name in sizes}
    source = write_model(tmp_path / "in", [tensors | whole | inputs], method("modelopt"))
    assert run_json("inspect", source)["counts"] == {"e4m3 tensor F32": 3, "F32": 3}
    form = run_json("convert", source, tmp_path / "out", "--to", to)["format"]
    assert form == ("tensor" if to == "fp8" else "FP8")
    run("dequantize", tmp_path / "out", tmp_path / "back", "--dtype", "f32")
    for name, value in read_model(tmp_path / "back").items():
        assert np.array_equal(value, tensors[name].astype(np.float32) * np.float32(0.3))


# The conventions that hold each scheme's codes and scales.
HOLDERS = {
    "fp8_e4m3": ["fp8", "compressed-tensors", "modelopt"],
    "fp8_block128x128_e4m3": ["fp8", "compressed-tensors", "modelopt"],
    "mxfp8_e4m3": ["fp8", "mxfp8", "compressed-tensors", "modelopt"],
    "mxfp4": ["deepseek-v4", "compressed-tensors"],
    "nvfp4": ["compressed-tensors", "modelopt"],
}
PAIRS = [
    (scheme, one, other)
    for scheme, holders in HOLDERS.items()
    for one in holders
    for other in holders
    if one != other
]


@pytest.mark.parametrize(("scheme", "one", "other"), PAIRS)
def test_there_and_back_is_the_identity(tmp_path: Path, scheme: str, one: str, other: str) -> None:
    weight = np.random.default_rng(3).standard_normal((200, 320)).astype(np.float32)
    name = "experts.0.w1.weight"  # DeepSeek-V4 has FP4 for experts alone
    source = write_model(tmp_path / "in", [{name: weight}], {"dtype": "float32"})
    run("quantize", source, tmp_path / "one", "--scheme", scheme, "--convention", one)
    run("convert", tmp_path / "one", tmp_path / "other", "--to", other)
    run("convert", tmp_path / "other", tmp_path / "back", "--to", one)
    before, after = read_model(tmp_path / "one"), read_model(tmp_path / "back")
    assert before.keys() == after.keys()
    for key, value in before.items():
        if key.endswith(("global_scale", "scale_2")):
            # The reciprocal of the reciprocal: two roundings of half an ulp. The ulps of a number
            # and of its reciprocal may differ twofold.
            assert abs(float(after[key].item()) / float(value.item()) - 1) <= 2.0**-23
        else:
            assert after[key].tobytes() == value.tobytes()
    configs = [(tmp_path / name / "config.json").read_text() for name in ("one", "back")]
    assert configs[0] == configs[1]


@pytest.mark.parametrize(("kind", "one", "other"), [
    ("deepseek ue8m0", "fp8", "deepseek-v4"), ("deepseek", "fp8", "modelopt"),
    ("ct mxfp4", "compressed-tensors", "deepseek-v4"),
    ("rows", "compressed-tensors", "modelopt"), ("nv ct", "compressed-tensors", "modelopt"),
])  # fmt: skip
def test_there_and_back_of_any_scales(tmp_path: Path, kind: str, one: str, other: str) -> None:
    tensors, config, _ = case(kind)
    tensors = {f"experts.0.{key}": value for key, value in tensors.items()}
    source = write_model(tmp_path / "in", [tensors], config)
    run("convert", source, tmp_path / "one", "--to", one)
    run("convert", tmp_path / "one", tmp_path / "other", "--to", other)
    run("convert", tmp_path / "other", tmp_path / "back", "--to", one)
    before, after = read_model(tmp_path / "one"), read_model(tmp_path / "back")
    assert before.keys() == after.keys()
    same = [key for key in before if before[key].tobytes() == after[key].tobytes()]
    assert set(before) - set(same) <= {"experts.0.a.weight_global_scale"}


def test_powers_of_two_that_became_floats_are_not_made_powers_again(tmp_path: Path) -> None:
    tensors, config, _ = case("deepseek ue8m0")
    source = write_model(tmp_path / "in", [tensors], config)
    run("convert", source, tmp_path / "ct", "--to", "compressed-tensors")
    done = run_json("convert", tmp_path / "ct", tmp_path / "back", "--to", "fp8")
    assert done["format"] == "block"
    assert run_json("diff", source, tmp_path / "back", code=1)["differences"][0]["values"] == 0
    refused = run("convert", tmp_path / "ct", tmp_path / "no", "--to", "deepseek-v4", code=3)
    assert "has no form in 'deepseek-v4' with the same codes" in refused.stderr


@pytest.mark.parametrize(
    ("scheme", "to"),
    [
        ("fp8_e4m3", "modelopt"), ("fp8_e4m3", "compressed-tensors"), ("fp8_e4m3", "fp8"),
        ("mxfp8_e4m3", "modelopt"), ("mxfp8_e4m3", "compressed-tensors"), ("mxfp8_e4m3", "fp8"),
        ("fp8_block128x128_e4m3", "compressed-tensors"), ("fp8_block128x128_e4m3", "fp8"),
        ("nvfp4", "modelopt"), ("nvfp4", "compressed-tensors"), ("nvfp4_2d", "modelopt"),
    ],
)  # fmt: skip
def test_our_codes_in_other_conventions(tmp_path: Path, scheme: str, to: str) -> None:
    weight = np.random.default_rng(3).standard_normal((200, 320)).astype(np.float32)
    source = write_model(tmp_path / "in", [{"a.weight": weight}], {"dtype": "float32"})
    run("quantize", source, tmp_path / "q", "--scheme", scheme)
    config = json.loads((tmp_path / "q" / "config.json").read_text())
    assert config["quantization_config"] == {"quant_method": "narrowfloat", "spec": scheme}
    run("convert", tmp_path / "q", tmp_path / "c", "--to", to)
    run("dequantize", tmp_path / "q", tmp_path / "a")
    run("dequantize", tmp_path / "c", tmp_path / "b")
    ours, theirs = (read_model(tmp_path / name)["a.weight"] for name in "ab")
    if scheme.startswith("nvfp4"):
        # Roundings on both sides: amax / 2688, its reciprocal if the scale divides, and the
        # product with the block's scale.
        assert np.all(np.abs(ours.astype(np.float64) - theirs) <= 2.0**-21 * np.abs(ours))
    else:
        assert ours.tobytes() == theirs.tobytes()


def test_what_a_convention_cannot_hold_is_unsupported(tmp_path: Path) -> None:
    tensors, config, _ = case("rows")
    source = write_model(tmp_path / "in", [tensors], config)
    assert (
        "has no form in 'fp8'"
        in run("convert", source, tmp_path / "o", "--to", "fp8", code=3).stderr
    )
    assert (
        "'comfyui' can be read but not written"
        in run("convert", source, tmp_path / "o", "--to", "comfyui", code=3).stderr
    )
    assert (
        "unknown convention 'x'"
        in run("convert", source, tmp_path / "o", "--to", "x", code=2).stderr
    )
    assert not (tmp_path / "o").exists() and folder_bytes(source)


@pytest.mark.parametrize(
    ("scheme", "to", "names"),
    [
        ("fp8_block128x128_e4m3", "fp8", {"weight", "weight_scale_inv"}),
        ("mxfp8_e4m3", "compressed-tensors", {"weight", "weight_scale"}),
        ("nvfp4", "modelopt", {"weight", "weight_scale", "weight_scale_2"}),
    ],
)
def test_quantize_into_a_convention(tmp_path: Path, scheme: str, to: str, names: set) -> None:
    weight = np.random.default_rng(3).standard_normal((200, 320)).astype(np.float32)
    source = write_model(tmp_path / "in", [{"a.weight": weight}], {"dtype": "float32"})
    run("quantize", source, tmp_path / "direct", "--scheme", scheme, "--convention", to)
    run("quantize", source, tmp_path / "ours", "--scheme", scheme)
    run("convert", tmp_path / "ours", tmp_path / "converted", "--to", to)
    direct = folder_bytes(tmp_path / "direct")
    assert direct == folder_bytes(tmp_path / "converted")
    assert read_model(tmp_path / "direct").keys() == {f"a.{name}" for name in names}
    refused = ("quantize", source, tmp_path / "no", "--scheme", "fp8_block1x128_e4m3")
    assert "no other convention holds" in run(*refused, "--convention", to, code=3).stderr
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize("to", ["fp8", "compressed-tensors", "modelopt"])
def test_a_stated_block_stays_one_if_a_matrix_has_its_size(tmp_path: Path, to: str) -> None:
    random = np.random.default_rng(4)
    tensors = {
        f"{rows}.weight": random.standard_normal((rows, 128)).astype(np.float32)
        for rows in (64, 128, 256)
    }
    model = write_model(tmp_path / "in", [tensors])
    scheme = ("--scheme", "fp8_block128x128_e4m3")
    run("quantize", model, tmp_path / "own", *scheme)
    run("quantize", model, tmp_path / "other", *scheme, "--convention", to)
    found = run_json("inspect", tmp_path / "other")["tensors"]
    assert {tensor["format"] for tensor in found} == {"e4m3 128x128 F32"}
    run("convert", tmp_path / "other", tmp_path / "back", "--to", "narrowfloat")
    back, own = nf.load(tmp_path / "back"), nf.load(tmp_path / "own")
    for name, q in own.items():
        assert back[name].scheme == q.scheme == scheme[1]
        np.testing.assert_array_equal(back[name].buffers["rowwise_data"], q.buffers["rowwise_data"])


def test_diff_tells_bytes_and_values_apart(tmp_path: Path) -> None:
    tensors, config, _ = case("deepseek")
    tensors["norm.weight"] = np.ones(5, np.float32)
    same = write_model(tmp_path / "a", [tensors], config)
    assert run_json("diff", same, same) == {
        "a": str(same), "b": str(same), "equal": 2, "differences": [],
    }  # fmt: skip
    run("convert", same, tmp_path / "ct", "--to", "compressed-tensors")
    assert run_json("diff", same, tmp_path / "ct")["differences"] == [], "the same codes and scales"
    other = dict(tensors) | {"extra": np.ones(2, np.float32)}
    norm = np.ones(5, np.float32)
    norm[3] = 1.5
    other["norm.weight"] = norm
    bits = other["a.weight"].copy().view(np.uint8)
    bits[7, 9] ^= 0x80
    other["a.weight"] = bits.view(E4M3)
    changed = write_model(tmp_path / "b", [other], config)
    found = run_json("diff", same, changed, code=1)
    assert found["equal"] == 0
    by_name = {item["name"]: item for item in found["differences"]}
    value = float(tensors["a.weight"][7, 9]) * float(tensors["a.weight_scale_inv"][0, 0])
    assert by_name["norm.weight"] == {
        "name": "norm.weight", "what": "bytes", "bytes": 1, "values": 1, "first": 3, "largest": 0.5,
    }  # fmt: skip
    assert by_name["a.weight"]["bytes"] == 1 and by_name["a.weight"]["first"] == 7 * 320 + 9
    assert by_name["a.weight"]["largest"] == pytest.approx(2 * abs(value), rel=1e-6)
    assert by_name["extra"]["what"] == "only in B"
    assert "3 tensors differ, 0 equal" in run("diff", same, changed, code=1).stdout
    run("diff", same, tmp_path / "no", code=2)


def test_check_finds_what_is_wrong(tmp_path: Path) -> None:
    tensors, config, _ = case("deepseek")
    tensors["norm.weight"] = np.ones(5, np.float32)
    good = write_model(tmp_path / "good", [tensors], config)
    assert run_json("check", good)["findings"] == []
    bits = tensors["a.weight"].copy().view(np.uint8)
    bits[0, :2] = 0x7F
    bits[128:, 256:] = 0x7E
    scale = tensors["a.weight_scale_inv"].copy()
    scale[0, 1], scale[1, 0], scale[1, 1] = np.nan, 0, -1
    norm = np.array([1, np.inf, np.nan], np.float32)
    broken = tensors | {"a.weight": bits.view(E4M3), "a.weight_scale_inv": scale}
    bad = write_model(tmp_path / "bad", [broken | {"norm.weight": norm}], config)
    found = run_json("check", bad, code=1)
    assert [(item["name"], item["what"], item["note"]) for item in found["findings"]] == [
        ("a.weight", "codes that are NaN or infinite: 2", False),
        ("a.weight", "scales that are NaN or infinite: 1", False),
        ("a.weight", "negative scales: 1", False),
        ("a.weight", "scales of zero over codes that are not zero: 1", False),
        ("a.weight", "blocks with half of their codes saturated: 1", True),
        ("norm.weight", "values that are NaN or infinite: 2", False),
    ]
    lost = {key: value for key, value in tensors.items() if key != "a.weight_scale_inv"}
    partly = write_model(
        tmp_path / "partly", [{f"b.{k}": v for k, v in tensors.items()} | lost], config
    )
    assert "needs its scale" in run("check", partly, code=1).stdout
    (good / "model-00001-of-00001.safetensors").write_bytes(b"damaged")
    assert "must" in run("check", good, code=1).stdout
    run("check", tmp_path / "no", code=2)


@pytest.mark.parametrize("name", ["nv ct", "nv modelopt"])
def test_check_looks_at_the_scale_of_the_whole_tensor(tmp_path: Path, name: str) -> None:
    tensors, config, _ = case(name)
    tensors["a.weight_scale"] = np.maximum(
        tensors["a.weight_scale"].astype(np.float32), 0.5
    ).astype(E4M3)
    good = write_model(tmp_path / "good", [tensors], config)
    assert not [item for item in run_json("check", good)["findings"] if not item["note"]]
    (key,) = (key for key in tensors if key.endswith(("global_scale", "scale_2")))
    for value, what in [(0, "scales of zero over codes that are not zero: 1"),
                        (np.nan, "scales that are NaN or infinite: 1")]:  # fmt: skip
        broken = tensors | {key: np.full_like(tensors[key], value)}
        bad = write_model(tmp_path / f"bad{value}", [broken], config)
        found = run_json("check", bad, code=1)["findings"]
        assert [item["what"] for item in found if not item["note"]] == [what]


def test_columns_alone_have_no_other_convention(tmp_path: Path) -> None:
    tensor = nf.MXFP8Quantizer("float8_e4m3fn", rowwise=False).quantize(np.ones((64, 64), "f4"))
    source, out = tmp_path / "columns.safetensors", tmp_path / "out.safetensors"
    nf.save(source, {"a.weight": tensor})
    done = run("convert", source, out, "--to", "mxfp8", code=3)
    assert not out.exists()
    assert done.stderr == (
        "narrowfloat: convert: 'a.weight' (mxfp8_e4m3:columnwise=1,rowwise=0) needs the buffer "
        "rowwise_data to be written otherwise\n"
    )
