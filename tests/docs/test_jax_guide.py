# SPDX-License-Identifier: Apache-2.0
"""Checks that every snippet of docs/jax.md prints the output below it."""

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("jax", reason="jax is not installed")

from narrowfloat.jax import cpp_extensions, sharding
from narrowfloat.jax._library import TARGETS
from narrowfloat.jax.cpp_extensions import amax
from narrowfloat.jax.quantize import hadamard

from narrowfloat import jax as nfj

HOMES = (nfj, cpp_extensions, amax, hadamard, sharding)

GUIDE = (Path(__file__).resolve().parents[2] / "docs" / "jax.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```", GUIDE, re.M | re.S)


def test_every_snippet_states_its_output() -> None:
    assert len(SNIPPETS) == GUIDE.count("```python") == 5


@pytest.mark.parametrize(("code", "output"), SNIPPETS, ids=range(len(SNIPPETS)))
def test_snippet(code: str, output: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == output


def test_the_arguments_that_are_listed_as_missing_are_missing() -> None:
    codes = r"((?:`\w+`(?:, )?)+)"
    table = GUIDE[GUIDE.index("| function | missing arguments |") :].partition("\n\n")[0]
    rows = re.findall(rf"^\| {codes} \| {codes} \|", table, re.M)
    assert len(rows) == 6
    for functions, arguments in rows:
        for name in re.findall(r"\w+", functions):
            (function,) = {vars(home)[name] for home in HOMES if name in vars(home)}
            accepted = inspect.signature(function).parameters
            assert not accepted.keys() & {*re.findall(r"\w+", arguments)}, name


def test_the_table_has_every_target() -> None:
    assert re.findall(r"^\| `(\w+_ffi)` \|", GUIDE, re.M) == list(TARGETS)
