# SPDX-License-Identifier: Apache-2.0
"""Tests hostile files and failed downloads: exit code, message, bounded memory, no output."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from cli import program, run, write_file

MEGABYTES = 300
SECONDS = 60


def with_header(text: bytes, data: bytes = b"") -> bytes:
    return struct.pack("<Q", len(text)) + text + data


def entry(name: str, **fields: object) -> dict:
    return {name: {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]} | fields}


def header_of(*entries: dict, data: bytes = b"\0") -> bytes:
    joined = ", ".join(json.dumps(each)[1:-1] for each in entries)
    return with_header(b"{" + joined.encode() + b"}", data)


FILES: dict[str, Callable[[], bytes]] = {
    "git lfs pointer": lambda: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
    "html page": lambda: b"<!DOCTYPE html><html>404</html>",
    "gguf": lambda: b"GGUF" + bytes(60),
    "torch zip": lambda: b"PK\x03\x04" + bytes(60),
    "pickle": lambda: b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.",
    "overlap": lambda: header_of(entry("a"), entry("b"), data=b"\0\0"),
    "hole": lambda: header_of(entry("a", data_offsets=[1, 2]), data=b"\0\0"),
    "beyond the end": lambda: header_of(entry("a", shape=[9], data_offsets=[0, 9])),
    "falling offsets": lambda: header_of(entry("a", data_offsets=[64, 0])),
    "twice": lambda: header_of(entry("a"), entry("a")),
    "overflow": lambda: header_of(entry("a", shape=[2**32, 2**32], data_offsets=[0, 0])),
    "unknown type": lambda: header_of(entry("a", dtype="F33")),
    "a list": lambda: with_header(b"[]"),
    "depth": lambda: with_header(b'{"a":{"shape":' + b"[" * 1_000_000),
    "zeros": lambda: bytes(4096),
}


# Runs argv and prints its exit code and peak memory in kB. A separate process, because the kernel
# counts the large memory of pytest as memory of the processes that pytest starts.
MEASURE = """
import os, sys
process = os.spawnv(os.P_NOWAIT, sys.argv[1], sys.argv[1:])
_, status, usage = os.wait4(process, 0)
print("", os.waitstatus_to_exitcode(status), usage.ru_maxrss, sep="\\n")
"""


def run_measured(*command: object, cwd: Path | None = None) -> tuple[int, str, float]:
    """Runs the program; returns its exit code, its output, and its peak memory in MB."""
    measured = [sys.executable, "-S", "-c", MEASURE, program(), *map(str, command)]
    done = subprocess.run(
        measured, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=True, cwd=cwd
    )
    said, code, peak = done.stdout.decode().rstrip("\n").rsplit("\n", 2)
    return int(code), said, int(peak) / 1000


def commands(path: Path, out: Path) -> list[tuple[object, ...]]:
    return [
        ("inspect", path),
        ("check", path),
        ("diff", path, path),
        ("report", path, "-o", out),
        ("quantize", path, out, "--scheme", "mxfp8_e4m3"),
        ("dequantize", path, out),
        ("convert", path, out, "--to", "modelopt"),
        ("requantize", path, out, "--scale-format", "ue8m0"),
    ]


@pytest.mark.parametrize("name", FILES)
def test_it_is_refused_with_a_message(name: str, tmp_path: Path) -> None:
    path, out = tmp_path / "f", tmp_path / "out"
    path.write_bytes(FILES[name]())
    for command in commands(path, out):
        start = time.monotonic()
        code, said, megabytes = run_measured(*command)
        finding = command[0] == "check"  # it reports damaged files
        assert code == (1 if finding else 2), said[:500]
        assert "safetensors: " in said and len(said) < 1000
        assert megabytes < MEGABYTES and time.monotonic() - start < SECONDS
        assert os.listdir(tmp_path) == ["f"]


# Empty tensors with so many rows or columns that a loop over them does not end.
UNBOUNDED: dict[str, bytes] = {
    "codes without a scale": header_of(
        entry("a.weight", dtype="F8_E4M3", shape=[2**59, 0], data_offsets=[0, 0]), data=b""
    ),
    "floats": header_of(
        entry("a.weight", dtype="F32", shape=[2**59, 0], data_offsets=[0, 0]), data=b""
    ),
    "floats in one row": header_of(
        entry("a.weight", dtype="F32", shape=[0, 2**59], data_offsets=[0, 0]), data=b""
    ),
}


EMPTY_SPECS = ["fp8_e4m3:columnwise=1", "mxfp8_e4m3:columnwise=1", "mxfp4",
               "nvfp4:columnwise=1,swizzled=1", "fp8_block128x128_e4m3:columnwise=1"]  # fmt: skip


@pytest.mark.parametrize("kind", UNBOUNDED)
def test_the_rows_of_empty_tensors_take_no_time(kind: str, tmp_path: Path) -> None:
    path, out = tmp_path / "in.safetensors", tmp_path / "out"
    path.write_bytes(UNBOUNDED[kind])
    files = {"": path}
    if kind.startswith("floats"):
        run("report", path, "-o", out, timeout=SECONDS)
        files = {spec: tmp_path / f"{spec}.safetensors" for spec in EMPTY_SPECS}
    for spec, coded in files.items():
        if spec:
            run("quantize", path, coded, "--scheme", spec, "--include", "*", timeout=SECONDS)
        run("check", coded, timeout=SECONDS)
        run("dequantize", coded, tmp_path / f"{spec}.back", timeout=SECONDS)
        run("diff", coded, coded, timeout=SECONDS)
    if "mxfp4" in files:
        tiles = ("requantize", files["mxfp4"], tmp_path / "tiles", "--scale-format", "ue8m0")
        assert "not empty to be written" in run(*tiles, code=3, timeout=SECONDS).stderr


LARGEST = 100_000_000  # bytes of a header


def large_header(item: Callable[[int], str], begin: str = "{", end: str = "}") -> bytes:
    """Returns a header of the largest size: items of equal lengths, then spaces."""
    count = (LARGEST - 100) // (len(item(0)) + 1)
    text = begin + ",".join(map(item, range(count))) + end
    return with_header(text.encode().ljust(LARGEST), b"")


def empty_tensor(name: str) -> str:
    return f'"{name}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}'


LARGE: dict[str, tuple[Callable[[], bytes], str]] = {
    "tensors": (lambda: large_header(lambda i: empty_tensor(f"{i:07}")), "at most 100000 tensors"),
    "metadata": (
        lambda: large_header(lambda i: f'"{i:08}":""', '{"__metadata__":{', "}}"),
        "at most 100000 keys of metadata",
    ),
    "one tensor often": (lambda: large_header(lambda i: empty_tensor("a")), "at most 100000"),
    "a name": (lambda: with_header(b'{"' + b"a" * (LARGEST - 2)), "at most 8388608 bytes"),
    "a number": (lambda: with_header(b'{"a":' + b"1" * (LARGEST - 5)), "at most 8388608 bytes"),
    "spaces": (
        lambda: with_header(b'{"a":' + b" " * (LARGEST - 6) + b"1"),
        "at most 8388608 bytes",
    ),
    "a shape": (
        lambda: large_header(lambda i: "1", '{"a":{"dtype":"U8","shape":[', "]}}"),
        "at most 64 dimensions",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", LARGE)
def test_large_headers_take_little_memory(kind: str, tmp_path: Path) -> None:
    make, rule = LARGE[kind]
    (tmp_path / "f").write_bytes(make())
    for command in commands(tmp_path / "f", tmp_path / "out")[:3]:
        code, said, megabytes = run_measured(*command)
        assert code == (1 if command[0] == "check" else 2) and rule in said, said[:500]
        assert len(said) < 1000 and megabytes < MEGABYTES, f"{command[0]}: {megabytes} MB"
    assert os.listdir(tmp_path) == ["f"]


@pytest.mark.slow
def test_legal_headers_at_every_bound_take_little_memory(tmp_path: Path) -> None:
    """Uses 100,000 tensors whose names and shapes take 16 MiB, and spaces up to 100 MB."""
    shape = ",".join(["0"] * 10)
    entries = (
        f'"{i:087}":{{"dtype":"U8","shape":[{shape}],"data_offsets":[0,0]}}' for i in range(100_000)
    )
    text = ("{" + ",".join(entries) + "}").encode()
    (tmp_path / "f").write_bytes(with_header(text.ljust(LARGEST)))
    for command, code in [
        (("inspect", "f"), 0),
        (("inspect", "f", "--json"), 0),
        (("check", "f"), 0),
        (("diff", "f", "f"), 0),
        (("dequantize", "f", "out"), 2),
    ]:
        got, said, megabytes = run_measured(*command, cwd=tmp_path)
        assert got == code, said[:500]
        assert megabytes < MEGABYTES, f"{command}: {megabytes} MB"


NAMES = {
    "escape": "a\x1b[31mRED\x07\n.weight",
    "nul": "a\0b.weight",
    "right to left": "a\u202eb.weight",
    "c1": "a\x9b31mb.weight",
}


@pytest.mark.parametrize("kind", NAMES)
def test_names_reach_no_terminal(kind: str, tmp_path: Path) -> None:
    name = NAMES[kind]
    path = write_file(tmp_path / "f", {name: np.ones((32, 32), np.float32)})
    out = tmp_path / "out"
    bad = header_of(entry(name, dtype="F33"))
    (tmp_path / "bad").write_bytes(bad)
    said = ""
    for command, code in [
        (("inspect", path), 0),
        (("check", path), 0),
        (("quantize", path, out, "--scheme", "mxfp8_e4m3", "--dry-run"), 0),
        (("quantize", path, out, "--scheme", "mxfp8_e4m3"), 0),
        (("inspect", out), 0),
        (("diff", path, out), 1),
        (("report", path, "-o", tmp_path / "page"), 0),
        (("inspect", tmp_path / "bad"), 2),
    ]:
        done = run(*command, code=code)
        said += done.stdout + done.stderr
    steering = {c for c in said if c != "\n" and (ord(c) < 32 or 127 <= ord(c) < 160)}
    assert not steering and "\u202e" not in said
    assert "\\x" in said or "\\u202e" in said


def test_what_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "hole").symlink_to(tmp_path / "nothing")
    for name in ("loop", "pipe", "zero", "hole"):
        for command in commands(tmp_path / name, tmp_path / "out"):
            code, said, _ = run_measured(*command)
            assert code == 2 and "read: " in said, said
    assert sorted(os.listdir(tmp_path)) == ["hole", "loop", "pipe", "zero"]


CONFIGS = {
    "cut": b'{"quantization_config": {',
    "deep": b'{"a":' * 200_000 + b"1" + b"}" * 200_000,
    "twice": b'{"model_type": "a", "model_type": "b"}',
    "nul": b'{"model_type": "a"}\0',
    "a number too large": b'{"a": 1e999}',
    "large": b" " * (17 << 20) + b"{}",
}


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("name", ["config.json", "hf_quant_config.json"])
def test_damaged_companions_are_errors(kind: str, name: str, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    write_file(folder / "model.safetensors", {"a.weight": np.ones((32, 32), np.float32)})
    (folder / name).write_bytes(CONFIGS[kind])
    command = ("quantize", folder, tmp_path / "out", "--scheme", "mxfp8_e4m3")
    code, said, megabytes = run_measured(*command)
    assert code == 2 and name in said and len(said) < 1000
    assert megabytes < MEGABYTES and not (tmp_path / "out").exists()


INDICES = {
    "up": {"weight_map": {"a.weight": "../model.safetensors"}},
    "absolute": {"weight_map": {"a.weight": "/etc/passwd.safetensors"}},
    "another tensor": {"weight_map": {"b.weight": "model.safetensors"}},
    "no such file": {"weight_map": {"a.weight": "other.safetensors"}},
    "empty": {"weight_map": {}},
    "a list": [],
}


@pytest.mark.parametrize("kind", INDICES)
def test_lying_indices_are_errors(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    write_file(folder / "model.safetensors", {"a.weight": np.ones((32, 32), np.float32)})
    (folder / "model.safetensors.index.json").write_text(json.dumps(INDICES[kind]))
    command = ("quantize", folder, tmp_path / "out", "--scheme", "mxfp8_e4m3")
    code, said, _ = run_measured(*command)
    assert code == 2 and len(said) < 1000 and not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tensors", "per_file", "digits", "metadata", "rule"),
    [
        (500_000, 500_000, 160, "{}", "000.safetensors, does not exist"),
        (1_000_000, 17, 64, f"[{'[],' * 340_000}1]", "000.safetensors, does not exist"),
        (4_000_000, 4_000_000, 1, "{}", "weight_map must name at most 1000000 tensors, got more"),
        (1, 1, 1, f"[{'[],' * 9_000_000}1]", "at most 1048576 bytes beside weight_map, got more"),
    ],
)
def test_large_indices_take_little_memory(
    tensors: int, per_file: int, digits: int, metadata: str, rule: str, tmp_path: Path
) -> None:
    names = ",".join(f'"{i:0{digits}}":"{i // per_file:013}.safetensors"' for i in range(tensors))
    text = f'{{"metadata":{metadata},"weight_map":{{{names}}}}}'
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(text[:LARGEST].ljust(LARGEST))
    for path in (index, tmp_path):
        code, said, megabytes = run_measured("inspect", path)
        assert code == 2 and rule in said and megabytes < MEGABYTES, f"{said} {megabytes} MB"
