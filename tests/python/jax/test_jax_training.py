# SPDX-License-Identifier: Apache-2.0
"""Tests that the training example learns under every recipe, and its output."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("matplotlib", reason="matplotlib is not installed")
ROOT = Path(__file__).resolve().parents[3]


def test_a_few_steps(tmp_path: Path) -> None:
    plot = tmp_path / "losses.png"
    recipes = ["bfloat16", "current scaling", "MXFP8", "NVFP4"]
    command = [sys.executable, "-m", "demo.jax_training", *recipes, "--steps", "4"]
    done = subprocess.run(
        [*command, "--plot", str(plot)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    rows = re.findall(r"^(.+?) +(\d\.\d+) +(\d\.\d+) +([+-]\d\.\d+)", done.stdout, re.MULTILINE)
    assert [row[0] for row in rows] == recipes
    for _, first, last, over in rows:
        # A uniform guess among 96 kinds of characters costs log(96) = 4.56. Four steps find the
        # frequent ones under every recipe.
        assert float(last) < 4.3 < float(first) and abs(float(over)) < 0.2
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_an_unknown_recipe() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "demo.jax_training", "FP3"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr.endswith(
        "RECIPE must be one of bfloat16, current scaling, MXFP8, NVFP4, got 'FP3'\n"
    )
