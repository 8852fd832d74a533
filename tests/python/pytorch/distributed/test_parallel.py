# SPDX-License-Identifier: Apache-2.0
"""Tests DTensor, tensor parallelism, DDP and collectives of quantized weights on two ranks."""

import pytest
from parallel import scenarios
from ranks import require_ok, run_ranks

WORLD = 2


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    """Returns the results of the ranks. One launch runs all scenarios."""
    return run_ranks("parallel", WORLD, tmp_path_factory.mktemp("parallel"))


@pytest.mark.parametrize("scenario", scenarios(WORLD))
def test_parallel(results: list[dict[str, str]], scenario: str) -> None:
    require_ok(results, scenario)
