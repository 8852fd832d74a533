# SPDX-License-Identifier: Apache-2.0
"""Tests that transformers without `import narrowfloat.transformers` refuses our folders."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from cli import run

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

from tiny_models import write_tiny_model

LOAD = """
import sys
from transformers import AutoModelForCausalLM
assert "narrowfloat.transformers" not in sys.modules
AutoModelForCausalLM.from_pretrained(sys.argv[1])
"""


@pytest.mark.parametrize("kind", ["llama", "tied llama", "qwen3-moe", "deepseek-v3"])
def test_a_loader_that_does_not_know_us_raises(kind: str, tmp_path: Path) -> None:
    write_tiny_model(kind, tmp_path / "float")
    run("quantize", tmp_path / "float", tmp_path / "ours", "--scheme", "mxfp8_e4m3")
    outcomes = [
        subprocess.run(
            [sys.executable, "-c", LOAD, str(folder)], capture_output=True, text=True, timeout=300
        )
        for folder in (tmp_path / "float", tmp_path / "ours")
    ]
    assert outcomes[0].returncode == 0, outcomes[0].stderr
    assert outcomes[1].returncode != 0
    assert "MISMATCH" in outcomes[1].stdout + outcomes[1].stderr
