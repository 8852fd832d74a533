# SPDX-License-Identifier: Apache-2.0
"""Checks that the snippets and the command of docs/debug.md print the output below them.

tests/python/debug/test_hunt.py checks the output of the hunt.
"""

import re
import shlex
import sys
from pathlib import Path

import pytest
from test_readme import FENCE, ROOT, Snippet, expect, run

pytest.importorskip("nvdlfw_inspect", reason="nvdlfw-inspect, the host, is not installed")

PAGE = ROOT / "docs" / "debug.md"
SNIPPETS = [Snippet(*found.groups()) for found in FENCE.finditer(PAGE.read_text("utf-8"))]
PYTHON = [snippet for snippet in SNIPPETS if snippet.language == "python"]
SHELL = [snippet for snippet in SNIPPETS if snippet.language == "sh"]


@pytest.mark.parametrize("snippet", PYTHON, ids=range(len(PYTHON)))
def test_snippet_prints_what_stands_behind_it(snippet: Snippet, tmp_path: Path) -> None:
    assert snippet.output
    expect(snippet, run([sys.executable, "-c", snippet.code], tmp_path))


@pytest.mark.parametrize("snippet", SHELL, ids=range(len(SHELL)))
def test_command_prints_what_stands_behind_it(snippet: Snippet) -> None:
    program, *arguments = shlex.split(snippet.code)
    assert program == "python" and snippet.output
    expect(snippet, run([sys.executable, *arguments], ROOT))


def test_blocks_of_features_are_good() -> None:
    import yaml
    from narrowfloat.debug._block_rules import findings

    (block,) = (snippet for snippet in SNIPPETS if snippet.language == "yaml")
    for feature, content in yaml.safe_load(block.code).items():
        assert not list(findings(feature, content))


def test_all_blocks_are_looked_at_and_links_lead_somewhere() -> None:
    found = [snippet.language for snippet in SNIPPETS]
    assert found == ["python", "yaml", "sh", "text", "python"]
    links = re.findall(r"\]\(([^)#:]+)\)", PAGE.read_text("utf-8"))
    assert links and all((PAGE.parent / link).exists() for link in links)


def test_every_feature_stands_on_the_page() -> None:
    from narrowfloat.debug._block_rules import RULES

    text = PAGE.read_text("utf-8")
    old = ("DisableFP8GEMM", "DisableFP8Layer")  # names that still work
    assert all(f"`{name}`" in text for name in RULES if name not in old and "Dummy" not in name)
