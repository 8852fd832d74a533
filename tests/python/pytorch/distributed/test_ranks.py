# SPDX-License-Identifier: Apache-2.0
"""Tests that the launcher of the other tests' ranks ends with a message in every case."""

import time
from pathlib import Path

import pytest
from ranks import require_ok, run_ranks


@pytest.mark.parametrize(
    ("trouble", "message"), [("die", "ended with 9"), ("fail", "rank 1 has had enough")]
)
def test_a_rank_that_is_gone_fails_the_others(tmp_path: Path, trouble: str, message: str) -> None:
    told = run_ranks("trouble", 2, tmp_path, NF_TEST_TROUBLE=trouble)
    assert message in " ".join(told[1].values())
    assert "RuntimeError" in told[0][trouble] or "ConnectionError" in told[0][trouble]
    with pytest.raises(AssertionError, match=r"^rank 0 "):
        require_ok(told, trouble)


def test_ranks_that_wait_are_stopped(tmp_path: Path) -> None:
    begin = time.monotonic()
    told = run_ranks("trouble", 2, tmp_path, limit_s=12, NF_TEST_TROUBLE="hang")
    assert time.monotonic() - begin < 24
    for rank in told:
        assert rank["exit"].split(":")[0].endswith("ended with -9")
