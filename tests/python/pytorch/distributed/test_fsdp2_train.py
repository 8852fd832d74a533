# SPDX-License-Identifier: Apache-2.0
"""The example is killed and resumed, and ends with the losses of an uninterrupted run."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[4] / "examples" / "fsdp2_train.py"
LIMIT_S = 90


def start(out: Path, log: Path, *options: str) -> subprocess.Popen:
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2",
        str(EXAMPLE), "--out", str(out), "--steps", "5", "--every", "2", *options,
    ]  # fmt: skip
    with open(log, "wb") as file:
        return subprocess.Popen(
            command,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )


def finish(process: subprocess.Popen, log: Path) -> None:
    try:
        status = process.wait(timeout=LIMIT_S)
    finally:
        kill(process)
    assert status == 0, log.read_text(errors="replace")[-3000:]


def kill(process: subprocess.Popen) -> None:
    """Ends torchrun and its ranks, which share a session."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


@pytest.mark.parametrize("options", [("--recipe", "delayed"), ("--quantized-weights",)], ids=str)
def test_killed_and_resumed(tmp_path: Path, options: tuple[str, ...]) -> None:
    whole, parts, log = tmp_path / "whole", tmp_path / "parts", tmp_path / "log"
    finish(start(whole, log, *options), log)
    process = start(parts, log, *options)
    deadline = time.monotonic() + LIMIT_S
    while not (parts / "step_00000002").exists() and time.monotonic() < deadline:
        assert process.poll() is None, log.read_text(errors="replace")[-3000:]
        time.sleep(0.02)
    kill(process)
    assert not (parts / "step_00000005").exists(), "it was not killed in time"
    finish(start(parts, log, *options), log)
    assert "from step 0" not in log.read_text()
    assert (parts / "losses.jsonl").read_text() == (whole / "losses.jsonl").read_text()
