# SPDX-License-Identifier: Apache-2.0
"""Tests the calls of a DebugQuantizer, their order, its plan and its next iteration."""

import pytest
import torch
from narrowfloat.debug.pytorch.debug_quantization import (
    API_CALL_MODIFY,
    HIGH_PRECISION,
    STANDARD_QUANTIZE,
    DebugQuantizer,
)
from narrowfloat.debug.pytorch.layer import Slots
from narrowfloat.debug.pytorch.utils import (
    any_feature_enabled,
    next_iter_when_debug_should_be_run,
)
from narrowfloat.pytorch import (
    DType,
    Float8CurrentScalingQuantizer,
    HybridQuantizer,
    MXFP8Quantizer,
    MXFP8Tensor,
)
from watched import Features


def parent() -> Float8CurrentScalingQuantizer:
    return Float8CurrentScalingQuantizer(DType.kFloat8E4M3)


OPERANDS = {
    "activation": ("fprop", "wgrad"),
    "weight": ("fprop", "dgrad"),
    "gradient": ("dgrad", "wgrad"),
}


@pytest.mark.parametrize("tensor", OPERANDS)
def test_an_operand_asks_about_inspecting_first_and_then_gemm_by_gemm(
    monkeypatch: pytest.MonkeyPatch, tensor: str
) -> None:
    features = Features(monkeypatch, {})
    DebugQuantizer("layer", tensor, parent(), None, 1)
    row, column = OPERANDS[tensor]
    assert features.questions() == [
        ("inspect_tensor_enabled", None),
        ("inspect_tensor_postquantize_enabled", row),
        ("inspect_tensor_postquantize_enabled", column),
        ("modify_tensor_enabled", row),
        ("fp8_gemm_enabled", row),
        ("modify_tensor_enabled", column),
        ("fp8_gemm_enabled", column),
    ]
    assert features.messages == [
        f"Tensor: {tensor}, gemm {row} - Quantize",
        f"Tensor: {tensor}, gemm {column} - Quantize",
    ]


@pytest.mark.parametrize(("tensor", "gemm"), [("output", "fprop"), ("wgrad", "wgrad")])
def test_a_result_asks_two_questions_and_logs_nothing(
    monkeypatch: pytest.MonkeyPatch, tensor: str, gemm: str
) -> None:
    features = Features(monkeypatch, {})
    quantizer = DebugQuantizer("layer", tensor, None, None, 1)
    expected = [("inspect_tensor_enabled", None), ("modify_tensor_enabled", gemm)]
    assert features.questions() == expected and features.messages == []
    assert quantizer.rowwise_tensor_plan == HIGH_PRECISION
    assert quantizer.columnwise_gemm_name is None and not quantizer.any_feature_enabled()


def test_what_is_modified_is_not_asked_about_its_gemm(monkeypatch: pytest.MonkeyPatch) -> None:
    features = Features(monkeypatch, {("modify_tensor_enabled", "fprop"): (True, 1)})
    quantizer = DebugQuantizer("layer", "weight", parent())
    assert ("fp8_gemm_enabled", "fprop") not in features.questions()
    assert quantizer.rowwise_tensor_plan == API_CALL_MODIFY
    assert quantizer.columnwise_tensor_plan == STANDARD_QUANTIZE
    assert quantizer.any_feature_enabled()


def test_without_a_parent_gemms_are_not_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    features = Features(monkeypatch, {"fp8_gemm_enabled": (False, None)})
    quantizer = DebugQuantizer("layer", "weight", None)
    assert all(question != "fp8_gemm_enabled" for question, _ in features.questions())
    assert quantizer.rowwise_tensor_plan == quantizer.columnwise_tensor_plan == HIGH_PRECISION
    assert not quantizer.any_feature_enabled() and quantizer.get_next_debug_iter() is None


def test_a_gemm_that_is_off_for_good_keeps_the_layer_in_debug(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Checks (False, None), which is final: the layer's normal path would quantize the gemm."""
    features = Features(monkeypatch, {("fp8_gemm_enabled", "dgrad"): (False, None)})
    features.iteration = 5
    quantizer = DebugQuantizer("layer", "weight", parent())
    assert quantizer.columnwise_tensor_plan == HIGH_PRECISION
    assert quantizer.any_feature_enabled() and quantizer.get_next_debug_iter() == 6


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ({}, None),
        ({"inspect_tensor_enabled": (False, 6)}, 6),
        ({"inspect_tensor_enabled": (True, None)}, None),
        ({"inspect_tensor_enabled": (True, 9), "modify_tensor_enabled": (True, 4)}, 4),
        ({"inspect_tensor_enabled": False}, 4),  # a bool may change in the next iteration
        ({"modify_tensor_enabled": (False, 8), "fp8_gemm_enabled": (True, 7)}, 7),
    ],
)
def test_it_wants_to_be_asked_again_in_the_earliest_iteration_of_all_answers(
    monkeypatch: pytest.MonkeyPatch, answers: dict, expected: int | None
) -> None:
    features = Features(monkeypatch, answers)
    features.iteration = 3
    assert DebugQuantizer("layer", "activation", parent()).get_next_debug_iter() == expected


def test_six_quantizers_speak_together(monkeypatch: pytest.MonkeyPatch) -> None:
    def enabled(tensor_name: str, **_: object) -> tuple[bool, int | None]:
        return {"wgrad": (False, 7), "output": (True, 9)}.get(tensor_name, (False, None))

    Features(monkeypatch, {"inspect_tensor_enabled": enabled})
    slots = [DebugQuantizer("layer", tensor, None) for tensor in Slots._fields]
    assert any_feature_enabled(slots) and next_iter_when_debug_should_be_run(slots) == 7
    assert not any_feature_enabled(slots[:2])
    assert next_iter_when_debug_should_be_run(slots[:2]) is None


def test_results_have_no_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    Features(monkeypatch, {})
    with pytest.raises(AssertionError, match="dgrad is the result of a gemm and is not quantized"):
        DebugQuantizer("layer", "dgrad", parent())


def test_a_tensor_of_no_layer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    Features(monkeypatch, {})
    with pytest.raises(KeyError, match="bias"):
        DebugQuantizer("layer", "bias", None)


def test_the_parent_makes_what_can_be_cached_and_read_in_a_call_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def inspect(quantizer: MXFP8Quantizer, **_: object) -> None:
        seen.append((quantizer.internal, quantizer.optimize_for_gemm))

    seen: list[tuple[bool, bool]] = []
    Features(monkeypatch, {"inspect_tensor_enabled": (True, 1), "inspect_tensor": inspect})
    quantizer = MXFP8Quantizer(DType.kFloat8E4M3)
    quantizer.internal = quantizer.optimize_for_gemm = True
    debug = DebugQuantizer("layer", "weight", quantizer)
    assert quantizer.internal and quantizer.optimize_for_gemm
    made = debug.quantize(torch.ones(32, 32))
    debug.update_quantized(torch.ones(32, 32), made)
    debug.wrap_quantized_tensor(made.rowwise_gemm_tensor)
    for form in (made.rowwise_gemm_tensor, debug.make_empty((32, 32))):
        assert isinstance(form, MXFP8Tensor) and not form._with_gemm_swizzled_scales
    assert seen == [(False, False)] * 3
    assert quantizer.internal and quantizer.optimize_for_gemm


def hybrid() -> HybridQuantizer:
    return HybridQuantizer(
        rowwise_quantizer=parent(), columnwise_quantizer=MXFP8Quantizer(DType.kFloat8E4M3)
    )


@pytest.mark.parametrize("make_parent", [parent, hybrid])
@pytest.mark.parametrize("usage", [(True, False), (False, True), (True, True)])
def test_usages_are_those_of_the_parent_too(
    monkeypatch: pytest.MonkeyPatch, make_parent: object, usage: tuple[bool, bool]
) -> None:
    Features(monkeypatch, {})
    quantizer = DebugQuantizer("layer", "activation", make_parent())
    quantizer.set_usage(rowwise=usage[0], columnwise=usage[1])
    assert quantizer.get_usages() == quantizer.parent_quantizer.get_usages()
    assert tuple(quantizer.get_usages().values()) == usage
    rowwise_alone = quantizer.parent_quantizer.supports_only_rowwise_all_gather()
    assert quantizer.supports_only_rowwise_all_gather() == rowwise_alone


def test_usages_without_a_parent_are_the_quantizers_own(monkeypatch: pytest.MonkeyPatch) -> None:
    Features(monkeypatch, {})
    quantizer = DebugQuantizer("layer", "activation", None)
    quantizer.set_usage(rowwise=False)
    assert quantizer.get_usages() == {"rowwise": False, "columnwise": True}
    assert not quantizer.supports_only_rowwise_all_gather()


def test_a_parent_is_not_asked_for_a_form_that_a_feature_makes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Features(monkeypatch, {("modify_tensor_enabled", "wgrad"): (True, 1)})
    quantizer = DebugQuantizer("layer", "activation", parent())
    quantizer.set_usage(rowwise=True, columnwise=True)
    assert quantizer.parent_quantizer.get_usages() == {"rowwise": True, "columnwise": False}


def test_amaxes_are_not_collected_beside_debugging(monkeypatch: pytest.MonkeyPatch) -> None:
    Features(monkeypatch, {})
    with pytest.raises(RuntimeError, match="Calibration with debug is not supported"):
        DebugQuantizer("layer", "activation", None).calibrate(torch.ones(2))


def test_empty_tensors_are_the_parents_or_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    Features(monkeypatch, {})
    made = DebugQuantizer("layer", "weight", parent()).make_empty((4, 4), dtype=torch.bfloat16)
    assert type(made).__name__ == "Float8Tensor" and made.dtype == torch.bfloat16
    plain = DebugQuantizer("layer", "weight", None).make_empty((4, 4), dtype=torch.bfloat16)
    assert type(plain) is torch.Tensor and plain.dtype == torch.bfloat16
