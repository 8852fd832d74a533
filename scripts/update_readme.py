# SPDX-License-Identifier: Apache-2.0
"""Writes the generated parts of the documents: tables of schemes, layouts, names and the command
line, the demo.

Usage: .venv/bin/python scripts/update_readme.py [SECTION ...]; the sections are in SECTIONS.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytorch_names

import narrowfloat as nf

ROOT = Path(__file__).resolve().parents[1]
DIRECTIONS = ("rowwise", "columnwise")
COLUMNS = ("name", "element", "block", "scale", "options")


def run(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, check=True, text=True, stdout=subprocess.PIPE).stdout


def tool() -> str:
    return os.environ.get("NF_CLI") or str(Path(sys.executable).with_name("narrowfloat"))


def table(header: tuple[str, ...], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines) + "\n"


def schemes_table() -> str:
    """Returns the schemes as the command line lists them, in Markdown."""
    rows = [
        [
            f"`{row['name']}`",
            row["element"],
            row["block"],
            row["scale"],
            " ".join(f"`{option}`" for option in row["options"]),
        ]
        for row in json.loads(run(tool(), "schemes", "--json"))["schemes"]
    ]
    return table(COLUMNS, rows)


LAYOUT_SHAPE = (256, 320)


def layouts_table() -> str:
    """Returns the buffers of one matrix in every scheme, in Markdown. Schemes with the same layout
    share a row.
    """
    rows: dict[tuple[str, ...], list[str]] = {}
    for scheme in nf.schemes():
        buffers = nf.quantize(np.zeros(LAYOUT_SHAPE, np.float32), scheme, columnwise=True).buffers
        cells = [f"{a.dtype} [{', '.join(map(str, a.shape))}]" for a in buffers.values()]
        row = dict(zip(buffers, cells, strict=True))
        codes = [f"{row.pop(f'{d}_data')}, {row.pop(f'{d}_scale_inv')}" for d in DIRECTIONS]
        rest = ", ".join(f"{name} {cell}" for name, cell in row.items())
        rows.setdefault((*codes, rest or "none"), []).append(f"`{scheme}`")
    header = ("scheme", *(f"{d}_data, {d}_scale_inv" for d in DIRECTIONS), "other buffers")
    return table(header, [["<br>".join(names), *cells] for cells, names in rows.items()])


def cli_table() -> dict:
    """Returns the table of commands and options from which the program makes its parser."""
    return json.loads(run(tool(), "manual", "--json"))


def markdown(text: str) -> str:
    """Returns a text with options, variables and calls of the program as code."""
    text = re.sub(r"(?<![\w-])--[a-z][a-z-]*|NF_[A-Z_]+|re:REGEX", r"`\g<0>`", text)
    text = re.sub(r"narrowfloat (inspect .* head)", r"`narrowfloat \1`", text)
    return text.replace("|", "\\|")


def spelled(option: dict) -> str:
    """Returns the shortest spelling of an option, with its value."""
    return " ".join(filter(None, [option["names"][0], option["value"]]))


def commands_table() -> str:
    rows = []
    for command in cli_table()["commands"]:
        required = [option for option in command["options"] if option["required"]]
        words = [o["value"] if o["names"] == [o["value"]] else spelled(o) for o in required]
        usage = " ".join([command["name"], *words])
        rows.append([f"`{usage}`", markdown(command["meaning"])])
    return table(("command", "does"), rows)


def options_table() -> str:
    """Returns the options in Markdown; options with the same meaning share a row."""
    commands: dict[tuple[str, str], list[str]] = {}
    everywhere = cli_table()["commands"]
    for command in everywhere:
        for option in command["options"]:
            if option["names"][0].startswith("-"):
                spellings = ", ".join(option["names"])
                name = " ".join(filter(None, [spellings, option["value"]]))
                row = (name, markdown(option["meaning"]))
                commands.setdefault(row, []).append(command["name"])
    rows = [
        [f"`{name}`", "all" if len(of) == len(everywhere) else ", ".join(of), meaning]
        for (name, meaning), of in sorted(commands.items(), key=lambda row: len(row[1]) > 10)
    ]
    return table(("option", "of", "meaning"), rows)


def exit_codes_table() -> str:
    rows = [[str(row["code"]), markdown(row["meaning"])] for row in cli_table()["exit_codes"]]
    return table(("code", "meaning"), rows)


def variables_table() -> str:
    rows = [[f"`{row['name']}`", markdown(row["meaning"])] for row in cli_table()["variables"]]
    return table(("variable", "meaning"), rows)


def demo_output() -> str:
    return f"```text\n{run(sys.executable, '-m', 'demo.run')}```\n"


def cmake_options() -> str:
    """Returns the options of CMakeLists.txt, as rows of a table."""
    text = (ROOT / "CMakeLists.txt").read_text(encoding="utf-8")
    rows = re.findall(r'^option\((NF_\w+) "(.*)" (\S+)\)$', text, re.MULTILINE)
    alone = {"${PROJECT_IS_TOP_LEVEL}": "on, off within another build", "OFF": "off", "ON": "on"}
    return "".join(f"| `{name}` | {alone[default]} | {help} |\n" for name, help, default in rows)


SECTIONS: dict[str, tuple[str, Callable[[], str]]] = {
    "schemes": ("README.md", schemes_table),
    "layouts": ("docs/architecture.md", layouts_table),
    "demo": ("README.md", demo_output),
    "names": ("docs/pytorch.md", pytorch_names.table),
    "commands": ("docs/cli.md", commands_table),
    "options": ("docs/cli.md", options_table),
    "variables": ("docs/cli.md", variables_table),
    "exit-codes": ("docs/cli.md", exit_codes_table),
    "cmake-options": ("docs/install.md", cmake_options),
    "all-names": ("docs/pytorch_names.md", pytorch_names.full_list),
}


def pattern(name: str) -> re.Pattern[str]:
    """Returns the pattern of a section; its second group is the content."""
    return re.compile(rf"(<!-- {name} -->\n)(.*?)(<!-- end -->\n)", re.DOTALL)


def section(name: str) -> str:
    """Returns the section's current text. Errors: ValueError if there is no such section."""
    place = SECTIONS[name][0]
    found = pattern(name).search((ROOT / place).read_text(encoding="utf-8"))
    if found is None:
        raise ValueError(f"update_readme: {place} has no section {name}")
    return found[2]


def main(names: list[str]) -> None:
    for name in names or SECTIONS:
        place, generate = SECTIONS[name]
        content = generate()
        # A function, because a string's backslashes would be interpreted.
        text = pattern(name).sub(
            lambda found, content=content: found[1] + content + found[3],
            (ROOT / place).read_text(encoding="utf-8"),
        )
        (ROOT / place).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
