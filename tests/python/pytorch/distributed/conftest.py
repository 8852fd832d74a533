# SPDX-License-Identifier: Apache-2.0
"""Lets the tests import the quantizers of every family and the recorded cases."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1])]
