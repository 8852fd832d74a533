# SPDX-License-Identifier: Apache-2.0
"""Tests tensor-parallel quantized layers and gathers of quantized inputs on two processes."""

import pytest
from ranks import require_ok, run_ranks
from tensor_parallel import scenarios

WORLD = 2


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    """Returns the results of the ranks. One launch runs all scenarios."""
    return run_ranks("tensor_parallel", WORLD, tmp_path_factory.mktemp("tensor_parallel"))


@pytest.mark.parametrize("scenario", scenarios(WORLD))
def test_tensor_parallel(results: list[dict[str, str]], scenario: str) -> None:
    require_ok(results, scenario)
