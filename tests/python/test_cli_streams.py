# SPDX-License-Identifier: Apache-2.0
"""Tests the command line if a standard stream is closed, full, or a pipe without a reader."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cli import folder_bytes, program, run, sharded, write_model


def run_in_shell(
    redirection: str, *args: object, start: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    command = [*(start or (program(),)), *map(str, args)]
    return subprocess.run(
        ["sh", "-c", f'"$@" {redirection}', "sh", *command],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip


@pytest.mark.parametrize("redirection", ["2>/dev/full", "2>&-", "2>&- >&- <&-"])
def test_work_goes_on_when_standard_error_cannot_be_written(
    redirection: str, tmp_path: Path
) -> None:
    source = sharded(tmp_path / "in")
    (source / ".hidden").write_text("named on standard error")
    args = ("--scheme", "mxfp8_e4m3", "--exclude", "nothing")
    run("quantize", source, tmp_path / "whole", *args)
    done = run_in_shell(redirection, "quantize", source, tmp_path / "q", *args)
    assert done.returncode == (4 if ">&- <" in redirection else 0), done.stderr
    assert folder_bytes(tmp_path / "q") == folder_bytes(tmp_path / "whole"), (
        "no message is in a file that got the number of a closed stream"
    )
    failed = run_in_shell(redirection, "inspect", tmp_path / "missing")
    assert failed.returncode == 2


def test_work_goes_on_when_nobody_reads_standard_error(tmp_path: Path) -> None:
    source = sharded(tmp_path / "in")
    reader, writer = os.pipe()
    os.close(reader)
    command = [program(), "quantize", source, tmp_path / "q", "--scheme", "mxfp8_e4m3"]
    done = subprocess.run([*command, "--exclude", "nothing"], stderr=writer, timeout=60)
    failed = subprocess.run([program(), "inspect", tmp_path / "missing"], stderr=writer, timeout=60)
    os.close(writer)
    assert (done.returncode, failed.returncode) == (0, 2)


@pytest.mark.parametrize(
    ("redirection", "reason"),
    [(">/dev/full", "No space left on device"), (">&-", "Bad file descriptor")],
)
@pytest.mark.parametrize("through_python", [False, True])
@pytest.mark.parametrize("args", [("--help",), ("--version",), ("version",), ("schemes", "--json")])
def test_a_result_that_cannot_be_written_is_a_failure(
    args: tuple[str, ...], through_python: bool, redirection: str, reason: str
) -> None:
    code = "import narrowfloat_cli as cli; raise SystemExit(cli.main())"
    start = (sys.executable, "-c", code) if through_python else ()
    done = run_in_shell(redirection, *args, start=start)
    assert done.returncode == 4
    assert done.stderr == f"narrowfloat: write: standard output, {reason}\n"


def test_a_name_that_is_too_long_is_a_failure_with_a_message(tmp_path: Path) -> None:
    out = tmp_path / ("x" * 300)
    failed = run("quantize", write_model(tmp_path), out, "--scheme", "mxfp8_e4m3", code=4).stderr
    assert failed == f"narrowfloat: access: {out}, File name too long\n"
