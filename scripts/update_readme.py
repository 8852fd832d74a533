# SPDX-License-Identifier: Apache-2.0
"""Writes what README.md shows of the program's own output: the table of schemes, the demo.

Usage: .venv/bin/python scripts/update_readme.py [schemes] [demo]
"""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
COLUMNS = ("name", "element", "block", "scale", "options")


def run(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, check=True, text=True, stdout=subprocess.PIPE).stdout


def schemes_table() -> str:
    """The schemes as the command line lists them, in Markdown."""
    tool = str(Path(sys.executable).with_name("narrowfloat"))
    rows = [
        [
            f"`{row['name']}`",
            row["element"],
            row["block"],
            row["scale"],
            " ".join(f"`{option}`" for option in row["options"]),
        ]
        for row in json.loads(run(tool, "schemes", "--json"))["schemes"]
    ]
    lines = [list(COLUMNS), ["---"] * len(COLUMNS), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines) + "\n"


def demo_output() -> str:
    return f"```text\n{run(sys.executable, '-m', 'demo.run')}```\n"


SECTIONS: dict[str, Callable[[], str]] = {"schemes": schemes_table, "demo": demo_output}


def pattern(name: str) -> re.Pattern[str]:
    """The section's content is the second group."""
    return re.compile(rf"(<!-- {name} -->\n)(.*?)(<!-- end -->\n)", re.DOTALL)


def section(name: str) -> str:
    """What README.md says now."""
    found = pattern(name).search(README.read_text(encoding="utf-8"))
    if found is None:
        raise ValueError(f"update_readme: README.md has no section {name}")
    return found[2]


def main(names: list[str]) -> None:
    for name in names or SECTIONS:
        content = SECTIONS[name]()
        # A function, because a string would have its backslashes read.
        text = pattern(name).sub(
            lambda found, content=content: found[1] + content + found[3],
            README.read_text(encoding="utf-8"),
        )
        README.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
