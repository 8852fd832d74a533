# SPDX-License-Identifier: Apache-2.0
"""Starts the command line without importing narrowfloat: importing NumPy takes 0.1 s."""

import os
import sys

PROGRAM = os.path.join(
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "narrowfloat", "bin", "narrowfloat"
)


def main() -> int:
    """Replaces this process by the C++ program; returns 3 (unsupported) if it is missing."""
    if not os.path.isfile(PROGRAM):
        print(f"narrowfloat: this build has no command line ({PROGRAM})", file=sys.stderr)
        return 3
    os.execv(PROGRAM, ["narrowfloat", *sys.argv[1:]])
