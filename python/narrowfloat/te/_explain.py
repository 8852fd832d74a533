# SPDX-License-Identifier: Apache-2.0
"""Prints the rewrites of a module."""

import sys
import textwrap

from narrowfloat.te._rewrite import Rewrite

_WIDTH = 70


def _short(code: str) -> str:
    """Returns the first line of a statement, which may be a whole function."""
    return textwrap.shorten(code.partition("\n")[0], _WIDTH, placeholder=" ...")


def explain(path: str, rewrites: list[Rewrite]) -> None:
    """Writes a line per rewrite of a file: its place, the code before and after."""
    for made in rewrites:
        before, after = _short(made.before), _short(made.after)
        print(f"{path}:{made.line}: {before} -> {after}", file=sys.stderr)
