# SPDX-License-Identifier: Apache-2.0
"""Tests TransformerEngine's own debug features on the CPU, in the host that loads them by path."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest
from lookalike import Run, write

if find_spec("transformer_engine") is None:
    pytest.skip("TransformerEngine is not installed", allow_module_level=True)

CONFIG = """
    log:
      enabled: True
      layers:
        layer_name_regex_pattern: .*0
      transformer_engine:
        LogTensorStats:
          enabled: True
          tensors: [activation]
          stats: [max, min, dynamic_range]
          freq: 1
        LogFp8TensorStats:
          enabled: True
          tensors: [weight]
          stats: [underflows%]
          freq: 1
    plain:
      enabled: True
      layers:
        layer_name_regex_pattern: .*1
      transformer_engine:
        DisableFP8GEMM:
          enabled: True
          gemms: [fprop]
    """
PROGRAM = """
    from pathlib import Path
    import torch
    import nvdlfw_inspect.api as debug_api
    import transformer_engine
    import transformer_engine.pytorch as te

    features = str(Path(transformer_engine.__file__).parent / "debug" / "features")
    debug_api.initialize("config.yaml", feature_dirs=[features], log_dir="logs")
    network = torch.nn.Sequential(te.Linear(32, 32), te.Linear(32, 32))
    debug_api.infer_and_assign_layer_names(network.cuda())
    x = torch.linspace(-2, 4, 1024, device="cuda").round().reshape(32, 32).requires_grad_()
    with te.autocast(enabled=True):
        network(x).sum().backward()
    debug_api.step()
    debug_api.end_debug()
    """


def test_features_log_and_change_layers(run_alone: Run, tmp_path: Path) -> None:
    write(tmp_path, {"config.yaml": CONFIG, "program/train.py": PROGRAM})
    done = run_alone("-m", "narrowfloat.te", "program/train.py", CXX="no-such-compiler")
    assert done.returncode == 0, done.stderr
    logs = "".join(path.read_text() for path in tmp_path.glob("logs/**/*.log"))
    for line in (
        "LAYER=model.0: Tensor: activation, gemm fprop - Quantize",
        "LAYER=model.1: Tensor: activation, gemm fprop - High Precision",
        "LAYER=model.1: Tensor: activation, gemm wgrad - Quantize",
    ):
        assert line in logs, logs
    values = dict(re.findall(r"(model.0_\w+%?)\s+iteration=0+\s+value=(\S+)", logs))
    assert float(values["model.0_activation_max"]) == 4
    assert float(values["model.0_activation_min"]) == -2
    assert float(values["model.0_activation_dynamic_range"]) == 2  # log2 of 4 / 1
    assert "model.0_weight_underflows%" in values
