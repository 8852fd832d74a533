# SPDX-License-Identifier: Apache-2.0
"""docs/cli.md: its tables are made of the program's own."""

import pytest
import update_readme

SECTIONS = [name for name, (page, _) in update_readme.SECTIONS.items() if page == "docs/cli.md"]


@pytest.mark.parametrize("section", SECTIONS)
def test_the_table_is_current(section: str) -> None:
    remake = f"run .venv/bin/python scripts/update_readme.py {section}"
    assert update_readme.section(section) == update_readme.SECTIONS[section][1](), remake


def test_there_are_tables() -> None:
    assert SECTIONS == ["commands", "options", "variables", "exit-codes"]
