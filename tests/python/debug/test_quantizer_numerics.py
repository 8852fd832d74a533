# SPDX-License-Identifier: Apache-2.0
"""Compares the results of a watched layer with a layer made by hand with the same choices."""

import itertools
import random
from pathlib import Path

import pytest
import torch
from layer_sessions import results, section, session
from narrowfloat.common.recipe import DelayedScaling, Float8CurrentScaling, Format
from narrowfloat.pytorch import (
    DType,
    Float8CurrentScalingQuantizer,
    Float8Quantizer,
    Linear,
    autocast,
    quantized_model_init,
)
from narrowfloat.pytorch.cpp_extensions import general_gemm
from narrowfloat.pytorch.quantization import FP8GlobalStateManager

E4M3, E5M2 = DType.kFloat8E4M3, DType.kFloat8E5M2
HISTORY = 16
RECIPE = DelayedScaling(fp8_format=Format.HYBRID, amax_history_len=HISTORY, amax_compute_algo="max")
ROWS, IN, OUT = 256, 128, 64

# By gemm and tensor: the type of each of the six operands in FP8.
OPERANDS = {
    ("fprop", "activation"): E4M3,
    ("fprop", "weight"): E4M3,
    ("dgrad", "weight"): E4M3,
    ("dgrad", "gradient"): E5M2,
    ("wgrad", "activation"): E4M3,
    ("wgrad", "gradient"): E5M2,
}
GEMMS = {"fprop": ("activation", "weight"), "dgrad": ("gradient", "weight"),
         "wgrad": ("gradient", "activation")}  # fmt: skip
LAYOUTS = {"fprop": "TN", "dgrad": "NN", "wgrad": "NT"}


@pytest.fixture(autouse=True)
def fresh_state() -> None:
    FP8GlobalStateManager.reset()


def tensors() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1234)
    return torch.randn(ROWS, IN, requires_grad=True), torch.randn(OUT, IN)


def layer(weight: torch.Tensor) -> Linear:
    model = Linear(IN, OUT, bias=False, name="linear")
    with torch.no_grad():
        model.weight.copy_(weight)
    return model


def step(
    model: Linear, x: torch.Tensor, factor: float = 1.0, first: bool | None = None
) -> torch.Tensor:
    with autocast(recipe=RECIPE):
        y = model(x, is_first_microbatch=first)
    (y.sum() * factor).backward()
    return y


class ByHand:
    """A linear layer that calls only general_gemm, on operands choose(gemm, tensor, value)."""

    def __init__(self, x: torch.Tensor, weight: torch.Tensor, factor: float = 1.0) -> None:
        # The loss is the sum of y times a factor.
        gradient = torch.full((x.shape[0], weight.shape[0]), factor)
        self.values = {"activation": x.detach(), "weight": weight.detach(), "gradient": gradient}

    def run(self, choose: object) -> dict[str, torch.Tensor]:
        found = {}
        for gemm, names in GEMMS.items():
            b, a = (choose(gemm, name, self.values[name]) for name in names)
            found[gemm] = general_gemm(a, b, torch.float32, layout=LAYOUTS[gemm])[0]
        return {"y": found["fprop"], "dgrad": found["dgrad"], "wgrad": found["wgrad"]}


def delayed(value: torch.Tensor, dtype: DType, scale: float = 1.0) -> object:
    return Float8Quantizer(torch.tensor([scale]), torch.zeros(1), dtype).quantize(value)


def current(value: torch.Tensor, dtype: DType) -> object:
    return Float8CurrentScalingQuantizer(dtype).quantize(value)


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


@pytest.mark.parametrize("feature", ["DisableQuantizationGEMM", "DisableFP8GEMM"])
@pytest.mark.parametrize("on", list(itertools.product((True, False), repeat=3)))
def test_disabled_gemms_run_in_high_precision(tmp_path: Path, on: tuple, feature: str) -> None:
    is_on = dict(zip(GEMMS, on, strict=True))
    off = [gemm for gemm in GEMMS if not is_on[gemm]]
    with session(section({feature: {"enabled": True, "gemms": off}}), tmp_path):
        x, weight = tensors()
        model = layer(weight)
        found = results(model, x, step(model, x))

    def choose(gemm: str, tensor: str, value: torch.Tensor) -> object:
        return delayed(value, OPERANDS[gemm, tensor]) if is_on[gemm] else value

    assert_same(found, ByHand(x, weight).run(choose))


@pytest.mark.parametrize("feature", ["DisableQuantizationLayer", "DisableFP8Layer"])
def test_a_disabled_layer_is_the_plain_layer(tmp_path: Path, feature: str) -> None:
    with session(section({feature: {"enabled": True}}), tmp_path):
        x, weight = tensors()
        model = layer(weight)
        found = results(model, x, step(model, x))
    assert_same(found, ByHand(x, weight).run(lambda gemm, tensor, value: value))


def sampled(values: tuple, count: int) -> list[dict[tuple[str, str], object]]:
    """Returns `count` choices for the six operands, equal in every run."""
    every = list(itertools.product(values, repeat=len(OPERANDS)))
    chosen = random.Random(1234).sample(every, count)
    return [dict(zip(OPERANDS, choice, strict=True)) for choice in chosen]


def per_tensor(choice: dict[tuple[str, str], object]) -> dict:
    entries = [
        {"gemm": gemm, "tensors": [tensor for tensor in GEMMS[gemm] if choice[gemm, tensor]]}
        for gemm in GEMMS
        if any(choice[gemm, tensor] for tensor in GEMMS[gemm])
    ]
    return section({"PerTensorScaling": {"enabled": True, "gemms_struct": entries}})


@pytest.mark.parametrize("choice", sampled((True, False), 20), ids=range(20))
def test_listed_operands_use_current_scales_and_others_delayed_ones(
    tmp_path: Path, choice: dict
) -> None:
    with session(per_tensor(choice), tmp_path) as host:
        x, weight = tensors()
        model = layer(weight)
        for _ in range(HISTORY):
            step(model, x)
            host.step()
        seen_scale = 448.0 / x.detach().abs().max()
        # Other values, and gradients of another size, so that current and delayed scales differ.
        x = torch.randn_like(x, requires_grad=True)
        weight = torch.randn_like(weight) * 3
        with torch.no_grad():
            model.weight.copy_(weight)
        forward, backward = (model.fp8_meta[key].scale for key in ("scaling_fwd", "scaling_bwd"))
        scales = dict(zip((*GEMMS["fprop"], "output"), forward.tolist(), strict=True))
        scales["gradient"] = backward[0].item()
        model.zero_grad()
        found = results(model, x, step(model, x, factor=100.0, first=True))

    def choose(gemm: str, tensor: str, value: torch.Tensor) -> object:
        dtype = OPERANDS[gemm, tensor]
        if choice[gemm, tensor]:
            return current(value, dtype)
        return delayed(value, dtype, scales[tensor])

    # Delayed scales come from earlier inputs and gradients of 1, if a gemm quantizes by the parent.
    learnt = {"gradient": 57344.0, "activation": seen_scale.item()}
    for tensor, scale in learnt.items():
        is_seen = not all(on for (_, name), on in choice.items() if name == tensor)
        assert scales[tensor] == (scale if is_seen else 1.0)
    assert_same(found, ByHand(x, weight, 100.0).run(choose))


@pytest.mark.parametrize("choice", sampled((True, False), 20), ids=range(20))
def test_keeping_the_weight_for_microbatches_changes_nothing(tmp_path: Path, choice: dict) -> None:
    def run(first: tuple[bool | None, bool | None]) -> dict[str, torch.Tensor]:
        FP8GlobalStateManager.reset()
        x, weight = tensors()
        halves = [half.detach().requires_grad_() for half in x.chunk(2)]
        model = layer(weight)
        ys = []
        for microbatches in ((None, None), first):
            ys = [step(model, half, 0.5, f) for half, f in zip(halves, microbatches, strict=True)]
            debug_step()
        return {
            "y": torch.cat(ys).detach(),
            "dgrad": torch.cat([half.grad for half in halves]),
            "wgrad": model.weight.grad,
        }

    with session(per_tensor(choice), tmp_path) as host:
        debug_step = host.step
        assert_same(run((True, False)), run((None, None)))


def fake_quant(choice: dict[tuple[str, str], object]) -> dict:
    entries = []
    for gemm, names in GEMMS.items():
        tensors_struct = [
            {"tensor": tensor, "quant_format": choice[gemm, tensor]}
            for tensor in names
            if choice[gemm, tensor]
        ]
        if tensors_struct:
            entries.append({"gemm": gemm, "tensors_struct": tensors_struct})
    return section({"FakeQuant": {"enabled": True, "gemms_struct": entries}})


@pytest.mark.parametrize("choice", sampled((None, "FP8E4M3", "FP8E5M2"), 30), ids=range(30))
def test_fake_operands_meet_plain_ones_and_other_gemms_stay_quantized(
    tmp_path: Path, choice: dict
) -> None:
    with session(fake_quant(choice), tmp_path):
        x, weight = tensors()
        model = layer(weight)
        found = results(model, x, step(model, x))

    def choose(gemm: str, tensor: str, value: torch.Tensor) -> object:
        if not any(choice[gemm, name] for name in GEMMS[gemm]):
            return delayed(value, OPERANDS[gemm, tensor])
        wanted = {"FP8E4M3": E4M3, "FP8E5M2": E5M2}.get(choice[gemm, tensor])
        return value if wanted is None else current(value, wanted).dequantize()

    assert_same(found, ByHand(x, weight).run(choose))


@pytest.mark.parametrize("quant_format", ["MXFP8E4M3", "MXFP8E5M2"])
def test_fake_mx_operands(tmp_path: Path, quant_format: str) -> None:
    """Tests the formats for which TransformerEngine's feature raises an error."""
    blocks = {"enabled": True, "gemms": ["fprop"], "tensors": ["weight"]}
    blocks["quant_format"] = quant_format
    with session(section({"FakeQuant": blocks}), tmp_path):
        x, weight = tensors()
        found = step(layer(weight), x)
    e5m2 = quant_format.endswith("E5M2")
    largest, code = (57344.0, torch.float8_e5m2) if e5m2 else (448.0, torch.float8_e4m3fn)
    parts = weight.reshape(OUT, IN // 32, 32)
    amax = parts.abs().amax(-1, keepdim=True).double()
    scale_inv = torch.exp2(torch.ceil(torch.log2(amax / largest)))
    codes = (parts.double() / scale_inv).float().clamp(-largest, largest).to(code)
    fake = (codes.double() * scale_inv).float().reshape(OUT, IN)
    assert torch.equal(found, general_gemm(fake, x.detach(), torch.float32)[0])


def test_results_can_be_modified(tmp_path: Path) -> None:
    blocks = {"enabled": True, "gemms": ["fprop", "dgrad", "wgrad"], "quant_format": "FP8E4M3"}
    blocks["tensors"] = ["output", "dgrad", "wgrad"]
    with session(section({"FakeQuant": blocks}), tmp_path):
        x, weight = tensors()
        model = layer(weight)
        found = results(model, x, step(model, x))
    plain = ByHand(x, weight).run(lambda gemm, tensor, value: value)
    assert_same(found, {name: current(t, E4M3).dequantize() for name, t in plain.items()})


def test_one_quantized_operand_and_a_plain_one_are_an_error_that_names_them(
    tmp_path: Path,
) -> None:
    blocks = {
        "DisableQuantizationGEMM": {"enabled": True, "gemms": ["fprop"]},
        "PerTensorScaling": {"enabled": True, "gemms": ["fprop"], "tensors": ["weight"]},
    }
    expected = (
        "layer linear, gemm fprop: operands must be both quantized or both plain, got plain "
        "activation and quantized weight; disable the gemm or modify both tensors"
    )
    with session(section(blocks), tmp_path):
        x, weight = tensors()
        with pytest.raises(RuntimeError, match=f"^{expected}$"):
            step(layer(weight), x)


def test_a_quantized_parameter_can_be_seen_and_not_changed(tmp_path: Path) -> None:
    recipe = Float8CurrentScaling()
    with quantized_model_init(recipe=recipe):
        model = Linear(IN, OUT, bias=False, name="linear")
    assert type(model.weight).__name__ == "Float8Tensor"
    x, _ = tensors()
    with autocast(recipe=recipe):
        expected = model(x)
    stats = {"enabled": True, "tensors": ["weight"], "stats": ["min"]}
    with session(section({"LogTensorStats": stats}), tmp_path), autocast(recipe=recipe):
        assert torch.equal(model(x), expected)
    off = {"enabled": True, "gemms": ["dgrad"]}
    with session(section({"DisableQuantizationGEMM": off}), tmp_path):
        with pytest.raises(AssertionError, match="the weight of linear is a quantized parameter"):
            with autocast(recipe=recipe):
                model(x)
