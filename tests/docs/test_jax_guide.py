# SPDX-License-Identifier: Apache-2.0
"""Checks that every snippet of docs/jax.md prints the output below it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("jax", reason="jax is not installed")

from narrowfloat.jax._library import TARGETS

GUIDE = (Path(__file__).resolve().parents[2] / "docs" / "jax.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```", GUIDE, re.M | re.S)


def test_every_snippet_states_its_output() -> None:
    assert len(SNIPPETS) == GUIDE.count("```python") == 5


@pytest.mark.parametrize(("code", "output"), SNIPPETS, ids=range(len(SNIPPETS)))
def test_snippet(code: str, output: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == output


def test_the_table_has_every_target() -> None:
    assert re.findall(r"^\| `(\w+_ffi)` \|", GUIDE, re.M) == list(TARGETS)
