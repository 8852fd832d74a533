# SPDX-License-Identifier: Apache-2.0
"""Checks the dependencies of the tree: each folder includes only folders of lower layers.

usage: layering.py ROOT      prints all offences; exits with 1 if any exist
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

# Each folder, and the other folders that it may include: the layers of docs/architecture.md.
CORE = ["numerics", "schemes", "tensor", "kernels", "ops", "types"]
ALLOWED: dict[str, set[str]] = {folder: set(CORE[:place]) for place, folder in enumerate(CORE)} | {
    "c_api": set(CORE),
    "config": set(CORE),
    "io": {*CORE, "config"},
}
# The two headers of narrowfloat/ that its folders may include: the C face and the version.
ROOT_HEADERS = {"narrowfloat/c_api.h": {"c_api"}, "narrowfloat/version.h": {"c_api", "io"}}
# The public functions of ops/ include neither kernels nor a backend. Only this file includes the
# CPU's backend.
BACKENDS = re.compile(r"narrowfloat/(ops/(cpu|cuda)|kernels)/")
KNOWS_BACKENDS = {"narrowfloat/ops/backend.cc"}
# Micro-kernels do not depend on the list of schemes: tests/extra_scheme links them with a longer
# list. These files of kernels/ include it.
REGISTRY = "narrowfloat/schemes/registry.h"
KNOWS_SCHEMES = {
    "narrowfloat/kernels/cpu/scheme_drivers.h",
    "narrowfloat/kernels/cuda/scheme_kernels.cu",
    "narrowfloat/kernels/cuda/scheme_table.cu",
    "narrowfloat/kernels/scalar/dequantize.cc",
    "narrowfloat/kernels/scalar/quantize.cc",
}
TOP = {*ALLOWED}  # the folders that tools, bindings, tests and benches may include: all
# Libraries for JSON and YAML, which only config/ and io/ may include, and libraries for command
# lines and frameworks, which no folder should include.
FOREIGN = re.compile(r"nlohmann/|yaml-cpp/|CLI/|torch/|ATen/|c10/|xla/|Python\.h|nanobind/")
MAY_USE_FOREIGN = {"config", "io"}
FRAMEWORKS = re.compile(r"torch/|ATen/|c10/|xla/|Python\.h|nanobind/")

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
SOURCES = {".h", ".cc", ".cu", ".cuh"}


def offences_of_line(folder: str | None, target: str, quoted: bool) -> Iterator[str]:
    """Yields the faults of an include of `target` in `folder`; None: a file outside of folders."""
    if target.startswith("narrowfloat/"):
        parts = target.split("/")
        if len(parts) == 2 and (folder is None or folder in ROOT_HEADERS.get(target, ())):
            return  # the headers of narrowfloat/ itself are for callers
        if len(parts) < 3 or parts[1] not in TOP:
            yield "reads no known folder"
        elif folder is not None and parts[1] != folder and parts[1] not in ALLOWED[folder]:
            yield f"{folder} must not know {parts[1]}"
    elif quoted and folder is not None and not target.startswith(("hwy/", "tests/")):
        yield 'must read "narrowfloat/<folder>/<file>"'
    if folder is not None and FOREIGN.search(target):
        if folder not in MAY_USE_FOREIGN or FRAMEWORKS.search(target):
            yield f"{folder} must not know this library"


def offences(root: Path) -> Iterator[str]:
    """Yields every offence under `root`, as `file:line: include: fault`."""
    for path in sorted(root.rglob("*")):
        place = path.relative_to(root)
        if path.suffix not in SOURCES or place.parts[0] not in {
            "narrowfloat", "tools", "bindings", "bench", "tests",
        }:  # fmt: skip
            continue
        inside = place.parts[0] == "narrowfloat" and len(place.parts) > 2
        folder = place.parts[1] if inside else None
        if folder is not None and folder not in ALLOWED:
            yield f"{place}: 'narrowfloat/{folder}' has no row in the table of dependencies"
            continue
        is_test = path.stem.endswith(("_test", "_bench"))
        for number, line in enumerate(path.read_text().splitlines(), 1):
            found = INCLUDE.match(line)
            if not found:
                continue
            target = found.group(2)
            if target.startswith("tests/") and folder is not None and not is_test:
                yield f"{place}:{number}: {target}: only tests may include tests"
            is_public = place.parent.as_posix() == "narrowfloat/ops" and not is_test
            if is_public and BACKENDS.match(target) and place.as_posix() not in KNOWS_BACKENDS:
                yield f"{place}:{number}: {target}: only a backend may know this"
            knows_schemes = folder != "kernels" or is_test or place.as_posix() in KNOWS_SCHEMES
            if target == REGISTRY and not knows_schemes:
                yield f"{place}:{number}: {target}: kernels must not know the list of schemes"
            for wrong in offences_of_line(folder, target, found.group(1) == '"'):
                yield f"{place}:{number}: {target}: {wrong}"


def main() -> int:
    """Prints the offences. Returns the exit code."""
    found = list(offences(Path(sys.argv[1])))
    print("\n".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
