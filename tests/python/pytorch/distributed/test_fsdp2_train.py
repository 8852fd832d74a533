# SPDX-License-Identifier: Apache-2.0
"""Tests that the example, killed and resumed, has the bytes of an uninterrupted run."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from torch.distributed.checkpoint import FileSystemReader

EXAMPLE = Path(__file__).resolve().parents[4] / "examples" / "fsdp2_train.py"
LIMIT_S = 90
OPTIONS = [
    ("--recipe", "delayed"),
    ("--quantized-weights",),
    ("--recipe", "nvfp4", "--quantized-weights"),  # rounds gradients at random
]


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


@pytest.mark.parametrize("options", OPTIONS, ids=str)
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
    require_same_checkpoints(parts / "step_00000005", whole / "step_00000005")


def require_same_checkpoints(first: Path, second: Path) -> None:
    """Asserts the same bytes of weights, moments, and scales and amaxes of delayed scaling."""
    saved = FileSystemReader(first).read_metadata().state_dict_metadata
    for kind in ("layers.2.weight", "layers.2.weight.exp_avg", "layers.2._extra_state"):
        assert any(name.endswith(kind) for name in saved), f"{kind} is not among {sorted(saved)}"
    names = sorted(path.name for path in first.glob("*.distcp"))
    assert len(names) == 2 and names == sorted(path.name for path in second.glob("*.distcp"))
    for name in names:
        assert (first / name).read_bytes() == (second / name).read_bytes(), name
