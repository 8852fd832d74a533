# SPDX-License-Identifier: Apache-2.0
"""Tests python -m narrowfloat.debug check: its files, exit codes and output streams."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from cli import run as cli_run
from cli import write_file
from narrowfloat.debug import __main__ as command
from narrowfloat.debug._config_file import DEEPEST, LARGEST_FILE, BadFile, read_config, read_layers

pytest.importorskip("nvdlfw_inspect", reason="nvdlfw-inspect, the host, is not installed")

GOOD = """
a:
  enabled: True
  layers: {layer_types: [fc]}
  transformer_engine:
    FakeQuant: {enabled: True, gemms: [fprop], tensors: [weight], quant_format: MXFP8E4M3}
"""


@pytest.fixture
def good(tmp_path: Path) -> Path:
    file = tmp_path / "good.yaml"
    file.write_text(GOOD)
    return file


def run(capsys: pytest.CaptureFixture, *arguments: object) -> tuple[int, str, str]:
    code = command.main([str(argument) for argument in arguments])
    return code, *capsys.readouterr()


def test_a_good_file(capsys: pytest.CaptureFixture, good: Path) -> None:
    code, out, err = run(capsys, "check", good)
    assert (code, err) == (0, "") and out.endswith("no problem\n")


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_closed_pipe(good: Path, form: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    arguments = [sys.executable, "-m", "narrowfloat.debug", "check", good, *form]
    done = subprocess.run(arguments, stdout=writer, stderr=subprocess.PIPE, timeout=120)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize(("output", "reason"), [
    (">/dev/full", "No space left on device"), (">&-", "Bad file descriptor"),
])  # fmt: skip
def test_an_output_that_cannot_be_written(good: Path, output: str, reason: str) -> None:
    command_line = f'"{sys.executable}" -m narrowfloat.debug check "{good}" {output}'
    done = subprocess.run(command_line, shell=True, stderr=subprocess.PIPE, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (
        4, f"narrowfloat: check: standard output, {reason}\n"
    )  # fmt: skip


def test_names_do_not_steer_the_terminal(capsys: pytest.CaptureFixture, tmp_path: Path) -> None:
    file = tmp_path / "names.yaml"
    file.write_text('"a\\e[31m\\u202e": {enabled: True}\n')
    code, out, _ = run(capsys, "check", file)
    assert (code, out) == (1, "section a\\x1b[31m\\u202e: layers is missing\n\n1 problem\n")


def test_the_program_escapes_the_same_characters(tmp_path: Path) -> None:
    points = [chr(point) for point in range(1, 0x3000) if chr(point) != "\n"]
    names = ["".join(points[i : i + 256]) for i in range(0, len(points), 256)]
    file = write_file(tmp_path / "names", dict.fromkeys(names, np.zeros(0, np.float32)))
    shown = cli_run("inspect", file).stdout
    assert [name for name in names if command._escaped(name) not in shown] == []


def test_a_finding(capsys: pytest.CaptureFixture, good: Path, tmp_path: Path) -> None:
    layers = tmp_path / "layers.txt"
    layers.write_text("head\n\n tail \n")
    code, out, err = run(capsys, "check", good, "--layers", layers)
    assert (code, err) == (1, "")
    assert out.startswith("section a: layers: layer_types: no layer has fc in its name\n")
    assert "layer head: no section\nlayer tail: no section\n" in out
    assert out.endswith("2 problems\n")


def test_json(capsys: pytest.CaptureFixture, good: Path, tmp_path: Path) -> None:
    layers = tmp_path / "layers.txt"
    layers.write_text("fc1")
    code, out, _ = run(capsys, "check", "--json", good, "--layers", layers)
    found = json.loads(out)
    assert (code, found["exit_code"], found["problems"]) == (0, 0, [])
    assert found["layers"]["fc1"]["section"] == "a"
    assert found["layers"]["fc1"]["gemms"]["fprop"]["weight"] == {
        "plan": "modify_tensor()",
        "feature": "FakeQuant",
        "parameters": {"quant_format": "MXFP8E4M3"},
    }


def test_a_key_that_stands_twice(capsys: pytest.CaptureFixture, tmp_path: Path) -> None:
    file = tmp_path / "twice.yaml"
    file.write_text(GOOD + GOOD)
    code, out, _ = run(capsys, "check", file)
    assert code == 1 and out.startswith("file: line 8: a appears twice\n")


BAD = {
    "not yaml": ("a: [", "is not YAML of plain values"),
    "an object": ("a: !!python/object/apply:os.system ['true']", "is not YAML of plain values"),
    "two documents": ("a: 1\n---\nb: 2\n", "is not YAML of plain values"),
    "not utf-8": (b"\xff\xfe\x00", "a configuration must be text in UTF-8"),
    "nothing": ("", "a configuration must be a mapping of sections, got nothing"),
    "a list": ("[1, 2]", "a configuration must be a mapping of sections, got list"),
    "a number as name": ("1: {enabled: True}", "names of sections must be strings, got 1"),
    "a date that is none": ("a: 2001-99-99", "cannot be read as YAML"),
    "deep": ("a: " + "[" * (DEEPEST + 1) + "]" * (DEEPEST + 1), "is nested more than 32 deep"),
    "deeper": ("a: " + "[" * 20_000 + "]" * 20_000, "cannot be read as YAML"),
    "huge": ("#" * (LARGEST_FILE + 1), "a configuration must have at most 100000 bytes, got more"),
    "a bomb": (
        "a: &a [1,1,1,1,1,1,1,1,1]\n"
        + "".join(f"{y}: &{y} [{','.join([f'*{x}'] * 9)}]\n"
                  for x, y in zip("abcdefgh", "bcdefghi", strict=True)),
        "has more than 100000 values",
    ),
    "a merging bomb": (
        "a: &a {k: 1}\n"
        + "".join(f"{y}: &{y} {{<<: [{','.join([f'*{x}'] * 9)}]}}\n"
                  for x, y in zip("abcdefgh", "bcdefghi", strict=True)),
        "merges more than 100000 values",
    ),
    "a control character": ("a: \x01", "is not YAML of plain values"),
    "a circle": ("a: &a [*a]", "is nested more than 32 deep"),
    "a list as key": ("? [1, 2]\n: 3", "is not YAML of plain values"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_files_that_are_no_configuration(
    capsys: pytest.CaptureFixture, tmp_path: Path, name: str
) -> None:
    content, message = BAD[name]
    file = tmp_path / "bad.yaml"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    code, out, err = run(capsys, "check", file)
    assert (code, out) == (2, "")
    assert err.startswith(f"narrowfloat: check: {file}: ") and message in err
    assert "Traceback" not in err


@pytest.mark.parametrize("what", ["file", "folder"])
def test_what_is_no_file(capsys: pytest.CaptureFixture, tmp_path: Path, what: str) -> None:
    place = tmp_path / "nowhere.yaml" if what == "file" else tmp_path
    code, out, _ = run(capsys, "check", place, "--json")
    assert code == 2 and json.loads(out) == {
        "error": {
            "kind": "InvalidArgument",
            "message": f"check: {place}: must be a file, got none",
        },
        "exit_code": 2,
    }


@pytest.mark.parametrize(
    ("content", "message"),
    [("", r"^.*: must name a layer, got none$"), ("a\nb\na\n", "layer a appears twice")],
)
def test_lists_that_are_no_list_of_layers(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "layers.txt"
    file.write_text(content)
    with pytest.raises(BadFile, match=message):
        read_layers(file)


def test_aliases_and_merges_are_read_as_the_host_reads_them(tmp_path: Path) -> None:
    file = tmp_path / "merged.yaml"
    file.write_text("a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}\n")
    assert read_config(file) == ({"a": {"x": 1, "y": 2}, "b": {"x": 1, "y": 3}}, [])


@pytest.mark.parametrize("arguments", [[], ["chk"], ["check"], ["check", "x", "--lay", "y"]])
def test_wrong_arguments(capsys: pytest.CaptureFixture, arguments: list[str]) -> None:
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "") and err.startswith("narrowfloat: python -m narrowfloat.debug")


def test_a_disk_that_fails(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("input/output error")

    monkeypatch.setattr(Path, "open", fail)
    code, _, err = run(capsys, "check", "x.yaml")
    assert code == 4 and "input/output error" in err


def test_without_the_host_it_says_what_to_install(good: Path) -> None:
    code = (
        "import sys; sys.modules['nvdlfw_inspect'] = None; sys.modules['yaml'] = None; "
        "from narrowfloat.debug.__main__ import main; sys.exit(main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "check", good], capture_output=True, text=True
    )
    assert done.returncode == 3, done.stderr
    assert "is not installed: pip install narrowfloat[debug]" in done.stderr


def test_it_runs_as_a_module(good: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "narrowfloat.debug", "check", good], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "modify_tensor() by FakeQuant quant_format=MXFP8E4M3" in done.stdout
