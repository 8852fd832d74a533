# SPDX-License-Identifier: Apache-2.0
"""Tests which part of a feature's block applies to a gemm and a tensor."""

import copy

import pytest
import yaml
from narrowfloat.debug._grammar import GEMMS, OPERANDS, RESULTS, TENSORS, USES, narrow
from narrowfloat.debug.features.api import TEConfigAPIMapper
from nvdlfw_inspect.config_manager import ConfigManager
from sessions import session


def test_the_table_of_gemms_and_tensors() -> None:
    assert set(GEMMS) == {"fprop", "dgrad", "wgrad"}
    assert {name: use.gemms for name, use in USES.items()} == {
        "activation": ("fprop", "wgrad"),
        "weight": ("fprop", "dgrad"),
        "gradient": ("dgrad", "wgrad"),
        "output": ("fprop",),
        "dgrad": ("dgrad",),
        "wgrad": ("wgrad",),
    }
    assert set(RESULTS) == {"output", "dgrad", "wgrad"} and set(TENSORS) == set(USES)
    assert {gemm: set(tensors) for gemm, tensors in OPERANDS.items()} == {
        "fprop": {"activation", "weight"},
        "dgrad": {"gradient", "weight"},
        "wgrad": {"gradient", "activation"},
    }


LISTS = "{enabled: True, gemms: [fprop, dgrad], tensors: [activation, weight], k: 1}"
TENSOR_ENTRIES = """
{gemms: [fprop], k: outer, only: 1, tensors_struct: [{tensor: activation, k: inner},
 {tensor: weight}, {tensor: activation, k: second}]}
"""
GEMM_ENTRIES = """
{k: outer, gemms_struct: [{gemm: fprop, tensors: [activation], k: gemm}, {gemm: dgrad,
 tensors: [gradient]}, {gemm: fprop, tensors: [weight]}]}
"""
NESTED = """
{k: outer, j: outer, gemms_struct: [{gemm: wgrad, k: gemm, j: gemm,
 tensors_struct: [{tensor: gradient, k: tensor}, {tensor: activation}]}]}
"""
DEFAULTS = """
{tensors: [activation], gemms_struct: [{gemm: fprop}, {gemm: wgrad, tensors: [gradient]},
 {gemm: dgrad, tensors_struct: [{tensor: weight, k: 1}]}]}
"""
DEFAULT_ENTRIES = """
{tensors_struct: [{tensor: activation, k: 1}], gemms_struct: [{gemm: fprop, k: 2}]}
"""


@pytest.mark.parametrize(
    ("block", "gemm", "tensor", "wanted"),
    [
        (LISTS, "fprop", "activation", {"k": 1}),
        (LISTS, "dgrad", "weight", {"k": 1}),
        (LISTS, "wgrad", "activation", None),
        (LISTS, "fprop", "gradient", None),
        (TENSOR_ENTRIES, "fprop", "activation", {"k": "inner", "only": 1}),
        (TENSOR_ENTRIES, "fprop", "weight", {"k": "outer", "only": 1}),
        (TENSOR_ENTRIES, "fprop", "gradient", None),
        (TENSOR_ENTRIES, "dgrad", "activation", None),
        (GEMM_ENTRIES, "fprop", "activation", {"k": "gemm"}),
        (GEMM_ENTRIES, "fprop", "weight", None),  # only the first entry for fprop applies
        (GEMM_ENTRIES, "dgrad", "gradient", {"k": "outer"}),
        (GEMM_ENTRIES, "wgrad", "gradient", None),
        (NESTED, "wgrad", "gradient", {"k": "tensor", "j": "gemm"}),
        (NESTED, "wgrad", "activation", {"k": "gemm", "j": "gemm"}),
        (DEFAULTS, "fprop", "activation", {}),
        (DEFAULTS, "fprop", "weight", None),
        (DEFAULTS, "wgrad", "gradient", {}),
        (DEFAULTS, "wgrad", "activation", None),
        (DEFAULTS, "dgrad", "weight", {"k": 1}),
        (DEFAULT_ENTRIES, "fprop", "activation", {"k": 1}),
        ("{gemms: fprop, tensors: 'activation, weight'}", "fprop", "weight", {}),
        ("{gemms: [], tensors: [activation]}", "fprop", "activation", None),
        ("{gemms_struct: }", "fprop", "activation", None),
    ],
)
def test_a_tensor_of_a_gemm(block: str, gemm: str, tensor: str, wanted: dict | None) -> None:
    config = yaml.safe_load(block)
    before = copy.deepcopy(config)
    if wanted is not None:
        wanted = {**wanted, "gemm": gemm, "tensor": tensor}
    assert narrow(config, gemm, tensor) == wanted
    assert config == before


def test_a_gemm_alone_leaves_the_tensors() -> None:
    config = yaml.safe_load(LISTS)
    assert narrow(config, "fprop") == {
        "gemm": "fprop",
        "tensors": ["activation", "weight"],
        "k": 1,
    }
    entries = yaml.safe_load(GEMM_ENTRIES)
    assert narrow(entries, "dgrad") == {"gemm": "dgrad", "tensors": ["gradient"], "k": "outer"}
    assert narrow(entries, "wgrad") is None


def test_a_tensor_alone_leaves_the_gemms() -> None:
    assert narrow({"tensors": "weight", "gemms": ["fprop"], "freq": 2}, tensor="weight") == {
        "tensor": "weight",
        "gemms": ["fprop"],
        "freq": 2,
    }
    block = {"tensors_struct": [{"tensor": "weight", "freq": 3, "enabled": True}], "freq": 2}
    assert narrow(block, tensor="weight") == {"tensor": "weight", "freq": 3}
    assert narrow(block, tensor="wgrad") is None


@pytest.mark.parametrize("nested", [False, True])
def test_enabled_does_not_belong_into_entries_for_gemms(nested: bool) -> None:
    entry = {"gemm": "fprop", "tensors_struct": [{"tensor": "weight"}]}
    (entry["tensors_struct"][0] if nested else entry)["enabled"] = True
    with pytest.raises(AssertionError, match="Enabled field should not be part of gemms_struct"):
        narrow({"gemms_struct": [entry]}, "fprop", "weight")


@pytest.mark.parametrize(
    "block",
    [
        {"gemms": ["fprop", "bprop"], "tensors": ["weight"]},
        {"gemms_struct": [{"gemm": "fprop", "tensors": ["weight"]}, {"gemm": "bprop"}]},
    ],
)
def test_unknown_gemms(block: dict) -> None:
    with pytest.raises(
        AssertionError,
        match=(
            r"^\[NVTORCH INSPECT ERROR\] Invalid gemm: bprop\. It must be one of the "
            r"\['fprop', 'wgrad', 'dgrad'\]\.$"
        ),
    ):
        narrow(block, "fprop", "weight")


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (
            {"tensors": ["weight"]},
            (
                r"^\[NVTORCH INSPECT ERROR\] Provide 'gemms_struct: List\[Dict\]' or "
                r"'gemms: List\[str\]' in the config yaml$"
            ),
        ),
        ({"gemms": ["fprop"]}, "Provide 'tensors_struct: List"),
        ({"gemms_struct": [{"gemm": "fprop"}]}, "Provide 'tensors_struct: List"),
        (
            {"gemms": 3},
            (
                r"^\[NVTORCH INSPECT ERROR\] gemms and tensors must be lists of names, "
                r"got 3\.$"
            ),
        ),
        ({"gemms": ["fprop"], "tensors": {"weight": 1}}, "lists of names, got"),
        (
            {"gemms_struct": {"gemm": "fprop"}},
            (
                r"^\[NVTORCH INSPECT ERROR\] gemms_struct must be a list of mappings, got "
                r"\{'gemm': 'fprop'\}\.$"
            ),
        ),
        ({"gemms_struct": [{"tensors": []}]}, "gemms_struct must name its gemm"),
        ({"gemms": ["fprop"], "tensors_struct": ["weight"]}, "tensors_struct must name its tensor"),
    ],
)
def test_lists_that_are_missing_or_none(block: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        narrow(block, "fprop", "weight")


def test_a_missing_list_stands_in_the_log_too() -> None:
    with session() as folder:
        with pytest.raises(
            ValueError,
            match=r"^Provide 'tensors_struct: List\[Dict\]' or 'tensors: List\[str\]' in "
            r"the config yaml\.$",
        ):
            TEConfigAPIMapper().parse_config_and_api(
                {"enabled": True}, tensor_parsing=True, tensor_name="weight"
            )
        log = (folder / "nvdlfw_inspect_logs/nvdlfw_inspect_globalrank-0.log").read_text()
    assert "ERROR - Provide 'tensors_struct: List[Dict]' or 'tensors: List[str]'" in log


MANIPULATION = """
fc1:
  enabled: True
  layers: {layer_name_regex_pattern: .*(fc1)}
  transformer_engine:
    DisableFP8GEMM: {enabled: True, gemms: [fprop]}
    PerTensorScaling: {enabled: True, gemms: [dgrad], tensors: [gradient]}
    FakeQuant:
      enabled: True
      gemms: [fprop]
      tensors_struct:
        - {tensor: activation, quant_format: FP8E4M3}
        - {tensor: weight, quant_format: FP8E4M3}
fc2:
  enabled: True
  layers: {layer_name_regex_pattern: .*(fc2)}
  transformer_engine:
    PerTensorScaling:
      enabled: True
      gemms_struct:
        - gemm: fprop
          tensors_struct: [{tensor: activation}, {tensor: weight}]
        - gemm: wgrad
          tensors_struct: [{tensor: activation}, {tensor: gradient}]
    FakeQuant:
      enabled: True
      gemms_struct:
        - {gemm: dgrad, tensors: [weight, gradient], quant_format: FP8E5M2}
"""


@pytest.mark.parametrize(
    ("layer", "feature", "gemm", "tensor", "parameters"),
    [
        ("fc1", "PerTensorScaling", "wgrad", "activation", None),
        ("fc1", "PerTensorScaling", "dgrad", "activation", None),
        ("fc1", "PerTensorScaling", "dgrad", "gradient", {}),
        ("fc1", "FakeQuant", "fprop", "activation", {"quant_format": "FP8E4M3"}),
        ("fc1", "FakeQuant", "fprop", "weight", {"quant_format": "FP8E4M3"}),
        ("fc2", "FakeQuant", "dgrad", "gradient", {"quant_format": "FP8E5M2"}),
        ("fc2", "FakeQuant", "dgrad", "weight", {"quant_format": "FP8E5M2"}),
        ("fc2", "PerTensorScaling", "fprop", "activation", {}),
        ("fc2", "PerTensorScaling", "fprop", "weight", {}),
        ("fc2", "PerTensorScaling", "wgrad", "activation", {}),
        ("fc2", "PerTensorScaling", "wgrad", "gradient", {}),
    ],
)
def test_a_configuration_of_transformer_engine(
    layer: str, feature: str, gemm: str, tensor: str, parameters: dict | None
) -> None:
    with session(MANIPULATION):
        blocks = ConfigManager.get_config_for_layer(f"decoder.1.mlp.{layer}")["transformer_engine"]
        found, config = TEConfigAPIMapper().parse_config_and_api(
            blocks[feature], gemm_parsing=True, tensor_parsing=True, gemm=gemm, tensor_name=tensor
        )
    assert found is (parameters is not None)
    assert config == (
        None if parameters is None else {"gemm": gemm, "tensor": tensor, **parameters}
    )


def test_nothing_to_narrow_by_is_nothing_found() -> None:
    assert TEConfigAPIMapper().parse_config_and_api({"enabled": True, "gemms": ["fprop"]}) == (
        False,
        None,
    )
