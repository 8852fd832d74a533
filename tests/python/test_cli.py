# SPDX-License-Identifier: Apache-2.0
"""Tests the command line as a user sees it: output, exit codes and files of the built program."""

from __future__ import annotations

import json
import os
import shutil
import signal
import struct
import subprocess
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from cli import (
    ELEMENTS,
    NAMES,
    TAKEN,
    TYPES,
    program,
    read_file,
    run,
    run_json,
    sample,
    schemes,
    sharded,
    write_file,
    write_model,
)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path)


def test_version_and_help():
    version = run_json("version")
    assert version["name"] == "narrowfloat"
    assert run("version").stdout == f"narrowfloat {version['version']}\n"
    assert run("--version").stdout == f"narrowfloat {version['version']}\n"
    assert "quantize" in run("--help").stdout


def test_schemes_lists_the_registry():
    listed = {scheme["name"]: scheme for scheme in schemes()}
    assert len({scheme["id"] for scheme in listed.values()}) == len(listed)
    assert listed["mxfp8_e4m3"] == {
        "name": "mxfp8_e4m3",
        "id": 0x0201,
        "element": "e4m3",
        "element_bits": 8,
        "block": "1x32",
        "scale": "F8_E8M0",
        "options": ["columnwise", "rowwise", "swizzled"],
    }
    assert listed["fp8_e5m2"]["block"] == "tensor"
    text = run("schemes").stdout
    assert all(name in text for name in listed)


def test_doctor_names_the_kernels():
    doctor = run_json("doctor")
    assert set(doctor) == {
        "version", "cpu", "cpus", "kernels", "active", "force_backend", "threads", "huge_pages",
    }  # fmt: skip
    assert doctor["active"] in doctor["kernels"] and doctor["kernels"][-1] == "scalar"
    forced = run_json("doctor", env=os.environ | {"NF_FORCE_BACKEND": "scalar"})
    assert (forced["active"], forced["force_backend"]) == ("scalar", "scalar")
    assert run_json("doctor", env=os.environ | {"NF_NUM_THREADS": "3"})["threads"] == 3


def test_doctor_measures_every_scheme():
    assert "--speed" in run("doctor", "--help").stdout
    doctor = run_json("doctor", "--speed", "--threads", 2)
    speed = doctor["speed"]
    assert doctor["threads"] == 2 and set(speed) == {
        "dtype", "shape", "seconds", "memory", "kernels",
    }  # fmt: skip
    streams = {(row["stream"], row["threads"]) for row in speed["memory"]}
    kinds = ("read", "copy, plain stores", "copy, non-temporal stores")
    assert streams == {(kind, threads) for kind in kinds for threads in (1, 2)}
    measured = [(r["scheme"], r["verb"], r["direction"], r["threads"]) for r in speed["kernels"]]
    calls = [("quantize", direction) for direction in ("rowwise", "columnwise", "both")]
    calls += [("dequantize", "rowwise")]
    assert measured == [
        (scheme["name"], *call, threads)
        for scheme in schemes()
        for call in calls
        for threads in (1, 2)
    ]
    figures = [speed["seconds"], *speed["shape"]]
    figures += [row["gb_per_second"] for row in speed["memory"] + speed["kernels"]]
    figures += [row[key] for row in speed["kernels"] for key in ("ms", "share")]
    assert all(figure > 0 for figure in figures)


def test_doctor_can_be_interrupted():
    command = [program(), "doctor", "--speed", "--json"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as doctor:
        assert doctor.stderr.readline() == "doctor: measuring for 5 seconds\n"
        doctor.send_signal(signal.SIGINT)
        out, _ = doctor.communicate(timeout=60)
    assert doctor.returncode == 130
    assert json.loads(out)["error"] == {"kind": "Interrupted", "message": "doctor: interrupted"}


def test_an_unknown_backend_is_unsupported(model: Path, tmp_path: Path):
    env = os.environ | {"NF_FORCE_BACKEND": "abacus"}
    assert run_json("doctor", env=env, code=3)["error"]["kind"] == "Unsupported"
    run("quantize", model, tmp_path / "out", "--scheme", "mxfp8_e4m3", env=env, code=3)
    assert sorted(os.listdir(tmp_path)) == ["model.safetensors"]


def test_inspect_plain_and_quantized(model: Path, tmp_path: Path):
    plain = run_json("inspect", model)
    assert plain["convention"] == "plain"
    assert plain["counts"] == {"BF16": 1, "F16": 1, "F32": 3, "I64": 1}
    assert plain["bytes"] == sum(array.nbytes for array in sample().values())
    assert plain["parameters"] == sum(array.size for array in sample().values())
    assert plain["bits_per_parameter"] == pytest.approx(8 * plain["bytes"] / plain["parameters"])
    out = tmp_path / "q.safetensors"
    run("quantize", model, out, "--scheme", "mxfp8_e4m3:columnwise=1")
    quantized = run_json("inspect", out)
    assert quantized["convention"] == "narrowfloat"
    assert quantized["counts"]["mxfp8_e4m3:columnwise=1"] == 3
    assert quantized["parameters"] == plain["parameters"]
    (dense,) = (t for t in quantized["tensors"] if t["name"] == "layer.0.dense.weight")
    assert dense["dtype"] == "float32" and dense["shape"] == [96, 160]
    assert dense["buffers"]["rowwise_scale_inv"]["dtype"] == "F8_E8M0"
    text = run("inspect", out).stdout
    assert "layer.0.dense.weight" in text and "convention: narrowfloat" in text


@pytest.mark.parametrize("scheme", schemes(), ids=lambda scheme: scheme["name"])
@pytest.mark.parametrize("options", ["", ":columnwise=1", ":columnwise=1,rowwise=0"])
def test_quantize_and_back(model: Path, tmp_path: Path, scheme: dict, options: str):
    quantized, back = tmp_path / "q.safetensors", tmp_path / "back.safetensors"
    spec = scheme["name"] + options
    result = run_json("quantize", model, quantized, "--scheme", spec)
    assert result["spec"] == spec
    assert (result["tensors_quantized"], result["tensors_copied"]) == (3, 3)
    assert result["bytes_before"] == sum(array.nbytes for array in sample().values())
    assert result["bytes_after"] == sum(a.nbytes for a in read_file(quantized)[0].values())
    assert run_json("dequantize", quantized, back)["tensors_dequantized"] == 3

    tensors, metadata = read_file(back)
    assert metadata == {"format": "pt", "a": "b"}
    assert set(tensors) == set(sample())
    format_of = ml_dtypes.finfo(ELEMENTS[scheme["element"]])
    for name, x in sample().items():
        assert tensors[name].dtype == x.dtype and tensors[name].shape == x.shape
        if not name.endswith(TAKEN):
            assert tensors[name].tobytes() == x.tobytes()
            continue
        # Half a step of a normal code, or of a subnormal code under a scale of at most twice
        # amax / max; and half a step of the type of the output.
        exact = x.astype(np.float64)
        step = float(format_of.smallest_subnormal) * 2 * np.abs(exact).max() / float(format_of.max)
        bound = np.maximum(np.abs(exact) * 2.0 ** -(format_of.nmant + 1), step / 2)
        bound += np.abs(exact) * float(ml_dtypes.finfo(x.dtype).eps)
        assert np.all(np.abs(tensors[name].astype(np.float64) - exact) <= bound), name


def test_a_tensor_that_the_scheme_cannot_take_is_named(tmp_path: Path):
    tensors = {"odd.weight": np.ones((4, 33)), "even.weight": np.ones((4, 32))}
    tensors = {name: array.astype(np.float32) for name, array in tensors.items()}
    model = write_file(tmp_path / "m.safetensors", tensors)
    out = tmp_path / "out.safetensors"
    done = run("quantize", model, out, "--scheme", "nvfp4", code=2)
    assert "even number of columns, got 33 (tensor 'odd.weight' of shape 4x33" in done.stderr
    assert not out.exists()
    run("quantize", model, out, "--scheme", "nvfp4", "--exclude", "odd.*")
    assert read_file(out)[0]["odd.weight"].tobytes() == np.ones((4, 33), np.float32).tobytes()


def test_the_file_holds_codes_and_scales(model: Path, tmp_path: Path):
    out = tmp_path / "q.safetensors"
    run("quantize", model, out, "--scheme", "mxfp8_e4m3")
    tensors, metadata = read_file(out)
    name = "layer.0.dense.weight"
    assert json.loads(metadata[f"narrowfloat.{name}"]) == {
        "spec": "mxfp8_e4m3", "shape": [96, 160], "dtype": "float32",
    }  # fmt: skip
    assert (metadata["format"], metadata["a"]) == ("pt", "b")
    assert tensors[name].shape == (0,)  # so that no loader takes it for the weight
    codes, scales = tensors[f"{name}.rowwise_data"], tensors[f"{name}.rowwise_scale_inv"]
    assert codes.dtype == TYPES["F8_E4M3"] and scales.dtype == TYPES["F8_E8M0"]
    run("dequantize", out, tmp_path / "back", "--dtype", "f32")
    block = np.repeat(scales[:96, :5].astype(np.float32), 32, axis=1)
    assert np.array_equal(read_file(tmp_path / "back")[0][name], codes.astype(np.float32) * block)


def test_data_begins_at_a_multiple_of_eight_bytes(tmp_path: Path):
    sources = [tmp_path / f"a{'b' * i}.safetensors" for i in range(8)]
    for i, source in enumerate(sources):
        write_file(source, {"w" * (i + 1): sample()["layer.0.dense.weight"]})
    ends = {struct.unpack("<Q", source.read_bytes()[:8])[0] % 8 for source in sources}
    assert len(ends) == 8
    for source in sources:
        out = tmp_path / f"{source.stem}.out"
        run("quantize", source, out, "--scheme", "mxfp8_e4m3", "--include", "*")
        assert struct.unpack("<Q", out.read_bytes()[:8])[0] % 8 == 0


@pytest.mark.parametrize(("flag", "dtype"), [("bf16", "BF16"), ("f16", "F16"), ("f32", "F32")])
def test_dequantize_to_another_type(model: Path, tmp_path: Path, flag: str, dtype: str):
    run("quantize", model, tmp_path / "q", "--scheme", "fp8_e4m3")
    result = run_json("dequantize", tmp_path / "q", tmp_path / "back", "--dtype", flag)
    tensors, _ = read_file(tmp_path / "back")
    taken = [name for name in tensors if name.endswith(TAKEN)]
    assert len(taken) == result["tensors_dequantized"] == 3
    assert {NAMES[tensors[name].dtype] for name in taken} == {dtype}


def test_the_default_takes_the_linear_layers_of_bert(tmp_path: Path):
    matrix, vector = np.ones((2, 32), np.float32), np.ones(2, np.float32)
    dense = ["attention.output.dense", "intermediate.dense", "output.dense"]
    dense += [f"attention.self.{part}" for part in ("query", "key", "value")]
    layers = [f"encoder.layer.{i}.{name}" for i in range(6) for name in dense] + ["pooler.dense"]
    norms = [f"encoder.layer.{i}.output.LayerNorm" for i in range(6)] + ["embeddings.LayerNorm"]
    tables = [f"embeddings.{kind}_embeddings" for kind in ("word", "position", "token_type")]
    tensors = {f"{name}.weight": matrix for name in layers + tables}
    tensors |= {f"{name}.weight": vector for name in norms}
    tensors |= {f"{name}.bias": vector for name in layers + norms}
    path = write_file(tmp_path / "m", tensors)
    run("quantize", path, tmp_path / "q", "--scheme", "mxfp8_e4m3")
    listed = run_json("inspect", tmp_path / "q")["tensors"]
    assert {t["name"] for t in listed if t["quantized"]} == {f"{name}.weight" for name in layers}
    assert len(layers) == 37


@pytest.mark.parametrize(
    ("rules", "count"),
    [
        (["--exclude", "*.half.*"], 2),
        (["--include", "*.gate.weight"], 4),
        (["--include", "*"], 5),
        (["--include", "*", "--exclude", "*bias", "--exclude", "*gate*"], 2),
        (["--exclude", "*", "--include", "*.dense.weight"], 1),
        (["--exclude", "dense"], 3),
    ],
)
def test_the_last_rule_that_matches_decides(model: Path, tmp_path: Path, rules: list, count: int):
    out = tmp_path / "q"
    result = run_json("quantize", model, out, "--scheme", "fp8_e4m3", *rules)
    assert result["tensors_quantized"] == count


def test_nothing_to_do_is_an_error(model: Path, tmp_path: Path):
    out = tmp_path / "out"
    nothing = ("quantize", model, out, "--scheme", "fp8_e4m3", "--exclude", "*")
    assert run(*nothing, code=2).stderr == (
        f"narrowfloat: quantize: {model} must have at least one tensor to quantize, got none\n"
    )
    assert run("dequantize", model, out, code=2).stderr == (
        f"narrowfloat: dequantize: IN must hold quantized tensors, {model} has none (no tensor is "
        "quantized)\n"
    )
    assert not out.exists()


@pytest.mark.parametrize("lost", ["all", "one"])
def test_buffers_without_metadata_are_an_error(model: Path, tmp_path: Path, lost: str):
    run("quantize", model, tmp_path / "q", "--scheme", "mxfp8_e4m3")
    tensors, metadata = read_file(tmp_path / "q")
    name = "layer.0.dense.weight"
    del metadata[f"narrowfloat.{name}"]
    path = write_file(tmp_path / "lost", tensors, metadata if lost == "one" else None)
    inspected = run_json("inspect", path)
    assert inspected["convention"] == "narrowfloat without metadata"
    assert inspected["convention_reason"].endswith("that __metadata__ does not describe")
    named = ("dequantize", "--from", "narrowfloat")
    for command in (("dequantize",), named, ("quantize", "--scheme", "nvfp4")):
        error = run(*command, path, tmp_path / "out", code=2).stderr
        assert "that __metadata__ does not describe" in error
    assert not (tmp_path / "out").exists()


def test_files_that_are_left_out_are_named(tmp_path: Path):
    source = sharded(tmp_path / "in")
    (source / "original").mkdir()
    os.truncate(os.open(source / "original" / "big.pth", os.O_CREAT | os.O_WRONLY), (64 << 20) + 1)
    os.mkfifo(source / "pipe")
    (source / ".cache").mkdir()
    (source / ".gitattributes").write_text("*")
    write_file(source / "consolidated.safetensors", sample())
    done = run("quantize", source, tmp_path / "q", "--scheme", "fp8_e4m3", "--json")
    left_out = {
        ".cache/": "hidden",
        ".gitattributes": "hidden",
        "consolidated.safetensors": "not part of the checkpoint that is read",
        "original/big.pth": "larger than 67.1 MB",
        "pipe": "not a regular file",
    }
    listed = {file["name"]: file["reason"] for file in json.loads(done.stdout)["left_out"]}
    assert listed == left_out
    for name, reason in left_out.items():
        assert f"quantize: left out: {name} ({reason})\n" in done.stderr
        assert not (tmp_path / "q" / name).exists()


def test_names_from_files_are_escaped(tmp_path: Path):
    name = "a\x1b[31mRED\x07\n\u202e\x00é\x9b.weight"
    path = write_file(tmp_path / "m", {name: np.ones((32, 32), np.float32)})
    escaped = r"a\x1b[31mRED\x07\x0a\u202e\x00é\x9b.weight"
    assert run("inspect", path).stdout.splitlines()[1].split("  ")[0] == escaped
    assert run_json("inspect", path)["tensors"][0]["name"] == name
    name, escaped = name.replace("\x00", ""), escaped.replace(r"\x00", "")
    odd = write_file(tmp_path / "odd", {name: np.ones((32, 33), np.float32)})
    error = run("quantize", odd, tmp_path / "o", "--scheme", "nvfp4", code=2).stderr
    assert escaped in error and error.count("\n") == 1


def test_a_reader_that_leaves_is_no_error(model: Path):
    many = {f"{i:05}.weight": np.ones((1, 1), np.float32) for i in range(5000)}
    path = write_file(model.with_name("many"), many)
    with subprocess.Popen(
        [program(), "inspect", path], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as command:
        command.stdout.read(10)
        command.stdout.close()
        assert command.stderr.read() == b""
    assert command.returncode == 141 or command.returncode == -signal.SIGPIPE


def test_a_damaged_config_is_an_error(tmp_path: Path):
    source = sharded(tmp_path / "in")
    (source / "config.json").write_text("{")
    message = f"config: {source}/config.json: must be JSON, got a syntax error at byte 2"
    assert message in run("inspect", source, code=2).stderr


def test_modelopt_is_known_by_its_own_file(tmp_path: Path):
    source = tmp_path / "in"
    source.mkdir()
    codes, scale = np.zeros((4, 4), TYPES["F8_E4M3"]), np.ones((), np.float32)
    write_file(source / "model.safetensors", {"a.weight": codes, "a.weight_scale": scale})
    (source / "hf_quant_config.json").write_text('{"producer": {"name": "modelopt"}}')
    inspected = run_json("inspect", source)
    assert inspected["convention"] == "modelopt"
    assert inspected["convention_reason"] == "hf_quant_config.json"


def test_threads_and_backends_make_the_same_bytes(model: Path, tmp_path: Path):
    outputs = []
    for i, kernels in enumerate(run_json("doctor")["kernels"]):
        env = os.environ | {"NF_FORCE_BACKEND": kernels}
        out = tmp_path / kernels
        run("quantize", model, out, "--scheme", "mxfp8_e4m3", "--threads", i + 1, env=env)
        outputs.append(out.read_bytes())
    assert len(outputs) > 1 and len(set(outputs)) == 1


def damaged(kind: str, good: bytes) -> bytes:
    (size,) = struct.unpack("<Q", good[:8])
    return {
        "empty": b"",
        "cut in the header": good[:20],
        "cut in the data": good[:-1],
        "bytes after the data": good + b"x",
        "a huge header": struct.pack("<Q", 1 << 62) + good[8:],
        "no JSON": good[:8] + b"}" * size + good[8 + size :],
        "a lying shape": good.replace(b"[96, 160]", b"[99, 160]"),
        "a bomb": struct.pack("<Q", 100_001) + b"{" + b"[" * 100_000,
        "an unreadable record": good.replace(b'"a": "b"', b'"narrowfloat.a": "b"'),
    }[kind]


@pytest.mark.parametrize(
    "kind",
    [
        "empty", "cut in the header", "cut in the data", "bytes after the data", "a huge header",
        "no JSON", "a lying shape", "a bomb", "an unreadable record",
    ],
)  # fmt: skip
def test_a_damaged_file_leaves_nothing_behind(model: Path, tmp_path: Path, kind: str):
    contents = damaged(kind, model.read_bytes())
    assert contents != model.read_bytes()
    model.write_bytes(contents)
    commands = [("inspect", model), ("dequantize", model, tmp_path / "out")]
    commands += [("quantize", model, tmp_path / "out", "--scheme", "mxfp8_e4m3")]
    for command in commands:
        done = run(*command, code=2)
        assert done.stdout == ""
        assert f"safetensors: {model}: " in done.stderr
        error = run_json(*command, code=2)["error"]
        assert error["kind"] == "InvalidArgument" and str(model) in error["message"]
    folder = tmp_path / "folder"
    shutil.copytree(sharded(tmp_path / "in"), folder)
    shutil.copy(model, folder / "model-00003-of-00003.safetensors")
    run("quantize", folder, tmp_path / "out", "--scheme", "mxfp8_e4m3", code=2)
    assert sorted(os.listdir(tmp_path)) == ["folder", "in", "model.safetensors"]


def test_bad_usage(model: Path, tmp_path: Path):
    out = tmp_path / "out"
    scheme = ("--scheme", "mxfp8_e4m3")
    for command, message in [
        ((), "A subcommand is required"),
        (("nothing",), "unknown command 'nothing'"),
        (("quantize", model, out), "--scheme is required"),
        (("quantize", model, out, "--scheme", "fp9"), "unknown scheme 'fp9'; there are: "),
        (("quantize", model, out, "--scheme", "mxfp8_e4m3:x=1"), "spec: unknown option 'x'"),
        (
            ("quantize", model, out, *scheme, "--threads", "0"),
            "must be an integer from 1 to 2147483647, got 0",
        ),
        (
            ("quantize", model, out, *scheme, "--threads", 2**40),
            f"must be an integer from 1 to 2147483647, got {2**40}",
        ),
        (("inspect", ""), "the path must not be empty"),
        (("quantize", model, "", *scheme), "the path must not be empty"),
        (
            ("quantize", model, out, *scheme, "--part", "3/2"),
            "--part must be i/N with i from 1 to N, got '3/2'",
        ),
        (
            ("quantize", model, out, *scheme, "--part", "0/2"),
            "--part must be i/N with i from 1 to N, got '0/2'",
        ),
        (("quantize", model, out, *scheme, "--convention", "x"), "unknown convention 'x'"),
        (("quantize", tmp_path / "no", out, *scheme), "no, does not exist"),
        (("quantize", model, model, *scheme), "quantize: OUT must not be IN, got "),
        (
            ("quantize", model, tmp_path, *scheme),
            f"quantize: OUT must be a file, as IN is; {tmp_path} is ",
        ),
        (("quantize", model, out / "x", *scheme), "x, its folder must exist"),
        (("dequantize", model, out, "--dtype", "f64"), "--dtype: "),
        (("inspect", tmp_path / "no"), "no, does not exist"),
    ]:
        assert message in run(*command, code=2).stderr
        assert run_json(*command, code=2)["exit_code"] == 2
    folder = sharded(tmp_path / "in")
    assert "OUT must not be IN" in run("quantize", folder, folder, *scheme, code=2).stderr
    assert run("quantize", folder, model, *scheme, code=2).stderr == (
        f"narrowfloat: quantize: OUT must be a folder, as IN is, got {model}\n"
    )
    (tmp_path / "file").touch()
    assert run("quantize", folder, tmp_path / "file", *scheme, code=2).stderr == (
        f"narrowfloat: quantize: OUT must be a folder, as IN is; {tmp_path / 'file'} is a file\n"
    )
    (tmp_path / "file").unlink()
    assert sorted(os.listdir(tmp_path)) == ["in", "model.safetensors"]


def test_codes_without_scales_are_values_and_that_is_said(tmp_path: Path):
    codes = {
        "a.weight": np.arange(256, dtype=np.uint8).reshape(4, 64).view(TYPES["F8_E4M3"]),
        "a.bias": np.arange(4, dtype=np.uint8).view(TYPES["F8_E5M2"]),
        "a.norm.scale": np.uint8(0x38).reshape(()).view(TYPES["F8_E4M3"]),
        "conv.weight": np.ones((2, 3, 1, 1), TYPES["F8_E4M3"]),
        "none.weight": np.ones((0, 3), TYPES["F8_E4M3"]),
        "plain.bias": np.ones(3, np.float32),
    }
    path = write_file(tmp_path / "m", codes)
    assert run_json("inspect", path)["convention"] == "unscaled-fp8"
    done = run("dequantize", path, tmp_path / "out", "--dtype", "f32")
    assert "dequantize: 5 tensors of FP8 without scales: their codes are taken as values" in (
        done.stderr.splitlines()
    )
    values, _ = read_file(tmp_path / "out")
    for name, array in codes.items():
        np.testing.assert_array_equal(values[name], array.astype(np.float32))
    checked = run("check", path, "--from", "unscaled-fp8", code=1)
    assert "a.weight: codes that are NaN or infinite: 2" in checked.stdout
    assert "taken as values" not in checked.stderr
    for name in ("a.weight_scl", "a.scaling_factor", "a_scale"):
        write_file(path, codes | {name: np.ones((), np.float32)})
        assert f"FP8, '{name}' may be its scale" in (
            run("dequantize", path, tmp_path / "no", code=3).stderr
        )
        message = f"'a.weight' must have no scale to be 'unscaled-fp8', '{name}' may be one"
        asked = run("dequantize", path, tmp_path / "no", "--from", "unscaled-fp8", code=2)
        assert message in asked.stderr
    assert not (tmp_path / "no").exists()
