# SPDX-License-Identifier: Apache-2.0
"""Tests when a layer calls its features, and the cost for layers that no feature selects."""

import gc
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from layer_sessions import debug_api, messages, section, session
from narrowfloat.common.recipe import Float8CurrentScaling
from narrowfloat.debug import fake_quantize, set_namespace
from narrowfloat.debug.pytorch import layer as layer_module
from narrowfloat.debug.pytorch.debug_state import TEDebugState
from narrowfloat.debug.pytorch.layer import DebugLayer, Schedule, Slots
from narrowfloat.pytorch import DType, Float8CurrentScalingQuantizer, Linear, autocast
from watched import Features


class Session:
    """A session of the host whose iteration and features the test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answers: dict) -> None:
        self.features = Features(monkeypatch, answers)
        self.manager: object = None
        self.restart()
        monkeypatch.setattr(layer_module, "running_host", self._host)
        monkeypatch.setattr(layer_module, "has_features", lambda manager: manager.has_features)

    def _host(self) -> SimpleNamespace | None:
        return None if self.manager is None else SimpleNamespace(DEBUG_MANAGER=self.manager)

    def restart(self, has_features: bool = True) -> None:
        class Manager:
            _trainer_iteration_count = property(lambda _: self.features.iteration)

        self.manager = Manager()
        self.manager.has_features = has_features
        self.features.iteration = 0

    def enabled_calls(self) -> int:
        """Counts the inspect_tensor_enabled questions since the last call: one per new slot."""
        questions = self.features.questions()
        return sum(question == "inspect_tensor_enabled" for question, _ in questions)

    def watch(self, debug: DebugLayer, iteration: int, parents: Slots | None = None) -> bool:
        self.features.iteration = iteration
        return debug.watch(Slots() if parents is None else parents) is not None


def parents() -> Slots:
    operands = ("activation", "weight", "gradient")
    return Slots(**{name: Float8CurrentScalingQuantizer(DType.kFloat8E4M3) for name in operands})


def test_slots_are_asked_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    running = Session(monkeypatch, {"inspect_tensor_enabled": (True, 1)})
    slots = DebugLayer("a").watch(parents())
    asked = [tensor for question, _, tensor in running.features.asked
             if question == "inspect_tensor_enabled"]  # fmt: skip
    assert asked == ["activation", "weight", "output", "dgrad", "wgrad", "gradient"]
    assert [slot.tensor_name for slot in slots] == asked == list(Slots._fields)


def test_an_unselected_layer_asks_once_and_never_again(monkeypatch: pytest.MonkeyPatch) -> None:
    running, debug = Session(monkeypatch, {}), DebugLayer("a")
    assert not any(running.watch(debug, i, parents()) for i in range(20))
    assert running.enabled_calls() == 6


def test_a_layer_is_normal_between_the_iterations_of_its_features(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def every_third(iteration: int, **_: object) -> tuple[bool, int | None]:
        following = (iteration // 3 + 1) * 3
        return iteration % 3 == 0, following if following <= 6 else None

    running, debug = Session(monkeypatch, {"inspect_tensor_enabled": every_third}), DebugLayer("a")
    assert [i for i in range(12) if running.watch(debug, i)] == [0, 3, 6]
    assert running.enabled_calls() == 3 * 6


def test_microbatches_of_an_iteration_get_one_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    running, debug = Session(monkeypatch, {"inspect_tensor_enabled": False}), DebugLayer("a")
    assert [running.watch(debug, 0) for _ in range(3)] == [False] * 3
    assert running.enabled_calls() == 6
    assert not running.watch(debug, 1) and running.enabled_calls() == 6
    running.features.answers["inspect_tensor_enabled"] = (True, None)
    assert not running.watch(debug, 1)  # the answers of an iteration are kept
    assert [running.watch(debug, 2) for _ in range(3)] == [True] * 3
    assert not running.watch(debug, 3)


def test_iterations_may_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    running, debug = Session(monkeypatch, {"inspect_tensor_enabled": (False, 6)}), DebugLayer("a")
    assert not running.watch(debug, 4)
    running.features.answers["inspect_tensor_enabled"] = (True, None)
    assert not running.watch(debug, 5) and running.watch(debug, 9)


def test_what_was_never_while_not_quantized_is_asked_again_when_quantized(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    running, debug = Session(monkeypatch, {"fp8_gemm_enabled": (False, None)}), DebugLayer("a")
    assert not running.watch(debug, 0) and not running.watch(debug, 1)
    assert running.watch(debug, 2, parents())
    assert running.watch(debug, 3, parents())  # off for good; the normal path would quantize


def test_a_new_session_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    running, debug = Session(monkeypatch, {}), DebugLayer("a")
    assert not running.watch(debug, 7)
    running.restart()
    gc.collect()
    running.features.answers["inspect_tensor_enabled"] = (True, 1)
    assert running.watch(debug, 0)


def test_without_a_session_or_in_one_of_another_library_nothing_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    running, debug = Session(monkeypatch, {"inspect_tensor_enabled": (True, 1)}), DebugLayer("a")
    running.restart(has_features=False)
    assert not running.watch(debug, 0)
    running.manager = None
    assert debug.watch(Slots()) is None
    assert running.enabled_calls() == 0


def test_a_schedule_that_never_began_is_due_at_once() -> None:
    assert Schedule().begin(17)
    assert not Schedule(None).begin(17)


@pytest.mark.parametrize("microbatches", [False, True])
def test_a_layer_switches_to_its_normal_path(tmp_path: Path, microbatches: bool) -> None:
    from narrowfloat.debug.features import _test_dummy_feature as dummy

    dummy._inspect_tensor_enabled_call_count = dummy._inspect_tensor_call_count = 0
    block = {
        "enabled": True,
        "inspect_only_once": True,
        "tensors": ["weight", "activation", "gradient", "output", "wgrad", "dgrad"],
        "gemms": ["wgrad", "dgrad", "fprop"],
    }
    with session(section({"TestDummyFeature": block}), tmp_path) as host:
        model = Linear(32, 32, name="linear")
        x = torch.randn(8, 32)
        for i in range(20):
            model(x, is_first_microbatch=i % 2 == 0 if microbatches else None).sum().backward()
            host.step()
    assert dummy._inspect_tensor_enabled_call_count == 6
    assert dummy._inspect_tensor_call_count == 0


def test_a_kept_weight_is_not_shown_again(monkeypatch: pytest.MonkeyPatch) -> None:
    running = Session(monkeypatch, {"inspect_tensor_enabled": (True, 1)})
    model, x = Linear(32, 32, name="linear"), torch.randn(8, 32)
    seen = []
    with autocast(recipe=Float8CurrentScaling()):
        for first in (True, False, False):
            model(x, is_first_microbatch=first).sum().backward()
            seen.append([t for q, _, t in running.features.asked if q == "inspect_tensor"])
            running.features.questions()
    rest = ["activation", "output", "gradient", "wgrad"]
    assert [sorted(tensors) for tensors in seen] == [
        sorted(["weight", *rest]),
        sorted(rest),
        sorted(rest),
    ]


def test_a_kept_weight_follows_the_plans_of_its_features(monkeypatch: pytest.MonkeyPatch) -> None:
    running = Session(monkeypatch, {})
    model, x = Linear(32, 32, name="linear"), torch.randn(8, 32)
    kept = []
    with autocast(recipe=Float8CurrentScaling()):
        for iteration, enabled in enumerate((True, False, True)):
            running.features.iteration = iteration
            running.features.answers["fp8_gemm_enabled"] = (enabled, iteration + 1)
            model(x, is_first_microbatch=iteration == 0).sum().backward()
            form = getattr(
                model._fp8_workspaces["weight"],
                "rowwise_gemm_tensor",
                model._fp8_workspaces["weight"],
            )
            kept.append(type(form).__name__)
    assert kept == ["Float8Tensor", "Parameter", "Float8Tensor"]


def test_a_layer_that_nothing_selects_computes_the_same_bytes(tmp_path: Path) -> None:
    torch.manual_seed(3)
    model, x = Linear(64, 32, name="linear"), torch.randn(16, 64)
    recipe = Float8CurrentScaling()
    with autocast(recipe=recipe):
        expected = model(x)
    blocks = {"FakeQuant": {"enabled": True, "gemms": ["fprop"], "tensors": ["weight"],
                            "quant_format": "FP8E5M2"}}  # fmt: skip
    config = section(blocks, {"layer_types": ["other"]})
    with session(config, tmp_path), autocast(recipe=recipe):
        assert torch.equal(model(x), expected)


def test_plans_are_logged_in_every_session(tmp_path: Path) -> None:
    block = {"enabled": True, "gemms": ["fprop"]}
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        with session(section({"DisableQuantizationGEMM": block}), tmp_path / name):
            with autocast(recipe=Float8CurrentScaling()):
                Linear(32, 32, name="linear")(torch.randn(16, 32))
        found = messages(tmp_path / name)
        assert "LAYER=linear: Tensor: weight, gemm fprop - High Precision" in found
        assert "LAYER=linear: Tensor: weight, gemm dgrad - Quantize" in found


def test_layers_without_a_name_are_numbered() -> None:
    first, second = (DebugLayer().name.removeprefix("Layer_") for _ in range(2))
    assert int(second) == int(first) + 1


def test_a_name_can_be_assigned_by_the_host(tmp_path: Path) -> None:
    with session(None, tmp_path) as host:
        model = torch.nn.Sequential(Linear(4, 4), Linear(4, 4))
        host.infer_and_assign_layer_names(model)
    assert [child.name for child in model] == ["model.0", "model.1"]


def test_layers_follow_a_namespace_of_our_own(tmp_path: Path) -> None:
    block = {"enabled": True, "gemms": ["fprop"], "tensors": ["weight"], "quant_format": "FP8E5M2"}
    config = section({"FakeQuant": block})
    config["section"]["ours"] = config["section"].pop("transformer_engine")
    before = set_namespace("ours")
    try:
        with session(config, tmp_path):
            model, x = Linear(32, 32, name="linear"), torch.randn(8, 32)
            fake = fake_quantize(model.weight.detach(), "FP8E5M2")
            expected = torch.nn.functional.linear(x, fake, model.bias)
            # Two fp32 sums of 32 products and the bias, in different orders. Each has one
            # rounding per product and one per addition.
            magnitudes = torch.nn.functional.linear(x.abs(), fake.abs(), model.bias.abs())
            assert ((model(x) - expected).abs() <= 2 * 2 * 33 * 2**-24 * magnitudes).all()
    finally:
        set_namespace(before)


def test_a_layer_made_before_the_session_is_told_of(tmp_path: Path) -> None:
    TEDebugState._reset()
    DebugLayer("early")
    assert TEDebugState.debug_enabled is False
    debug_api.initialize(log_dir=str(tmp_path))
    try:
        with pytest.raises(
            RuntimeError,
            match=r"^\[nv_dlfw_inspect\] nv_dlfw_inspect module should be initialized "
            r"before initialization of the first layer: call initialize\(\) before "
            "the model is made$",
        ):
            DebugLayer("late")
    finally:
        debug_api.end_debug()
        TEDebugState._reset()


def test_the_iteration_needs_a_session() -> None:
    with pytest.raises(RuntimeError, match="no session runs"):
        TEDebugState.get_iteration()


def test_layers_do_not_import_the_host() -> None:
    code = (
        "import sys, torch; from narrowfloat.pytorch import Linear; "
        "Linear(4, 4)(torch.ones(2, 4)).sum().backward(); "
        "sys.exit('nvdlfw_inspect' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
