# SPDX-License-Identifier: Apache-2.0
"""`diff` counts what differs, the same on any number of threads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cli import TYPES, run, run_json, write_file

LARGE = (1 << 20) + 77  # values: several pieces of a megabyte, and a rest


def counted(a: np.ndarray, b: np.ndarray) -> dict:
    """Returns the output of `diff` for two tensors of one type and shape."""
    values_a, values_b = (x.astype(np.float32) for x in (a, b))
    differs = (values_a.view(np.uint32) != values_b.view(np.uint32)).reshape(-1)
    with np.errstate(invalid="ignore"):
        largest = np.abs(values_a.astype(np.float64) - values_b.astype(np.float64)).max()
    return {
        "bytes": int(np.count_nonzero(a.view(np.uint8) != b.view(np.uint8))),
        "values": int(np.count_nonzero(differs)),
        "first": int(np.flatnonzero(differs)[0]),
        "largest": float(largest) if np.isfinite(largest) else None,
    }


@pytest.mark.parametrize("threads", [1, 4])
def test_it_counts_what_differs(threads: int, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    before = {
        "float32": random.standard_normal(LARGE).astype(np.float32),
        "bfloat16": random.standard_normal((3, LARGE // 3)).astype(TYPES["BF16"]),
        "equal": random.standard_normal(LARGE).astype(np.float32),
        "nan": np.ones(LARGE, np.float32),
        "signs": np.zeros(9, np.float16),
    }
    after = {name: array.copy() for name, array in before.items()}
    after["float32"][[70_000, 70_001, 900_000, LARGE - 1]] += 2
    after["bfloat16"][2, 5:8] = 0
    after["nan"][[100, 500_000]] = np.nan, 7  # values after a NaN do not hide it
    after["signs"][3] = -0.0
    a, b = write_file(tmp_path / "a", before), write_file(tmp_path / "b", after)
    found = run_json("diff", a, b, "--threads", threads, code=1)
    assert found["equal"] == 1
    differences = {each.pop("name"): each for each in found["differences"]}
    assert differences == {
        name: {"what": "bytes", **counted(before[name], after[name])}
        for name in ("bfloat16", "float32", "nan", "signs")
    }
    assert run_json("diff", a, a, "--threads", threads)["equal"] == len(before)


def test_it_says_how_far_it_is(tmp_path: Path) -> None:
    a = write_file(tmp_path / "a", {"x": np.ones(LARGE, np.float32)})
    assert run("diff", a, a).stderr == "diff: 4.19 MB to read\n"
    half = write_file(tmp_path / "half", {"x": np.ones(LARGE, np.float16)})
    assert run("diff", a, half, code=1).stderr == "diff: 6.29 MB to read\n", (
        "tensors of two formats are compared by their values, whose bytes count too"
    )
