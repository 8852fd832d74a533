# SPDX-License-Identifier: Apache-2.0
"""Lets the tests import what lies in scripts/."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
