# SPDX-License-Identifier: Apache-2.0
"""Tests folders that a job has not finished, and folders that another job writes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import struct
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from cli import folder_bytes, program, run, run_json, sharded, write_file

import narrowfloat as nf

MARK = ".narrowfloat.unfinished"


def unfinished(tmp_path: Path) -> tuple[Path, Path]:
    """Returns a model and a finished folder into which a later job has begun to write."""
    source, out = sharded(tmp_path / "in"), tmp_path / "q"
    run("quantize", source, out, "--scheme", "mxfp8_e4m3")
    run("quantize", source, out, "--scheme", "nvfp4", "--overwrite", "--part", "1/2")
    assert (out / MARK).exists()
    return source, out


def test_an_unfinished_folder_is_not_read(tmp_path: Path) -> None:
    _, out = unfinished(tmp_path)
    index = out / "model.safetensors.index.json"
    for command in (
        ("dequantize", out, tmp_path / "no"),
        ("dequantize", index, tmp_path / "no"),
        ("convert", out, tmp_path / "no", "--to", "fp8"),
        ("requantize", out, tmp_path / "no", "--scale-format", "f32"),
        ("quantize", out, tmp_path / "no", "--scheme", "nvfp4"),
        ("diff", out, out),
        ("report", out, "-o", tmp_path / "no"),
    ):
        error = run_json(*command, code=2)["error"]
        path = index if index in command else out
        assert error["message"] == (
            f"read: {path}, the job that writes this folder must be finished, got its mark "
            f"{out / MARK}; run the job again, or remove the mark to read what the folder holds"
        )
        assert not (tmp_path / "no").exists()
    found = run_json("check", out, code=1)["findings"]
    assert [each["what"] for each in found if each["name"] == "" and not each["note"]] == [
        f"the job that writes this folder is unfinished: it has {out / MARK}"
    ]
    assert run_json("inspect", out)["unfinished"]
    assert f"unfinished: the job that writes this folder left {out / MARK}\n" in (
        run("inspect", out).stdout
    )
    (out / MARK).unlink()
    assert run_json("inspect", out)["unfinished"] is False
    run("diff", out, out)


def test_a_folder_without_an_index_yet_is_named_unfinished(tmp_path: Path) -> None:
    source, out = sharded(tmp_path / "in"), tmp_path / "q"
    run("quantize", source, out, "--scheme", "mxfp8_e4m3", "--part", "1/2")
    assert len(list(out.glob("*.safetensors"))) == 2
    assert run("inspect", out, code=2).stderr == (
        f"narrowfloat: read: {out}, the job that writes this folder must be finished, got its mark "
        f"{out / MARK}; run the job again, or remove the mark to read what the folder holds\n"
    )


def test_python_does_not_load_an_unfinished_folder(tmp_path: Path) -> None:
    _, out = unfinished(tmp_path)
    with pytest.raises(ValueError, match="the job that writes this folder must be finished"):
        nf.load(out)


def test_the_job_itself_goes_on(tmp_path: Path) -> None:
    source, out = unfinished(tmp_path)
    again = run_json("quantize", source, out, "--scheme", "nvfp4", "--part", "1/2")
    assert again["files_skipped"] == again["files"] > 0
    assert run_json("quantize", source, out, "--scheme", "nvfp4")["complete"]
    run("quantize", source, tmp_path / "new", "--scheme", "nvfp4")
    assert folder_bytes(out) == folder_bytes(tmp_path / "new")


def test_another_job_is_refused(tmp_path: Path) -> None:
    source, out = sharded(tmp_path / "in"), tmp_path / "q"
    run("quantize", source, out, "--scheme", "nvfp4", "--part", "1/2")
    before = folder_bytes(out)
    refused = run_json("quantize", source, out, "--scheme", "mxfp8_e4m3", code=2)["error"]
    assert refused["message"] == (
        f"quantize: {out} must not have the mark of another job (other input, options or version), "
        f"got {out / MARK}; finish that job, or --overwrite replaces its files"
    )
    assert folder_bytes(out) == before
    run("quantize", source, out, "--scheme", "mxfp8_e4m3", "--overwrite")
    run("quantize", source, tmp_path / "new", "--scheme", "mxfp8_e4m3")
    assert folder_bytes(out) == folder_bytes(tmp_path / "new")


def test_of_two_jobs_at_the_same_time_one_is_refused(tmp_path: Path) -> None:
    source = sharded(tmp_path / "in", shards=8)
    schemes = ("mxfp8_e4m3", "mxfp8_e5m2")
    for turn in range(5):
        out = tmp_path / f"q{turn}"
        jobs = [
            subprocess.Popen(
                [program(), "quantize", source, out, "--scheme", scheme],
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )
            for scheme in schemes
        ]  # fmt: skip
        codes = [job.wait() for job in jobs]
        assert sorted(codes) == [0, 2], "one of the two writes all files"
        won = schemes[codes.index(0)]
        if not (tmp_path / won).exists():
            run("quantize", source, tmp_path / won, "--scheme", won)
        assert folder_bytes(out) == folder_bytes(tmp_path / won)


def wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.001)


def strace(*options: str) -> list[str]:
    """Returns a command that runs another one under strace, or skips the test."""
    command = ["strace", "-f", "-qq", "-o", os.devnull, *options]
    works = shutil.which("strace") and subprocess.run([*command, "true"], capture_output=True)
    if not works or works.returncode:
        pytest.skip("needs strace, which delays a system call")
    return command


@pytest.mark.parametrize("overwrite", [[], ["--overwrite"]], ids=["", "overwrite"])
def test_a_job_that_another_one_replaces_writes_no_further_file(
    overwrite: list[str], tmp_path: Path
) -> None:
    source, out = sharded(tmp_path / "in", shards=2), tmp_path / "q"
    # Delays the call that ensures that the second file is on the disk.
    slow = strace("-e", "trace=fsync", "-e", "inject=fsync:delay_enter=3000000:when=8")
    job = [program(), "quantize", source, out, "--scheme", "nvfp4", *overwrite]
    with subprocess.Popen([*slow, *job], stderr=subprocess.PIPE, text=True) as first:
        wait_for(written := out / "model-00001-of-00002.safetensors")
        while not list(out.glob(".narrowfloat-*.partial")):
            time.sleep(0.001)
        time.sleep(0.3)
        run("quantize", source, out, "--scheme", "mxfp8_e4m3", "--overwrite")
        said = first.stderr.read()
    rule = "must stay as this job wrote it, got a file of another job"
    assert first.returncode == 2
    assert said.endswith(f"narrowfloat: quantize: {written} {rule}\n")
    run("quantize", source, tmp_path / "whole", "--scheme", "mxfp8_e4m3")
    assert folder_bytes(out) == folder_bytes(tmp_path / "whole")


def test_parts_that_start_together_finish_the_folder(tmp_path: Path) -> None:
    source, out = sharded(tmp_path / "in", shards=2), tmp_path / "q"
    job = [program(), "quantize", source, out, "--scheme", "nvfp4", "--part"]
    links = "?link,?linkat"
    slow = strace("-e", f"trace={links}", "-e", f"inject={links}:delay_exit=1500000")
    with subprocess.Popen([*slow, *job, "1/2"], stderr=subprocess.PIPE, text=True) as first:
        wait_for(out / MARK)  # the first part has made the mark, and does not go on yet
        second = subprocess.run([*job, "2/2"], capture_output=True, text=True)
        said = first.stderr.read()
    assert (first.returncode, second.returncode) == (0, 0), said + second.stderr
    run("quantize", source, tmp_path / "whole", "--scheme", "nvfp4")
    assert folder_bytes(out) == folder_bytes(tmp_path / "whole")


@pytest.mark.parametrize("command", ["quantize", "report"])
def test_a_file_that_appears_during_the_run_is_not_replaced(tmp_path: Path, command: str) -> None:
    source = write_file(tmp_path / "in", {"a.weight": np.ones((32, 32), np.float32)})
    out = tmp_path / "out"
    job = [program(), command, source]
    job += ["-o", out] if command == "report" else [out, "--scheme", "mxfp8_e4m3"]
    slow = strace("-e", "trace=fsync", "-e", "inject=fsync:delay_enter=1500000")
    with subprocess.Popen([*slow, *job], stderr=subprocess.PIPE, text=True) as running:
        while not any(tmp_path.glob(".narrowfloat-*")):
            time.sleep(0.001)
        out.write_bytes(b"precious")
        said = running.stderr.read()
    assert running.returncode == 2 and said.endswith(
        f"narrowfloat: {command}: {out} exists, --overwrite is needed to replace it\n"
    )
    assert out.read_bytes() == b"precious" and len(list(tmp_path.iterdir())) == 2


def test_files_that_the_job_finished_are_its_own_without_the_mark(tmp_path: Path) -> None:
    source, out = sharded(tmp_path / "in", shards=2), tmp_path / "q"
    job = ("quantize", source, out, "--scheme", "nvfp4")
    run(*job, "--part", "2/2")
    (out / MARK).unlink()
    (done,) = out.glob("*.safetensors")
    other = ("quantize", source, out, "--scheme", "mxfp8_e4m3")
    message = f"quantize: {done} exists, --overwrite is needed to replace it"
    assert run_json(*other, code=2)["error"]["message"] == message
    assert run_json(*job)["files_skipped"] == 1
    run("quantize", source, tmp_path / "whole", "--scheme", "nvfp4")
    assert folder_bytes(out) == folder_bytes(tmp_path / "whole")


def write_zeros(folder: Path, file_bytes: int) -> Path:
    """Writes a model of two files of zeros, which have no blocks on disk."""
    folder.mkdir()
    weight_map = {}
    for name in ("a", "b"):
        entry = {"dtype": "F32", "shape": [file_bytes // 4096, 1024]}
        header = {f"{name}.weight": entry | {"data_offsets": [0, file_bytes]}}
        text = json.dumps(header).encode()
        path = folder / f"{name}.safetensors"
        path.write_bytes(struct.pack("<Q", len(text)) + text)
        os.truncate(path, 8 + len(text) + file_bytes)
        weight_map[f"{name}.weight"] = path.name
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


def test_a_mark_that_is_gone_is_written_again(tmp_path: Path) -> None:
    """Removes the mark, as a part does that made the folder and stops before its first file."""
    source, out = write_zeros(tmp_path / "in", 1 << 29), tmp_path / "q"
    job = [program(), "quantize", source, out, "--scheme", "nvfp4", "--part", "1/2"]
    with subprocess.Popen(job, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as part:
        wait_for(out / MARK)
        part.send_signal(signal.SIGSTOP)
        (out / MARK).unlink()
        part.send_signal(signal.SIGCONT)
    assert part.returncode == 0
    assert (out / MARK).exists()


def test_a_mark_that_cannot_be_removed_is_an_error(tmp_path: Path) -> None:
    source, out = sharded(tmp_path / "in"), tmp_path / "q"
    out.mkdir()
    calls = "?unlink,?unlinkat,?rmdir"
    fail = strace(
        "-P", str(out / MARK), "-e", f"trace={calls}", "-e", f"inject={calls}:error=EPERM"
    )
    job = ["quantize", source, out, "--scheme", "nvfp4", "--json"]
    done = subprocess.run([*fail, program(), *job], capture_output=True, text=True)
    assert done.returncode == 4, done.stderr
    assert json.loads(done.stdout)["error"]["message"] == (
        f"write: {out / MARK}, cannot be removed, though all files are written: "
        "Operation not permitted"
    )
    assert (out / MARK).exists()
    assert run_json(*job[:-1])["complete"]
    run("diff", out, out)
