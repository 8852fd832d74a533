# SPDX-License-Identifier: Apache-2.0
"""Checks that docs/exactness.md names existing tests, and all schemes and groups of records."""

import re
from pathlib import Path

import narrowfloat as nf

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "exactness.md").read_text(encoding="utf-8")
SOURCES = [
    path.read_text(encoding="utf-8")
    for folder in ("narrowfloat", "tests")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in {".cc", ".py"} and path != Path(__file__)
]


def test_every_named_test_exists() -> None:
    named = set(re.findall(r"`((?:\w+Test\.\w+)|(?:test_\w+))`", TEXT))
    assert len(named) > 40
    for name in sorted(named):
        if "." in name:
            suite, test = name.split(".")
            wanted = re.compile(rf"^(?:TYPED_)?TEST(?:_P|_F)?\({suite}, {test}\)", re.MULTILINE)
        else:
            wanted = re.compile(rf"^def {name}\(", re.MULTILINE)
        assert any(wanted.search(source) for source in SOURCES), name


def test_every_scheme_has_a_row() -> None:
    for scheme in nf.schemes():
        assert re.search(rf"^\|.*`{scheme}`", TEXT, re.MULTILINE), scheme


def test_every_group_of_records_is_cited() -> None:
    for group in sorted(path.name for path in (ROOT / "tests" / "golden").iterdir()):
        assert f"`{group}`" in TEXT, group
