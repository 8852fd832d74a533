# SPDX-License-Identifier: Apache-2.0
"""Processes shard, gather, use and update parameters of every family."""

import pytest
from fsdp2 import scenarios
from ranks import require_ok, run_ranks

CASES = [(world, name) for world in (2, 3) for name in scenarios(world)]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[dict[str, str]]]:
    """Returns the output of the ranks of each world; one launch for all scenarios."""
    return {
        world: run_ranks("fsdp2", world, tmp_path_factory.mktemp(f"world{world}"))
        for world in (2, 3)
    }


@pytest.mark.parametrize(("world", "scenario"), CASES, ids=[f"{w}-{n}" for w, n in CASES])
def test_fsdp2(results: dict[int, list[dict[str, str]]], world: int, scenario: str) -> None:
    require_ok(results[world], scenario)
