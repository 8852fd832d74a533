# SPDX-License-Identifier: Apache-2.0
"""Runs the C++ program in this package: the command line."""

import sys

from narrowfloat_cli import main

if __name__ == "__main__":
    sys.exit(main())
