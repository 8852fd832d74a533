# SPDX-License-Identifier: Apache-2.0
"""Tests that `diff` counts all differences, with equal results on any number of threads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cli import TYPES, run, run_json, write_file

LARGE = (1 << 20) + 77  # values: several pieces of a megabyte, and a remainder


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


def test_float64_is_compared_as_float64(tmp_path: Path) -> None:
    before = np.array([1, 2, 3, 4], np.float64)
    after = before.copy()
    after[2] += 2.0**-40  # F32 cannot represent it
    single = write_file(tmp_path / "single", {"x": before.astype(np.float32)})
    a, b = write_file(tmp_path / "a", {"x": before}), write_file(tmp_path / "b", {"x": after})
    (found,) = run_json("diff", a, b, code=1)["differences"]
    assert (found["values"], found["first"], found["largest"]) == (1, 2, 2.0**-40)
    assert (found["what"], found["bytes"]) == ("bytes", 1)
    (found,) = run_json("diff", single, b, code=1)["differences"]
    assert (found["what"], found["values"]) == ("formats F32 and F64", 1)
    (found,) = run_json("diff", a, single, code=1)["differences"]
    assert (found["values"], found["first"], found["largest"]) == (0, None, 0)


@pytest.mark.parametrize("name", ["I64", "U8", "C64"])
def test_it_counts_no_values_that_it_does_not_compare(name: str, tmp_path: Path) -> None:
    before = np.arange(5).astype(TYPES[name])
    after = before.copy()
    after[3] = 7
    a, b = write_file(tmp_path / "a", {"x": before}), write_file(tmp_path / "b", {"x": after})
    (found,) = run_json("diff", a, b, code=1)["differences"]
    bytes_ = int(np.count_nonzero(before.view(np.uint8) != after.view(np.uint8)))
    assert found == {
        "name": "x", "what": "bytes, values are not compared", "bytes": bytes_, "values": None,
        "first": None, "largest": None,
    }  # fmt: skip
    text = run("diff", a, b, code=1).stdout
    assert text.endswith("1 tensor differs, 0 equal\n")
    row = f"x bytes, values are not compared {bytes_} - -"
    assert text.splitlines()[1].split() == row.split()
    floats = write_file(tmp_path / "floats", {"x": np.ones(5, np.float32)})
    (found,) = run_json("diff", a, floats, code=1)["differences"]
    assert found["what"] == f"formats {name} and F32, values are not compared"
    assert found["values"] is None


def test_it_compares_no_values_of_two_shapes_or_of_one_checkpoint_alone(tmp_path: Path) -> None:
    row, square = np.ones(4, np.float32), np.ones((2, 2), np.float32)
    a = write_file(tmp_path / "a", {"a": row, "both": row})
    b = write_file(tmp_path / "b", {"b": row, "both": square})
    expected = {"bytes": 0, "values": None, "first": None, "largest": None}
    assert run_json("diff", a, b, code=1)["differences"] == [
        {"name": name, "what": what, **expected}
        for name, what in (("a", "only in A"), ("b", "only in B"), ("both", "shapes 4 and 2x2"))
    ]


CODES = np.arange(256 * 256, dtype=np.uint32).astype(np.uint8).reshape(256, 256) & 0x77
E4M3, E8M0 = TYPES["F8_E4M3"], TYPES["F8_E8M0"]
POWERS = np.full((256, 8), 127, np.uint8)
ROWS = np.full((256, 32), 1.5, E4M3)
SCALE = np.full((), 0.5, np.float32)
Weight = dict[str, np.ndarray]


def fp8(scale: np.ndarray, suffix: str = "weight_scale") -> Weight:
    return {"a.weight": CODES.view(E4M3), f"a.{suffix}": scale}


def nvfp4(codes: str, scale: np.ndarray, suffix: str) -> Weight:
    return {f"a.{codes}": CODES, "a.weight_scale": ROWS, f"a.{suffix}": scale}


@pytest.mark.parametrize(
    ("a", "from_a", "b", "from_b", "what"),
    [
        (
            fp8(np.ones((2, 2), np.float32), "weight_scale_inv"), "fp8",
            fp8(np.ones((2, 1, 2, 1), np.float32)), "modelopt",
            "shapes of scales 2x2 and 2x1x2x1",
        ),
        (fp8(POWERS), "modelopt", fp8(POWERS.view(E8M0)), "modelopt",
         "types of scales U8 and F8_E8M0"),
        (fp8(SCALE), "modelopt", fp8(SCALE.reshape(1)), "compressed-tensors",
         "shapes of scales scalar and 1"),
        (fp8(SCALE), "modelopt", {"a.weight": CODES.view(E4M3)}, "unscaled-fp8",
         "numbers of tensors 2 and 1"),
        (
            nvfp4("weight", SCALE.reshape(1), "weight_scale_2"), "modelopt",
            nvfp4("weight_packed", SCALE.reshape(1), "weight_global_scale"), "compressed-tensors",
            "scales of the whole tensor multiply and divide",
        ),
        (
            nvfp4("weight", SCALE, "weight_scale_2"), "modelopt",
            nvfp4("weight", SCALE, "weight_scale_2"), "comfyui",
            "orders of scales rows and tiles, first codes of a byte low and high",
        ),
    ],
)  # fmt: skip
def test_it_names_what_formats_of_one_text_differ_in(
    a: Weight, from_a: str, b: Weight, from_b: str, what: str, tmp_path: Path
) -> None:
    files = write_file(tmp_path / "a", a), write_file(tmp_path / "b", b)
    options = ("--from-a", from_a, "--from-b", from_b)
    done = run_json("diff", *files, *options, code=1)
    assert [(each["name"], each["what"]) for each in done["differences"]] == [("a.weight", what)]
