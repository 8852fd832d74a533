# SPDX-License-Identifier: Apache-2.0
"""Tests the results of a DebugQuantizer, and the tensors that features see."""

import pytest
import torch
from narrowfloat.debug.pytorch.debug_quantization import DebugQuantizer
from narrowfloat.pytorch import DType, Float8CurrentScalingQuantizer, Float8Quantizer
from watched import Features


class Counting(Float8CurrentScalingQuantizer):
    """Records the directions that each of its runs makes."""

    def __init__(self) -> None:
        super().__init__(DType.kFloat8E4M3)
        self.runs: list[tuple[bool, bool]] = []

    def quantize_impl(self, tensor: torch.Tensor) -> object:
        self.runs.append((self.rowwise_usage, self.columnwise_usage))
        return super().quantize_impl(tensor)


@pytest.fixture
def x() -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randn(16, 32)


def test_the_parent_runs_once_for_both_gemms(
    monkeypatch: pytest.MonkeyPatch, x: torch.Tensor
) -> None:
    Features(monkeypatch, {})
    parent = Counting()
    made = DebugQuantizer("layer", "activation", parent).quantize(x)
    assert made.rowwise_gemm_tensor is made.columnwise_gemm_tensor
    assert parent.runs == [(True, True)]
    assert torch.equal(made.dequantize(), Counting().quantize(x).dequantize())
    assert made.size() == x.size() and made.dtype == x.dtype and made.size(0) == 16


@pytest.mark.parametrize(
    ("usage", "run"),
    [
        ((True, False), (True, False)),
        ((False, True), (True, True)),  # some formats need rows for columns
    ],
)
def test_the_parent_makes_what_is_in_use(
    monkeypatch: pytest.MonkeyPatch, x: torch.Tensor, usage: tuple, run: tuple
) -> None:
    Features(monkeypatch, {})
    quantizer = DebugQuantizer("layer", "activation", Counting())
    quantizer.set_usage(rowwise=usage[0], columnwise=usage[1])
    quantizer.quantize(x)
    assert quantizer.parent_quantizer.runs == [run]


def test_a_gemm_in_high_precision_reads_the_tensor_itself(
    monkeypatch: pytest.MonkeyPatch, x: torch.Tensor
) -> None:
    Features(monkeypatch, {("fp8_gemm_enabled", "wgrad"): (False, None)})
    quantizer = DebugQuantizer("layer", "activation", Counting())
    made = quantizer.quantize(x)
    assert made.columnwise_gemm_tensor is x
    assert type(made.rowwise_gemm_tensor).__name__ == "Float8Tensor"
    assert quantizer.parent_quantizer.runs == [(True, False)]
    assert quantizer.quantize(x, dtype=torch.bfloat16).columnwise_gemm_tensor.dtype == (
        torch.bfloat16
    )


def test_calls_come_in_order_and_with_everything(
    monkeypatch: pytest.MonkeyPatch, x: torch.Tensor
) -> None:
    def modify(tensor: torch.Tensor, gemm: str, **_: object) -> torch.Tensor:
        return tensor * (2 if gemm == "fprop" else 3)

    features = Features(
        monkeypatch,
        {
            "modify_tensor_enabled": (True, 1),
            "inspect_tensor_enabled": (True, 1),
            "inspect_tensor_postquantize_enabled": (True, 1),
            "modify_tensor": modify,
        },
    )
    parent, group = Counting(), object()
    quantizer = DebugQuantizer("layer", "activation", parent, group, 2)
    features.questions()
    features.iteration = 8  # features that inspect get the current iteration
    made = quantizer.quantize(x, dtype=torch.float32)
    assert features.questions() == [
        ("modify_tensor", "wgrad"),
        ("modify_tensor", "fprop"),
        ("inspect_tensor", None),
        ("inspect_tensor_postquantize", None),
        ("inspect_tensor_postquantize", None),
    ]
    assert parent.runs == []
    assert torch.equal(made.get_tensor(False), x * 2) and torch.equal(made.get_tensor(True), x * 3)
    assert features.arguments["modify_tensor"] == {
        "layer_name": "layer",
        "tensor_name": "activation",
        "gemm": "fprop",
        "tensor": x,
        "default_quantizer": parent,
        "iteration": 0,
        "dtype": torch.float32,
    }
    seen = {"layer_name": "layer", "tensor_name": "activation", "iteration": 8}
    seen |= {"tp_group": group, "tp_size": 2}
    assert features.arguments["inspect_tensor"] == {
        **seen,
        "tensor": x,
        "rowwise_quantized_tensor": made.rowwise_gemm_tensor,
        "columnwise_quantized_tensor": made.columnwise_gemm_tensor,
        "quantizer": parent,
    }
    assert features.arguments["inspect_tensor_postquantize"] == {
        **seen,
        "tensor": made.columnwise_gemm_tensor,
        "rowwise": False,
    }


def test_after_quantizing_only_what_was_quantized_is_shown(
    monkeypatch: pytest.MonkeyPatch, x: torch.Tensor
) -> None:
    answers = {
        "inspect_tensor_postquantize_enabled": (True, 1),
        ("fp8_gemm_enabled", "fprop"): (False, 1),
    }
    features = Features(monkeypatch, answers)
    quantizer = DebugQuantizer("layer", "activation", Counting())
    features.questions()
    quantizer.quantize(x)
    assert features.questions() == [("inspect_tensor_postquantize", None)]
    assert features.arguments["inspect_tensor_postquantize"]["rowwise"] is False


def test_a_feature_that_makes_another_type_is_told_so(
    monkeypatch: pytest.MonkeyPatch, x: torch.Tensor
) -> None:
    answers = {"modify_tensor_enabled": (True, 1), "modify_tensor": lambda tensor, **_: tensor}
    Features(monkeypatch, answers)
    quantizer = DebugQuantizer("layer", "weight", None)
    expected = (
        "Dtype does not match the output of the modify_tensor call: layer layer, gemm dgrad, "
        "weight is torch.float32, not torch.bfloat16"
    )
    with pytest.raises(ValueError, match=f"^{expected}$"):
        quantizer.quantize(x, dtype=torch.bfloat16)


def refill(
    tensor: torch.Tensor, out: torch.Tensor | None = None, **_: object
) -> torch.Tensor | None:
    if out is None:
        return tensor * 2
    out.copy_(tensor * 2)
    return None


@pytest.mark.parametrize("by_quantizer", [True, False])
def test_a_kept_weight_is_filled_anew_where_it_lies(
    monkeypatch: pytest.MonkeyPatch, x: torch.Tensor, by_quantizer: bool
) -> None:
    answers = {("modify_tensor_enabled", "dgrad"): (True, 1), "modify_tensor": refill}
    features = Features(monkeypatch, {**answers, "inspect_tensor_enabled": (True, 1)})
    quantizer = DebugQuantizer("layer", "weight", Counting())
    made = quantizer.quantize(x)
    forms = made.rowwise_gemm_tensor, made.columnwise_gemm_tensor
    places = forms[0]._data.data_ptr(), forms[1].data_ptr()
    features.questions()
    if by_quantizer:
        assert quantizer.quantize(-x, out=made) is made
    else:
        assert made.quantize_(-x) is made
    assert features.questions() == [("modify_tensor", "dgrad"), ("inspect_tensor", None)]
    assert made.rowwise_gemm_tensor is forms[0] and made.columnwise_gemm_tensor is forms[1]
    assert (forms[0]._data.data_ptr(), forms[1].data_ptr()) == places
    assert torch.equal(forms[0].dequantize(), Counting().quantize(-x).dequantize())
    assert torch.equal(forms[1], -x * 2)


def test_a_shared_form_is_filled_once(monkeypatch: pytest.MonkeyPatch, x: torch.Tensor) -> None:
    Features(monkeypatch, {})
    torch.manual_seed(2)
    scale, amax = torch.ones(1), torch.zeros(1)
    parent = Float8Quantizer(scale, amax, DType.kFloat8E4M3)
    made = DebugQuantizer("layer", "weight", parent).quantize(x)
    amax.zero_()
    calls = []
    plain = parent.update_quantized
    monkeypatch.setattr(parent, "update_quantized", lambda *a: calls.append(a) or plain(*a))
    made.quantize_(x * 0.5)
    assert len(calls) == 1 and amax.item() == (x * 0.5).abs().max()
    assert made.is_shared()


def test_a_feature_that_fills_returns_nothing(
    monkeypatch: pytest.MonkeyPatch, x: torch.Tensor
) -> None:
    answers = {"modify_tensor_enabled": (True, 1), "modify_tensor": lambda tensor, **_: tensor + 0}
    Features(monkeypatch, answers)
    quantizer = DebugQuantizer("layer", "weight", None)
    made = quantizer.quantize(x)
    with pytest.raises(AssertionError, match="modify_tensor fills out and returns None"):
        quantizer.update_quantized(x, made)
    with pytest.raises(AssertionError, match="debug mode takes no noop_flag"):
        made.quantize_(x, noop_flag=torch.zeros(1))


def test_a_result_is_modified_and_then_shown(
    monkeypatch: pytest.MonkeyPatch, x: torch.Tensor
) -> None:
    features = Features(
        monkeypatch,
        {
            "modify_tensor_enabled": (True, 1),
            "inspect_tensor_enabled": (True, 1),
            "modify_tensor": refill,
        },
    )
    quantizer = DebugQuantizer("layer", "dgrad", None)
    features.questions()
    y = quantizer.process_gemm_output(x)
    assert torch.equal(y, x * 2)
    assert features.questions() == [("modify_tensor", "dgrad"), ("inspect_tensor", None)]
    assert not {"dtype", "out"} & set(features.arguments["modify_tensor"])
    inspected = features.arguments["inspect_tensor"]
    assert inspected["tensor"] is y and inspected["rowwise_quantized_tensor"] is None
    assert inspected["columnwise_quantized_tensor"] is None
    with pytest.raises(AssertionError, match="dgrad is the result of a gemm"):
        quantizer.quantize(x)
    with pytest.raises(AssertionError, match="weight is the operand of a gemm"):
        DebugQuantizer("layer", "weight", None).process_gemm_output(x)


def test_a_quantized_weight_is_shown_without_a_high_precision_tensor(
    monkeypatch: pytest.MonkeyPatch, x: torch.Tensor
) -> None:
    features = Features(monkeypatch, {"inspect_tensor_enabled": (True, 1)})
    weight = Counting().quantize(x)
    made = DebugQuantizer("layer", "weight", Counting()).wrap_quantized_tensor(weight)
    assert made.is_shared() and made.rowwise_gemm_tensor is weight
    assert features.arguments["inspect_tensor"]["tensor"] is None
    assert features.arguments["inspect_tensor"]["rowwise_quantized_tensor"] is weight


@pytest.mark.parametrize("question", ["fp8_gemm_enabled", "modify_tensor_enabled"])
def test_a_quantized_weight_cannot_be_changed(
    monkeypatch: pytest.MonkeyPatch, x: torch.Tensor, question: str
) -> None:
    Features(monkeypatch, {(question, "dgrad"): (question != "fp8_gemm_enabled", None)})
    quantizer = DebugQuantizer("layer", "weight", Counting())
    with pytest.raises(AssertionError, match="the weight of layer is a quantized parameter"):
        quantizer.wrap_quantized_tensor(Counting().quantize(x))
