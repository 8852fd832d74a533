# SPDX-License-Identifier: Apache-2.0
"""Checks that every snippet of docs/recipes.md runs and prints the output below it."""

import re
import sys
from pathlib import Path

import pytest
from test_readme import FENCE, Snippet, expect, run

PAGE = Path(__file__).resolve().parents[2] / "docs" / "recipes.md"
SNIPPETS = [Snippet(*found.groups()) for found in FENCE.finditer(PAGE.read_text("utf-8"))]


@pytest.mark.parametrize("snippet", SNIPPETS, ids=range(len(SNIPPETS)))
def test_snippet_prints_what_stands_behind_it(snippet: Snippet, tmp_path: Path) -> None:
    assert snippet.language == "python" and snippet.output
    expect(snippet, run([sys.executable, "-c", snippet.code], tmp_path))


def test_there_are_snippets_and_links_lead_somewhere() -> None:
    assert len(SNIPPETS) == 6
    links = re.findall(r"\]\(([^)#:]+)\)", PAGE.read_text("utf-8"))
    assert links and all((PAGE.parent / link).exists() for link in links)
