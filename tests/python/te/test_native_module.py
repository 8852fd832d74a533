# SPDX-License-Identifier: Apache-2.0
"""Tests the native module's functions on TransformerEngine's own classes."""

import importlib.util
from pathlib import Path

import pytest
from lookalike import Run


@pytest.mark.skipif(
    importlib.util.find_spec("transformer_engine") is None,
    reason="TransformerEngine is not installed",
)
def test_its_classes_have_the_bytes_of_ours(run_alone: Run) -> None:
    ran = run_alone(str(Path(__file__).with_name("native_program.py")))
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split()[-1] == "10"
