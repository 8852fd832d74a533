# SPDX-License-Identifier: Apache-2.0
"""Tests save() into folders, the configuration beside tensors, and our own convention."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from cli import run, run_json, write_file
from test_foreign_load import HOLDERS, X

import narrowfloat as nf

CONFIG = {"model_type": "llama", "tie_word_embeddings": True, "dtype": "float32"}
PLAIN = {
    "model.embed_tokens.weight": np.ones((4, 64), np.float32),
    "model.norm.weight": np.ones(64, np.float32),
}
NAME = "model.layers.0.mlp.experts.0.up_proj.weight"


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def float_model(folder: Path) -> Path:
    folder.mkdir()
    write_file(folder / "model.safetensors", PLAIN | {NAME: X}, {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


@pytest.mark.parametrize(("scheme", "convention"), [("mxfp8_e4m3", "narrowfloat"), *HOLDERS])
def test_the_folder_is_that_of_the_command_line(
    scheme: str, convention: str, tmp_path: Path
) -> None:
    source = float_model(tmp_path / "float")
    run("quantize", source, tmp_path / "cli", "--scheme", scheme, "--convention", convention)
    tensors = PLAIN | {NAME: nf.quantize(X, scheme)}
    nf.save(tmp_path / "python", tensors, convention=convention, config=CONFIG)
    assert files(tmp_path / "python") == files(tmp_path / "cli")
    written = json.loads((tmp_path / "cli" / "config.json").read_text())["quantization_config"]
    assert nf.quantization_config(tensors, convention, config=CONFIG) == written
    ignored = written.get("ignore", written.get("modules_to_not_convert"))
    plain = None if convention == "narrowfloat" else ["model.embed_tokens", "lm_head"]
    assert (ignored and ignored[:2]) == plain
    assert ("hf_quant_config.json" in files(tmp_path / "python")) == (convention == "modelopt")


def test_a_folder_keeps_its_own_config(tmp_path: Path) -> None:
    tensors = {NAME: nf.quantize(X, "mxfp8_e4m3")}
    (tmp_path / "config.json").write_text(json.dumps({"b": 1, "a": [2]}))
    (tmp_path / "tokenizer.json").write_text("{}")
    nf.save(tmp_path, tensors, convention="modelopt")
    assert set(files(tmp_path)) == {
        "config.json", "hf_quant_config.json", "model.safetensors", "tokenizer.json",
    }  # fmt: skip
    config = json.loads((tmp_path / "config.json").read_text())
    assert list(config) == ["b", "a", "quantization_config"]
    assert run_json("inspect", tmp_path)["convention"] == "modelopt"
    nf.save(tmp_path, tensors, convention="fp8")
    assert set(files(tmp_path)) == {"config.json", "model.safetensors", "tokenizer.json"}
    assert run_json("inspect", tmp_path)["convention"] == "fp8"
    loaded = nf.load(tmp_path, from_="auto")[NAME]
    assert (
        loaded.buffers["rowwise_data"].tobytes() == tensors[NAME].buffers["rowwise_data"].tobytes()
    )


@pytest.mark.parametrize(
    ("tensors", "options", "error", "message"),
    [
        (
            PLAIN, {"config": {}}, ValueError,
            r"^save: a quantization_config needs a QuantizedTensor, got none$",
        ),
        ({NAME: "x"}, {"config": {}}, TypeError, "must be a NumPy array or a QuantizedTensor"),
        ({1: X}, {"config": {}}, TypeError, "names must be str, got 1"),
        ([X], {"config": {}}, TypeError, "must be a mapping of names to arrays, got list"),
        ({NAME: "nvfp4"}, {"config": {}, "convention": "fp8"}, NotImplementedError, "has no form"),
        (
            {NAME: "nvfp4", "o": np.array(["text"])}, {"config": {}}, TypeError,
            "must have a dtype of whole bytes that safetensors names",
        ),
    ],
)  # fmt: skip
def test_bad_input_writes_nothing(
    tensors: object, options: dict, error: type, message: str, tmp_path: Path
) -> None:
    if isinstance(tensors, dict) and tensors.get(NAME) == "nvfp4":
        tensors = tensors | {NAME: nf.quantize(X, "nvfp4")}
    with pytest.raises(error, match=message):
        nf.save(tmp_path / "new", tensors, **options)
    assert not list(tmp_path.iterdir())


def test_a_config_with_infinity_is_written_as_it_is(tmp_path: Path) -> None:
    config = {"time_step_limit": [0.0, float("inf")], "a": -float("inf")}
    nf.save(tmp_path / "m", {"a.weight": nf.quantize(X, "mxfp8_e4m3")}, config=config)
    written = json.loads((tmp_path / "m" / "config.json").read_text())
    assert {key: written[key] for key in config} == config


def test_the_folder_of_an_unfinished_job_is_not_written_to(tmp_path: Path) -> None:
    mark = tmp_path / ".narrowfloat.unfinished"
    mark.touch()
    with pytest.raises(
        ValueError,
        match=f"^save: the job that writes {tmp_path} must be finished, got its mark {mark}; run "
        "the job again, or remove the mark$",
    ):
        nf.save(tmp_path, PLAIN)
    assert files(tmp_path) == {mark.name: b""}


SAVE_WITHOUT_ROOM = """
import resource, sys
import numpy as np
import narrowfloat as nf
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
tensor = nf.quantize(np.ones((256, 256), np.float32), "fp8_e4m3")
config = {"pad": "x" * 300_000}
try:
    nf.save(sys.argv[1], {"a.weight": tensor}, convention="fp8", config=config)
except OSError as error:
    print(error)
"""


def test_no_file_changes_without_room_for_all(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    nf.save(old, {"a.weight": nf.quantize(X, "mxfp8_e4m3")}, config={})
    before = files(old)
    for folder in (old, new):
        command = [sys.executable, "-c", SAVE_WITHOUT_ROOM, str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stdout == f"write: {folder}/config.json, File too large\n"
    assert files(old) == before
    assert not new.exists()


def test_threads_save_to_one_folder(tmp_path: Path) -> None:
    tensors = {"a.weight": nf.quantize(X, "mxfp8_e4m3")}
    nf.save(tmp_path / "m", tensors, config={})
    expected = files(tmp_path / "m")
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: nf.save(tmp_path / "m", tensors, config={}), range(40)))
    assert files(tmp_path / "m") == expected


def test_a_path_that_is_not_utf8_stands_in_the_message(tmp_path: Path) -> None:
    path = os.fsdecode(os.fsencode(tmp_path) + b"/no\xff/x.safetensors")
    with pytest.raises(ValueError, match=r"no\\xff/x.safetensors, its folder must exist$"):
        nf.save(path, PLAIN)
    bad = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.safetensors")
    Path(bad).write_bytes(b"xx")
    with pytest.raises(ValueError, match=r"\\xff.safetensors"):
        nf.load(bad)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"\xff{", r"^save: .*config.json must be UTF-8, 'utf-8' codec can't decode byte 0xff"),
        (b"{bad", r"^config: config.json: must be JSON, got a syntax error at byte 2$"),
        (b'{"a": 1, "a": 2}', r"^config: config.json: names must be unique, got 'a' twice$"),
        (
            b'{"a": ' * 9999 + b"1" + b"}" * 9999,
            r"^config: config.json: JSON must nest at most 64 deep, got more$",
        ),
    ],
)
def test_a_damaged_config_is_named(text: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(text)
    with pytest.raises(ValueError, match=message):
        nf.save(tmp_path, {"a.weight": nf.quantize(X, "mxfp8_e4m3")})
    assert files(tmp_path) == {"config.json": text}


def test_the_text_of_a_config_is_kept(tmp_path: Path) -> None:
    text = b'{\r\n\t"big": 123456789012345678901234567890,\r\n\t"x": [1.0e0,NaN]'
    (tmp_path / "config.json").write_bytes(text + b"\r\n}\r\n")
    nf.save(tmp_path, {NAME: nf.quantize(X, "mxfp8_e4m3")})
    written = (tmp_path / "config.json").read_bytes()
    assert written.startswith(text + b",") and written.endswith(b"\r\n}\r\n")
    assert json.loads(written)["quantization_config"]["quant_method"] == "narrowfloat"


def test_a_new_folder_that_is_not_empty_does_not_hide_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path, *_: object, **__: object) -> None:
        path.with_name("other").touch()
        raise OSError("the disk is full")

    monkeypatch.setattr(nf._core, "save", fail)
    with pytest.raises(OSError, match=r"^the disk is full$"):
        nf.save(tmp_path / "m", {NAME: nf.quantize(X, "mxfp8_e4m3")}, config={})
    assert list(files(tmp_path / "m")) == ["other"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "write: {}, its folder must exist"),
        ({"config": {}}, "save: the parent of {} must exist"),
    ],
)
def test_the_parent_must_exist(options: dict, message: str, tmp_path: Path) -> None:
    path = tmp_path / "no" / "x"
    with pytest.raises(ValueError, match=f"^{message.format(path)}$"):
        nf.save(path, {"a.weight": nf.quantize(X, "mxfp8_e4m3")}, **options)


def test_other_files_of_a_model_are_not_left_beside(tmp_path: Path) -> None:
    other = write_file(tmp_path / "model-00001-of-00002.safetensors", PLAIN)
    with pytest.raises(
        ValueError, match=f"^save: {tmp_path} must have no other safetensors files, got {other}$"
    ):
        nf.save(tmp_path, {NAME: nf.quantize(X, "nvfp4")})
    assert list(files(tmp_path)) == [other.name]
    other.unlink()
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(ValueError, match=r"^config: config.json must be an object$"):
        nf.save(tmp_path, {NAME: nf.quantize(X, "nvfp4")})
    assert list(files(tmp_path)) == ["config.json"]


@pytest.mark.parametrize("convention", ["narrowfloat", "compressed-tensors", "modelopt"])
def test_a_folder_without_config_gets_one_as_save_writes_it(
    convention: str, tmp_path: Path
) -> None:
    source = tmp_path / "float"
    source.mkdir()
    write_file(source / "model.safetensors", {NAME: X})
    options = ("--scheme", "mxfp8_e4m3", "--convention", convention)
    run("quantize", source, tmp_path / "made", *options)
    (tmp_path / "saved").mkdir()
    held = {NAME: nf.quantize(X, "mxfp8_e4m3")}
    nf.save(tmp_path / "saved", held, convention=convention)
    assert set(files(tmp_path / "made")) == set(files(tmp_path / "saved"))
    made, saved = (
        json.loads((tmp_path / name / "config.json").read_text()) for name in ("made", "saved")
    )
    assert made == saved and list(made) == ["quantization_config"]
    assert run_json("inspect", tmp_path / "made")["convention"] == convention
    run("dequantize", tmp_path / "made", tmp_path / "back")
    assert list(files(tmp_path / "back")) == ["model.safetensors"], "as before"


def test_a_config_that_is_no_object_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "float"
    source.mkdir()
    write_file(source / "model.safetensors", {NAME: X})
    (source / "config.json").write_text("[1]")
    message = run_json("quantize", source, tmp_path / "q", "--scheme", "nvfp4", code=2)["error"]
    assert message["message"] == "config: config.json must be an object"
    assert not (tmp_path / "q").exists()


@pytest.mark.parametrize(("scheme", "convention"), HOLDERS)
def test_convert_writes_our_own_convention(scheme: str, convention: str, tmp_path: Path) -> None:
    source = float_model(tmp_path / "float")
    run("quantize", source, tmp_path / "ours", "--scheme", scheme)
    run("quantize", source, tmp_path / "other", "--scheme", scheme, "--convention", convention)
    made = run_json("convert", tmp_path / "other", tmp_path / "back", "--to", "narrowfloat")
    assert (made["to"], made["format"], made["tensors_converted"]) == ("narrowfloat", scheme, 1)
    if scheme not in ("fp8_e4m3", "nvfp4"):  # their scale and amax are rounded
        assert files(tmp_path / "back") == files(tmp_path / "ours")
    before, after = (nf.load(tmp_path / name)[NAME] for name in ("ours", "back"))
    for role in ("rowwise_data", "rowwise_scale_inv"):
        assert after.buffers[role].tobytes() == before.buffers[role].tobytes()
    assert after.spec == before.spec
    refused = run("convert", tmp_path / "back", tmp_path / "no", "--to", "narrowfloat", code=2)
    assert refused.stderr == (
        "narrowfloat: convert: IN must be of another convention than 'narrowfloat', got "
        f"{tmp_path / 'back'}\n"
    )


def test_weights_without_a_scheme_are_not_converted(tmp_path: Path) -> None:
    rows = {"a.weight": X.astype("float8_e4m3fn"), "a.weight_scale": np.ones((200, 1), np.float32)}
    source = write_file(tmp_path / "in.safetensors", rows)
    refused = run("convert", source, tmp_path / "out.safetensors", "--to", "narrowfloat", code=3)
    assert (
        "convert: 'a.weight' (e4m3 row F32) has no scheme with such blocks and scales; dequantize, "
        "in Python dtype=, gives its values" in refused.stderr
    )
    assert not (tmp_path / "out.safetensors").exists()


def test_numpy_does_not_make_an_array_of_an_object() -> None:
    tensor = nf.quantize(X, "mxfp8_e4m3")
    with pytest.raises(TypeError, match=r"^QuantizedTensor\(.*\) must become an array by dequanti"):
        np.asarray(tensor)
    with pytest.raises(TypeError, match=r"^.* must become an array by dequantize\(\)$"):
        np.add(tensor, 1)
