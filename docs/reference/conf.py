# SPDX-License-Identifier: Apache-2.0
"""How sphinx makes the API reference and the guides: `make docs`."""

import re
from pathlib import Path

from sphinx.application import Sphinx

import narrowfloat

ROOT = Path(__file__).resolve().parents[2]

project = "narrowfloat"
release = version = narrowfloat.__version__
root_doc = "reference/index"
extensions = ["sphinx.ext.autodoc", "myst_parser", "breathe"]
exclude_patterns = ["te_names.json"]

html_theme = "furo"
html_title = "narrowfloat"
html_show_copyright = False

# Links of the guides to files outside docs/ work in the repository only; every header declares the
# namespace; several modules have a Quantizer.
suppress_warnings = ["myst.xref_missing", "myst.header", "duplicate_declaration.cpp", "ref.python"]
myst_heading_anchors = 3

autodoc_typehints = "signature"
autodoc_type_aliases = {"DTypeLike": "DTypeLike", "ElementLike": "ElementLike"}
autodoc_member_order = "alphabetical"
autodoc_mock_imports = ["safetensors", "transformers"]  # need not be installed
autodoc_default_options = {"members": True, "imported-members": True, "inherited-members": False}

breathe_projects = {"narrowfloat": str(ROOT / "build/docs/doxygen/xml")}
breathe_default_project = "narrowfloat"
breathe_default_members = ("members",)

# A line of a docstring that describes an argument, or begins with a word such as Errors.
_ENTRY = re.compile(r"(\*{0,2}[a-z]\w*(, \*{0,2}[a-z]\w*)*|[A-Z][a-z]+|`\w+`): ")


def _write_entries(
    app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    """Makes reStructuredText of a docstring: a paragraph per entry, without indentation.

    An indented block becomes a literal one. A text that a tensor class inherits from PyTorch, which
    has directives in it, is left out.
    """
    if any(line.lstrip().startswith(".. ") for line in lines):
        lines[:] = ["As in PyTorch."]
        return
    written: list[str] = []
    in_text = in_block = False
    for line in lines:
        text = line.strip()
        in_text = bool(text) and (in_text or text == line)
        if text and not in_text and not in_block:
            written += ["::", ""]
        in_block = not in_text and (in_block or bool(text))
        if in_text:
            if _ENTRY.match(line):
                written.append("")
            line = re.sub(r"(?<=\w)_(?=\W|$)(?!`)", r"\\_", text)
        written.append(line)
    lines[:] = written


def setup(app: Sphinx) -> None:
    app.connect("autodoc-process-docstring", _write_entries)
