# SPDX-License-Identifier: Apache-2.0
"""Tests TransformerEngine's tensor parallelism over gloo, in processes of a CUDA program."""

from importlib.util import find_spec
from pathlib import Path

import pytest
from lookalike import Run

if find_spec("transformer_engine") is None:
    pytest.skip("TransformerEngine is not installed", allow_module_level=True)

PROGRAM = Path(__file__).with_name("parallel_program.py")
RECIPES = ["none", "delayed", "current", "mxfp8", "block", "nvfp4"]


def test_an_mlp_that_two_processes_share_trains_under_every_recipe(run_alone: Run) -> None:
    done = run_alone(
        *("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"),
        *("-m", "narrowfloat.te", str(PROGRAM)),
        OMP_NUM_THREADS="1",
    )
    expected = [f"{name} {split}" for split in (False, True) for name in RECIPES]
    assert done.stdout.splitlines() == expected, done.stderr
