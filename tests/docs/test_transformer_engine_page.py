# SPDX-License-Identifier: Apache-2.0
"""Checks that the program of docs/transformer_engine.md runs, and that the files and variables that
it names exist.
"""

import re
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from narrowfloat.te import _host, _settings
from test_readme import FENCE, Snippet, expect, run

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "transformer_engine.md"
TEXT = PAGE.read_text("utf-8")
FOUND = [Snippet(*found.groups()) for found in FENCE.finditer(TEXT)]


def test_the_program_prints_what_stands_behind_it(tmp_path: Path) -> None:
    if find_spec("transformer_engine") is None:
        pytest.skip("TransformerEngine is not installed")
    (snippet,) = (snippet for snippet in FOUND if snippet.language == "python")
    assert snippet.output
    expect(snippet, run([sys.executable, "-c", snippet.code], tmp_path))


def test_links_and_files_are_there() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", TEXT)
    files = re.findall(r"`((?:python|examples)/[\w/]+\.py)`", TEXT)
    assert links and all((PAGE.parent / link).exists() for link in links)
    assert files and all((ROOT / file).exists() for file in files)


def test_variables_and_versions_are_those_of_the_code() -> None:
    for name, value in _host.ENVIRONMENT.items():
        assert f"`{name}={value}`" in TEXT
    for name in (_settings.AS, _settings.ALSO, f"{_settings.BESIDE_GPU}=1"):
        assert f"`{name}`" in TEXT
    oldest, newest = (".".join(map(str, bound)) for bound in (_host.OLDEST, _host.NEWEST))
    assert f"is not {oldest} to {newest}" in TEXT


def test_the_name_does_not_stand_alone() -> None:
    assert "not affiliated with NVIDIA" in TEXT.partition("```")[0]
    assert "Not affiliated with NVIDIA" in (ROOT / "README.md").read_text("utf-8")
