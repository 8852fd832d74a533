# SPDX-License-Identifier: Apache-2.0
"""Writes docs/te_names.json: the public names of TransformerEngine's modules, read from its wheel.

Usage: .venv/bin/python scripts/te_names.py FOLDER

FOLDER is an unpacked `transformer_engine` wheel, or the site-packages it is installed in. The files
are parsed and never imported. A module's names are the public classes, functions and constants that
it defines, and names that a package's __init__ imports from TransformerEngine. Modules below FLAT
are not listed, because their package exports the names for users. The native module's names are
the names that TransformerEngine's Python code uses.
"""

import ast
import json
import sys
from collections.abc import Iterator
from pathlib import Path

LIST = Path(__file__).resolve().parents[1] / "docs" / "te_names.json"
PACKAGE = "transformer_engine"
ROOTS = ("transformer_engine/pytorch", "transformer_engine/common/recipe")
NATIVE = "transformer_engine_torch"
NOT_MODULES = ("setup",)  # builds the native module
FLAT = ("attention", "ops", "triton")


def version_of(folder: Path) -> str:
    """Returns the wheel's version. Errors: ValueError unless there is exactly one wheel."""
    suffix = ".dist-info"
    found = [path.name for path in folder.glob(f"{PACKAGE}-*{suffix}")]
    if len(found) != 1:
        raise ValueError(f"te_names: {folder} must hold one {PACKAGE}-*{suffix}, got {found}")
    return found[0].removesuffix(suffix).removeprefix(f"{PACKAGE}-")


def sources(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yields the public modules under ROOTS, each with its file."""
    for root in ROOTS:
        for path in sorted((folder / root).rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            if parts[-1] == "__init__":
                parts = parts[:-1]
            inner = any(part in FLAT for part in parts[:-1])
            hidden = any(part.startswith("_") for part in parts)
            if not inner and not hidden and parts[-1] not in NOT_MODULES:
                yield ".".join(parts), path


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yields a module's statements, also those under an `if` or a `try`."""
    for node in body:
        yield node
        for block in ("body", "orelse", "handlers", "finalbody"):
            if isinstance(node, ast.If | ast.Try | ast.ExceptHandler):
                yield from statements(getattr(node, block, []))


def names_of(path: Path) -> list[str]:
    """Returns the public names of one module, sorted."""
    names: set[str] = set()
    for node in statements(ast.parse(path.read_text(encoding="utf-8")).body):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            named = {target.id for target in targets if isinstance(target, ast.Name)}
            names |= {name for name in named if not name.islower()}  # no handles of modules
        elif isinstance(node, ast.ImportFrom) and path.name == "__init__.py":
            own = node.level > 0 or (node.module or "").startswith(PACKAGE + ".")
            taken = {alias.asname or alias.name for alias in node.names if own}
            names |= set(names_of(starred(path, node))) if "*" in taken else taken
    return sorted(name for name in names if not name.startswith("_"))


def starred(path: Path, node: ast.ImportFrom) -> Path:
    """Returns the file behind `from .module import *` in the package file `path`."""
    module = path.parent.joinpath(*(node.module or "").split("."))
    return module / "__init__.py" if module.is_dir() else module.with_suffix(".py")


def native_names(paths: list[Path]) -> list[str]:
    """Returns the names of the native module that the files `paths` use, sorted."""
    names: set[str] = set()
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                names |= {node.attr} if node.value.id == "tex" else set()
            elif isinstance(node, ast.ImportFrom) and node.module == NATIVE:
                names |= {alias.name for alias in node.names}
    return sorted(name for name in names if not name.startswith("_") and name != "*")


def main(folder: Path) -> None:
    modules = {module: names_of(path) for module, path in sources(folder)}
    modules[NATIVE] = native_names(sorted((folder / ROOTS[0]).rglob("*.py")))
    content = {
        "package": PACKAGE,
        "version": version_of(folder),
        "modules": {module: names for module, names in modules.items() if names},
    }
    LIST.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
