# SPDX-License-Identifier: Apache-2.0
"""python -m narrowfloat.te [--as 9.0|10.0] [--also PKG] [--explain] SCRIPT ARGS"""

import argparse
import sys
import types
from pathlib import Path

from narrowfloat import te
from narrowfloat.te import _import_hook
from narrowfloat.te._explain import explain
from narrowfloat.te._settings import GENERATIONS, SETTINGS


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m narrowfloat.te",
        description="Runs a script that was written for TransformerEngine and CUDA on the CPU. "
        "The script, the modules in its folder and TransformerEngine are rewritten in memory.",
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
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGS")
    return parser


def run_script(script: Path, arguments: list[str]) -> None:
    """Runs a script as `python SCRIPT ARGS` would, but rewritten."""
    folder = script.resolve().parent
    SETTINGS.folders.add(folder)
    sys.path[0] = str(folder)  # it was the current folder, for `python -m`
    sys.argv = [str(script), *map(_import_hook.rewrite_argument, arguments)]
    main = types.ModuleType("__main__")
    main.__file__ = str(script)
    loader = _import_hook.RewritingLoader("__main__", str(script))
    main.__loader__ = loader
    sys.modules["__main__"] = main
    loader.exec_module(main)


def main() -> None:
    """Runs the command line."""
    options = _parser().parse_args()
    if options.generation:
        te.emulate(options.generation)
    te.also(options.also)
    if options.explain:
        _import_hook.OBSERVERS.append(explain)
    run_script(options.script, options.arguments)


if __name__ == "__main__":
    main()
