# SPDX-License-Identifier: Apache-2.0
"""Tests that a run of examples/train.py depends on its seed, not on threads or interruptions."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
LIMIT = 300  # seconds per process
# Runs with each kind of state: no state, amax histories, random bits.
RUNS = ("fp32", "bf16", "fp8 delayed", "mxfp8", "nvfp4")


def command(out: Path, steps: int, threads: int = 1, runs: tuple[str, ...] = RUNS) -> list[str]:
    options = f"--steps {steps} --batch 2 --every 2 --threads {threads} --json".split()
    script = str(ROOT / "examples" / "train.py")
    return [sys.executable, script, *options, "--out", str(out), "--runs", *runs]


def train(out: Path, steps: int, threads: int = 1) -> dict[str, list[float]]:
    done = subprocess.run(
        command(out, steps, threads), capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert done.returncode == 0, done.stderr
    return {run["run"]: run["losses"] for run in json.loads(done.stdout)["runs"]}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[float]]:
    return train(tmp_path_factory.mktemp("undisturbed"), 6)


def test_two_threads_and_a_resumed_run_have_the_same_bits(
    undisturbed: dict[str, list[float]], tmp_path: Path
) -> None:
    first = train(tmp_path, 4, threads=2)
    assert first == {name: losses[:4] for name, losses in undisturbed.items()}
    assert train(tmp_path, 6, threads=2) == undisturbed
    assert {path.name for path in tmp_path.glob("loss.*")} == {"loss.png", "loss.svg"}
    assert not list(tmp_path.glob("*.partial"))


def test_loss_falls_and_recipes_differ(undisturbed: dict[str, list[float]]) -> None:
    for losses in undisturbed.values():
        assert losses[-1] < losses[0]
    assert len({tuple(losses) for losses in undisturbed.values()}) == len(RUNS)


def test_an_interrupted_run_says_how_to_go_on(
    undisturbed: dict[str, list[float]], tmp_path: Path
) -> None:
    with subprocess.Popen(
        command(tmp_path, 10**6, runs=("mxfp8",)), stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stderr is not None
            assert "step   50/" in process.stderr.readline()
            process.send_signal(signal.SIGINT)
            message = process.stderr.read()
            assert process.wait(LIMIT) == 130
        finally:
            process.kill()
    assert message.strip().endswith("the same command goes on from there")
    checkpoint = tmp_path / "mxfp8.pt"
    assert str(checkpoint) in message and os.path.getsize(checkpoint) > 0
