# SPDX-License-Identifier: Apache-2.0
"""Tests that checkpoints of two ranks load on one and on three ranks, byte for byte."""

import pytest
from checkpoints import scenarios
from ranks import require_ok, run_ranks

WORLDS = (2, 1, 3)
CASES = [(world, name) for world in WORLDS for name in scenarios(world)]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[dict[str, str]]]:
    """Returns the results of the ranks by world size. Two ranks save first."""
    saved = str(tmp_path_factory.mktemp("saved"))
    return {
        world: run_ranks(
            "checkpoints", world, tmp_path_factory.mktemp(f"world{world}"), NF_TEST_SAVED=saved
        )
        for world in WORLDS
    }


@pytest.mark.parametrize(("world", "scenario"), CASES, ids=[f"{w}-{n}" for w, n in CASES])
def test_checkpoint(results: dict[int, list[dict[str, str]]], world: int, scenario: str) -> None:
    require_ok(results[world], scenario)
