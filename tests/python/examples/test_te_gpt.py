# SPDX-License-Identifier: Apache-2.0
"""Tests examples/te_gpt.py: a program for GPUs trains under every recipe on the CPU."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "examples" / "te_gpt.py"
RUNS = ("bf16", "fp8 delayed", "fp8 current", "mxfp8", "fp8 blockwise", "nvfp4")

if find_spec("transformer_engine") is None:
    pytest.skip("TransformerEngine is not installed", allow_module_level=True)


def test_the_loss_falls_under_every_recipe(tmp_path: Path) -> None:
    options = ["--steps", "6", "--batch", "2", "--json", "--out", str(tmp_path)]
    command = [sys.executable, "-m", "narrowfloat.te", str(SCRIPT), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    losses = json.loads(done.stdout)["losses"]
    assert tuple(losses) == RUNS
    # Losses of MXFP8 and block-scaled FP8 may agree: the scales of both are powers of two.
    assert len({tuple(run) for name, run in losses.items() if name != "mxfp8"}) == len(RUNS) - 1
    assert losses["mxfp8"] != losses["bf16"]
    assert all(run[-1] < run[0] for run in losses.values())
    assert {path.name for path in tmp_path.glob("loss.*")} == {"loss.png", "loss.svg"}


def test_the_program_does_not_name_narrowfloat() -> None:
    assert "narrowfloat" not in SCRIPT.read_text().partition('"""\n\nimport')[2]
