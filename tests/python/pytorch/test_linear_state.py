# SPDX-License-Identifier: Apache-2.0
"""Tests that a resumed run with delayed scaling has the bits of an uninterrupted run."""

import copy
import dataclasses
import io
import pickle
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from narrowfloat.common import recipe as recipes
from narrowfloat.common.recipe import (
    CustomRecipe,
    DelayedScaling,
    Float8CurrentScaling,
    Format,
)
from narrowfloat.pytorch import (
    GroupedLinear,
    Linear,
    _extra_state,
    autocast,
    quantized_model_init,
)
from narrowfloat.pytorch.constants import DType
from narrowfloat.pytorch.custom_recipes.quantizer_factories import delayed_scaling_factory
from narrowfloat.pytorch.quantization import (
    DelayedScalingRequest,
    FP8GlobalStateManager,
    QuantizerRole,
)
from narrowfloat.pytorch.tensor.float8_tensor import Float8CurrentScalingQuantizer

RECIPE = DelayedScaling(amax_history_len=4, amax_compute_algo="max")
KEYS = {"scale_fwd", "amax_history_fwd", "scale_bwd", "amax_history_bwd"}


@pytest.fixture(autouse=True)
def fresh_state() -> None:
    FP8GlobalStateManager.reset()


class Network(torch.nn.Module):
    """A Linear, and a GroupedLinear with two weights."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Linear(32, 32), GroupedLinear(2, 32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)), [16, 16])


def step(model: Network, number: int, recipe: object = RECIPE) -> torch.Tensor:
    """Runs one step of SGD on the batch `number`. Magnitudes grow with this number."""
    x = torch.randn(32, 32, generator=torch.Generator().manual_seed(number)) * (number + 1)
    with autocast(recipe=recipe):
        y = model(x)
    model.zero_grad()
    y.square().sum().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 1e-5 * parameter.grad
    return y.detach()


def network() -> Network:
    torch.manual_seed(1)
    return Network()


def trained(steps: int = 3) -> Network:
    model = network()
    for number in range(steps):
        step(model, number)
    return model


def through_file(state: dict) -> dict:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def assert_goes_on(resumed: Network, model: Network, recipe: object = RECIPE) -> None:
    for number in range(3, 6):
        assert torch.equal(step(resumed, number, recipe), step(model, number, recipe))
    for a, b in zip(resumed.parameters(), model.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("after_a_pass", [False, True])
def test_a_resumed_run_has_the_bits_of_the_run(after_a_pass: bool) -> None:
    model = trained()
    resumed = network()
    if after_a_pass:
        step(resumed, 9)
    missing = resumed.load_state_dict(through_file(model.state_dict()))
    assert not missing.missing_keys and not missing.unexpected_keys
    assert_goes_on(resumed, model)


def test_without_the_state_the_next_step_would_differ() -> None:
    model, resumed = trained(), network()
    state = {k: v for k, v in model.state_dict().items() if not k.endswith("_extra_state")}
    resumed.load_state_dict(state)
    assert not torch.equal(step(resumed, 3), step(model, 3))


def test_state_that_waits_for_a_recipe_is_saved_again() -> None:
    model, middle, resumed = trained(), network(), network()
    middle.load_state_dict(model.state_dict())
    resumed.load_state_dict(through_file(middle.state_dict()))
    assert_goes_on(resumed, model)


def test_a_state_dict_is_copied() -> None:
    model, resumed = trained(), network()
    state = model.state_dict()
    twice = copy.deepcopy([state, state])
    assert twice[0] is twice[1]
    for key, value in twice[0].items():
        assert type(value) is type(state[key]) and torch.equal(value, state[key])
        assert value.data_ptr() != state[key].data_ptr()
    resumed.load_state_dict(twice[0])
    assert_goes_on(resumed, model)


def test_saved_and_loaded_inside_an_autocast() -> None:
    model, resumed = network(), network()
    x = torch.randn(32, 32)
    with autocast(recipe=RECIPE):
        model(x).sum().backward()
        state = through_file(model.state_dict())
    with autocast(recipe=RECIPE):
        resumed.load_state_dict(state)
    for layer, other in zip(resumed.children(), model.children(), strict=True):
        for key in ("scaling_fwd", "scaling_bwd"):
            assert torch.equal(layer.fp8_meta[key].scale, other.fp8_meta[key].scale)
            history = layer.fp8_meta[key].amax_history
            assert torch.equal(history, other.fp8_meta[key].amax_history)
    assert_goes_on(resumed, model)


def test_a_custom_recipe_that_asks_for_delayed_scaling_resumes() -> None:
    recipe = CustomRecipe(qfactory=delayed_scaling_factory)
    model, resumed = network(), network()
    for number in range(3):
        step(model, number, recipe)
    resumed.load_state_dict(through_file(model.state_dict()))
    assert_goes_on(resumed, model, recipe)


@pytest.mark.parametrize("assign", [False, True], ids=["copy", "assign"])
def test_quantized_parameters_resume(assign: bool) -> None:
    def made() -> Network:
        torch.manual_seed(1)
        with quantized_model_init(recipe=RECIPE):
            return Network()

    model, resumed = made(), made()
    for number in range(3):
        step(model, number)
    resumed.load_state_dict(through_file(model.state_dict()), assign=assign)
    assert_goes_on(resumed, model)


def test_quantized_weights_follow_the_state_of_their_layer() -> None:
    with quantized_model_init(recipe=RECIPE):
        layer = Linear(32, 32)
    twin = copy.deepcopy(layer)
    for module, length in ((layer, 4), (twin, 4), (layer, 8)):
        with autocast(recipe=DelayedScaling(amax_history_len=length)):
            module(torch.randn(32, 32))
        own, state = module.weight._quantizer, module.fp8_meta["scaling_fwd"]
        assert own.scale.data_ptr() == state.scale[1].data_ptr()
        assert own.amax.data_ptr() == state.amax_history[0, 1].data_ptr()


def test_quantized_weights_that_replace_others_follow_the_state() -> None:
    with quantized_model_init(recipe=RECIPE):
        layer, other = GroupedLinear(2, 32, 32), GroupedLinear(2, 32, 32)
    del layer.weight0, layer.weight1
    layer.weight0, layer.weight1 = other.weight0, other.weight1
    state = layer.fp8_meta["scaling_fwd"]
    for weight, place in ((layer.weight0, 1), (layer.weight1, 4)):
        assert weight._quantizer.scale.data_ptr() == state.scale[place].data_ptr()


def test_another_length_of_the_history_keeps_scales() -> None:
    model, shorter = trained(), network()
    shorter.load_state_dict(model.state_dict())
    with autocast(recipe=DelayedScaling(amax_history_len=2)):
        shorter(torch.zeros(32, 32))
        state = shorter.first.fp8_meta["scaling_fwd"]
        assert state.amax_history.shape == (2, 3)
        assert torch.equal(state.scale, model.first.fp8_meta["scaling_fwd"].scale)
    before = model.first.fp8_meta["scaling_fwd"].scale.clone()
    with autocast(recipe=DelayedScaling(amax_history_len=8)):
        model(torch.zeros(32, 32))
        assert torch.equal(model.first.fp8_meta["scaling_fwd"].scale, before)


def asks_for(tensor_types: set[str], **options: Any) -> CustomRecipe:
    """Returns a recipe with delayed scaling for some tensors and current scaling for others."""

    def factory(role: QuantizerRole | None) -> object:
        if role is not None and role.tensor_type in tensor_types:
            return DelayedScalingRequest(**options)
        return Float8CurrentScalingQuantizer(DType.kFloat8E4M3)

    return CustomRecipe(qfactory=factory)


@pytest.mark.parametrize("makes", [DelayedScaling, partial(asks_for, {"weight", "grad_output"})],
                         ids=["recipe", "requests"])  # fmt: skip
def test_scales_begin_again_with_other_codes(makes: Callable) -> None:
    layer, x = Linear(32, 32), torch.randn(32, 32)
    with autocast(recipe=makes(fp8_format=Format.HYBRID)):
        layer(x).sum().backward()
    forward, backward = (layer.fp8_meta[key].scale for key in ("scaling_fwd", "scaling_bwd"))
    assert (backward != 1).any()
    for length in (1024, 2):  # the format changes from HYBRID first, and then back
        fp8_format = Format.E4M3 if length == 1024 else Format.HYBRID
        with autocast(recipe=makes(fp8_format=fp8_format, amax_history_len=length)):
            y = layer(x)
            assert layer.fp8_meta["scaling_fwd"].scale is forward
            assert (layer.fp8_meta["scaling_bwd"].scale == 1).all()
            assert not layer.fp8_meta["scaling_bwd"].amax_history.any()
        y.sum().backward()
        assert (layer.fp8_meta["scaling_bwd"].scale != 1).any()


def test_requests_keep_scales_of_their_slots_only() -> None:
    layer, x = Linear(32, 32), torch.randn(32, 32)
    with autocast(recipe=asks_for({"weight"}, amax_history_len=4)):
        layer(x)
    state = layer.fp8_meta["scaling_fwd"]
    scale = state.scale
    assert scale != 1
    with autocast(recipe=asks_for({"weight"}, amax_history_len=8)):
        layer(x)
        assert layer.fp8_meta["scaling_fwd"].scale is scale
        assert layer.fp8_meta["scaling_fwd"].amax_history.shape == (8, 1)
    with autocast(recipe=asks_for({"input"}, amax_history_len=8)):
        layer(x)
        assert layer.fp8_meta["scaling_fwd"].scale.tolist() == [1.0]


def test_a_recipe_that_a_layer_refuses_changes_nothing() -> None:
    model, other = trained(), trained()
    calls = 0

    def fails_in_backward(role: QuantizerRole) -> Float8CurrentScalingQuantizer:
        nonlocal calls
        calls += 1
        if role.tensor_type == "grad_output":
            raise KeyError(role.tensor_type)
        return Float8CurrentScalingQuantizer(DType.kFloat8E4M3)

    refused = recipes.NVFP4BlockScaling(nvfp4_4over6="all")
    for recipe, error in ((refused, ValueError), (CustomRecipe(fails_in_backward), KeyError)):
        with autocast(recipe=recipe), warnings.catch_warnings(), pytest.raises(error):
            warnings.simplefilter("ignore")  # of another type
            model(torch.zeros(32, 32))
    assert calls == 4
    assert_goes_on(model, other)
    states = [network.first._states.export() for network in (model, other)]
    assert set(states[0]) == KEYS
    assert all(torch.equal(states[0][name], states[1][name]) for name in KEYS)


# Checkpoints of torch.nn.Linear and of TransformerEngine.


def test_checkpoints_of_nn_linear_load_strictly_both_ways() -> None:
    ours, theirs = Linear(8, 4), torch.nn.Linear(8, 4)
    assert not ours.load_state_dict(theirs.state_dict()).missing_keys
    with autocast(recipe=RECIPE):
        ours(torch.randn(2, 8)).sum().backward()
    state = ours.state_dict()
    assert set(state) == {"weight", "bias", "_extra_state"}
    del state["_extra_state"]
    theirs.load_state_dict(state)
    assert torch.equal(theirs.weight, ours.weight)


def test_other_recipes_have_an_empty_tensor() -> None:
    layer = Linear(8, 4)
    with autocast(recipe=Float8CurrentScaling()):
        layer(torch.randn(2, 8))
    state = layer.state_dict()["_extra_state"]
    assert state.dtype == torch.uint8 and state.numel() == 0
    Linear(8, 4).load_state_dict(layer.state_dict())


def payload(model: Linear, recipe: object) -> torch.Tensor:
    """Returns the state that TransformerEngine's layers write, a pickle."""
    state = {"recipe": recipe, "extra_fp8_variables": {"num_gemms": 1}}
    if isinstance(recipe, DelayedScaling):
        for key, end in (("scaling_fwd", "fwd"), ("scaling_bwd", "bwd")):
            state[f"scale_{end}"] = model.fp8_meta[key].scale
            state[f"amax_history_{end}"] = model.fp8_meta[key].amax_history
    data = pickle.dumps(state, protocol=0).replace(
        b"narrowfloat.common.recipe", b"transformer_engine.common.recipe"
    )
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def test_a_pickle_is_read_only_if_the_user_trusts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = Linear(16, 8), Linear(16, 8)
    with autocast(recipe=RECIPE):
        source(torch.randn(4, 16) * 3).sum().backward()
    state = {**source.state_dict(), "_extra_state": payload(source, RECIPE)}
    with pytest.raises(RuntimeError, match="NVTE_ALLOW_UNSAFE_PICKLE_EXTRA_STATE=1"):
        target.load_state_dict(state)
    monkeypatch.setenv("NVTE_ALLOW_UNSAFE_PICKLE_EXTRA_STATE", "1")
    target.load_state_dict(state)
    loaded = target._states.export()
    assert set(loaded) == KEYS
    for name, tensor in source._states.export().items():
        assert torch.equal(loaded[name], tensor)


def test_a_pickle_without_state_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_extra_state, "_unpickled", None)  # calling it is an error
    layer = Linear(16, 8)
    layer.set_extra_state(payload(layer, recipes.MXFP8BlockScaling()))
    assert layer._states.export() == {}


@pytest.mark.parametrize("state", [None, torch.empty(0, dtype=torch.uint8)], ids=["none", "empty"])
def test_nothing_changes_nothing(state: object) -> None:
    layer = trained().first
    before = layer._states.export()
    layer.set_extra_state(state)
    assert all(torch.equal(before[name], t) for name, t in layer._states.export().items())


def test_what_is_refused() -> None:
    layer = Linear(16, 8, name="mine")
    with pytest.raises(RuntimeError) as raised:
        layer.set_extra_state({"scale_fwd": 1})
    assert str(raised.value) == (
        "load_state_dict: the extra state of Linear mine must be a tensor of bytes, got dict"
    )
    grouped = trained().second
    layer.set_extra_state(grouped.get_extra_state())
    with autocast(recipe=RECIPE), pytest.raises(ValueError) as raised:
        layer(torch.zeros(4, 16))
    assert str(raised.value) == (
        "load_state_dict: the state of delayed scaling must have 3 scales for the forward pass, "
        "got shapes (6,) and (4, 6)"
    )
    assert layer.fp8_meta == {}


@pytest.mark.parametrize("also", [{}, {"scale_bwd": None, "amax_history_bwd": torch.ones(4, 3)}])
def test_refused_state_changes_nothing(also: dict) -> None:
    model, other = trained(), trained()
    state = {name: tensor + 1 for name, tensor in model.first._states.export().items()}
    state = {**state, "scale_bwd": torch.ones(3), **also}
    state = {name: tensor for name, tensor in state.items() if tensor is not None}
    with pytest.raises(ValueError) as raised:
        model.first.set_extra_state(_extra_state.pack_extra_state(state))
    names = "scale_bwd and amax_history_bwd"
    assert str(raised.value) == (
        f"load_state_dict: the state of delayed scaling must have {names}, got "
        "amax_history_bwd, amax_history_fwd, scale_fwd"
        if also
        else "load_state_dict: the state of delayed scaling must have 2 scales for the backward "
        "pass, got shapes (3,) and (4, 2)"
    )
    assert_goes_on(model, other)
    with autocast(recipe=DelayedScaling(amax_history_len=8)):
        model(torch.zeros(32, 32))


@pytest.mark.parametrize("options", [{}, {"enabled": False, "calibrating": True}],
                         ids=["quantizes", "calibrates"])  # fmt: skip
def test_transforms_are_refused_and_leave_no_state(options: dict) -> None:
    layer, x = Linear(32, 32, name="mine"), torch.randn(32, 32)
    parameters = dict(layer.named_parameters())

    def loss(parameters: dict, x: torch.Tensor) -> torch.Tensor:
        with autocast(recipe=RECIPE, **options):
            return torch.func.functional_call(layer, parameters, (x,)).sum()

    for transformed, name in (
        (lambda: torch.func.grad(loss)(parameters, x), "Grad"),
        (lambda: torch.vmap(loss, (None, 0))(parameters, x[None]), "Vmap"),
        (lambda: torch.func.jvp(lambda x: loss(parameters, x), (x,), (x,)), "Jvp"),
    ):
        with pytest.raises(NotImplementedError) as raised:
            transformed()
        assert str(raised.value) == (
            "Linear mine: passes that quantize or calibrate must run outside of torch.func's "
            f"transforms, got {name}"
        )
        assert layer.fp8_meta == {}
    loss(parameters, x).backward()
    with pytest.raises(NotImplementedError, match=r"transforms, got Grad$"):
        torch.func.grad(loss)(parameters, x)
    loss(parameters, x).backward()
    assert torch.isfinite(layer.weight.grad).all()


# Distributed checkpoints, with one process.


@pytest.mark.parametrize("save", [dcp.save, lambda *a, **k: dcp.async_save(*a, **k).result()],
                         ids=["save", "async_save"])  # fmt: skip
def test_a_distributed_checkpoint_fills_a_new_model(
    tmp_path: object, save: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "0")):
        monkeypatch.setenv(name, value)
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        model, resumed = trained(), network()
        save({"model": model.state_dict()}, checkpoint_id=str(tmp_path))
        state = {"model": resumed.state_dict()}
        dcp.load(state, checkpoint_id=str(tmp_path))
        resumed.load_state_dict(state["model"])
        assert_goes_on(resumed, model)
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("then", [recipes.MXFP8BlockScaling(), recipes.Float8BlockScaling()])
def test_a_recipe_of_another_type_warns_once(then: recipes.Recipe) -> None:
    layer, x = Linear(32, 32), torch.zeros(32, 32)
    text = rf"Recipe type changed from DelayedScaling to {type(then).__name__}\. This may affect"
    with autocast(recipe=RECIPE):
        layer(x)
    with autocast(recipe=then), pytest.warns(UserWarning, match=text):
        layer(x)
    with autocast(recipe=then), warnings.catch_warnings():
        warnings.simplefilter("error")
        layer(x)


@pytest.mark.parametrize("is_grouped", [False, True])
def test_another_recipe_over_quantized_weights_warns(is_grouped: bool) -> None:
    with quantized_model_init(recipe=RECIPE):
        layer = GroupedLinear(1, 32, 32) if is_grouped else Linear(32, 32)
    arguments = (torch.zeros(32, 32), *([[32]] if is_grouped else []))
    with autocast(recipe=copy.deepcopy(RECIPE)), warnings.catch_warnings():
        warnings.simplefilter("error")
        layer.name = "other"
        layer(*arguments)
    text = "layer other: Quantizer is being updated, this may affect model behavior"
    with autocast(recipe=DelayedScaling(amax_history_len=1)):
        with pytest.warns(UserWarning, match=text):
            layer(*arguments)


def test_roles_of_results_are_used_once_they_are_set() -> None:
    asked = []

    def factory(role: QuantizerRole | None) -> Float8CurrentScalingQuantizer:
        asked.append(role)
        return Float8CurrentScalingQuantizer(DType.kFloat8E4M3)

    layer, x = Linear(32, 32), torch.randn(32, 32)
    role, other = QuantizerRole("dpa", "qkv", "core"), QuantizerRole("dpa", "do", "core")
    with autocast(recipe=CustomRecipe(qfactory=factory)):
        layer(x)
        assert role not in asked and other not in asked
        layer.output_quantizer_role = role
        layer(x)
        assert asked[-3:-2] == [role] and other not in asked
        layer.grad_input_quantizer_role = other
        layer(x)
        assert (layer.output_quantizer_role, layer.grad_input_quantizer_role) == (role, other)
        assert asked[-3:] == [role, asked[3], other]
        calls = len(asked)
        layer.output_quantizer_role = dataclasses.replace(role)
        layer(x)
        assert len(asked) == calls
    twin = copy.deepcopy(layer)
    assert (twin.output_quantizer_role, twin.grad_input_quantizer_role) == (role, other)
