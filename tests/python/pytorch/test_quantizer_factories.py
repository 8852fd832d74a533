# SPDX-License-Identifier: Apache-2.0
"""Tests factories of quantizers with one format and with two formats."""

import pytest
import torch
from narrowfloat.common import recipe
from narrowfloat.pytorch.constants import DType
from narrowfloat.pytorch.custom_recipes import quantizer_factories as factories
from narrowfloat.pytorch.custom_recipes import quantizer_factory_zoo as zoo
from narrowfloat.pytorch.quantization import DelayedScalingRequest, QuantizerRole, RecipeState
from narrowfloat.pytorch.tensor.float8_blockwise_tensor import Float8BlockQuantizer
from narrowfloat.pytorch.tensor.float8_tensor import Float8CurrentScalingQuantizer
from narrowfloat.pytorch.tensor.hybrid_tensor import HybridQuantizer
from narrowfloat.pytorch.tensor.identity_tensor import IdentityQuantizer
from narrowfloat.pytorch.tensor.mxfp8_tensor import MXFP8Quantizer
from narrowfloat.pytorch.tensor.nvfp4_tensor import NVFP4Quantizer

INPUT, WEIGHT, OUTPUT, GRAD_OUTPUT, GRAD_INPUT = (
    QuantizerRole("linear", t) for t in ("input", "weight", "output", "grad_output", "grad_input")
)
GROUPED = QuantizerRole("grouped_linear", "weight")
ROLES = [INPUT, WEIGHT, OUTPUT, GRAD_OUTPUT, GRAD_INPUT, GROUPED, QuantizerRole(), None]
E4M3, E5M2 = DType.kFloat8E4M3, DType.kFloat8E5M2


def test_one_format_each() -> None:
    for role in ROLES:
        gradient, weight = role is GRAD_OUTPUT, role in (WEIGHT, GROUPED)
        assert type(factories.high_precision_factory(role)) is IdentityQuantizer
        assert factories.delayed_scaling_factory(role) == DelayedScalingRequest()
        current = factories.current_scaling_factory(role)
        assert type(current) is Float8CurrentScalingQuantizer
        assert current.dtype == (E5M2 if gradient else E4M3)
        block = factories.float8_block_scaling_factory(role)
        assert type(block) is Float8BlockQuantizer
        assert (block.dtype, block.force_pow_2_scales) == (E4M3, True)
        assert block.block_scaling_dim == (2 if weight else 1)
        mxfp8 = factories.mxfp8_factory(role)
        assert type(mxfp8) is MXFP8Quantizer and mxfp8.dtype == E4M3
        nvfp4 = factories.nvfp4_factory(role)
        assert type(nvfp4) is NVFP4Quantizer
        assert nvfp4.with_2d_quantization == weight
        assert nvfp4.with_rht == nvfp4.with_post_rht_amax == (not weight)
        assert nvfp4.stochastic_rounding == gradient


@pytest.mark.parametrize(
    ("factory", "made"),
    [
        (factories.current_scaling_factory, recipe.Float8CurrentScaling()),
        (factories.mxfp8_factory, recipe.MXFP8BlockScaling()),
        (factories.float8_block_scaling_factory, recipe.Float8BlockScaling()),
        (factories.nvfp4_factory, recipe.NVFP4BlockScaling()),
    ],
)
def test_factories_quantize_as_their_recipes(factory: object, made: recipe.Recipe) -> None:
    """Compares bytes of inputs, weights and gradients of outputs, without stochastic rounding."""
    torch.manual_seed(4)
    x = torch.randn(128, 128).to(torch.bfloat16)
    custom = recipe.CustomRecipe(qfactory=factory)
    for mode, roles in (("forward", [INPUT, WEIGHT]), ("backward", [GRAD_OUTPUT])):
        pairs = [
            RecipeState.create(
                r, mode=mode, num_quantizers=len(roles), roles=roles
            ).make_quantizers()
            for r in (custom, made)
        ]
        for ours, theirs in zip(*pairs, strict=True):
            assert getattr(ours, "stochastic_rounding", False) == getattr(
                theirs, "stochastic_rounding", False
            )
            ours.stochastic_rounding = theirs.stochastic_rounding = False
            for mine, other in zip(
                ours(x).prepare_for_saving()[0], theirs(x).prepare_for_saving()[0], strict=True
            ):
                assert torch.equal(mine.view(torch.uint8), other.view(torch.uint8))


def describe(quantizer: object) -> object:
    """Returns the format of a quantizer; of a hybrid both formats and the source of columns."""
    if isinstance(quantizer, HybridQuantizer):
        children = (quantizer.rowwise_quantizer, quantizer.columnwise_quantizer)
        return (*map(describe, children), quantizer.columnwise_source)
    if not isinstance(quantizer, NVFP4Quantizer):
        return {IdentityQuantizer: "same", MXFP8Quantizer: "mxfp8"}[type(quantizer)]
    assert quantizer.with_rht == quantizer.with_post_rht_amax
    options = ("with_2d_quantization", "with_rht", "stochastic_rounding", "row_scaled_nvfp4")
    found = [name.split("_")[1] for name in options if getattr(quantizer, name)]
    return "+".join(["nvfp4", *found])


SEEN = "rowwise_dequantized"
GROUPED_INPUT = QuantizerRole("grouped_linear", "input")
# Formats of input, weight and grad_output of linear layers, and of all other roles.
MIXED = [
    (
        zoo.high_precision_fwd_mxfp8_bwd_factory,
        ("same", "mxfp8", "original"),
        ("same", "mxfp8", "original"),
        "mxfp8",
        ("same", "mxfp8", "original"),
    ),
    (
        zoo.mxfp8_fwd_nvfp4_bwd_factory,
        ("mxfp8", "nvfp4+rht", "original"),
        ("mxfp8", "nvfp4", SEEN),
        "nvfp4+rht+rounding",
        "mxfp8",
    ),
    (
        zoo.mxfp8_fwd_high_precision_bwd_factory,
        ("mxfp8", "same", SEEN),
        ("mxfp8", "same", SEEN),
        "same",
        "mxfp8",
    ),
    (
        zoo.nvfp4_row_scaled_fwd_high_precision_bwd_factory,
        ("nvfp4+scaled", "same", SEEN),
        ("nvfp4", "same", SEEN),
        "same",
        "nvfp4",
    ),
    (
        zoo.nvfp4_1d_weight_factory,
        "nvfp4+rht",
        ("nvfp4", "nvfp4", SEEN),
        "nvfp4+rht+rounding",
        "nvfp4+rht",
    ),
]


@pytest.mark.parametrize("case", MIXED, ids=[case[0].__name__ for case in MIXED])
def test_two_formats(case: tuple[object, ...]) -> None:
    factory, x, weight, gradient, other = case
    wanted = {INPUT: x, GROUPED_INPUT: x, WEIGHT: weight, GROUPED: weight, GRAD_OUTPUT: gradient}
    for role in (*ROLES, GROUPED_INPUT, QuantizerRole("dpa", "qkv"), QuantizerRole("", "weight")):
        assert describe(factory(role)) == wanted.get(role, other), role


def test_row_scaled_inputs_are_those_of_grouped_layers() -> None:
    factory = zoo.nvfp4_row_scaled_fwd_mxfp8_bwd_factory
    assert describe(factory(GROUPED_INPUT)) == ("nvfp4+scaled", "mxfp8", SEEN)
    assert describe(factory(GROUPED)) == ("nvfp4", "mxfp8", SEEN)
    for role in ROLES:
        assert role is GROUPED or describe(factory(role)) == "mxfp8"


def test_attention_in_fp8() -> None:
    factory = zoo.nvfp4_linear_fp8_dpa_factory
    assert type(factory(None)) is NVFP4Quantizer and type(factory(WEIGHT)) is NVFP4Quantizer
    for tensor_type in ("s", "dp"):
        newest = DelayedScalingRequest(amax_history_len=1, amax_compute_algo="most_recent")
        assert factory(QuantizerRole("dpa", tensor_type)) == newest
    named = QuantizerRole("linear", "output", name="attention.dpa_output")
    assert type(factory(named)) is NVFP4Quantizer
    for role, dtype in (
        (QuantizerRole("dpa", "qkv"), E4M3),
        (QuantizerRole("dpa", "do"), E5M2),
        (QuantizerRole("dpa", "dqkv"), E5M2),
        (QuantizerRole(name="attention.dpa_output"), E4M3),
        (QuantizerRole(name="attention.dpa_grad_input"), E5M2),
    ):
        quantizer = factory(role)
        assert type(quantizer) is Float8CurrentScalingQuantizer and quantizer.dtype == dtype
