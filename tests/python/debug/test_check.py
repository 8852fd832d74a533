# SPDX-License-Identifier: Apache-2.0
"""Tests the checker: the problems that it finds in a configuration, and its printed plan."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from layer_sessions import session
from narrowfloat.debug._block_rules import RULES
from narrowfloat.debug._check import check, text
from narrowfloat.debug._grammar import GEMMS, OPERANDS
from narrowfloat.debug.pytorch.layer import DebugLayer, Slots
from narrowfloat.pytorch import DType, Float8CurrentScalingQuantizer

FAKE = {"enabled": True, "gemms": ["fprop"], "tensors": ["weight"], "quant_format": "FP8E4M3"}
LOG = {"enabled": True, "tensors": ["activation"], "stats": ["max"]}


def config(blocks: dict[str, Any], layers: dict[str, Any] | None = None) -> dict[str, Any]:
    layers = {"layer_types": ["fc"]} if layers is None else layers
    return {"a": {"enabled": True, "layers": layers, "transformer_engine": blocks}}


def problems(found: dict[str, Any], layers: list[str] | None = None) -> list[str]:
    return [str(problem) for problem in check(found, layers).problems]


def test_a_good_configuration_has_no_problem() -> None:
    assert problems(config({"FakeQuant": FAKE, "LogTensorStats": LOG}), ["x.fc1", "y"]) == []


# By name: a block, and the beginning of its only message.
WRONG_BLOCKS = {
    "unknown feature": ({"FakeQuand": FAKE}, "FakeQuand: must be one of the features FakeQuant"),
    "unknown key": ({"FakeQuant": {**FAKE, "format": 1}}, "FakeQuant: Unexpected key in config"),
    "unknown format": (
        {"FakeQuant": {**FAKE, "quant_format": "fp8e4m3"}},
        "FakeQuant: Feature=FakeQuant, API=process_tensor: quant_format: fp8e4m3",
    ),
    "no format": (
        {"FakeQuant": {k: FAKE[k] for k in ("enabled", "gemms", "tensors")}},
        "FakeQuant: Feature=FakeQuant, API=process_tensor: quant_format missing for Tensor: weight",
    ),
    "unknown gemm": (
        {"FakeQuant": {**FAKE, "gemms": ["fprop", "dgard"]}},
        "FakeQuant: Invalid gemm: dgard.",
    ),
    "unknown tensor": (
        {"LogTensorStats": {**LOG, "tensors": ["activations"]}},
        "LogTensorStats: Invalid tensor: activations.",
    ),
    "no gemms": (
        {"DisableQuantizationGEMM": {"enabled": True}},
        "DisableQuantizationGEMM: Provide 'gemms_struct: List[Dict]' or 'gemms: List[str]'",
    ),
    "unknown statistic": (
        {"LogTensorStats": {**LOG, "stats": ["mxa"]}},
        "LogTensorStats: Statistic mxa is not supported. Supported are: cur_amax, ",
    ),
    "wrong frequency": (
        {"LogTensorStats": {**LOG, "freq": 0}},
        "LogTensorStats: freq must be an integer not below 1, got 0.",
    ),
    "block is no mapping": (
        {"FakeQuant": [1]},
        "FakeQuant: The block of FakeQuant must be a mapping",
    ),
    "block without enabled": (
        {"FakeQuant": {"gemms": ["fprop"]}},
        "FakeQuant: Missing required config field `enabled`",
    ),
    "tensor of another gemm": (
        {"PerTensorScaling": {"enabled": True, "gemms": ["fprop", "dgrad"],
                              "tensors_struct": [{"tensor": "weight"}, {"tensor": "wgrad"}]}},
        "PerTensorScaling: wgrad is listed for fprop and dgrad, but is of wgrad",
    ),
    "list beside struct": (
        {"LogTensorStats": {**LOG, "tensors_struct": [{"tensor": "weight"}]}},
        "LogTensorStats: tensors is not read beside tensors_struct",
    ),
    "one name twice": (
        {"LogTensorStats": {"enabled": True, "stats": ["max"],
                            "tensors_struct": [{"tensor": "weight"}, {"tensor": "weight"}]}},
        "LogTensorStats: tensors_struct: of 2 entries for weight the first one counts",
    ),
    "enabled within": (
        {"LogTensorStats": {"enabled": True, "stats": ["max"],
                            "tensors_struct": [{"tensor": "weight", "enabled": False}]}},
        "LogTensorStats: An entry of tensors_struct cannot be disabled",
    ),
    "key of another feature": (
        {"DisableQuantizationLayer": {"enabled": True, "gemm": "fprop"}},
        "DisableQuantizationLayer: gemm is not read, the feature is for all gemms",
    ),
    "nothing listed": (
        {"PerTensorScaling": {"enabled": True, "gemms": [], "tensors": []}},
        "PerTensorScaling: lists no tensor for any gemm",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG_BLOCKS)
def test_wrong_blocks(name: str) -> None:
    blocks, message = WRONG_BLOCKS[name]
    (found,) = problems(config(blocks))
    assert found.startswith(f"section a, {message}")


# By name: a whole configuration, and one of its messages.
WRONG_SECTIONS = {
    "no mapping": ({"a": 3}, "section a: a section must be a mapping, got 3"),
    "no enabled": ({"a": {"layers": {}}}, "section a: enabled is missing"),
    "enabled is a word": (
        {"a": {"enabled": "no"}},
        "section a: enabled must be True or False, got 'no'",
    ),
    "no layers": ({"a": {"enabled": True}}, "section a: layers is missing"),
    "null namespace": (
        {"a": {"enabled": True, "layers": {"layer_types": ["x"]}, "transformer_engine": None}},
        "section a: transformer_engine must be a mapping of features, got None",
    ),
    "another namespace": (
        {"a": {"enabled": True, "layers": {"layer_types": ["x"]}, "megatron": {"X": {}}}},
        "section a: megatron is neither the namespace transformer_engine nor a feature of the host",
    ),
    "two base features": (
        {
            "a": {
                "enabled": True,
                "layers": {"layer_types": ["x"]},
                "LogTensorStats": {"enabled": True},
                "Other": {"enabled": True},
            }
        },
        "section a: of LogTensorStats and Other the host keeps the last",
    ),
    "nothing enabled": (
        {"a": {"enabled": False}},
        "configuration: at least one section must be enabled, got none",
    ),
    "empty": ({}, "configuration: at least one section must be enabled, got none"),
}


@pytest.mark.parametrize("name", WRONG_SECTIONS)
def test_wrong_sections(name: str) -> None:
    found, message = WRONG_SECTIONS[name]
    assert message in problems(found)


SELECTORS = "exact_layer_names, layer_name_regex_pattern, layer_types, layer_numbers"
WRONG_LAYERS = {
    "no mapping": (["fc1"], "layers must be a mapping of"),
    "empty": ({}, f"layers: needs one of {SELECTORS}"),
    "unknown": ({"layer_types": ["a"], "types": ["b"]}, "layers: selectors must be among "
                f"{SELECTORS}, got types"),
    "nothing": ({"layer_numbers": None}, "layers: layer_numbers must be a list of numbers"),
    "bare type": ({"layer_types": "fc1"}, "layers: layer_types must be a list of parts of names"),
    "part of a word": ({"layer_types": "small"}, "layers: layer_types must be a list of parts of "
                       "names, or \"all\", got 'small'"),
    "no type": ({"layer_types": []}, "layers: layer_types must be a list of parts of names, or "
                "\"all\", got []"),
    "bare number": ({"layer_numbers": 3}, "layers: layer_numbers must be a list of numbers"),
    "turned range": ({"layer_numbers": ["5-3"]}, "layers: layer_numbers must be a list of numbers"),
    "bad pattern": ({"layer_name_regex_pattern": "("}, "layers: layer_name_regex_pattern must be a "
                    "regular expression, got '('"),
    "two ways": ({"exact_layer_names": ["a"], "layer_types": ["a"]},
                 "layers: layer_types is not read beside exact_layer_names"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG_LAYERS)
def test_wrong_selectors(name: str) -> None:
    layers, message = WRONG_LAYERS[name]
    assert any(
        found.startswith(f"section a: {message}")
        for found in problems(config({"FakeQuant": FAKE}, layers))
    )


NAMES = ["dec.0.fc1", "dec.0.fc2", "dec.1.fc1", "head"]
MISSES = {
    "no layer": ({"layer_types": ["qkv"]},
                 ["layers: layer_types: no layer has qkv in its name",
                  "layers: no layer is selected"]),
    "one of the parts": ({"layer_types": ["fc1", "qkv"]},
                         ["layers: layer_types: no layer has qkv in its name"]),
    "pattern": ({"layer_name_regex_pattern": "^fc"}, ["layers: no layer is selected"]),
    "exact name": ({"exact_layer_names": [*NAMES, "tail"]},
                   ["layers: exact_layer_names: there is no layer tail"]),
    "exact names of some": ({"exact_layer_names": ["dec.0.fc1", "dec.0.fc2"]},
                            ["layers: exact_layer_names stops the host at every layer that it does "
                             "not name: dec.1.fc1, head; use layer_name_regex_pattern"]),
    "no number": ({"layer_numbers": [0]},
                  ["layers: layer_numbers stops the host at layers without exactly one number in "
                   "their name: head"]),
}  # fmt: skip


@pytest.mark.parametrize("name", MISSES)
def test_layers_that_match_nothing_or_stop_the_host(name: str) -> None:
    layers, messages = MISSES[name]
    found = problems(config({"FakeQuant": FAKE}, layers), NAMES)
    assert found == [f"section a: {message}" for message in messages]


@pytest.mark.parametrize("types", ["all", ["all"]])
def test_all_layers_are_selected_by_name(types: object) -> None:
    report = check(config({"FakeQuant": FAKE}, {"layer_types": types}), NAMES)
    assert report.problems == []
    assert text(report).count(": section a") == len(NAMES)


def test_layers_that_match_twice() -> None:
    both = config({"FakeQuant": FAKE}) | {"b": config({"FakeQuant": FAKE})["a"]}
    both["b"]["layers"] = {"layer_types": ["fc1"]}
    report = check(both, NAMES)
    assert [str(problem) for problem in report.problems] == [
        "layer dec.0.fc1: is selected by sections a and b",
        "layer dec.1.fc1: is selected by sections a and b",
    ]


def test_two_features_on_one_tensor() -> None:
    scaling = {"enabled": True, "gemms": ["fprop"], "tensors": ["weight", "activation"]}
    found = problems(config({"FakeQuant": FAKE, "PerTensorScaling": scaling}))
    assert "FakeQuant and PerTensorScaling both modify weight, the host takes one" in "".join(found)


def test_operands_of_two_kinds() -> None:
    blocks = {
        "DisableQuantizationGEMM": {"enabled": True, "gemms": ["fprop"]},
        "PerTensorScaling": {"enabled": True, "gemms": ["fprop"], "tensors": ["weight"]},
    }
    (found,) = problems(config(blocks))
    assert found == (
        "section a: gemm fprop: weight is quantized (PerTensorScaling) and activation is not "
        "(DisableQuantizationGEMM); a gemm needs both of one kind"
    )


def test_a_configuration_is_not_changed() -> None:
    given = config({"FakeQuant": FAKE, "LogTensorStats": LOG})
    before = copy.deepcopy(given)
    check(given, NAMES)
    assert given == before


def test_a_section_that_is_off_is_not_looked_at() -> None:
    assert problems({"b": {"enabled": False, "layers": 3}, **config({"FakeQuant": FAKE})}) == []


def test_a_running_session_is_left_alone(tmp_path: Path) -> None:
    with session(None, tmp_path) as host:
        manager = host.DEBUG_MANAGER
        with pytest.raises(
            RuntimeError,
            match=r"^check: must be called while no session runs, because it starts its own$",
        ):
            check(config({"FakeQuant": FAKE}))
        assert host.DEBUG_MANAGER is manager


PLANS = {
    "FakeQuant": {**FAKE, "gemms": ["fprop", "wgrad"], "tensors": ["weight", "wgrad"]},
    "PerTensorScaling": {"enabled": True, "gemms": ["dgrad"], "tensors": ["gradient"]},
    "DisableQuantizationGEMM": {"enabled": True, "gemms": ["wgrad"]},
    "DisableQuantizationLayer": {"enabled": True},
}


@pytest.mark.parametrize("feature", PLANS)
def test_the_plan_is_what_a_layer_does(tmp_path: Path, feature: str) -> None:
    given = config({feature: PLANS[feature]})
    plan = check(given, ["fc1"]).plans["fc1"]
    with session(given, tmp_path):
        parents = {t: Float8CurrentScalingQuantizer(DType.kFloat8E4M3)
                   for t in ("activation", "weight", "gradient")}  # fmt: skip
        slots = DebugLayer("fc1").watch(Slots(**parents))
    for gemm in GEMMS:
        for tensor in OPERANDS[gemm]:
            slot = getattr(slots, tensor)
            side = "rowwise" if slot.rowwise_gemm_name == gemm else "columnwise"
            assert plan.gemms[gemm][tensor].plan == getattr(slot, f"{side}_tensor_plan")
    results = {"fprop": "output", "dgrad": "dgrad", "wgrad": "wgrad"}
    for gemm, tensor in results.items():
        assert plan.gemms[gemm][tensor].plan == getattr(slots, tensor).rowwise_tensor_plan


def test_the_report_for_people() -> None:
    blocks = {"FakeQuant": {**FAKE, "tensors": ["weight", "activation"]},
              "LogTensorStats": {**LOG, "freq": 10}}  # fmt: skip
    found = text(check(config(blocks), ["fc1", "fc2", "head"]))
    assert found.startswith(
        "layer fc1: section a\n"
        "layer fc2: section a\n"
        "  fprop  activation  modify_tensor() by FakeQuant quant_format=FP8E4M3\n"
        "  fprop  weight      modify_tensor() by FakeQuant quant_format=FP8E4M3\n"
        "  fprop  output      High Precision\n"
        "  wgrad  activation  Quantize\n"
    )
    assert "  seen   activation  LogTensorStats stats=['max'] freq=10\n" in found
    assert "layer head: no section\n" in found and found.endswith("\n\nno problem")


def test_without_layers_there_is_a_plan_for_each_section() -> None:
    report = check(config({"FakeQuant": FAKE}))
    assert list(report.plans) == ["a"] and "section a\n  fprop" in text(report)
    assert "sections" in report.as_json() and "layers" not in report.as_json()


def test_every_feature_of_ours_has_rules_and_is_known_to_the_host(tmp_path: Path) -> None:
    from nvdlfw_inspect.registry import Registry

    with session(None, tmp_path):
        assert set(Registry.data["transformer_engine"].features) == set(RULES)
    assert torch.is_grad_enabled()
