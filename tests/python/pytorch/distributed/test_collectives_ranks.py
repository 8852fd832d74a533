# SPDX-License-Identifier: Apache-2.0
"""Tests that collectives of processes send quantized tensors, buffer by buffer."""

import pytest
from collectives import scenarios
from ranks import require_ok, run_ranks


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    """Returns the results of the ranks. One launch runs all scenarios."""
    return run_ranks("collectives", 2, tmp_path_factory.mktemp("world2"))


@pytest.mark.parametrize("scenario", list(scenarios(2)))
def test_collective(results: list[dict[str, str]], scenario: str) -> None:
    require_ok(results, scenario)
