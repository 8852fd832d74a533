# SPDX-License-Identifier: Apache-2.0
"""Tests which tensors the command line quantizes, and its output about them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cli import run, run_json, write_file
from foreign_model import read_model, write_model

MATRIX = np.linspace(-1, 1, 64 * 96, dtype=np.float32).reshape(64, 96)
NAMES = [
    "lm_head.weight", "model.layers.0.mlp.gate.weight", "model.layers.0.mlp.up_proj.weight",
    "model.layers.0.self_attn.q_proj.weight",
]  # fmt: skip


@pytest.fixture
def model(tmp_path: Path) -> Path:
    tensors = {name: MATRIX for name in NAMES} | {"features.0.weight": np.ones((8, 4, 3, 32), "f4")}
    return write_model(tmp_path / "in", [tensors], {"model_type": "llama"})


def test_dry_run_names_the_rule_of_every_tensor(model: Path, tmp_path: Path) -> None:
    arguments = ("quantize", model, tmp_path / "out", "--scheme", "mxfp8_e4m3", "--dry-run")
    listed = run_json(*arguments, "--exclude", "re:.*\\.(q|k)_proj\\..*", "--include", "lm_*")
    assert {item["name"]: (item["quantized"], item["rule"]) for item in listed["tensors"]} == {
        "features.0.weight": (False, "convolution, by its 4 dimensions"),
        "lm_head.weight": (True, "--include 'lm_*'"),
        "model.layers.0.mlp.gate.weight": (False, "router"),
        "model.layers.0.mlp.up_proj.weight": (True, "linear layer"),
        "model.layers.0.self_attn.q_proj.weight": (False, "--exclude 're:.*\\.(q|k)_proj\\..*'"),
    }
    assert (listed["tensors_quantized"], listed["tensors_copied"]) == (2, 3)
    assert "2 tensors would be quantized, 3 copied" in run(*arguments).stdout
    assert not (tmp_path / "out").exists()


def test_rules_that_match_nothing_are_named(model: Path, tmp_path: Path) -> None:
    arguments = ("quantize", model, tmp_path / "out", "--scheme", "mxfp8_e4m3", "--dry-run")
    warned = run(*arguments, "--exclude", "*.k_proj.*", "--include", "re:nothing").stderr
    assert warned.splitlines() == [
        "quantize: no tensor matches '*.k_proj.*'", "quantize: no tensor matches 're:nothing'",
    ]  # fmt: skip
    refused = run(*arguments, "--include", "re:(", code=2).stderr
    assert refused == (
        "narrowfloat: a pattern must be a glob, or 're:' and an ECMAScript regular expression of "
        "at most 10000 states without back-references, got 're:('\n"
    )


# Backtracking takes exponential time for the first two, and recursion per character for the others.
HARD_PATTERNS = [
    "re:(a|aa)*x", "re:" + ".*" * 510 + "x", "re:" + "(" * 510 + "a" + ")" * 510,
    "re:" + "(" * 340 + "a" + ")*" * 340, "re:((a*){40}){50}", "re:((?=(.*){100}x).)*",
    "*a" * 511 + "b",
]  # fmt: skip


@pytest.mark.parametrize("pattern", HARD_PATTERNS, ids=range(len(HARD_PATTERNS)))
def test_no_pattern_takes_unbounded_time_or_stack(pattern: str, tmp_path: Path) -> None:
    source = write_file(tmp_path / "in.safetensors", {"a" * 1017 + ".weight": MATRIX})
    job = ("quantize", source, tmp_path / "out", "--scheme", "mxfp8_e4m3", "--dry-run")
    done = run(*job, "--include", pattern, timeout=60)
    assert done.stderr == f"quantize: no tensor matches '{pattern}'\n"


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("re:" + "(" * 20000, "a pattern must have at most 1024 bytes, got 20003"),
        ("*" * 1025, "a pattern must have at most 1024 bytes, got 1025"),
        (
            "re:(?=.*(?!.*x))",
            "a regular expression must have at most 1 lookahead, (?= or (?!, got 2 in "
            "'re:(?=.*(?!.*x))'",
        ),
        *(
            (
                pattern,
                "a pattern must be a glob, or 're:' and an ECMAScript regular expression of at "
                f"most 10000 states without back-references, got '{pattern}'",
            )
            for pattern in ("re:(a{100}){100}", r"re:(a)\1")
        ),
    ],
    ids=range(5),
)
def test_patterns_that_would_take_too_long_are_refused(
    model: Path, tmp_path: Path, pattern: str, message: str
) -> None:
    job = ("quantize", model, tmp_path / "out", "--scheme", "mxfp8_e4m3", "--dry-run")
    assert run(*job, "--exclude", pattern, code=2).stderr == f"narrowfloat: {message}\n"


def test_a_list_option_takes_one_value_each_time(model: Path, tmp_path: Path) -> None:
    out, scheme = tmp_path / "out", ("--scheme", "mxfp8_e4m3")
    done = run_json("quantize", "--include", "*", "--exclude", "features*", model, out, *scheme)
    assert (done["tensors_quantized"], done["tensors_copied"]) == (4, 1)
    stray = run("quantize", model, tmp_path / "no", *scheme, "--exclude", "lm*", "mo*", code=2)
    assert "mo*" in stray.stderr and not (tmp_path / "no").exists()
    page = tmp_path / "page.html"
    found = run_json("report", "--scheme", "nvfp4", "--scheme", "mxfp4", model, "-o", page)
    assert [each["scheme"] for each in found["schemes"]] == ["nvfp4", "mxfp4"]


def test_a_glob_may_begin_and_end_with_brackets(tmp_path: Path) -> None:
    tensors = {f"{name}.weight{digit}": MATRIX for name in ("lm", "mo", "no") for digit in (1, 2)}
    source = write_model(tmp_path / "in", [tensors])
    job = ("quantize", source, tmp_path / "out", "--scheme", "mxfp8_e4m3", "--dry-run")
    listed = run_json(*job, "--include", "*", "--exclude", "[l,m]*[2-9]")
    left = {item["name"]: item["rule"] for item in listed["tensors"] if not item["quantized"]}
    assert left == dict.fromkeys(("lm.weight2", "mo.weight2"), "--exclude '[l,m]*[2-9]'")


@pytest.mark.parametrize(
    ("model_type", "name", "shape"),
    [
        ("gpt2", "transformer.h.0.attn.c_attn.weight", (64, 192)),
        ("gpt_oss", "model.layers.0.mlp.experts.gate_up_proj", (2, 64, 96)),
        ("aria", "language_model.model.layers.0.mlp.experts.fc1.weight", (2, 64, 96)),
        ("qwen3_vl_moe", "model.language_model.layers.0.mlp.experts.gate_up_proj", (2, 64, 96)),
        ("qwen3_vl_moe", "model.language_model.layers.0.mlp.experts.down_proj", (2, 48, 64)),
    ],
)
def test_matrices_stored_the_other_way_are_left_with_a_message(
    tmp_path: Path, model_type: str, name: str, shape: tuple[int, ...]
) -> None:
    stored = np.ones(shape, np.float32)
    tensors = {name: stored, "a.weight": MATRIX}
    config = {"model_type": model_type, "text_config": {"hidden_size": 64}}
    source = write_model(tmp_path / "in", [tensors], config)
    done = run("quantize", source, tmp_path / "out", "--scheme", "mxfp8_e4m3")
    left = f"left as it is: {name} (stored as [inputs, outputs] by {model_type})"
    assert left in done.stderr
    assert read_model(tmp_path / "out")[name].tobytes() == stored.tobytes()
    other = write_model(tmp_path / "other", [tensors], {"model_type": "llama"})
    run("quantize", other, tmp_path / "all", "--scheme", "mxfp8_e4m3")
    assert read_model(tmp_path / "all")[name].size == 0  # the mark of a quantized tensor


# Files of Qwen3-VL-MoE that transformers saves have the other orientation than published ones.
QWEN = [
    ("gate_up_proj", (2, 96, 64), {"text_config": {"hidden_size": 64}}, "stacked experts"),
    ("down_proj", (2, 64, 48), {"hidden_size": 64}, "stacked experts"),
    ("gate_up_proj", (2, 64, 64), {"hidden_size": 64}, None),
    ("gate_up_proj", (2, 64, 96), {}, None),
    ("down_proj", (2, 48, 64), {"text_config": {"hidden_size": "64"}}, None),
]


@pytest.mark.parametrize(("name", "shape", "config", "rule"), QWEN)
def test_the_hidden_size_tells_how_experts_lie(
    tmp_path: Path, name: str, shape: tuple[int, ...], config: dict, rule: str | None
) -> None:
    name = f"model.language_model.layers.0.mlp.experts.{name}"
    config = {"model_type": "qwen3_vl_moe", **config}
    source = write_model(tmp_path / "in", [{name: np.ones(shape, np.float32)}], config)
    listed = run_json("quantize", source, tmp_path / "out", "--scheme", "mxfp8_e4m3", "--dry-run")
    (item,) = listed["tensors"]
    left = "perhaps stored as [inputs, outputs] by qwen3_vl_moe"
    assert (item["quantized"], item["rule"]) == (rule is not None, rule or left)


def test_a_parameter_without_a_name_in_the_convention_is_left_with_a_message(
    tmp_path: Path,
) -> None:
    name = "head.attention.in_proj_weight"
    source = write_model(tmp_path / "in", [{name: MATRIX, "a.weight": MATRIX}], {})
    arguments = ("quantize", source, tmp_path / "out", "--scheme", "mxfp8_e4m3")
    assert name not in run(*arguments, "--dry-run").stderr
    other = (*arguments, "--convention", "fp8")
    why = "not named '*.weight', as this convention needs it"
    assert run(*other, "--dry-run").stderr == f"quantize: left as it is: {name} ({why})\n"
    refused = run(*other, "--include", name, code=3).stderr
    assert f"'{name}' must end in '.weight' to be written as fp8 mxfp8" in refused
    run(*other)
    assert read_model(tmp_path / "out")[name].tobytes() == MATRIX.tobytes()


def test_kernels_of_flax_are_left_with_a_message(tmp_path: Path) -> None:
    name = "params.Dense_0.kernel"
    source = write_model(tmp_path / "in", [{name: MATRIX, "a.weight": MATRIX}], {})
    done = run("quantize", source, tmp_path / "out", "--scheme", "mxfp8_e4m3")
    assert f"left as it is: {name} (stored as [inputs, outputs] by Flax)" in done.stderr
    assert read_model(tmp_path / "out")[name].tobytes() == MATRIX.tobytes()
