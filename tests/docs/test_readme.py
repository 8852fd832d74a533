# SPDX-License-Identifier: Apache-2.0
"""Checks that every snippet of README.md runs, and that its tables are those of the program.

A `text` block directly below a snippet is the output of the snippet.
"""

import json
import os
import re
import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import update_readme

import narrowfloat as nf

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BUILD = Path(os.environ.get("NF_BUILD_DIR", ROOT / "build" / "release"))
COMPONENT = ["--component", "development"]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Snippet:
    """A fenced block of a page, and its output if the page states it."""

    language: str
    code: str
    output: str | None


SNIPPETS = [Snippet(*found.groups()) for found in FENCE.finditer(README)]


def snippets(language: str) -> list[Snippet]:
    found = [snippet for snippet in SNIPPETS if snippet.language == language]
    assert found, f"README.md has no {language} snippet"
    return found


def run(command: list[str], folder: Path) -> str:
    """Runs a command in `folder`, with this Python's folder first in PATH. Returns its output."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stderr}"
    return done.stdout


def expect(snippet: Snippet, printed: str) -> None:
    if snippet.output is not None:
        assert printed == snippet.output


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Returns a safetensors file with one linear layer, written without the library."""
    weight = struct.pack("<8192f", *(index / 8192 - 0.5 for index in range(8192)))
    entry = {"dtype": "F32", "shape": [64, 128], "data_offsets": [0, len(weight)]}
    header = json.dumps({"layer.weight": entry}).encode()
    header += b" " * (-len(header) % 8)
    file = tmp_path / "model.safetensors"
    file.write_bytes(struct.pack("<Q", len(header)) + header + weight)
    return file


def test_only_languages_that_are_tested_here_appear() -> None:
    assert {s.language for s in SNIPPETS} == {"console", "python", "cpp", "cmake", "sh", "text"}


@pytest.mark.parametrize("snippet", snippets("python"), ids=range(len(snippets("python"))))
def test_python_runs(snippet: Snippet, tmp_path: Path) -> None:
    expect(snippet, run([sys.executable, "-c", snippet.code], tmp_path))


@pytest.mark.parametrize("snippet", snippets("sh"), ids=range(len(snippets("sh"))))
def test_shell_runs(snippet: Snippet, model: Path) -> None:
    expect(snippet, run(["bash", "-euo", "pipefail", "-c", snippet.code], model.parent))


def test_cpp_builds_against_an_installed_library_and_runs(tmp_path: Path) -> None:
    prefix, build = tmp_path / "prefix", tmp_path / "build"
    run(["cmake", "--install", str(BUILD), "--prefix", str(prefix), *COMPONENT], tmp_path)
    (cmake,) = snippets("cmake")
    (program,) = snippets("cpp")
    (tmp_path / "main.cc").write_text(program.code)
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.25)\nproject(app LANGUAGES CXX)\n"
        f"add_executable(app main.cc)\n{cmake.code}"
    )
    run(["cmake", "-S", ".", "-B", str(build), f"-DCMAKE_PREFIX_PATH={prefix}"], tmp_path)
    run(["cmake", "--build", str(build)], tmp_path)
    expect(program, run([str(build / "app")], tmp_path))


def test_make_commands_are_targets() -> None:
    commands = [line for s in snippets("console") for line in s.code.splitlines()]
    targets = [re.fullmatch(r"\$ make ([\w-]+) +# .+", line) for line in commands]
    assert all(targets), commands
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in targets:
        assert f"\n{target[1]}:" in makefile


def test_the_table_of_schemes_is_what_the_program_lists() -> None:
    assert update_readme.section("schemes") == update_readme.schemes_table()


def test_the_table_of_layouts_is_what_the_plans_are() -> None:
    assert update_readme.section("layouts") == update_readme.layouts_table()


def test_the_demo_table_is_what_the_demo_prints(tmp_path: Path) -> None:
    names, stated = demo_rows(update_readme.section("demo"))
    assert names == nf.schemes()
    report = str(tmp_path / "report.html")
    command = [sys.executable, "-m", "demo.run", names[0], "--report", report]
    _, printed = demo_rows(run(command, ROOT))
    for column, value in printed[0].items():
        # Matrix products may add in another order on another machine.
        assert float(value) == pytest.approx(float(stated[0][column]), abs=2e-4), column


def test_what_the_readme_concludes_from_the_demo_is_in_its_table() -> None:
    names, rows = demo_rows(update_readme.section("demo"))
    table = dict(zip(names, rows, strict=True))
    for name, row in table.items():
        of_f32, shift = float(row["of F32"]), float(row["largest shift"])
        assert (of_f32, shift) < (15, 0.06) if "fp4" in name else of_f32 <= 26 and shift < 0.015
        if name.endswith("e4m3"):
            other = table[name.replace("e4m3", "e5m2")]
            # One more mantissa bit halves the error: 6 dB.
            assert 5 < float(row["SQNR dB"]) - float(other["SQNR dB"]) < 7


def demo_rows(text: str) -> tuple[list[str], list[dict[str, str]]]:
    """Returns the names of the table's rows, and the cells of each row by column."""
    table = text[text.index("\nscheme ") + 1 :].split("\n\n")[0].splitlines()
    header, *rows = (re.split(r"  +", line.replace("%", "")) for line in table)
    cells = [dict(zip(header[1:], row[1:], strict=True)) for row in rows]
    return [row[0] for row in rows], cells


def test_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
