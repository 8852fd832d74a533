# SPDX-License-Identifier: Apache-2.0
"""Runs the script of a program, rewritten, as the main module of a process.

multiprocessing's spawn and forkserver, and process launchers, restart a main module by the name in
its `__spec__`. A script has no such name, so that they would run its file without rewriting. So the
name is narrowfloat.te._program, a module that runs the same script.
"""

import os
import sys
import types
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from narrowfloat.te import _import_hook
from narrowfloat.te._settings import SCRIPT, SETTINGS

_PROGRAM = "narrowfloat.te._program"


def run(script: Path, arguments: list[str]) -> None:
    """Runs a script as `python SCRIPT ARGS` would, but rewritten.

    Requires: sys.path[0] is the folder of the script.
    """
    os.environ[SCRIPT] = os.path.abspath(script)
    sys.argv = [str(script), *_import_hook.rewrite_arguments(arguments)]
    main = types.ModuleType("__main__")
    main.__spec__ = ModuleSpec(_PROGRAM, None)
    # multiprocessing, if already imported, has bound the second name.
    sys.modules["__main__"] = sys.modules["__mp_main__"] = main
    _run_in(vars(main), str(script))


def run_again(names: dict[str, Any]) -> None:
    """Runs the script of the first process in the globals of this process's main module."""
    script = os.environ[SCRIPT]
    sys.argv[0] = script
    if names["__name__"] == "__main__":
        sys.path[0] = str(Path(script).resolve().parent)  # was the current folder
    _run_in(names, script)


def _run_in(names: dict[str, Any], script: str) -> None:
    """Runs a script in the globals of a module."""
    SETTINGS.folders.add(Path(script).resolve().parent)
    loader = _import_hook.RewritingLoader(names["__name__"], script)
    names.update(__doc__=None, __file__=script, __cached__=None, __loader__=loader, __package__="")
    names["__spec__"].loader = loader
    loader.run_in(names)
