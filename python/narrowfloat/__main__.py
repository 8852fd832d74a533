# SPDX-License-Identifier: Apache-2.0
"""The command line: hands over to the C++ program that lies in this package."""

import sys

from narrowfloat_cli import main

if __name__ == "__main__":
    sys.exit(main())
