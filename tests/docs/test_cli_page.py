# SPDX-License-Identifier: Apache-2.0
"""Checks that the tables of docs/cli.md are those that the program's own tables generate."""

import pytest
import update_readme

SECTIONS = [name for name, (page, _) in update_readme.SECTIONS.items() if page == "docs/cli.md"]


@pytest.mark.parametrize("section", SECTIONS)
def test_the_table_is_current(section: str) -> None:
    remake = f"run .venv/bin/python scripts/update_readme.py {section}"
    assert update_readme.section(section) == update_readme.SECTIONS[section][1](), remake


def test_there_are_tables() -> None:
    assert SECTIONS == ["commands", "options", "variables", "exit-codes"]
