# SPDX-License-Identifier: Apache-2.0
"""Tests several sessions in one process, and several libraries in one session."""

import sys
from collections.abc import Iterator
from pathlib import Path

import nvdlfw_inspect.api as debug_api
import pytest
import torch
from narrowfloat.debug._namespace import HOST
from narrowfloat.debug.features import api
from narrowfloat.debug.pytorch.debug_state import TEDebugState
from nvdlfw_inspect.registry import Registry
from sessions import FEATURES, messages, section, session, te

from narrowfloat import debug


def test_sessions_follow_one_another_and_each_writes_its_own_log() -> None:
    for name in ("FP8E4M3", "FP8E5M2", "FP8E4M3"):
        pair = {"gemms": ["fprop"], "tensors": ["weight"], "quant_format": name}
        x = torch.randn(4, 4)
        with session(section(FakeQuant=pair)) as folder:
            values = te().modify_tensor(
                "layer",
                gemm="fprop",
                tensor_name="weight",
                tensor=x,
                iteration=0,
                default_quantizer=None,
            )
            assert torch.equal(values, debug.fake_quantize(x, name))
            said = "LAYER=layer: Feature=FakeQuant, API=process_tensor: fprop, weight"
            assert messages(folder).count(said) == 1
    assert not Registry.data


def test_the_registered_features_are_those_of_the_package() -> None:
    from narrowfloat.debug.features._test_dummy_feature import TestDummyFeature
    from narrowfloat.debug.features.fake_quant import FakeQuant

    with session():
        features = Registry.data["transformer_engine"].features
        assert type(features["FakeQuant"]) is FakeQuant
        assert type(features["TestDummyFeature"]) is TestDummyFeature
        assert type(te()) is api.TransformerEngineAPI
        assert set(features) == {
            "FakeQuant",
            "PerTensorScaling",
            "DisableQuantizationGEMM",
            "DisableQuantizationLayer",
            "DisableFP8GEMM",
            "DisableFP8Layer",
            "LogTensorStats",
            "LogFp8TensorStats",
            "LogNvfp4TensorStats",
            "DumpTensors",
            "TestDummyFeature",
        }


@pytest.fixture
def other_library(tmp_path: Path) -> str:
    """Writes a library with the default namespace and a feature FakeQuant; returns its folder."""
    (tmp_path / "theirs.py").write_text(
        """
from nvdlfw_inspect.base import BaseConfigAPIMapper, BaseNamespaceAPI
from nvdlfw_inspect.registry import Registry, api_method

@Registry.register_namespace_api(namespace="transformer_engine")
class Theirs(BaseNamespaceAPI):
    def input_assertions_hook(self, api_name, **kwargs): pass
    def output_assertions_hook(self, api_name, ret, **kwargs): pass
    def is_multiple_feature_invocation_allowed(self, api_name): return False
    def routing_condition(self, api_name, config, layer_name, feature_obj, **kwargs):
        return True, None

@Registry.register_feature(namespace="transformer_engine")
class FakeQuant(BaseConfigAPIMapper):
    def parse_config_and_api(self, config, **kwargs): return True, None
    @api_method
    def fp8_gemm_enabled(self, config, layer_name, gemm, iteration): return "theirs"
"""
    )
    return str(tmp_path)


@pytest.fixture
def chosen(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param == "variable":
        monkeypatch.setenv("NF_DEBUG_NAMESPACE", "narrow")
        yield "narrow"
    else:
        assert debug.set_namespace("narrow") == "transformer_engine"
        yield "narrow"
        assert debug.set_namespace(None) == "narrow"


@pytest.mark.parametrize("chosen", ["variable", "function"], indirect=True)
@pytest.mark.parametrize("ours_first", [True, False])
def test_two_libraries_in_one_session(chosen: str, other_library: str, ours_first: bool) -> None:
    pair = {"enabled": True, "gemms": ["fprop"], "tensors": ["weight"], "quant_format": "FP8E4M3"}
    config = {
        "both": {
            "enabled": True,
            "layers": {"layer_types": ["fc1"]},
            "transformer_engine": {"FakeQuant": {"enabled": True, "whatever": 1}},
            chosen: {"FakeQuant": pair},
        }
    }
    folders = [FEATURES, other_library] if ours_first else [other_library, FEATURES]
    with session(config, feature_dirs=folders):
        assert te().fp8_gemm_enabled("fc1", gemm="fprop", iteration=0) == "theirs"
        assert debug_api.narrow.fp8_gemm_enabled("fc1", gemm="fprop", iteration=0) == (False, None)
        assert debug_api.narrow.fp8_gemm_enabled("fc1", gemm="wgrad", iteration=0) == (True, None)
        assert debug.namespace_api() is debug_api.narrow
    config["both"][chosen]["FakeQuant"] = {**pair, "whatever": 1}
    with pytest.raises(ValueError, match='Unexpected key in config: "whatever"'):
        with session(config, feature_dirs=folders):
            pass


def test_names_that_a_namespace_cannot_have() -> None:
    for name in ("", "base", "two words", "a-b"):
        with pytest.raises(
            ValueError, match=r"^set_namespace: needs an identifier other than 'base', got .*$"
        ):
            debug.set_namespace(name)
    assert debug.namespace() == "transformer_engine"


def test_asking_without_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match="Debug manager not initialized"):  # the host's message
        debug.namespace_api()
    monkeypatch.delitem(sys.modules, HOST)
    with pytest.raises(RuntimeError) as raised:
        debug.namespace_api()
    assert str(raised.value) == (
        "narrowfloat.debug: no session runs; call nvdlfw_inspect's initialize()"
    )
    with pytest.raises(RuntimeError) as raised:
        TEDebugState.get_iteration()
    assert str(raised.value) == "[nv_dlfw_inspect] no session runs: call initialize() first"
