# SPDX-License-Identifier: Apache-2.0
"""Checks that the commands, files, schemes and programs that CONTRIBUTING.md names exist."""

import os
import platform
import re
import subprocess
from pathlib import Path

import pytest
from test_readme import ROOT

import narrowfloat as nf

PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def run(*command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "NF_SYSTEM": "ready"}
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


def test_commands_are_targets_and_help_lists_them() -> None:
    targets = set(re.findall(r"make ([a-z][\w-]*)", PAGE))
    assert {"try", "check", "test", "check-deep", "format", "docs", "wheel"} <= targets
    printed = run("make", "help").stdout
    for target in targets:
        assert f"\n{target}:" in MAKEFILE and f"make {target}" in printed, target


def test_files_exist() -> None:
    # Files that the reader creates, and folders that a build creates.
    made = (
        "narrowfloat/schemes/myscheme.h",
        "narrowfloat/io/conventions/myconvention.cc",
        "build/",
    )
    named = re.findall(r"(?<![\w/])((?:narrowfloat|tests|scripts|docs)/[\w./]+\w)", PAGE)
    assert len(named) > 10
    assert [
        name for name in named if not name.startswith(made) and not (ROOT / name).exists()
    ] == []


def test_test_programs_kernels_and_schemes_exist() -> None:
    cmake = "".join(path.read_text("utf-8") for path in ROOT.glob("*/**/CMakeLists.txt"))
    for program in re.findall(r"\b(\w+_test)\b(?!\.py)", PAGE):
        assert f"nf_test({program}" in cmake or f"{program.removesuffix('_test')} " in cmake, (
            program
        )
    for kernel, scheme in re.findall(r"K=(\w+) S=(\w+)", PAGE):
        assert list((ROOT / "narrowfloat/kernels").glob(f"*/{kernel}.cc")), kernel
        assert scheme == "myscheme" or scheme in nf.schemes()


@pytest.mark.skipif(
    platform.machine() != "x86_64",
    reason="the page names the backends of x86-64 alone; elsewhere `narrowfloat doctor` lists them",
)
@pytest.mark.parametrize("backend", ["scalar", *nf.backends()])
def test_backends_are_those_of_the_page(backend: str) -> None:
    assert f"`{backend}`" in PAGE


USAGE = "usage: make try K=<kernel file> [S=<scheme>], such as K=micro_kernels S=mxfp8_e4m3"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], f"error: try: {USAGE}"),
        (
            ["nothing.cc"],
            "error: try: nothing.cc must be a .cc or .h file of narrowfloat/kernels, "
            "scalar/ or cpu/, got none of that name; " + USAGE,
        ),
        (
            ["pack_kernels", "nothing"],
            "error: try: S must be a scheme of narrowfloat/schemes, got 'nothing'",
        ),
    ],
)
def test_trying_nothing_says_what_to_try(arguments: list[str], message: str) -> None:
    done = run("scripts/try.sh", *arguments)
    assert done.returncode == 1 and done.stderr == f"{message}\n"


def test_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", PAGE)
    assert links and [link for link in links if not Path(ROOT / link).exists()] == []
