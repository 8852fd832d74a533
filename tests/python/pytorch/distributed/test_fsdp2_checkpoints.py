# SPDX-License-Identifier: Apache-2.0
"""Tests FSDP2 with activation checkpointing on two processes."""

import pytest
from fsdp2_checkpoints import scenarios
from ranks import require_ok, run_ranks

WORLD = 2


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    """Returns the results of the ranks. One launch runs all scenarios."""
    return run_ranks("fsdp2_checkpoints", WORLD, tmp_path_factory.mktemp("checkpoints"))


@pytest.mark.parametrize("scenario", scenarios(WORLD))
def test_fsdp2_checkpoints(results: list[dict[str, str]], scenario: str) -> None:
    require_ok(results, scenario)
