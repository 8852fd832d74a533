# SPDX-License-Identifier: Apache-2.0
"""python -m narrowfloat.te [--as 9.0|10.0] [--also PKG] [--explain] SCRIPT ARGS"""

import argparse
import importlib.util
import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path

from narrowfloat import te
from narrowfloat.te import _import_hook, _script
from narrowfloat.te._explain import explain
from narrowfloat.te._settings import ALSO, GENERATIONS, SCRIPT, package_names


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m narrowfloat.te",
        description="Runs a script that was written for TransformerEngine and CUDA on the CPU. "
        "The script, the modules in its folder and TransformerEngine are rewritten in memory. "
        "Words of ARGS that are a device or nccl, alone or after =, become cpu and gloo.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--as",
        dest="generation",
        choices=GENERATIONS,
        help="the generation of GPUs whose choices are made (default: 10.0)",
    )
    parser.add_argument(
        "--also", default="", metavar="PKG", help="rewrites these packages too; commas separate"
    )
    parser.add_argument(
        "--explain", action="store_true", help="lists every rewrite on the standard error output"
    )
    parser.add_argument("script", type=Path, metavar="SCRIPT")
    arguments = parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGS")
    arguments.required = False  # argparse would list it when SCRIPT is missing
    return parser


def _can_be_imported(package: str) -> bool:
    """Returns whether there is such a package, without running its parents."""
    name, *parts = package.split(".")
    try:
        spec = importlib.util.find_spec(name)
    except ValueError:  # an empty name, or __main__
        return False
    for part in parts:
        if not part or spec is None or spec.submodule_search_locations is None:
            return False
        name = f"{name}.{part}"
        spec = PathFinder.find_spec(name, spec.submodule_search_locations)
    return spec is not None


def _error_in(options: argparse.Namespace) -> str | None:
    """Returns the error in SCRIPT or in the packages to rewrite, or None.

    A child process inherits ALSO, but may be unable to import the packages in it.
    Requires: sys.path[0] is the folder of the script.
    """
    script: Path = options.script
    if not script.exists() or script.is_dir() or not os.access(script, os.R_OK):
        return f"SCRIPT must be a file that can be read, got {script}"
    inherited = SCRIPT in os.environ
    given = {"--also": options.also, ALSO: "" if inherited else os.environ.get(ALSO, "")}
    for origin, text in given.items():
        for name in package_names(text):
            if not _can_be_imported(name):
                return f"{origin} must name packages that can be imported, got {name}"
    return None


def main() -> None:
    """Runs the command line."""
    parser = _parser()
    options = parser.parse_args()
    sys.path[0] = str(options.script.resolve().parent)  # was `python -m`'s current folder
    error = _error_in(options)
    if error:
        parser.exit(2, f"{parser.prog}: error: {error}\n")
    if options.generation:
        te.emulate(options.generation)
    te.also(options.also)
    if options.explain:
        _import_hook.OBSERVERS.append(explain)
    _script.run(options.script, options.arguments)


if __name__ == "__main__":
    main()
