# SPDX-License-Identifier: Apache-2.0
"""Checks the dependencies between the modules of the Python package: a module imports only from its
layer and lower layers, without cycles.

usage: python_layering.py ROOT      prints all offences; exits with 1 if any exist
"""

import ast
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

PACKAGE = "narrowfloat"

# Each layer, and the layers directly below it. A module may import from its own layer and from all
# lower layers. Its layer is the one with the longest name that the module's name begins with.
# "NAME:" is the layer of the package's __init__.py, which has the names that users import.
BELOW: dict[str, list[str]] = {
    "narrowfloat._core": [],
    "narrowfloat.common": ["narrowfloat._core"],
    "narrowfloat": ["narrowfloat.common"],
    "narrowfloat.jax": ["narrowfloat"],
    "narrowfloat.pytorch": ["narrowfloat.common"],
    "narrowfloat.pytorch.tensor.storage": ["narrowfloat.pytorch"],
    "narrowfloat.pytorch.tensor": ["narrowfloat.pytorch.tensor.storage"],
    "narrowfloat.pytorch.dynamo": ["narrowfloat.pytorch"],
    "narrowfloat.pytorch.quantization": ["narrowfloat.pytorch.tensor"],
    "narrowfloat.pytorch.cpp_extensions": ["narrowfloat.pytorch.tensor"],
    "narrowfloat.pytorch.custom_recipes": [
        "narrowfloat.pytorch.quantization",
        "narrowfloat.pytorch.cpp_extensions",
    ],
    "narrowfloat.pytorch.module": [
        "narrowfloat.pytorch.quantization",
        "narrowfloat.pytorch.cpp_extensions",
    ],
    "narrowfloat.pytorch.tex": [
        "narrowfloat.pytorch.quantization",
        "narrowfloat.pytorch.cpp_extensions",
    ],
    "narrowfloat.pytorch:": ["narrowfloat.pytorch.module", "narrowfloat.pytorch.dynamo"],
    "narrowfloat.debug": ["narrowfloat.pytorch:", "narrowfloat"],
    "narrowfloat.transformers": ["narrowfloat.pytorch:", "narrowfloat.pytorch.tensor"],
    "narrowfloat.te": ["narrowfloat.pytorch:", "narrowfloat.pytorch.tex", "narrowfloat.jax"],
}
# Modules that are in a higher layer than their folder.
ABOVE: dict[str, str] = {
    "narrowfloat.pytorch._arrays": "narrowfloat.pytorch.tensor",
    "narrowfloat.pytorch._grouped": "narrowfloat.pytorch.tensor",
    "narrowfloat.pytorch._swizzle": "narrowfloat.pytorch.tensor",
    "narrowfloat.pytorch._export": "narrowfloat.pytorch.tensor",
    "narrowfloat.pytorch.distributed": "narrowfloat.pytorch.tensor",
    "narrowfloat.pytorch.fp8": "narrowfloat.pytorch.quantization",
    "narrowfloat.pytorch": "narrowfloat.pytorch:",
}


class Import(NamedTuple):
    """An import of another module. An import in a function is a dependency too."""

    line: int
    target: str


def layers_below(layer: str) -> set[str]:
    """Returns all layers that a layer may import from, including itself."""
    return {layer}.union(*(layers_below(below) for below in BELOW[layer]))


def layer_of(module: str) -> str | None:
    """Returns the layer of a module; None if it has no row in the table of dependencies."""
    if module in ABOVE:
        return ABOVE[module]
    fits = [layer for layer in BELOW if module == layer or module.startswith(f"{layer}.")]
    only_root = fits == ["narrowfloat"] and module.count(".") > 1
    return None if only_root or not fits else max(fits, key=len)


def modules_of(root: Path) -> dict[str, Path]:
    """Returns the package's modules under `root`, as name and path."""
    found = {f"{PACKAGE}._core": root / PACKAGE}  # native
    for path in sorted((root / PACKAGE).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def is_typing_block(node: ast.AST) -> bool:
    """Returns whether a node is `if TYPE_CHECKING:`, which does not run."""
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)


def targets_of(node: ast.AST, modules: dict[str, Path]) -> Iterator[str]:
    """Yields the modules that a statement imports. A name of a package may be a module."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name in modules)
    elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
        for alias in node.names:
            inner = f"{node.module}.{alias.name}"
            if inner in modules:
                yield inner
            elif node.module in modules:
                yield node.module


def imports_of(tree: ast.AST, modules: dict[str, Path]) -> Iterator[Import]:
    """Yields the imports of the package's own modules."""
    for node in ast.iter_child_nodes(tree):
        if is_typing_block(node):
            continue
        for target in targets_of(node, modules):
            yield Import(node.lineno, target)
        yield from imports_of(node, modules)


def offences(root: Path) -> Iterator[str]:
    """Yields every offence under `root`, as `module:line: import: fault`."""
    modules = modules_of(root)
    graph: dict[str, set[str]] = {}
    for module, path in modules.items():
        if path.is_dir():
            continue
        layer = layer_of(module)
        if layer is None:
            yield f"{module}: has no row in the table of dependencies"
            continue
        for line, target in imports_of(ast.parse(path.read_text()), modules):
            if target != module:
                graph.setdefault(module, set()).add(target)
            below = layer_of(target)
            if below is not None and below not in layers_below(layer):
                yield f"{module}:{line}: {target}: {layer} must not know {below}"
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        yield "a cycle of imports: " + " <- ".join(error.args[1])


def main() -> int:
    """Prints the offences. Returns the exit code."""
    found = list(offences(Path(sys.argv[1])))
    print("\n".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
