# SPDX-License-Identifier: Apache-2.0
"""Checks that the modules, headers and guides that the pages of `make docs` name exist."""

import importlib
import re

import pytest
from test_readme import ROOT

PAGES = ROOT / "docs" / "reference"
MODULES = re.findall(r"automodule:: (\S+)", (PAGES / "python.md").read_text("utf-8"))
CLASSES = re.findall(r"autoclass:: (\S+)", (PAGES / "python.md").read_text("utf-8"))
HEADERS = re.findall(r"\{doxygenfile\} (\S+)", (PAGES / "cpp.md").read_text("utf-8"))
FOLDERS = ("ops", "types", "tensor", "schemes", "numerics")


@pytest.mark.parametrize("module", MODULES)
def test_modules_list_their_names(module: str) -> None:
    if module.startswith("narrowfloat.jax"):
        pytest.importorskip("jax", reason="JAX is not installed")
    assert importlib.import_module(module).__all__


@pytest.mark.parametrize("name", CLASSES)
def test_classes_exist(name: str) -> None:
    owner = "transformers" if "transformers" in name else "nvdlfw_inspect"
    pytest.importorskip(owner, reason=f"{owner} is not installed")
    module, cls = name.rsplit(".", 1)
    assert importlib.import_module(module).__dict__[cls].__doc__


def test_each_header_is_the_only_one_of_its_name_that_doxygen_reads() -> None:
    doxyfile = (PAGES / "Doxyfile").read_text("utf-8")
    lines = re.sub(r"\\\n", "", doxyfile)
    excluded = tuple(re.findall(r"^EXCLUDE +=(.*)$", lines, re.MULTILINE)[0].split())
    read = [path for folder in FOLDERS for path in (ROOT / "narrowfloat" / folder).rglob("*.h")]
    read.append(ROOT / "narrowfloat" / "c_api.h")
    names = [path.name for path in read if not str(path.relative_to(ROOT)).startswith(excluded)]
    assert HEADERS and [name for name in HEADERS if names.count(name) != 1] == []


def test_guides_on_the_front_exist() -> None:
    index = (PAGES / "index.md").read_text("utf-8")
    listed = re.findall(r"^\.\./(\w+)$", index, re.MULTILINE)
    assert listed and [name for name in listed if not (ROOT / "docs" / f"{name}.md").exists()] == []
