# SPDX-License-Identifier: Apache-2.0
"""Prints pip constraints: the oldest version of every package with a range in pyproject.toml."""

import re
import tomllib
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"
RANGE = re.compile(r"([\w-]+)>=([\w.]+)")


def oldest() -> list[str]:
    """Returns `name==version` for each range `name>=version`, sorted, each once."""
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"].values()
    wanted = [*project["dependencies"], *(entry for extra in extras for entry in extra)]
    found = [RANGE.fullmatch(entry) for entry in wanted]
    return sorted({f"{match[1]}=={match[2]}" for match in found if match})


if __name__ == "__main__":
    print("\n".join(oldest()))
