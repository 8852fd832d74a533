# SPDX-License-Identifier: Apache-2.0
"""Tests that features do not see a forward pass again when backward repeats it."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from layer_sessions import section, session, statistics
from narrowfloat.common.recipe import Float8CurrentScaling, Recipe
from torch.utils.checkpoint import checkpoint

from narrowfloat import pytorch as nfp

Pass = Callable[[torch.nn.Module, torch.Tensor], torch.Tensor]
PASSES: dict[str, Pass] = {
    "plain": lambda layer, x: layer(x),
    "checkpoint": lambda layer, x: checkpoint(layer, x, use_reentrant=False),
    "reentrant": lambda layer, x: checkpoint(layer, x, use_reentrant=True),
    "nested": lambda layer, x: checkpoint(
        lambda x: checkpoint(layer, x, use_reentrant=False), x, use_reentrant=False
    ),
}
OPERANDS = ["activation", "weight", "gradient"]
RESULTS = ["output", "dgrad", "wgrad"]
STATS = ["l1_norm", "l2_norm", "mean", "std", "max", "cur_amax"]
BLOCKS = {
    "LogTensorStats": {"enabled": True, "tensors": OPERANDS + RESULTS, "stats": STATS},
    "LogFp8TensorStats": {"enabled": True, "tensors": OPERANDS, "stats": ["underflows%", "mse"]},
}


def logged(
    log_dir: Path, run: Pass, chosen: Recipe | None, microbatches: int = 2, **options: Any
) -> dict[str, float]:
    """Returns the statistics of one iteration by tensor and name."""
    blocks = BLOCKS if chosen is not None else {"LogTensorStats": BLOCKS["LogTensorStats"]}
    torch.manual_seed(3)
    with session(section(blocks), log_dir) as api:
        layer = nfp.Linear(64, 64, name="fc", params_dtype=torch.bfloat16, **options)
        for _ in range(microbatches):
            x = torch.randn(32, 64, dtype=torch.bfloat16).requires_grad_()
            with nfp.autocast(enabled=chosen is not None, recipe=chosen):
                y = run(layer, x)
            y.float().square().sum().backward()
        api.step()
    lines = re.findall(r"fc_(\S+)\s+iteration=0+\s+value=(\S+)", statistics(log_dir))
    return {name: float(value) for name, value in lines}


@pytest.mark.parametrize("chosen", [None, Float8CurrentScaling()], ids=["plain", "quantized"])
@pytest.mark.parametrize("run", [name for name in PASSES if name != "plain"])
def test_a_pass_that_runs_again_counts_once(
    tmp_path: Path, run: str, chosen: Recipe | None
) -> None:
    wanted = logged(tmp_path / "plain", PASSES["plain"], chosen)
    assert len(wanted) >= len(STATS) * len(OPERANDS + RESULTS)
    assert logged(tmp_path / run, PASSES[run], chosen) == wanted


def test_an_input_that_is_quantized_again_counts_once(tmp_path: Path) -> None:
    chosen = Float8CurrentScaling()
    wanted = logged(tmp_path / "saved", PASSES["plain"], chosen)
    again = logged(tmp_path / "again", PASSES["plain"], chosen, save_original_input=True)
    assert again == wanted
