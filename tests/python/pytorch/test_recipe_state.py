# SPDX-License-Identifier: Apache-2.0
"""Tests quantizers by recipe, pass and role, and the buffers and updates of delayed scaling."""

import dataclasses

import pytest
import torch
from golden import Case, cases
from narrowfloat.common import recipe
from narrowfloat.common.recipe import Format
from narrowfloat.pytorch import quantization
from narrowfloat.pytorch.constants import DType
from narrowfloat.pytorch.quantization import (
    DelayedScalingRecipeState,
    Float8BlockScalingRecipeState,
    Float8CurrentScalingRecipeState,
    MXFP8BlockScalingRecipeState,
    NVFP4BlockScalingRecipeState,
    QuantizerRole,
    RecipeState,
    get_align_size_for_quantization,
    get_fp4_te_dtype,
    get_fp8_max,
    get_fp8_te_dtype,
    get_fp8_torch_dtype,
    update_amax_and_scale,
)
from narrowfloat.pytorch.tensor.float8_blockwise_tensor import Float8BlockQuantizer
from narrowfloat.pytorch.tensor.float8_tensor import (
    Float8CurrentScalingQuantizer,
    Float8Quantizer,
)
from narrowfloat.pytorch.tensor.mxfp8_tensor import MXFP8Quantizer
from narrowfloat.pytorch.tensor.nvfp4_tensor import NVFP4Quantizer
from torch_golden import assert_tensor, tensor_of

from narrowfloat import pytorch as nfp

FORWARD = [QuantizerRole("linear", t, "fc") for t in ("input", "weight", "output")]
BACKWARD = [QuantizerRole("linear", t, "fc") for t in ("grad_output", "grad_input")]
E4M3, E5M2 = DType.kFloat8E4M3, DType.kFloat8E5M2
STATES = {
    recipe.DelayedScaling: (DelayedScalingRecipeState, Float8Quantizer),
    recipe.Float8CurrentScaling: (Float8CurrentScalingRecipeState, Float8CurrentScalingQuantizer),
    recipe.MXFP8BlockScaling: (MXFP8BlockScalingRecipeState, MXFP8Quantizer),
    recipe.Float8BlockScaling: (Float8BlockScalingRecipeState, Float8BlockQuantizer),
    recipe.NVFP4BlockScaling: (NVFP4BlockScalingRecipeState, NVFP4Quantizer),
}


def quantizers(made: recipe.Recipe, mode: str, roles: list | None, n: int | None = None) -> list:
    n = len(roles) if n is None else n
    return RecipeState.create(made, mode=mode, num_quantizers=n, roles=roles).make_quantizers()


@pytest.mark.parametrize("cls", list(STATES), ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("mode", ["forward", "backward"])
def test_create_picks_the_class(cls: type, mode: str) -> None:
    state = RecipeState.create(cls(), mode=mode, num_quantizers=7)
    state_class, quantizer_class = STATES[cls]
    assert type(state) is state_class
    made = state.make_quantizers()
    assert len(made) == 7 and all(type(q) is quantizer_class for q in made)
    assert all(q.rowwise_usage and q.columnwise_usage and not q.internal for q in made)
    assert len({id(q) for q in made}) == 7


def test_create_refuses() -> None:
    with pytest.raises(ValueError) as raised:
        RecipeState.create(recipe.MXFP8BlockScaling(), mode="sideways")
    assert str(raised.value) == "RecipeState: mode must be 'forward' or 'backward', got 'sideways'"
    with pytest.raises(ValueError) as raised:
        RecipeState.create(recipe.MXFP8BlockScaling(), mode="forward", num_quantizers=2,
                           roles=FORWARD)  # fmt: skip
    assert str(raised.value) == (
        "RecipeState: roles must have one entry per quantizer, got 3 roles for 2 quantizers"
    )
    with pytest.raises(NotImplementedError) as raised:
        RecipeState.create(recipe.Recipe(), mode="forward")
    assert str(raised.value) == (f"RecipeState: a recipe of {recipe.Recipe} is not supported")


def test_slot_roles_and_types() -> None:
    dpa = QuantizerRole("dpa", "qkv", "core")
    state = RecipeState.create(
        recipe.Float8BlockScaling(), mode="forward", num_quantizers=4, roles=[FORWARD[1], dpa, None,
                                                                               QuantizerRole("moe")]
    )  # fmt: skip
    assert state._slot_role(0) is FORWARD[1] and state._slot_role(1) is dpa
    assert state._slot_role(2) == QuantizerRole("", "", "")
    types = [state._slot_tensor_type(i) for i in range(4)]
    assert types == ["weight", "weight", "output", "input"]
    bare = RecipeState.create(recipe.Float8BlockScaling(), mode="backward", num_quantizers=3)
    assert [bare._slot_role(i) for i in range(3)] == [QuantizerRole()] * 3
    assert [bare._slot_tensor_type(i) for i in range(3)] == [
        "grad_output", "grad_input", "grad_output"]  # fmt: skip
    with pytest.raises(dataclasses.FrozenInstanceError):
        dpa.name = "other"


def test_dtypes_of_the_passes() -> None:
    for fp8_format, forward, backward in (
        (Format.HYBRID, E4M3, E5M2),
        (Format.E4M3, E4M3, E4M3),
    ):
        made = recipe.Float8CurrentScaling(fp8_format=fp8_format)
        assert (get_fp8_te_dtype(made), get_fp8_te_dtype(made, False)) == (forward, backward)
        torch_dtypes = {E4M3: torch.float8_e4m3fn, E5M2: torch.float8_e5m2}
        assert get_fp8_torch_dtype(made) == torch_dtypes[forward]
        assert get_fp8_torch_dtype(made, False) == torch_dtypes[backward]
        limits = {E4M3: 448, E5M2: 57344}
        assert (get_fp8_max(made), get_fp8_max(made, False)) == (limits[forward], limits[backward])
    assert get_fp4_te_dtype(recipe.NVFP4BlockScaling()) == DType.kFloat4E2M1


def test_alignment() -> None:
    sizes = {cls: get_align_size_for_quantization(cls()) for cls in STATES}
    assert sizes == {
        recipe.DelayedScaling: 16,
        recipe.Float8CurrentScaling: 16,
        recipe.MXFP8BlockScaling: 32,
        recipe.Float8BlockScaling: 16,
        recipe.NVFP4BlockScaling: 128,
    }

    def never(role: object) -> None:
        raise AssertionError("the factory is not asked")

    custom = recipe.CustomRecipe(qfactory=never, quantization_alignment=48)
    assert get_align_size_for_quantization(custom) == 48


def test_current_scaling() -> None:
    for power in (False, True):
        made = recipe.Float8CurrentScaling(use_power_2_scales=power)
        forward, backward = (
            quantizers(made, "forward", FORWARD),
            quantizers(made, "backward", BACKWARD),
        )
        assert [q.dtype for q in forward] == [E4M3] * 3
        assert [q.dtype for q in backward] == [E5M2] * 2
        assert {q.force_pow_2_scales for q in forward + backward} == {power}
        assert {q.amax_epsilon for q in forward + backward} == {0.0}


def test_current_scaling_parameters_by_role() -> None:
    made = recipe.Float8CurrentScaling()
    names = ("fp8_quant_fwd_inp", "fp8_quant_fwd_weight", "fp8_quant_bwd_grad")
    for name, epsilon, power in zip(names, (0.125, 0.25, 0.5), (True, False, True), strict=True):
        setattr(made, name, recipe.QParams(power_2_scale=power, amax_epsilon=epsilon))
    forward, backward = quantizers(made, "forward", FORWARD), quantizers(made, "backward", BACKWARD)
    assert [q.amax_epsilon for q in forward + backward] == [0.125, 0.25, 0.0, 0.5, 0.0]
    assert [q.force_pow_2_scales for q in forward + backward] == [True, False, False, True, False]


def test_mxfp8_tiles_for_weights_that_are_named() -> None:
    made = recipe.MXFP8BlockScaling(enable_2d_quantization=True, fp8_format=Format.HYBRID)
    roles = [
        FORWARD[1],
        QuantizerRole("grouped_linear", "weight"),
        FORWARD[0],
        QuantizerRole("dpa", "weight"),
        QuantizerRole(tensor_type="weight"),
        None,
    ]
    forward = quantizers(made, "forward", roles)
    assert [q.with_2d_quantization for q in forward] == [True, True] + [False] * 4
    assert not any(q.with_2d_quantization for q in quantizers(made, "forward", None, 3))
    backward = quantizers(made, "backward", [FORWARD[1], *BACKWARD])
    assert not any(q.with_2d_quantization for q in backward)
    assert {q.dtype for q in forward} == {E4M3} and {q.dtype for q in backward} == {E5M2}
    plain = quantizers(recipe.MXFP8BlockScaling(), "forward", roles)
    assert not any(q.with_2d_quantization for q in plain)


def test_float8_block_by_role_and_by_place() -> None:
    made = recipe.Float8BlockScaling(fp8_format=Format.HYBRID)
    for roles in (FORWARD, None, [QuantizerRole(), QuantizerRole("dpa", "qkv"), None]):
        forward = quantizers(made, "forward", roles, 3)
        assert [q.block_scaling_dim for q in forward] == [1, 2, 1]
        assert [q.dtype for q in forward] == [E4M3] * 3
        assert all(q.force_pow_2_scales and q.amax_epsilon == 0.0 for q in forward)
    backward = quantizers(made, "backward", BACKWARD)
    assert [q.block_scaling_dim for q in backward] == [1, 1]
    assert [q.dtype for q in backward] == [E5M2] * 2
    two = quantizers(made, "forward", FORWARD[:2])
    assert [q.block_scaling_dim for q in two] == [1, 2]
    plain = recipe.Float8BlockScaling(use_f32_scales=True)
    assert not any(q.force_pow_2_scales for q in quantizers(plain, "forward", FORWARD))
    plain.fp8_quant_fwd_weight = recipe.QParams(power_2_scale=True, amax_epsilon=0.25)
    epsilons = [q.amax_epsilon for q in quantizers(plain, "forward", FORWARD)]
    assert epsilons == [0.0, 0.25, 0.0]


def test_nvfp4_by_role_and_by_place() -> None:
    made = recipe.NVFP4BlockScaling()
    for roles in (FORWARD, None, [QuantizerRole(), QuantizerRole("dpa", "qkv"), None]):
        forward = quantizers(made, "forward", roles, 3)
        assert [q.with_rht for q in forward] == [True, False, True]
        assert [q.with_post_rht_amax for q in forward] == [True, False, True]
        assert [q.with_2d_quantization for q in forward] == [False, True, False]
        assert not any(q.stochastic_rounding for q in forward)
    backward = quantizers(made, "backward", BACKWARD)
    assert all(q.with_rht and q.stochastic_rounding for q in backward)
    assert not any(q.with_2d_quantization for q in backward)
    assert {q.dtype for q in backward} == {DType.kFloat4E2M1}


@pytest.mark.parametrize("scope", ["none", "weights", "activations", "all"])
@pytest.mark.parametrize("scope_256", ["none", "weights", "activations", "all"])
def test_nvfp4_4over6_and_row_scaling_by_scope(scope: str, scope_256: str) -> None:
    made = recipe.NVFP4BlockScaling(
        disable_rht=True,
        disable_stochastic_rounding=True,
        row_scaled_activation=True,
        nvfp4_4over6=scope,
        nvfp4_4over6_e4m3_use_256=scope_256,
        nvfp4_4over6_err_mode="MSE",
    )
    covers = {"none": (False, False), "weights": (False, True), "activations": (True, False),
              "all": (True, True)}  # fmt: skip
    (inputs, weights), (inputs_256, weights_256) = covers[scope], covers[scope_256]
    forward = quantizers(made, "forward", FORWARD)
    assert [q.row_scaled_nvfp4 for q in forward] == [True, False, True]
    assert [q.nvfp4_use_4over6 for q in forward] == [inputs, weights, inputs]
    largest = [256 if inputs and inputs_256 else 448, 256 if weights and weights_256 else 448]
    assert [q.nvfp4_e4m3_max for q in forward] == [*largest, largest[0]]
    assert {q.nvfp4_4over6_err_mode for q in forward} == {"MSE"}
    backward = quantizers(made, "backward", BACKWARD)
    assert not any(q.row_scaled_nvfp4 or q.nvfp4_use_4over6 for q in backward)
    assert {q.nvfp4_e4m3_max for q in backward} == {448}


def test_nvfp4_4over6_excludes_the_transform() -> None:
    made = recipe.NVFP4BlockScaling(nvfp4_4over6="activations")
    with pytest.raises(ValueError) as raised:
        quantizers(made, "forward", FORWARD)
    assert str(raised.value) == (
        "NVFP4BlockScaling: nvfp4_4over6 for input cannot go with the transform or stochastic "
        "rounding; set disable_rht and disable_stochastic_rounding"
    )
    assert len(quantizers(made, "backward", BACKWARD)) == 2


def test_delayed_buffers_and_views() -> None:
    made = recipe.DelayedScaling(amax_history_len=16)
    state = RecipeState.create(made, mode="forward", num_quantizers=3)
    assert torch.equal(state.scale, torch.ones(3))
    assert torch.equal(state.amax_history, torch.zeros(16, 3))
    made_quantizers = state.make_quantizers()
    for i, q in enumerate(made_quantizers):
        assert q.dtype == E4M3
        assert q.scale.data_ptr() == state.scale[i].data_ptr()
        assert q.amax.data_ptr() == state.amax_history[0][i].data_ptr()
        assert q.scale.shape == q.amax.shape == (1,)
    assert RecipeState.create(made, mode="backward").make_quantizers()[0].dtype == E5M2
    made_quantizers[1](torch.tensor([[1.0, -7.0]]))
    assert state.amax_history[0].tolist() == [0.0, 7.0, 0.0]
    state.update()
    assert state.amax_history[0].tolist() == [0.0, 0.0, 0.0] and state.amax_history[-1, 1] == 7.0
    assert state.scale.tolist() == [1.0, 64.0, 1.0]
    assert made_quantizers[1].scale.item() == 64.0


def test_inherited_buffers_are_the_same_objects() -> None:
    made = recipe.DelayedScaling(amax_history_len=4)
    old = RecipeState.create(made, mode="forward", num_quantizers=2)
    new = RecipeState.create(made, mode="forward", num_quantizers=2)
    scale, history = old.scale, old.amax_history
    assert new.inherit_state_from(old) is True
    assert new.scale is scale and new.amax_history is history
    assert new.make_quantizers()[0].scale.data_ptr() == scale.data_ptr()
    for other in (
        RecipeState.create(made, mode="forward", num_quantizers=3),
        RecipeState.create(recipe.DelayedScaling(amax_history_len=5), mode="forward",
                           num_quantizers=2),
        RecipeState.create(recipe.MXFP8BlockScaling(), mode="forward", num_quantizers=2),
    ):  # fmt: skip
        assert new.inherit_state_from(other) is False
        assert new.scale is scale and new.amax_history is history


UPDATES = [case for case in cases("dsu") if "initial_scale" in case]
TRAININGS = [case for case in cases("dsu") if "x" in case]


@pytest.mark.parametrize("reduced", [False, True], ids=["own", "reduced"])
@pytest.mark.parametrize("case", UPDATES, ids=lambda case: case.name)
def test_recorded_updates(case: Case, reduced: bool) -> None:
    """Compares updates in place, of the buffers that quantizers use, with the bulk kernel's."""
    reference = "port.kernel_bulk_reduced" if reduced else "port.kernel_bulk"
    made = recipe.DelayedScaling(
        margin=case.params["margin"], amax_compute_algo=case.params["amax_compute_algo"]
    )
    history, scale = tensor_of(case["initial_history"]), tensor_of(case["initial_scale"])
    places = history.data_ptr(), scale.data_ptr()
    fp8_max = {"e4m3": 448.0, "e5m2": 57344.0}[case.params["q_dtype"]]
    for step, amax in enumerate(case["amax"]):
        newest = tensor_of(amax)
        history[0] = newest / 2 if reduced else newest
        update_amax_and_scale(history, scale, fp8_max, made, newest if reduced else None)
        what = f"{case.name} step {step}"
        assert_tensor(history, case.by(reference, "history")[step], f"{what} history")
        assert_tensor(scale, case.by(reference, "scale")[step], f"{what} scale")
    assert (history.data_ptr(), scale.data_ptr()) == places


@pytest.mark.parametrize("case", TRAININGS, ids=lambda case: case.name)
def test_recorded_training(case: Case) -> None:
    """Compares steps of quantizing and updating, by a state and its quantizer, with records."""
    forward = case.params["q_dtype"] == "e4m3"
    made = recipe.DelayedScaling(amax_history_len=case.params["history_length"])
    state = RecipeState.create(made, mode="forward" if forward else "backward")
    (quantizer,) = state.make_quantizers()
    for step, x in enumerate(case["x"]):
        assert_tensor(state.scale, case["scale_used"][step], f"{case.name} scale {step}")
        q = quantizer(tensor_of(x))
        assert_tensor(q._data, case["data"][step], f"{case.name} data {step}")
        assert_tensor(q._scale_inv, case["scale_inv"][step], f"{case.name} inv {step}")
        assert_tensor(state.amax_history[0], case["amax"][step], f"{case.name} amax {step}")
        state.update()
        assert_tensor(state.amax_history, case["history_after"][step], f"{case.name} {step}")
    assert_tensor(state.scale, case["scale_final"], f"{case.name} last scale")


def test_every_recorded_update_runs() -> None:
    assert (len(UPDATES), len(TRAININGS)) == (29, 2)


def test_keys_of_the_passes_are_those_of_a_layer() -> None:
    layer = nfp.Linear(16, 16)
    with nfp.autocast(recipe=recipe.DelayedScaling()):
        layer(torch.zeros(16, 16)).sum().backward()
    keys = [quantization.FP8GlobalStateManager.get_meta_tensor_key(way) for way in (True, False)]
    assert keys == ["scaling_fwd", "scaling_bwd"] == list(layer.fp8_meta) == list(layer.quantizers)


def test_split_and_copy() -> None:
    outputs = [torch.zeros(2), torch.zeros(0), torch.zeros(3)]
    quantization.split_and_copy(torch.arange(5.0), outputs, [2, 0, 3])
    assert [out.tolist() for out in outputs] == [[0.0, 1.0], [], [2.0, 3.0, 4.0]]
    for sizes in ([2, 3], [2, 0, 2]):
        with pytest.raises(ValueError, match=r"^split_and_copy: .* add up to 5, got \[2, .* 3 out"):
            quantization.split_and_copy(torch.zeros(5), outputs, sizes)
    assert outputs[2].tolist() == [2.0, 3.0, 4.0]


SPECIAL = [(0.0, 3.0), (float("inf"), 3.0), (float("nan"), 3.0), (2.0**-149, 3.4028234663852886e38),
           (4.0, 112.0)]  # fmt: skip


@pytest.mark.parametrize(("amax", "scale"), SPECIAL)
@pytest.mark.parametrize("by_function", [False, True])
def test_scale_of_special_amaxes(amax: float, scale: float, by_function: bool) -> None:
    """Checks that 0, infinity and NaN keep the scale, and that overflow gives fp32's largest."""
    made = recipe.DelayedScaling(
        amax_compute_algo=(lambda history: history[0].clone()) if by_function else "most_recent"
    )
    history, scales = torch.tensor([[amax], [1.0]]), torch.tensor([3.0])
    update_amax_and_scale(history, scales, 448.0, made)
    assert scales.item() == pytest.approx(scale, abs=0)
    assert history[0].item() == 0.0 or amax == 0.0
    scales = torch.tensor([3.0])
    made = quantization._default_sf_compute(torch.tensor([amax]), scales, 448.0, 0)
    assert made is scales and scales.item() == scale


def test_functions_of_a_recipe() -> None:
    seen = []

    def scaling(amax: torch.Tensor, scale: torch.Tensor, fp8_max: float, made: object) -> object:
        seen.append((amax.tolist(), scale.tolist(), fp8_max, made))
        return amax * 2

    def mean(history: torch.Tensor) -> torch.Tensor:
        return history.mean(dim=0)

    for algo, amax in ((mean, 2.0), ("max", 3.0), ("most_recent", 1.0)):
        made = recipe.DelayedScaling(amax_compute_algo=algo, scaling_factor_compute_algo=scaling)
        history, scale = torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([5.0])
        update_amax_and_scale(history, scale, 448.0, made)
        assert seen.pop() == ([amax], [5.0], 448.0, made)
        assert scale.tolist() == [2 * amax] and history.tolist() == [[0.0], [3.0], [1.0]]
    one_step = torch.tensor([[4.0]])
    update_amax_and_scale(one_step, scale, 448.0, made, torch.tensor([6.0]))
    assert seen.pop()[0] == [6.0] and one_step.tolist() == [[0.0]]
