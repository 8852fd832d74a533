# SPDX-License-Identifier: Apache-2.0
"""Runs the command line, the C++ program in this package."""

import sys

from narrowfloat_cli import main

if __name__ == "__main__":
    sys.exit(main())
