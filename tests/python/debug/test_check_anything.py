# SPDX-License-Identifier: Apache-2.0
"""Tests that every configuration gets a report, and that the host runs those without problems."""

import copy
import random
from typing import Any

import pytest
import yaml
from layer_sessions import session
from narrowfloat.debug._check import check, text

GOOD = """
a:
  enabled: True
  layers: {layer_types: [fc1], layer_numbers: [0, "1-2"]}
  transformer_engine:
    FakeQuant:
      enabled: True
      gemms_struct:
        - {gemm: fprop, tensors_struct: [{tensor: weight, quant_format: FP8E4M3}]}
        - {gemm: dgrad, tensors: [gradient], quant_format: FP8E5M2}
    LogTensorStats:
      enabled: True
      tensors: [activation]
      stats: [max, {max_blockwise_dynamic_range: {block_size: 32, dims: 1}}]
      start_end_list: [[0, 10], [20, 30]]
b:
  enabled: True
  layers: {layer_name_regex_pattern: "fc2$"}
  transformer_engine:
    DisableQuantizationGEMM: {enabled: True, gemms: [wgrad]}
    LogFp8TensorStats: {enabled: True, tensors: [weight], stats: [mxfp8_mse, underflows%], freq: 5}
    DumpTensors: {enabled: True, tensors: [weight], quantized_tensor: True}
"""
NAMES = ["dec.0.fc1", "dec.0.fc2", "dec.1.fc1", "dec.1.fc2"]
ODD = [
    None, True, -1, 1.5, "",
    "all", "fprop", "weight", "(", [], {}, [None], [[1]], {"gemm": "fprop"},
    [{"tensor": "weight"}], {"enabled": True}, [{}], {1: 2}, "x" * 300, [3, "9-1"], b"bytes",
]  # fmt: skip


def places(value: Any, path: tuple = ()) -> list[tuple]:
    """Returns the keys that lead to each value inside of `value`."""
    found = [path] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in items:
        nested = isinstance(inner, dict | list)
        found += places(inner, (*path, key)) if nested else [(*path, key)]
    return found


def mutate(config: dict, dice: random.Random) -> dict:
    """Returns `config` with one to three values replaced, removed or moved to another key."""
    config = copy.deepcopy(config)
    for _ in range(dice.randint(1, 3)):
        *way, last = dice.choice(places(config))
        inner = config
        for key in way:
            inner = inner[key]
        what = dice.random()
        if what < 0.6:
            inner[last] = copy.deepcopy(dice.choice(ODD))
        elif what < 0.8 and isinstance(inner, dict):
            inner[dice.choice(["gemm", "tensors", "enabled", "freq", "layers", "x"])] = inner.pop(
                last
            )
        else:
            del inner[last]
    return config


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(40))
def test_changed_configurations(seed: int, tmp_path: Any) -> None:
    config = mutate(yaml.safe_load(GOOD), random.Random(seed))
    report = check(config, NAMES)
    assert text(report)
    if not report.problems:
        with session(config, tmp_path) as host:
            for layer in NAMES:
                api = host.transformer_engine
                api.modify_tensor_enabled(layer, gemm="fprop", tensor_name="weight", iteration=0)
                api.fp8_gemm_enabled(layer, gemm="wgrad", iteration=0)
                api.inspect_tensor_enabled(layer, tensor_name="activation", iteration=0)


def test_the_configuration_itself_is_good() -> None:
    assert check(yaml.safe_load(GOOD), NAMES).problems == []
