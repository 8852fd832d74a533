# SPDX-License-Identifier: Apache-2.0
"""Tests that a process that used the package ends without output."""

import subprocess
import sys

PROGRAM = """
import torch
import narrowfloat.pytorch as nfp

quantizer = nfp.MXFP8Quantizer(nfp.DType.kFloat8E4M3)
kept = quantizer(torch.ones(64, 64))
"""


def test_native_objects_end_before_their_module() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=True
    )
    assert (done.stdout, done.stderr) == ("", "")
