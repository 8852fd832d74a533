# SPDX-License-Identifier: Apache-2.0
"""Tests the errors and warnings of a configuration that the host loads."""

import copy
import warnings
from pathlib import Path
from typing import Any

import nvdlfw_inspect.api as debug_api
import pytest
import torch
import yaml
from narrowfloat.debug._check import check
from sessions import FEATURES, section, session

PAIR = {"gemms": ["fprop"], "tensors": ["weight"]}
FAKE = {**PAIR, "quant_format": "FP8E4M3"}
LOG = {"tensors": ["weight"], "stats": ["underflows%"]}
FP8_STATS = {"tensors": ["weight"], "stats": ["max"]}

# (feature, changes to a good block, error, message)
WRONG: list[tuple[str, dict[str, Any], type[Exception], str]] = [
    ("FakeQuant", {"margin": 1}, ValueError, 'Unexpected key in config: "margin"'),
    ("FakeQuant", {"quant_fromat": "FP8E5M2"}, ValueError, 'Unexpected key in config: "quant_fro'),
    (
        "FakeQuant",
        {"quant_format": None},
        ValueError,
        (
            r"^.* quant_format: None for Tensor: weight in the config yaml for "
            r"FakeQuant feature is not supported; one of .*"
        ),
    ),
    ("FakeQuant", {"quant_format": "fp8e4m3"}, ValueError, "for Tensor: weight .*not supported"),
    ("FakeQuant", {"quant_format": ["FP8E4M3"]}, ValueError, "is not supported"),
    ("FakeQuant", {"gemms": ["bprop"]}, AssertionError, "Invalid gemm: bprop"),
    ("FakeQuant", {"gemms": ["fprop", "Dgrad"]}, AssertionError, "Invalid gemm: Dgrad"),
    ("FakeQuant", {"gemms": [3]}, AssertionError, "Invalid gemm: 3"),
    ("FakeQuant", {"gemms": {"fprop": 1}}, ValueError, "lists of names"),
    (
        "FakeQuant",
        {"tensors": ["weights"]},
        ValueError,
        (
            r"^\[NVTORCH INSPECT ERROR\] Invalid tensor: weights\. It must be one of "
            r"the \[.*\]\."
        ),
    ),
    ("FakeQuant", {"tensors": 5}, ValueError, "lists of names"),
    ("FakeQuant", {"enabled": "yes"}, ValueError, "enabled must be True or False, got 'yes'"),
    ("FakeQuant", {"gemms_struct": [{"gemm": "fprop"}]}, ValueError, 'config: "gemms"'),
    (
        "FakeQuant",
        {"tensors_struct": [{"tensor": "weight"}]},
        ValueError,
        'Unexpected key in config: "tensors"',
    ),
    ("PerTensorScaling", {"margin": 1}, ValueError, 'Unexpected key in config: "margin"'),
    ("PerTensorScaling", {"quant_format": "FP8E4M3"}, ValueError, "Unexpected key in config"),
    (
        "PerTensorScaling",
        {"tensors": "output"},
        AssertionError,
        (
            r"^\[NVTORCH INSPECT ERROR\] Feature=PerTensorScaling, "
            r"API=process_tensor: Per-tensor current scaling can be used only within "
            r"`DelayedScaling` recipe autocast, which quantizes operands and not "
            r"output\."
        ),
    ),
    ("DisableQuantizationGEMM", {"tensors": ["weight"]}, ValueError, 'in config: "tensors"'),
    ("DisableFP8GEMM", {"tensors": ["weight"]}, ValueError, 'in config: "tensors"'),
    ("DisableFP8GEMM", {"gemms": ["fwd"]}, AssertionError, "Invalid gemm: fwd"),
    ("DisableQuantizationLayer", {"gemms": ["fprop"]}, ValueError, 'in config: "gemms"'),
    ("DisableFP8Layer", {"layers": []}, ValueError, 'in config: "layers"'),
    ("LogTensorStats", {"stats": ["median"]}, AssertionError, "Statistic median is not supported"),
    (
        "LogTensorStats",
        {"stats": "mean"},
        ValueError,
        "stats must be a list of statistics, got 'mean'",
    ),
    ("LogTensorStats", {"stats": None}, ValueError, "stats must be a list of statistics, got None"),
    ("LogTensorStats", {"stats": [3]}, AssertionError, "Statistic 3 is not supported"),
    ("LogTensorStats", {"stat": ["mean"]}, ValueError, 'Unexpected key in config: "stat"'),
    ("LogTensorStats", {"freq": 0}, ValueError, "freq must be an integer not below 1"),
    ("LogTensorStats", {"frequency": 2}, ValueError, 'Unexpected key in config: "frequency"'),
    ("LogTensorStats", {"tensors": ["wieght"]}, ValueError, "Invalid tensor: wieght"),
    ("LogFp8TensorStats", {"stats": ["max"]}, ValueError, "unsupported stat name: max"),
    (
        "LogFp8TensorStats",
        {"stats": [{"mse": 1}]},
        ValueError,
        (
            r"^\[NVTORCH INSPECT ERROR\] A statistic of a quantized tensor must be a "
            r"name, got \{'mse': 1\}\."
        ),
    ),
    ("LogFp8TensorStats", {"stats": ["mxfp4_mse"]}, ValueError, "unsupported stat name: mxfp4_mse"),
    ("LogFp8TensorStats", {"stats": ["nvfp4_mse"]}, ValueError, "unsupported recipe name"),
    ("LogFp8TensorStats", {"stats": ["mxfp8_overflows%"]}, ValueError, "unsupported stat name"),
    (
        "LogFp8TensorStats",
        {"stats": ["fp8_current_scaling_mse_columnwise"]},
        ValueError,
        (
            r"^Stat fp8_current_scaling_mse_columnwise is not supported\. Columnwise "
            r"tensor statistics are not supported for fp8_delayed_scaling and "
            r"fp8_current_scaling\."
        ),
    ),
    ("LogFp8TensorStats", {"start_step": -3}, ValueError, "start_step must be an integer"),
    (
        "LogNvfp4TensorStats",
        {"stats": ["max"]},
        ValueError,
        (
            r"^Stat max is not supported for NVFP4\. Supported stats: "
            r"\['underflows%', 'mse'\]"
        ),
    ),
    ("LogNvfp4TensorStats", {"stats": ["nvfp4_mse"]}, ValueError, "is not supported for NVFP4"),
    (
        "DumpTensors",
        {"quantized_tensor": "no"},
        ValueError,
        "quantized_tensor must be True or False",
    ),
    ("DumpTensors", {"stats": []}, ValueError, 'Unexpected key in config: "stats"'),
    ("DumpTensors", {"end_step": "never"}, ValueError, "end_step must be an integer"),
    ("TestDummyFeature", {"inspect_only_once": 2.5}, ValueError, "must be True or False, got 2.5"),
    ("TestDummyFeature", {"inspect_only_once": 2}, ValueError, "must be True or False, got 2."),
    ("TestDummyFeature", {"inspect_once": True}, ValueError, 'in config: "inspect_once"'),
]
GOOD: dict[str, dict[str, Any]] = {
    "FakeQuant": FAKE,
    "PerTensorScaling": PAIR,
    "DisableQuantizationGEMM": {"gemms": ["fprop"]},
    "DisableFP8GEMM": {"gemms": []},
    "DisableQuantizationLayer": {},
    "DisableFP8Layer": {},
    "LogTensorStats": {**LOG, "stats": ["max", {"max_blockwise_dynamic_range": {"dims": 2}}]},
    "LogFp8TensorStats": {**LOG, "start_end_list": [[0, 4]]},
    "LogNvfp4TensorStats": LOG,
    "DumpTensors": {"tensors": ["weight"], "quantized_tensor": True, "end_step": -1},
    "TestDummyFeature": {"tensors": ["weight"], "gemms": ["fprop"], "inspect_only_once": True},
}


@pytest.mark.parametrize("feature", GOOD)
def test_good_blocks_load_without_a_word(feature: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "DisableFP8", DeprecationWarning)
        with session(section(**{feature: GOOD[feature]})):
            pass


@pytest.mark.parametrize(("feature", "changes", "error", "message"), WRONG)
def test_wrong_keys_and_values(
    feature: str, changes: dict, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as raised:
        with session(section(**{feature: {**GOOD[feature], **changes}})):
            pytest.fail("loaded")
    assert raised.value.__notes__ == [f"in section probe, feature {feature}"]


@pytest.mark.parametrize(
    "options",
    [
        {"block_size": 0},
        {"block_size": -4},
        {"block_size": "32"},
        {"block_size": True},
        {"dims": 3},
        {"dims": 1.0},
        {"size": 32},
        [],
        None,
    ],
)
def test_wrong_blocks_of_a_dynamic_range(options: object) -> None:
    block = {"tensors": ["weight"], "stats": [{"max_blockwise_dynamic_range": options}]}
    with pytest.raises(AssertionError, match=r"Statistic \{'max_blockwise.* is not supported"):
        with session(section(LogTensorStats=block)):
            pass


@pytest.mark.parametrize(
    ("block", "error", "message"),
    [
        ({"tensors_struct": [{"tensor": "weight", "fmt": 1}]}, ValueError, 'in config: "fmt"'),
        ({"tensors_struct": [{"tensor": "wait"}]}, ValueError, "Invalid tensor: wait"),
        ({"tensors_struct": [{"quant_format": "FP8E4M3"}]}, ValueError, "must name its tensor"),
        ({"tensors_struct": "weight"}, ValueError, "tensors_struct must be a list of mappings"),
        (
            {"tensors_struct": [{"tensor": "weight", "enabled": False}]},
            ValueError,
            "cannot be disabled",
        ),
        (
            {"tensors_struct": [{"tensor": "weight"}]},
            ValueError,
            (
                r"^.* quant_format missing for Tensor: weight in the config yaml for "
                r"FakeQuant feature which is a required field"
            ),
        ),
        (
            {
                "tensors_struct": [
                    {"tensor": "weight", "quant_format": "FP8E4M3"},
                    {"tensor": "activation", "quant_format": "INT8"},
                ]
            },
            ValueError,
            "quant_format: INT8 for Tensor: activation",
        ),
    ],
)
def test_wrong_entries_for_tensors(block: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        with session(section(FakeQuant={"gemms": ["fprop"], **block})):
            pass


@pytest.mark.parametrize(
    ("entry", "error", "message"),
    [
        ({"tensors": ["weight"]}, ValueError, "must name its gemm"),
        ({"gemm": "fprop", "tensors": ["waits"]}, ValueError, "Invalid tensor: waits"),
        ({"gemm": "gprop", "tensors": ["weight"]}, AssertionError, "Invalid gemm: gprop"),
        (
            {"gemm": "fprop", "tensors": ["weight"], "enabled": True},
            AssertionError,
            "Enabled field",
        ),
        ({"gemm": "fprop", "tensors": ["weight"], "k": 1}, ValueError, 'Unexpected key in .*"k"'),
        (
            {"gemm": "fprop", "tensors_struct": [{"tensor": "weight", "enabled": True}]},
            AssertionError,
            "Enabled field should not be part of gemms_struct",
        ),
        (
            {"gemm": "fprop", "tensors_struct": [{"tensor": "bias"}]},
            ValueError,
            "Invalid tensor: bias",
        ),
    ],
)
def test_wrong_entries_for_gemms(entry: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        with session(section(FakeQuant={"quant_format": "FP8E4M3", "gemms_struct": [entry]})):
            pass


@pytest.mark.parametrize("block", [3, "on", ["FP8E4M3"]])
def test_blocks_that_are_no_mappings(block: object) -> None:
    config = section(FakeQuant=FAKE)
    config["probe"]["transformer_engine"]["FakeQuant"] = block
    with pytest.raises(ValueError, match="The block of FakeQuant must be a mapping"):
        with session(config):
            pass


def test_results_of_other_gemms_do_not_count() -> None:
    """Checks that lists select each pair of a gemm and a tensor, except pairs that do not exist."""
    config = section(PerTensorScaling={"gemms": ["dgrad"], "tensors": ["gradient", "output"]})
    with session(config):
        pass
    plan = check(config, ["layer"]).plans["layer"]
    found = [
        (gemm, tensor)
        for gemm, steps in plan.gemms.items()
        for tensor, step in steps.items()
        if step.feature
    ]
    assert found == [("dgrad", "gradient")]


def test_a_block_without_enabled() -> None:
    config = section(FakeQuant=FAKE)
    del config["probe"]["transformer_engine"]["FakeQuant"]["enabled"]
    with pytest.raises(AssertionError, match="Missing required config field `enabled` under Fake"):
        with session(config):
            pass


def test_what_is_off_is_not_looked_at() -> None:
    wrong = {"enabled": False, "nonsense": 1}
    config = section(FakeQuant=FAKE)
    config["probe"]["transformer_engine"]["LogTensorStats"] = wrong
    config["probe"]["transformer_engine"]["DumpTensors"] = {}
    config["off"] = {"enabled": False, "transformer_engine": {"FakeQuant": {"nonsense": 1}}}
    with session(config):
        pass


def test_every_section_is_looked_through() -> None:
    config = section("fc1", FakeQuant=FAKE)
    config["second"] = copy.deepcopy(config["probe"])
    config["second"]["transformer_engine"]["FakeQuant"]["margin"] = 1
    with pytest.raises(ValueError, match="margin") as raised:
        with session(config):
            pass
    assert raised.value.__notes__ == ["in section second, feature FakeQuant"]


def test_a_file_is_looked_through(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(section(FakeQuant={**FAKE, "margin": 1})))
    for given in (path, str(path)):
        with pytest.raises(ValueError, match="margin"):
            _initialize(given, tmp_path)


def _initialize(path: object, folder: Path) -> None:
    try:
        debug_api.initialize(path, feature_dirs=[FEATURES], log_dir=str(folder))
    finally:
        debug_api.end_debug()


def test_a_session_begins_after_one_that_was_refused() -> None:
    with pytest.raises(ValueError, match="margin"):
        with session(section(FakeQuant={**FAKE, "margin": 1})):
            pass
    with session(section(FakeQuant=FAKE)):
        te = debug_api.transformer_engine
        assert te.fp8_gemm_enabled("layer", gemm="fprop", iteration=0) == (False, None)


# The host's own messages stay as they are.


@pytest.mark.parametrize(
    ("config", "error", "message"),
    [
        (section(FakeQant=FAKE), AssertionError, "Could not find feature 'FakeQant'"),
        (
            section(namespace="nothing", A={}),
            AssertionError,
            "feature 'nothing' in namespace 'base'",
        ),
        ({"s": {"layers": {}}}, AssertionError, "Missing required config field `enabled` under s"),
        ({"s": {"enabled": True}}, AssertionError, "Provide layers field"),
        ({"s": {"enabled": False}}, AssertionError, "Could not load config"),
    ],
)
def test_errors_of_the_host(config: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        with session(config):
            pass


# Blocks that only warn: they are in use, and only a call of the feature would refuse them.


@pytest.mark.parametrize(
    ("feature", "block", "message"),
    [
        ("FakeQuant", {"gemms": ["fprop"], "quant_format": "FP8E5M2"}, "Provide 'tensors_struct"),
        ("FakeQuant", {"tensors": ["weight"], "quant_format": "FP8E5M2"}, "Provide 'gemms_struct"),
        ("DisableQuantizationGEMM", {}, "Provide 'gemms_struct"),
        (
            "LogFp8TensorStats",
            {**LOG, "stats": ["underflows"]},
            "unsupported stat name: underflows",
        ),
        ("LogFp8TensorStats", {**LOG, "stats": ["overflows"]}, "unsupported stat name: overflows"),
    ],
)
def test_warnings(feature: str, block: dict, message: str) -> None:
    with pytest.warns(UserWarning, match=message) as caught:
        with session(section(**{feature: block})):
            pass
    assert any("in section probe, feature" in str(warning.message) for warning in caught)


def test_a_call_without_tensors_is_refused() -> None:
    block = {"gemms": ["fprop"], "quant_format": "FP8E5M2"}
    with pytest.warns(UserWarning), session(section(FakeQuant=block)):
        te = debug_api.transformer_engine
        assert te.fp8_gemm_enabled("layer", gemm="fprop", iteration=0) == (False, None)
        with pytest.raises(
            ValueError,
            match=r"^Provide 'tensors_struct: List\[Dict\]' or 'tensors: List\[str\]' in "
            r"the config yaml\.$",
        ):
            te.modify_tensor_enabled("layer", gemm="fprop", tensor_name="weight", iteration=0)


# Features refuse the same keys and values if they are called directly.


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"margin": 1}, r'^\[NVTORCH INSPECT ERROR\] Unexpected key in config: "margin"\.$'),
        ({}, "quant_format missing for Tensor: weight in the config yaml for FakeQuant feature"),
        ({"quant_format": "FP8"}, "quant_format: FP8 for Tensor: weight .* is not supported"),
    ],
)
def test_fake_quant_checks_a_call(config: dict, message: str) -> None:
    from narrowfloat.debug.features.fake_quant import FakeQuant

    config = {"gemm": "fprop", "tensor": "weight", **config}
    with pytest.raises(ValueError, match=message):
        FakeQuant().modify_tensor(config, "layer", "fprop", "weight", torch.ones(4), 0, None)
