# SPDX-License-Identifier: Apache-2.0
"""Tests that processes shard, gather, use and update parameters of every family by FSDP2."""

import pytest
from fsdp2 import scenarios
from ranks import require_ok, run_ranks

CASES = [(world, name) for world in (2, 3) for name in scenarios(world)]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[dict[str, str]]]:
    """Returns the results of the ranks by world size. One launch runs all scenarios."""
    return {
        world: run_ranks("fsdp2", world, tmp_path_factory.mktemp(f"world{world}"))
        for world in (2, 3)
    }


@pytest.mark.parametrize(("world", "scenario"), CASES, ids=[f"{w}-{n}" for w, n in CASES])
def test_fsdp2(results: dict[int, list[dict[str, str]]], world: int, scenario: str) -> None:
    require_ok(results[world], scenario)
