# SPDX-License-Identifier: Apache-2.0
"""Tests narrowfloat.common.recipe without torch: fields, defaults, environment, rules."""

import copy
import dataclasses
import pickle
import subprocess
import sys
from collections.abc import Callable
from enum import Enum
from typing import Any

import pytest
from narrowfloat.common import recipe
from narrowfloat.common.recipe import Format, MMParams, QParams

# Fields and defaults of every recipe, as TransformerEngine documents them.
DEFAULTS: dict[type, dict[str, Any]] = {
    recipe.DelayedScaling: {
        "margin": 0,
        "fp8_format": Format.HYBRID,
        "amax_history_len": 1024,
        "amax_compute_algo": "max",
        "scaling_factor_compute_algo": None,
        "reduce_amax": True,
    },
    recipe.Float8CurrentScaling: {
        "use_power_2_scales": False,
        "fp8_format": Format.HYBRID,
        "fp8_gemm_fprop": MMParams(use_split_accumulator=False),
        "fp8_gemm_dgrad": MMParams(use_split_accumulator=True),
        "fp8_gemm_wgrad": MMParams(use_split_accumulator=True),
    },
    recipe.MXFP8BlockScaling: {
        "margin": 0,
        "fp8_format": Format.E4M3,
        "enable_2d_quantization": False,
    },
    recipe.Float8BlockScaling: {
        "use_f32_scales": False,
        "fp8_format": Format.E4M3,
        "x_block_scaling_dim": 1,
        "w_block_scaling_dim": 2,
        "grad_block_scaling_dim": 1,
        "fp8_gemm_fprop": MMParams(),
        "fp8_gemm_dgrad": MMParams(),
        "fp8_gemm_wgrad": MMParams(),
    },
    recipe.NVFP4BlockScaling: {
        "disable_rht": False,
        "disable_stochastic_rounding": False,
        "disable_2d_quantization": False,
        "row_scaled_activation": False,
        "nvfp4_4over6": "none",
        "nvfp4_4over6_e4m3_use_256": "all",
        "nvfp4_4over6_err_mode": "MAE",
        "fp4_format": Format.E2M1,
        "fp8_format": Format.E4M3,
    },
}
COMMON = {"backward_override": None, "fp8_dpa": False, "fp8_mha": False}
MADE_BY_THEMSELVES = list(DEFAULTS)


class OtherFormat(Enum):
    """Formats of another library."""

    E4M3 = 1


def test_the_module_needs_no_framework() -> None:
    code = (
        "import sys, narrowfloat.common.recipe as r; r.DelayedScaling();"
        "print([m for m in ('torch', 'jax') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"


def test_formats_hold_the_largest_values_of_both_passes() -> None:
    assert {f.name: tuple(f.value) for f in Format} == {
        "E2M1": (6, 6),
        "E4M3": (448, 448),
        "E5M2": (57344, 57344),
        "HYBRID": (448, 57344),
    }
    assert Format.HYBRID.value.max_fwd == 448 and Format.HYBRID.value.max_bwd == 57344


def test_parameters_are_frozen_and_have_defaults() -> None:
    assert MMParams().use_split_accumulator is True
    assert QParams() == QParams(False, 0.0, False, False, False, False)
    for value, name in ((MMParams(), "use_split_accumulator"), (QParams(), "amax_epsilon")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, name, 1)


@pytest.mark.parametrize("cls", MADE_BY_THEMSELVES, ids=lambda cls: cls.__name__)
def test_defaults(cls: type) -> None:
    made = cls()
    assert {f.name: getattr(made, f.name) for f in dataclasses.fields(made)} == (
        DEFAULTS[cls] | COMMON
    )
    # The recipe's own fields may be given by position, in this order.
    assert [f.name for f in dataclasses.fields(cls) if not f.kw_only] == list(DEFAULTS[cls])


def test_derived_parameters_follow_the_fields() -> None:
    for power in (False, True):
        current = recipe.Float8CurrentScaling(use_power_2_scales=power)
        block = recipe.Float8BlockScaling(use_f32_scales=not power)
        for made in (current, block):
            for name in ("fp8_quant_fwd_inp", "fp8_quant_fwd_weight", "fp8_quant_bwd_grad"):
                assert getattr(made, name) == QParams(power_2_scale=power)
    for tiles in (False, True):
        mxfp8 = recipe.MXFP8BlockScaling(enable_2d_quantization=tiles)
        assert mxfp8.fp8_quant_fwd_weight == QParams(mxfp8_2d_quantization=tiles)
        assert mxfp8.fp8_quant_fwd_inp == mxfp8.fp8_quant_bwd_grad == QParams()
    nvfp4 = recipe.NVFP4BlockScaling()
    assert nvfp4.fp4_quant_fwd_inp == QParams(random_hadamard_transform=True)
    assert nvfp4.fp4_quant_fwd_weight == QParams(fp4_2d_quantization=True)
    assert nvfp4.fp4_quant_bwd_grad == QParams(
        random_hadamard_transform=True, stochastic_rounding=True
    )
    plain = recipe.NVFP4BlockScaling(
        disable_rht=True, disable_stochastic_rounding=True, disable_2d_quantization=True
    )
    for name in ("fp4_quant_fwd_inp", "fp4_quant_fwd_weight", "fp4_quant_bwd_grad"):
        assert getattr(plain, name) == QParams()


@pytest.mark.parametrize(
    ("variable", "value", "cls", "field", "expected"),
    [
        ("FP8_CURRENT_SCALING_POWER_2_SCALES", "1", recipe.Float8CurrentScaling,
         "use_power_2_scales", True),
        ("FP8_CURRENT_SCALING_POWER_2_SCALES", "0", recipe.Float8CurrentScaling,
         "use_power_2_scales", False),
        ("FP8_BLOCK_SCALING_FP32_SCALES", "1", recipe.Float8BlockScaling, "use_f32_scales", True),
        ("BACKWARD_OVERRIDE", "dequantized", recipe.MXFP8BlockScaling,
         "backward_override", "dequantized"),
        ("BACKWARD_OVERRIDE", "", recipe.MXFP8BlockScaling, "backward_override", None),
        ("NVFP4_DISABLE_RHT", "1", recipe.NVFP4BlockScaling, "disable_rht", True),
        ("NVFP4_DISABLE_STOCHASTIC_ROUNDING", "1", recipe.NVFP4BlockScaling,
         "disable_stochastic_rounding", True),
        ("NVFP4_DISABLE_2D_QUANTIZATION", "1", recipe.NVFP4BlockScaling,
         "disable_2d_quantization", True),
        ("NVFP4_ROW_SCALED_ACTIVATION", "1", recipe.NVFP4BlockScaling,
         "row_scaled_activation", True),
        ("NVFP4_4OVER6", "weights", recipe.NVFP4BlockScaling, "nvfp4_4over6", "weights"),
        ("NVFP4_4OVER6_E4M3_USE_256", "none", recipe.NVFP4BlockScaling,
         "nvfp4_4over6_e4m3_use_256", "none"),
        ("NVFP4_4OVER6_ERR_MODE", "mse", recipe.NVFP4BlockScaling, "nvfp4_4over6_err_mode", "MSE"),
    ],
)  # fmt: skip
def test_environment(
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    value: str,
    cls: type,
    field: str,
    expected: object,
) -> None:
    monkeypatch.setenv(f"NVTE_{variable}", value)
    assert getattr(cls(), field) == expected
    # An argument overrides the environment.
    other = {"MSE": "MAE", "weights": "all", "none": "all"}.get(expected)
    if isinstance(expected, bool):
        other = not expected
    assert getattr(cls(**{field: other}), field) == other


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: recipe.MXFP8BlockScaling(backward_override="bf16"),
         "MXFP8BlockScaling: backward_override must be one of None, 'high_precision', 'dequantized'"
         ", got 'bf16'"),
        (lambda: recipe.DelayedScaling(backward_override="dequantized"),
         "DelayedScaling: backward_override must be None, its scales follow what the backward "
         "pass quantizes, got 'dequantized'"),
        (lambda: recipe.Float8BlockScaling(x_block_scaling_dim=3),
         "Float8BlockScaling: x_block_scaling_dim must be 1 or 2, got 3"),
        (lambda: recipe.Float8BlockScaling(x_block_scaling_dim=2),
         "Float8BlockScaling: at most one operand of a product may be 2-D, got "
         "x_block_scaling_dim, w_block_scaling_dim"),
        (lambda: recipe.Float8BlockScaling(grad_block_scaling_dim=2),
         "Float8BlockScaling: at most one operand of a product may be 2-D, got "
         "w_block_scaling_dim, grad_block_scaling_dim"),
        (lambda: recipe.Float8BlockScaling(fp8_gemm_dgrad=MMParams(False)),
         "Float8BlockScaling: fp8_gemm_dgrad needs use_split_accumulator=True"),
        (lambda: recipe.Float8BlockScaling(fp8_dpa=True),
         "Float8BlockScaling: fp8_dpa and fp8_mha are not supported"),
        (lambda: recipe.NVFP4BlockScaling(nvfp4_4over6="some"),
         "NVFP4BlockScaling: nvfp4_4over6 must be one of none, weights, activations, all, "
         "got 'some'"),
        (lambda: recipe.NVFP4BlockScaling(nvfp4_4over6_err_mode="max"),
         "NVFP4BlockScaling: nvfp4_4over6_err_mode must be MAE or MSE, got 'max'"),
        (lambda: recipe.NVFP4BlockScaling(fp8_format=Format.HYBRID),
         "NVFP4BlockScaling: fp8_format must be E4M3, got HYBRID"),
        *((lambda cls=cls: cls(fp8_format=Format.E5M2),
           f"{cls.__name__}: fp8_format E5M2 in both passes is not supported")
          for cls in MADE_BY_THEMSELVES),
        *((lambda cls=cls, value=value: cls(fp8_format=value),
           f"{cls.__name__}: fp8_format must be E4M3 or HYBRID of "
           f"narrowfloat.common.recipe.Format, got {got}")
          for cls in MADE_BY_THEMSELVES
          for value, got in (("E4M3", "'E4M3'"), (OtherFormat.E4M3, "<OtherFormat.E4M3: 1>"),
                             (Format.E2M1, "E2M1"), (None, "None"))),
        (lambda: recipe.NVFP4BlockScaling(fp4_format="E2M1"),
         "NVFP4BlockScaling: fp4_format must be E2M1, got 'E2M1'"),
        *((lambda algo=algo: recipe.DelayedScaling(amax_compute_algo=algo),
           "DelayedScaling: amax_compute_algo must be max, most_recent or a function, got "
           f"{algo!r}")
          for algo in ("latest", None)),
    ],
)  # fmt: skip
def test_rules(make: Callable[[], object], message: str) -> None:
    with pytest.raises(AssertionError) as raised:
        make()
    assert str(raised.value) == message


def test_kinds() -> None:
    kinds = {
        "delayed": recipe.DelayedScaling,
        "float8_current_scaling": recipe.Float8CurrentScaling,
        "mxfp8": recipe.MXFP8BlockScaling,
        "float8_block_scaling": recipe.Float8BlockScaling,
        "nvfp4": recipe.NVFP4BlockScaling,
        "custom": recipe.CustomRecipe,
    }
    for name in kinds:
        for other, cls in kinds.items():
            assert getattr(cls, name)() is (name == other)
    per_tensor = {cls for cls in kinds.values() if cls.float8_per_tensor_scaling()}
    assert per_tensor == {recipe.DelayedScaling, recipe.Float8CurrentScaling}


def test_a_margin_of_current_scaling_is_not_kept() -> None:
    with pytest.warns(UserWarning, match="margin has no effect, got 5.0"):
        made = recipe.Float8CurrentScaling(margin=5.0, fp8_format=Format.E4M3)
    assert made == recipe.Float8CurrentScaling(fp8_format=Format.E4M3)
    assert "margin" not in repr(made) and "margin" not in vars(made)
    assert pickle.loads(pickle.dumps(made)) == made == dataclasses.replace(made)


def a_factory(role: object) -> object:
    return role


def test_custom_recipe() -> None:
    made = recipe.CustomRecipe(qfactory=a_factory)
    assert (made.fp8_format, made.quantization_alignment) == (Format.HYBRID, 128)
    assert made.get_quantizer_factory() is a_factory
    with pytest.raises(TypeError):
        recipe.CustomRecipe()
    for alignment in (0, -1, 1.5, True, None):
        with pytest.raises(ValueError) as raised:
            recipe.CustomRecipe(qfactory=a_factory, quantization_alignment=alignment)
        assert str(raised.value) == (
            f"CustomRecipe: quantization_alignment must be positive and whole, got {alignment!r}"
        )


def test_any_recipe_takes_a_factory_and_gives_it_back() -> None:
    made = recipe.Float8CurrentScaling()
    before = repr(made)
    assert made.get_quantizer_factory() is None
    made.set_quantizer_factory(a_factory)
    assert made.get_quantizer_factory() is a_factory
    assert "quantizer_factory=" in repr(made)
    made.set_quantizer_factory(None)
    assert made.get_quantizer_factory() is None and repr(made) == before
    with pytest.raises(TypeError) as raised:
        made.set_quantizer_factory("current")
    assert str(raised.value) == (
        "set_quantizer_factory: factory must be callable, got <class 'str'>"
    )
    custom = recipe.CustomRecipe(qfactory=lambda role: None)
    custom.set_quantizer_factory(a_factory)
    assert custom.qfactory is a_factory
    with pytest.raises(TypeError) as raised:
        custom.set_quantizer_factory(None)
    assert str(raised.value) == (
        "set_quantizer_factory: factory must be callable, got <class 'NoneType'>"
    )


def test_repr_is_kept_until_something_changes() -> None:
    made = recipe.DelayedScaling(margin=1)
    text = repr(made)
    assert text is repr(made)
    assert text == (
        "recipe_type=DelayedScaling, backward_override=None, fp8_dpa=False, fp8_mha=False, "
        "margin=1, fp8_format=HYBRID, amax_history_len=1024, amax_compute_algo='max', "
        "scaling_factor_compute_algo=None, reduce_amax=True"
    )
    made.margin = 2
    assert "margin=2" in repr(made)
    current = recipe.Float8CurrentScaling()
    before = repr(current)
    current.fp8_quant_fwd_inp = QParams(amax_epsilon=0.5)
    assert repr(current) != before
    assert recipe.DelayedScaling() == recipe.DelayedScaling() != made


@dataclasses.dataclass
class Factory:
    """A function with a value. It cannot be hashed, and its copies are other functions."""

    value: int = 0

    def __call__(self, role: object) -> object:
        return self.value

    def method(self, role: object) -> object:
        return self.value


class HashedFactory(Factory):
    """The same with the identity of its object."""

    __hash__ = object.__hash__
    __eq__ = object.__eq__


def test_the_text_of_a_function_is_not_given_to_a_later_one() -> None:
    def made(value: int) -> Callable[[object], int]:
        return lambda role: value

    # Without a number, freed functions and their successors would have one address.
    for make in (made, Factory):
        texts = {repr(recipe.CustomRecipe(qfactory=make(value))) for value in range(50)}
        assert len(texts) == 50, make
    factory = Factory()
    assert repr(recipe.CustomRecipe(factory)) == repr(recipe.CustomRecipe(factory))


def test_methods_of_one_object_have_one_text() -> None:
    first, second = HashedFactory(), HashedFactory()
    kept = recipe.CustomRecipe(qfactory=first.method)
    assert repr(kept) == repr(recipe.CustomRecipe(qfactory=first.method))
    assert repr(kept) != repr(recipe.CustomRecipe(qfactory=second.method))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))],
                         ids=["deepcopy", "pickle"])  # fmt: skip
def test_a_copy_with_another_function_has_another_text(copied: Callable) -> None:
    made = recipe.CustomRecipe(qfactory=Factory())
    text = repr(made)
    assert repr(copied(made)) != text
    plain = recipe.DelayedScaling(margin=1)
    assert repr(copied(plain)) == repr(plain)
