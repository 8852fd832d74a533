# SPDX-License-Identifier: Apache-2.0
"""Tests statistics over two ranks, which run each case of reduction_worker.py together."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from reduction_worker import CASES

WORKER = Path(__file__).with_name("reduction_worker.py")
WORLD = 2
TIMEOUT_S = 120


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    """Returns the output of each rank."""
    out = tmp_path_factory.mktemp("reduction") / "rank"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    ranks = [
        subprocess.Popen(
            [sys.executable, str(WORKER), str(rank), str(WORLD), port, str(out)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for rank in range(WORLD)
    ]
    try:
        said = [rank.communicate(timeout=TIMEOUT_S)[0].decode() for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    for rank, text in zip(ranks, said, strict=True):
        assert rank.returncode == 0, text
    return [json.loads(Path(f"{out}{rank}").read_text()) for rank in range(WORLD)]


@pytest.mark.parametrize("case", CASES)
def test_two_ranks(results: list[dict[str, str]], case: str) -> None:
    for rank, said in enumerate(results):
        assert said[case] == "ok", f"rank {rank}: {said[case]}"
