# SPDX-License-Identifier: Apache-2.0
"""Runs unchanged configuration files of TransformerEngine's users from end to end."""

from pathlib import Path

import nvdlfw_inspect.api as debug_api
import pytest
import torch
from narrowfloat.common import recipe
from narrowfloat.debug.features.utils.stats_buffer import STATS_BUFFERS
from narrowfloat.pytorch.quantization import RecipeState
from sessions import FEATURES, logged, te

from narrowfloat import pytorch as nfp

E4M3, E5M2 = nfp.DType.kFloat8E4M3, nfp.DType.kFloat8E5M2


class Run:
    """Sessions whose configurations are files in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def begin(self, text: str) -> None:
        path = self.folder / "config.yaml"
        path.write_text(text)
        debug_api.initialize(str(path), feature_dirs=FEATURES, log_dir=str(self.folder))


@pytest.fixture
def run(tmp_path: Path) -> Run:
    yield Run(tmp_path)
    debug_api.end_debug()


SCALING = """
scaling:
  enabled: True
  layers:
    layer_numbers: [1]
    layer_types: [fc1, fc2]
  transformer_engine:
    DisableFP8GEMM:
      enabled: True
      gemms: [wgrad]
    PerTensorScaling:
      enabled: True
      gemms_struct:
        - gemm: fprop
          tensors_struct:
            - tensor: activation
            - tensor: weight
        - gemm: dgrad
          tensors_struct:
            - tensor: gradient
"""


def test_layers_by_number_and_type(run: Run) -> None:
    run.begin(SCALING)
    listed = {("fprop", "activation"), ("fprop", "weight"), ("dgrad", "gradient")}
    for name, on in (("1.mlp.fc1", True), ("2.mlp.fc1", False), ("1.mlp.fc4", False)):
        layer = f"decoder.{name}"
        for gemm in ("fprop", "dgrad", "wgrad"):
            for tensor in ("activation", "weight", "gradient"):
                asked = te().modify_tensor_enabled(
                    layer, gemm=gemm, tensor_name=tensor, iteration=0
                )
                assert asked[0] is (on and (gemm, tensor) in listed), (layer, gemm, tensor)
        assert te().fp8_gemm_enabled(layer, gemm="wgrad", iteration=0)[0] is not on
    for tensor, gemm, dtype in (("activation", "fprop", E4M3), ("gradient", "dgrad", E5M2)):
        quantizer = nfp.Float8Quantizer(
            scale=torch.tensor([1]), amax=torch.tensor([0]), fp8_dtype=dtype
        )
        q = te().modify_tensor(
            layer_name="decoder.1.mlp.fc1",
            gemm=gemm,
            tensor_name=tensor,
            default_quantizer=quantizer,
            iteration=0,
            tensor=torch.rand(24, 2046),
        )
        assert type(q) is nfp.Float8Tensor and q._fp8_dtype == dtype


FAKE = """
fake:
  enabled: True
  layers:
    layer_numbers: [1]
    layer_types: [fc1, fc2]
  transformer_engine:
    FakeQuant:
      enabled: True
      gemms: [fprop, dgrad]
      tensors_struct:
        - tensor: activation
          quant_format: FP8E4M3
        - tensor: gradient
          quant_format: FP8E5M2
"""


def test_fake_quantized_operands(run: Run) -> None:
    run.begin(FAKE)
    x = torch.rand(24, 2046)
    for gemm, tensor, top in (("fprop", "activation", 448.0), ("dgrad", "gradient", 57344.0)):
        call = {"gemm": gemm, "tensor_name": tensor, "iteration": 0}
        assert te().modify_tensor_enabled("decoder.1.mlp.fc1", **call) == (True, 1)
        values = te().modify_tensor("decoder.1.mlp.fc1", tensor=x, default_quantizer=None, **call)
        element = {448.0: torch.float8_e4m3fn, 57344.0: torch.float8_e5m2}[top]
        scale = torch.tensor(top) / x.max()
        assert torch.equal(values, (x * scale).to(element).float() * (1 / scale))
        assert te().fp8_gemm_enabled("decoder.1.mlp.fc1", gemm=gemm, iteration=0) == (False, None)
    assert te().fp8_gemm_enabled("decoder.1.fc2", gemm="wgrad", iteration=0) == (True, None)


STATISTICS = """
first:
  enabled: True
  layers:
    layer_numbers: [1, 3]
  LogTensorStats:
    enabled: True
    stats: [mean, std]
    tensors: [activation]
    freq: 1
    start_step: 100
    end_step: 500
  transformer_engine:
    LogTensorStats:
      enabled: True
      stats: [cur_amax, dynamic_range]
      tensors: [activation]
      freq: 2
      start_step: 100
      end_step: 500
    LogFp8TensorStats:
      enabled: True
      stats: [underflows%, overflows%]
      tensors: [gradient]
      freq: 5
      start_step: 100
      end_step: 500
second:
  enabled: True
  layers:
    layer_numbers: [6, 7]
  transformer_engine:
    LogTensorStats:
      enabled: True
      tensors_struct:
        - tensor: activation
          stats: [cur_amax, dynamic_range, mean, std, l1_norm]
          freq: 2
          start_step: 100
          end_step: 500
        - tensor: weight
          stats: [mean, std, l1_norm, min, max]
          freq: 5
          start_step: 100
          end_step: 500
"""


def feed(number: int, name: str, x: torch.Tensor) -> dict:
    """Feeds a tensor in iteration 200; returns its logged statistics."""
    quantizer = nfp.Float8Quantizer(scale=torch.ones(1), amax=torch.ones(1), fp8_dtype=E4M3)
    q = quantizer(x)
    te().inspect_tensor(
        f"decoder.{number}.mlp.fc1",
        tensor=x,
        tensor_name=name,
        iteration=200,
        tp_group=None,
        quantizer=quantizer,
        rowwise_quantized_tensor=q,
        columnwise_quantized_tensor=q,
    )
    return {key[2]: value for key, value in STATS_BUFFERS.log_stats().items()}


def test_statistics_of_two_sections(run: Run) -> None:
    run.begin(STATISTICS)
    x = torch.randn(100, 100, 5)
    found = feed(1, "activation", x)
    assert set(found) == {"cur_amax", "dynamic_range"} and found["cur_amax"] == x.abs().max()

    values = nfp.Float8Quantizer(torch.ones(1), torch.ones(1), E4M3)(x).dequantize()
    lost = (values == 0).sum()
    found = feed(1, "gradient", x)
    torch.testing.assert_close(found["underflows%"], (lost - (x == 0).sum()) * 100 / x.numel())
    assert found["overflows%"] == 0

    x = torch.rand(100, 100, 5)
    found = feed(6, "activation", x)
    assert set(found) == {"cur_amax", "dynamic_range", "mean", "std", "l1_norm"}
    torch.testing.assert_close(found["mean"], x.mean())
    found = feed(7, "weight", x)
    assert set(found) == {"mean", "std", "l1_norm", "min", "max"}
    torch.testing.assert_close(found["max"], x.max())
    assert STATS_BUFFERS.log_stats() == {}

    def enabled(number: int, name: str, iteration: int) -> tuple:
        layer = f"decoder.{number}.mlp.fc1"
        return te().inspect_tensor_enabled(layer, tensor_name=name, iteration=iteration)

    assert enabled(1, "activation", 200) == (True, 202)
    assert enabled(1, "activation", 201) == (False, 202)
    assert enabled(1, "gradient", 498) == (False, 500)
    assert enabled(1, "gradient", 500) == (True, None)
    assert enabled(2, "activation", 200) == (False, None)
    assert enabled(7, "weight", 201) == (False, 205)


QUANTIZED = """
log:
  layers:
    layer_name_regex_pattern: .*
  enabled:
    True
  transformer_engine:
    LogFp8TensorStats:
      enabled: True
      stats: [
        underflows%, scale_inv_min, scale_inv_max, mse
      ]
      tensors: [activation, gradient, weight]
      freq: 2
      start_step: 0
      end_step: 10
"""


@pytest.mark.parametrize(
    "kind",
    [
        recipe.MXFP8BlockScaling,
        recipe.DelayedScaling,
        recipe.Float8CurrentScaling,
        recipe.Float8BlockScaling,
    ],
)
def test_statistics_under_the_quantizers_of_a_recipe(run: Run, kind: type) -> None:
    run.begin(QUANTIZED)
    x = torch.randn(256, 1024)
    x[0, 100:200] = -0.0  # zeros are not underflows
    quantizer = RecipeState.create(kind(), mode="forward", num_quantizers=3).make_quantizers()[0]
    q = quantizer(x)
    te().inspect_tensor(
        layer_name="layer",
        tensor_name="activation",
        iteration=0,
        tp_group=None,
        tensor=x,
        quantizer=quantizer,
        rowwise_quantized_tensor=q,
        columnwise_quantized_tensor=q,
    )
    debug_api.step()
    lines = logged(run.folder)
    values = q.dequantize()
    lost = float((values == 0).sum() - (x == 0).sum()) / x.numel() * 100
    assert lines["layer_activation_underflows%", 0] == pytest.approx(lost, abs=1e-4)
    error = float(torch.nn.functional.mse_loss(values, x))
    assert lines["layer_activation_mse", 0] == pytest.approx(error, abs=1e-4)
    assert len(lines) == 4


def test_a_bare_name_and_a_missing_end(run: Run) -> None:
    run.begin(
        """
test:
  enabled: True
  layers: {layer_name_regex_pattern: .*}
  transformer_engine:
    LogFp8TensorStats:
      enabled: True
      tensors: weight
      stats: [underflows%]
      start_step: 1
      freq: 3
"""
    )
    names = {"tensor_name": "weight"}
    asked = [te().inspect_tensor_enabled("layer", iteration=step, **names) for step in (0, 3)]
    assert asked == [(False, 3), (True, 6)]
    other = te().inspect_tensor_enabled("layer", tensor_name="activation", iteration=3)
    assert other == (False, None)


def test_a_file_that_is_not_there_is_a_session_without_a_configuration(run: Run) -> None:
    missing = str(run.folder / "missing.yaml")
    debug_api.initialize(missing, feature_dirs=FEATURES, log_dir=str(run.folder))
    assert te().fp8_gemm_enabled("layer", gemm="fprop", iteration=0) == (True, None)
