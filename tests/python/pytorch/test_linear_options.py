# SPDX-License-Identifier: Apache-2.0
"""Tests that every option of a recipe or context has an effect or is refused by name."""

import dataclasses
import inspect
from types import SimpleNamespace

import pytest
import torch
from narrowfloat.common import recipe as recipes
from narrowfloat.common.recipe import (
    CustomRecipe,
    DelayedScaling,
    Float8BlockScaling,
    Float8CurrentScaling,
    Format,
    MMParams,
    MXFP8BlockScaling,
    NVFP4BlockScaling,
    Recipe,
)
from narrowfloat.pytorch import (
    DType,
    GroupedLinear,
    Linear,
    _reduction,
    autocast,
    quantized_model_init,
)
from narrowfloat.pytorch.custom_recipes.quantizer_factories import (
    current_scaling_factory,
    mxfp8_factory,
)
from narrowfloat.pytorch.module import base
from narrowfloat.pytorch.quantization import (
    FP8GlobalStateManager,
    get_align_size_for_quantization,
    get_fp8_te_dtype,
    global_state,
)

BF16 = torch.bfloat16
MXFP8 = MXFP8BlockScaling()


@pytest.fixture(autouse=True)
def fresh_state() -> None:
    FP8GlobalStateManager.reset()


def passes(recipe: Recipe, count: int = 1) -> list[torch.Tensor]:
    """Returns results and gradients of `count` steps of a layer, from fixed initial values."""
    FP8GlobalStateManager.reset()
    torch.manual_seed(4)
    layer, found = Linear(128, 128, dtype=BF16), []
    # Rows of many magnitudes: scales depend on the shape of blocks, and small values are rounded.
    sizes = torch.logspace(-4, 4, 128, dtype=BF16).unsqueeze(1)
    x = (torch.randn(128, 128, dtype=BF16) * sizes).requires_grad_()
    dy = torch.randn(128, 128, dtype=BF16) * sizes
    with torch.no_grad():
        layer.weight *= sizes
    for i in range(count):
        x.grad = layer.weight.grad = None
        with autocast(recipe=recipe):
            y = layer(x * (8 - 3 * i))
        y.backward(dy)
        found += [y.detach(), x.grad, layer.weight.grad]
    return found


def differ(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return any(not torch.equal(x, y) for x, y in zip(a, b, strict=True))


def history_max(history: torch.Tensor) -> torch.Tensor:
    return history.amax(0) * 2


def half_scale(amax: torch.Tensor, scale: torch.Tensor, fp8_max: float, _: Recipe) -> torch.Tensor:
    return fp8_max / amax.clamp(min=1) / 2


PLAIN_NVFP4 = {"disable_rht": True, "disable_stochastic_rounding": True}

# Options with an effect: two values with different bits within one to three steps.
ACTS: dict[tuple[type, str], tuple[dict, dict]] = {
    (DelayedScaling, "margin"): ({}, {"margin": 3}),
    (DelayedScaling, "fp8_format"): ({}, {"fp8_format": Format.E4M3}),
    (DelayedScaling, "amax_history_len"): ({"amax_history_len": 2}, {"amax_history_len": 1}),
    (DelayedScaling, "amax_compute_algo"): ({}, {"amax_compute_algo": "most_recent"}),
    (DelayedScaling, "scaling_factor_compute_algo"): (
        {}, {"scaling_factor_compute_algo": half_scale}
    ),
    (Float8CurrentScaling, "backward_override"): ({}, {"backward_override": "high_precision"}),
    (Float8CurrentScaling, "use_power_2_scales"): ({}, {"use_power_2_scales": True}),
    (Float8CurrentScaling, "fp8_format"): ({}, {"fp8_format": Format.E4M3}),
    (MXFP8BlockScaling, "backward_override"): ({}, {"backward_override": "dequantized"}),
    (MXFP8BlockScaling, "fp8_format"): ({}, {"fp8_format": Format.HYBRID}),
    (MXFP8BlockScaling, "enable_2d_quantization"): ({}, {"enable_2d_quantization": True}),
    (Float8BlockScaling, "backward_override"): ({}, {"backward_override": "high_precision"}),
    (Float8BlockScaling, "use_f32_scales"): ({}, {"use_f32_scales": True}),
    (Float8BlockScaling, "fp8_format"): ({}, {"fp8_format": Format.HYBRID}),
    (Float8BlockScaling, "x_block_scaling_dim"): (
        {"w_block_scaling_dim": 1}, {"w_block_scaling_dim": 1, "x_block_scaling_dim": 2}
    ),
    (Float8BlockScaling, "w_block_scaling_dim"): ({}, {"w_block_scaling_dim": 1}),
    (Float8BlockScaling, "grad_block_scaling_dim"): (
        {"w_block_scaling_dim": 1}, {"w_block_scaling_dim": 1, "grad_block_scaling_dim": 2}
    ),
    (NVFP4BlockScaling, "backward_override"): (
        PLAIN_NVFP4, {**PLAIN_NVFP4, "backward_override": "dequantized"}
    ),
    (NVFP4BlockScaling, "disable_rht"): (
        {"disable_stochastic_rounding": True}, PLAIN_NVFP4
    ),
    (NVFP4BlockScaling, "disable_stochastic_rounding"): ({"disable_rht": True}, PLAIN_NVFP4),
    (NVFP4BlockScaling, "disable_2d_quantization"): (
        PLAIN_NVFP4, {**PLAIN_NVFP4, "disable_2d_quantization": True}
    ),
    (NVFP4BlockScaling, "row_scaled_activation"): (
        {**PLAIN_NVFP4, "backward_override": "dequantized"},
        {**PLAIN_NVFP4, "backward_override": "dequantized", "row_scaled_activation": True},
    ),
    (NVFP4BlockScaling, "nvfp4_4over6"): (PLAIN_NVFP4, {**PLAIN_NVFP4, "nvfp4_4over6": "all"}),
    (NVFP4BlockScaling, "nvfp4_4over6_e4m3_use_256"): (
        {**PLAIN_NVFP4, "nvfp4_4over6": "all"},
        {**PLAIN_NVFP4, "nvfp4_4over6": "all", "nvfp4_4over6_e4m3_use_256": "none"},
    ),
    (NVFP4BlockScaling, "nvfp4_4over6_err_mode"): (
        {**PLAIN_NVFP4, "nvfp4_4over6": "all"},
        {**PLAIN_NVFP4, "nvfp4_4over6": "all", "nvfp4_4over6_err_mode": "MSE"},
    ),
    (CustomRecipe, "backward_override"): (
        {"qfactory": mxfp8_factory}, {"qfactory": mxfp8_factory, "backward_override": "dequantized"}
    ),
    (CustomRecipe, "qfactory"): (
        {"qfactory": mxfp8_factory}, {"qfactory": current_scaling_factory}
    ),
}  # fmt: skip

DPA = "needs a quantized attention layer, which narrowfloat does not have, got"
# Refused options: a value, the type of the error, and a part of its message.
REFUSED: dict[tuple[type, str], tuple[object, type, str]] = {
    **{
        (kind, name): (
            True, NotImplementedError,
            f"autocast: {name} {DPA} {kind.__name__}({name}=True)",
        )
        for kind in (DelayedScaling, Float8CurrentScaling, MXFP8BlockScaling, NVFP4BlockScaling,
                     CustomRecipe)
        for name in ("fp8_dpa", "fp8_mha")
    },
    **{
        (Float8BlockScaling, name): (True, AssertionError, "fp8_dpa and fp8_mha are not supported")
        for name in ("fp8_dpa", "fp8_mha")
    },
    **{
        (Float8BlockScaling, f"fp8_gemm_{gemm}"): (
            MMParams(use_split_accumulator=False), AssertionError,
            f"fp8_gemm_{gemm} needs use_split_accumulator=True",
        )
        for gemm in ("fprop", "dgrad", "wgrad")
    },
    (DelayedScaling, "backward_override"): (
        "high_precision", AssertionError, "backward_override must be None",
    ),
    (MXFP8BlockScaling, "margin"): (1, AssertionError, "margin must be 0"),
    (NVFP4BlockScaling, "fp4_format"): (Format.E4M3, AssertionError, "fp4_format must be E2M1"),
    (NVFP4BlockScaling, "fp8_format"): (Format.HYBRID, AssertionError, "fp8_format must be E4M3"),
}  # fmt: skip

# Options with tests of their own below.
ELSEWHERE = {
    (DelayedScaling, "reduce_amax"),
    (CustomRecipe, "fp8_format"),
    (CustomRecipe, "quantization_alignment"),
    *((Float8CurrentScaling, f"fp8_gemm_{gemm}") for gemm in ("fprop", "dgrad", "wgrad")),
}


def made(kind: type, options: dict) -> Recipe:
    return kind(**({"qfactory": mxfp8_factory} if kind is CustomRecipe else {}), **options)


def test_every_field_of_every_recipe_is_in_a_list() -> None:
    kinds = [getattr(recipes, name) for name in recipes.__all__]
    kinds = [kind for kind in kinds if issubclass(kind, Recipe) and kind is not Recipe]
    every = {(kind, field.name) for kind in kinds for field in dataclasses.fields(kind)}
    assert every == set(ACTS) | set(REFUSED) | ELSEWHERE


def name_of(key: object) -> str:
    return f"{key[0].__name__}.{key[1]}" if isinstance(key, tuple) else ""


@pytest.mark.parametrize("key", ACTS, ids=name_of)
def test_an_option_that_acts_changes_bits(key: tuple[type, str]) -> None:
    kind, _ = key
    steps = 3 if kind is DelayedScaling else 1
    assert differ(*(passes(kind(**options), steps) for options in ACTS[key]))


@pytest.mark.parametrize("key", REFUSED, ids=name_of)
def test_an_option_that_does_not_act_is_refused(key: tuple[type, str]) -> None:
    kind, name = key
    value, error, message = REFUSED[key]
    with pytest.raises(error) as raised, autocast(recipe=made(kind, {name: value})):
        pass
    assert message in str(raised.value) and kind.__name__ in str(raised.value)


def test_a_function_computes_the_amax() -> None:
    options = {"amax_compute_algo": history_max}
    assert differ(passes(DelayedScaling(), 3), passes(DelayedScaling(**options), 3))


@pytest.mark.parametrize("gemm", ["fprop", "dgrad", "wgrad"])
def test_a_split_accumulator_cannot_change_sums_in_fp32(gemm: str) -> None:
    """Checks that the option has no effect. It sets how often a GPU adds partial sums to fp32 sums;
    here all sums are fp32."""
    found = [
        passes(Float8CurrentScaling(**{f"fp8_gemm_{gemm}": MMParams(use_split_accumulator=split)}))
        for split in (True, False)
    ]
    assert not differ(*found)


@pytest.mark.parametrize("reduce", [True, False])
def test_reduce_amax_asks_the_other_processes(
    monkeypatch: pytest.MonkeyPatch, reduce: bool
) -> None:
    groups = []

    def all_reduce(amax: torch.Tensor, op: object, group: object) -> None:
        groups.append(group)
        amax.mul_(2)

    stand_in = SimpleNamespace(
        is_available=lambda: True, is_initialized=lambda: True, get_world_size=lambda group: 2,
        all_reduce=all_reduce, ReduceOp=SimpleNamespace(MAX="max"),
    )  # fmt: skip
    torch_of_state = SimpleNamespace(**{**vars(torch), "distributed": stand_in})
    for module in (global_state, _reduction):
        monkeypatch.setattr(module, "torch", torch_of_state)
    layer, group = Linear(16, 16), object()
    with autocast(recipe=DelayedScaling(reduce_amax=reduce), amax_reduction_group=group):
        layer(torch.full((16, 16), 4.0))
    assert groups == ([group] if reduce else [])
    assert layer.fp8_meta["scaling_fwd"].scale[0] == (56.0 if reduce else 112.0)


def test_a_custom_recipe_has_its_alignment_and_its_format() -> None:
    recipe = CustomRecipe(qfactory=mxfp8_factory, quantization_alignment=64, fp8_format=Format.E4M3)
    assert get_fp8_te_dtype(recipe, fprop_tensor=False) == DType.kFloat8E4M3
    assert get_fp8_te_dtype(CustomRecipe(qfactory=mxfp8_factory), False) == DType.kFloat8E5M2
    assert get_align_size_for_quantization(recipe) == 64
    assert get_align_size_for_quantization(CustomRecipe(qfactory=mxfp8_factory)) == 128


def test_arguments_that_recipes_do_not_have_are_refused() -> None:
    for kind in (DelayedScaling, MXFP8BlockScaling):
        with pytest.raises(TypeError, match="override_linear_precision"):
            kind(override_linear_precision=(False, False, True))


# Contexts.


def test_every_argument_of_the_contexts_is_tested_here() -> None:
    assert list(inspect.signature(autocast).parameters) == [
        "enabled", "calibrating", "recipe", "amax_reduction_group",
    ]  # fmt: skip
    assert list(inspect.signature(quantized_model_init).parameters) == [
        "enabled", "recipe", "preserve_high_precision_init_val",
    ]  # fmt: skip


def test_enabled_and_recipe() -> None:
    layer, x = Linear(32, 32), torch.randn(32, 32)
    with autocast(recipe=MXFP8):
        quantized = layer(x)
        with autocast(enabled=False, recipe=MXFP8):
            assert torch.equal(layer(x), torch.nn.functional.linear(x, layer.weight, layer.bias))
    with autocast(recipe=Float8CurrentScaling()):
        assert not torch.equal(layer(x), quantized)


@pytest.mark.parametrize("grouped", [False, True])
def test_calibrating_collects_amaxes_and_leaves_the_values(grouped: bool) -> None:
    recipe = DelayedScaling(amax_history_len=4)
    torch.manual_seed(0)
    layer = GroupedLinear(2, 16, 8) if grouped else Linear(16, 8)
    x = torch.randn(6, 16) * 5
    arguments = (x, [6, 0]) if grouped else (x,)
    with autocast(enabled=False, calibrating=True, recipe=recipe):
        y = layer(*arguments)
    weight = layer.weight0 if grouped else layer.weight
    bias = layer.bias0 if grouped else layer.bias
    assert torch.equal(y, torch.nn.functional.linear(x, weight, bias))
    expected = [torch.div(torch.tensor(448.0), t.abs().max()) for t in (x, weight)]
    assert layer.fp8_meta["scaling_fwd"].scale[:2].tolist() == [s.item() for s in expected]
    fresh = type(layer)(2, 16, 8) if grouped else Linear(16, 8)
    fresh.load_state_dict(layer.state_dict())
    with autocast(recipe=recipe):
        assert torch.equal(fresh(*arguments), layer(*arguments))


def test_calibrating_a_recipe_without_state_changes_nothing() -> None:
    layer, x = Linear(16, 8), torch.randn(6, 16)
    with autocast(enabled=False, calibrating=True, recipe=Float8CurrentScaling()):
        assert torch.equal(layer(x), torch.nn.functional.linear(x, layer.weight, layer.bias))


def test_a_model_is_not_made_for_a_recipe_that_no_layer_has() -> None:
    with pytest.raises(NotImplementedError, match="fp8_mha"):
        with quantized_model_init(recipe=MXFP8BlockScaling(fp8_mha=True)):
            pass
    with quantized_model_init(enabled=False, recipe=MXFP8):
        assert type(Linear(32, 32).weight) is torch.nn.Parameter


def test_a_weight_that_cannot_be_kept_leaves_its_quantizer(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = Linear(32, 32), torch.randn(32, 32)

    def refuse(*_: object, **__: object) -> None:
        raise MemoryError

    with autocast(recipe=MXFP8):
        layer(x)
        quantizer = layer.quantizers["scaling_fwd"][1]
        quantizer.internal = True
        monkeypatch.setattr(base, "quantize_weight", refuse)
        with pytest.raises(MemoryError):
            layer(x, is_first_microbatch=True)
    assert quantizer.internal


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("quantized", [True, False])
def test_a_replaced_weight_is_used_and_the_old_one_stays(quantized: bool, is_first: bool) -> None:
    with quantized_model_init(enabled=quantized, recipe=MXFP8):
        layer, other = Linear(32, 32, bias=False), Linear(32, 32, bias=False)
    x, old = torch.randn(32, 32), layer.weight
    values = old.detach().clone()
    with autocast(recipe=MXFP8):
        layer(x, is_first_microbatch=True)
        layer.weight = other.weight
        found = layer(x, is_first_microbatch=is_first)
        assert torch.equal(found, other(x))
    assert torch.equal(old.detach(), values)
