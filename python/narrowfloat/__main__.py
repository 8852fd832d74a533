# SPDX-License-Identifier: Apache-2.0
"""The command line: hands over to the C++ program that lies in this package."""

import os
import sys

from narrowfloat.checkpoint import PROGRAM


def main() -> int:
    """Replaces this process by the program; 3 (unsupported) if this build has none."""
    if not PROGRAM.is_file():
        print(f"narrowfloat: this build has no command line ({PROGRAM})", file=sys.stderr)
        return 3
    sys.stdout.flush()
    os.execv(PROGRAM, ["narrowfloat", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
