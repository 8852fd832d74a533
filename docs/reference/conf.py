# SPDX-License-Identifier: Apache-2.0
"""How sphinx makes the API reference and the guides: `make docs`."""

from pathlib import Path

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
# namespace.
suppress_warnings = ["myst.xref_missing", "myst.header", "duplicate_declaration.cpp"]
myst_heading_anchors = 3

autodoc_typehints = "signature"
autodoc_type_aliases = {"DTypeLike": "DTypeLike", "ElementLike": "ElementLike"}
autodoc_member_order = "alphabetical"
autodoc_default_options = {"members": True, "imported-members": True, "inherited-members": False}

breathe_projects = {"narrowfloat": str(ROOT / "build/docs/doxygen/xml")}
breathe_default_project = "narrowfloat"
breathe_default_members = ("members",)
