# SPDX-License-Identifier: Apache-2.0
"""DTensor, tensor parallelism, DDP and collectives over quantized weights, on two processes."""

import pytest
from parallel import scenarios
from ranks import require_ok, run_ranks

WORLD = 2


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    """Returns the output of the ranks; one launch for all scenarios."""
    return run_ranks("parallel", WORLD, tmp_path_factory.mktemp("parallel"))


@pytest.mark.parametrize("scenario", scenarios(WORLD))
def test_parallel(results: list[dict[str, str]], scenario: str) -> None:
    require_ok(results, scenario)
