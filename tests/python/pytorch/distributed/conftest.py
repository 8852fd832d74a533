# SPDX-License-Identifier: Apache-2.0
"""Adds the folders of families.py and golden.py to the import path."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1])]
