# SPDX-License-Identifier: Apache-2.0
"""Checks that every snippet of docs/pytorch.md runs and prints the output below it."""

import re
import sys
from pathlib import Path

import pytest
from test_readme import FENCE, Snippet, expect, run

PAGE = Path(__file__).resolve().parents[2] / "docs" / "pytorch.md"
FOUND = [Snippet(*found.groups()) for found in FENCE.finditer(PAGE.read_text("utf-8"))]
SNIPPETS = [snippet for snippet in FOUND if snippet.language == "python"]


@pytest.mark.parametrize("snippet", SNIPPETS, ids=range(len(SNIPPETS)))
def test_snippet_prints_what_stands_behind_it(snippet: Snippet, tmp_path: Path) -> None:
    assert snippet.output
    expect(snippet, run([sys.executable, "-c", snippet.code], tmp_path))


def test_there_are_snippets_and_links_lead_somewhere() -> None:
    assert len(SNIPPETS) == 6
    links = re.findall(r"\]\(([^)#:]+)\)", PAGE.read_text("utf-8"))
    assert links and all((PAGE.parent / link).exists() for link in links)


def test_every_class_of_the_table_is_there() -> None:
    import narrowfloat.pytorch as nfp

    guide = PAGE.read_text("utf-8").split("## Moving a program over")[1]
    names = re.findall(r"`(\w+(?:Quantizer|Tensor))`", guide)
    assert len(set(names)) >= 14
    assert [name for name in names if not hasattr(nfp, name)] == []
