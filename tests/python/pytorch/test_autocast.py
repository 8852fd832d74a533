# SPDX-License-Identifier: Apache-2.0
"""Tests autocast, quantized_model_init, the global state, and amaxes reduced over processes."""

import gc
import socket
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from narrowfloat.common import recipe
from narrowfloat.pytorch import fp8, quantization
from narrowfloat.pytorch.custom_recipes.reference_current_scaling import (
    CurrentScalingQuantizerRef,
)
from narrowfloat.pytorch.quantization import (
    DelayedScalingRequest,
    FP8GlobalStateManager,
    QuantizerRole,
    RecipeState,
    autocast,
    check_recipe_support,
    get_default_fp8_recipe,
    get_default_recipe,
    quantized_model_init,
)

from narrowfloat import pytorch as nfp


@pytest.fixture(autouse=True)
def fresh_state() -> Iterator[None]:
    FP8GlobalStateManager.reset()
    yield
    FP8GlobalStateManager.reset()


def test_nothing_is_on_at_first() -> None:
    manager = FP8GlobalStateManager
    assert not manager.is_fp8_enabled() and not manager.is_fp8_calibration()
    assert not manager.with_fp8_parameters() and not manager.with_high_precision_init_val()
    assert manager.get_fp8_group() is None
    assert manager.get_fp8_recipe() == get_default_recipe() == get_default_fp8_recipe()
    assert get_default_recipe() == recipe.DelayedScaling()


def test_autocast_sets_and_puts_back() -> None:
    manager, outer, inner = FP8GlobalStateManager, recipe.MXFP8BlockScaling(), object()
    with autocast(recipe=outer):
        assert manager.is_fp8_enabled() and manager.get_fp8_recipe() is outer
        with autocast(enabled=False, calibrating=True, amax_reduction_group=inner):
            assert not manager.is_fp8_enabled() and manager.is_fp8_calibration()
            assert manager.get_fp8_group() is inner
            assert manager.get_fp8_recipe() == recipe.DelayedScaling()
        assert manager.is_fp8_enabled() and not manager.is_fp8_calibration()
        assert manager.get_fp8_recipe() is outer and manager.get_fp8_group() is None
    assert not manager.is_fp8_enabled()
    with pytest.raises(ZeroDivisionError), autocast():
        raise ZeroDivisionError
    assert not manager.is_fp8_enabled()


def test_with_binds_the_object_also_in_a_graph() -> None:
    def enabled_of(x: torch.Tensor) -> torch.Tensor:
        with nfp.autocast(enabled=True, recipe=current) as entered:
            return x + entered.enabled

    current, made = recipe.Float8CurrentScaling(), nfp.autocast(enabled=False)
    with made as entered:
        assert entered is made
    compiled = torch.compile(enabled_of, backend="eager", fullgraph=True)
    assert compiled(torch.ones(())) == enabled_of(torch.ones(())) == 2


def test_the_first_module_is_first_once() -> None:
    manager = FP8GlobalStateManager
    with autocast():
        assert manager.is_first_fp8_module() is True
        assert manager.is_first_fp8_module() is False
        with autocast():
            assert manager.is_first_fp8_module() is False
    with autocast():
        with autocast():
            assert manager.is_first_fp8_module() is True
        # The end of the inner autocast restores the setting from its begin.
        assert manager.is_first_fp8_module() is True
        assert manager.is_first_fp8_module() is False


def test_one_object_is_entered_once_at_a_time() -> None:
    context = autocast()
    for _ in range(2):
        with context as entered:
            assert entered is context
            with pytest.raises(RuntimeError) as raised:
                context.__enter__()
            assert str(raised.value) == (
                "autocast: this object is already entered; make another one"
            )
            assert FP8GlobalStateManager.is_fp8_enabled()
    assert not FP8GlobalStateManager.is_fp8_enabled()


def test_delayed_scaling_has_no_place_in_a_graph() -> None:
    def within(made: recipe.Recipe) -> object:
        def function(x: torch.Tensor) -> torch.Tensor:
            with autocast(recipe=made) as context:
                return x * 2 if context.enabled else x

        torch._dynamo.reset()
        return torch.compile(function, fullgraph=True, backend="eager")

    x = torch.ones(3)
    for made in (recipe.Float8CurrentScaling(), recipe.MXFP8BlockScaling()):
        assert torch.equal(within(made)(x), x * 2)
    with pytest.raises(
        RuntimeError,
        match=r"autocast: DelayedScaling is not supported under torch\.compile; enter "
        r"the autocast around the call of the compiled function",
    ):
        within(recipe.DelayedScaling())(x)


def test_what_is_no_recipe() -> None:
    with pytest.raises(RuntimeError) as raised, autocast(recipe="fp8"):
        pass
    message = "autocast: recipe must be a narrowfloat.common.recipe.Recipe, got 'fp8'"
    assert str(raised.value) == message
    assert not FP8GlobalStateManager.is_fp8_enabled()
    with autocast(enabled=False, recipe="fp8"):
        assert not FP8GlobalStateManager.is_fp8_enabled()
    assert check_recipe_support(recipe.NVFP4BlockScaling()) is None


def test_quantized_model_init() -> None:
    manager, made = FP8GlobalStateManager, recipe.Float8BlockScaling()
    with quantized_model_init(recipe=made, preserve_high_precision_init_val=True):
        assert manager.with_fp8_parameters() and manager.with_high_precision_init_val()
        assert manager.get_fp8_recipe() is made and not manager.is_fp8_enabled()
        with quantized_model_init(enabled=False):
            assert not manager.with_fp8_parameters()
            assert not manager.with_high_precision_init_val()
        assert manager.with_fp8_parameters()
    assert not manager.with_fp8_parameters()
    assert manager.get_fp8_recipe() == recipe.DelayedScaling()
    with pytest.raises(ZeroDivisionError), quantized_model_init():
        raise ZeroDivisionError
    assert not manager.with_fp8_parameters()


def test_the_older_module_has_the_same_objects() -> None:
    for name in quantization.__all__:
        assert getattr(fp8, name) is getattr(quantization, name)


def test_older_names_warn() -> None:
    made = recipe.MXFP8BlockScaling()
    with pytest.warns(DeprecationWarning, match=r"^fp8_autocast is now called autocast$"):
        context = nfp.fp8_autocast(enabled=True, fp8_recipe=made)
    with context:
        assert FP8GlobalStateManager.get_fp8_recipe() is made
    with pytest.warns(DeprecationWarning, match=r"^fp8_model_init is now called quantized_mod"):
        context = nfp.fp8_model_init(recipe=made)
    with context:
        assert FP8GlobalStateManager.with_fp8_parameters()


@pytest.mark.parametrize("name", ["fp8", "mxfp8", "fp8_block_scaling", "nvfp4"])
def test_everything_is_available(name: str) -> None:
    available = getattr(nfp, f"is_{name}_available")
    assert available() is True
    assert available(return_reason=True) == (True, "")
    assert getattr(FP8GlobalStateManager, f"is_{name}_available")() == (True, "")
    assert getattr(quantization, f"check_{name}_support")() == (True, "")


def delayed_state(mode: str = "forward", n: int = 2, **fields: object) -> RecipeState:
    made = recipe.DelayedScaling(amax_history_len=4, **fields)
    return RecipeState.create(made, mode=mode, num_quantizers=n)


def test_the_outermost_exit_takes_the_forward_step() -> None:
    forward, backward = delayed_state(), delayed_state("backward")
    for state in (forward, backward):
        FP8GlobalStateManager.add_recipe_state(state)
        FP8GlobalStateManager.add_recipe_state(state)  # has no effect
        state.amax_history[0] = torch.tensor([7.0, 0.5])
    with autocast():
        with autocast():
            pass
        assert forward.scale.tolist() == [1.0, 1.0]
    assert forward.scale.tolist() == [64.0, 896.0]
    assert forward.amax_history[0].tolist() == [0.0, 0.0]
    assert forward.amax_history[3].tolist() == [7.0, 0.5]
    assert backward.scale.tolist() == [1.0, 1.0]
    FP8GlobalStateManager.reduce_and_update_fp8_tensors(forward=False)
    assert backward.scale.tolist() == [8192.0, 114688.0]


def test_without_gradients_nothing_is_learnt() -> None:
    state = delayed_state()
    FP8GlobalStateManager.add_recipe_state(state)
    state.amax_history[0] = 7.0
    with torch.no_grad(), autocast():
        pass
    with autocast(enabled=False):
        pass
    assert state.scale.tolist() == [1.0, 1.0]


def test_states_without_history_and_states_that_are_gone() -> None:
    FP8GlobalStateManager.add_recipe_state(RecipeState.create(recipe.MXFP8BlockScaling(),
                                                              mode="forward"))  # fmt: skip
    state = delayed_state()
    FP8GlobalStateManager.add_recipe_state(state)
    del state
    gc.collect()
    FP8GlobalStateManager.reduce_and_update_fp8_tensors()
    custom = RecipeState.create(
        recipe.CustomRecipe(qfactory=lambda role: DelayedScalingRequest(amax_history_len=2)),
        mode="forward",
        roles=[QuantizerRole()],
    )
    custom.make_quantizers()
    FP8GlobalStateManager.add_recipe_state(custom)
    custom.amax_history[0] = 7.0
    FP8GlobalStateManager.reduce_and_update_fp8_tensors()
    assert custom.scale.tolist() == [64.0]


@pytest.mark.filterwarnings("ignore:.*Recipe type changed")
def test_a_layer_whose_recipe_changes_gives_its_place_back() -> None:
    """Checks that the number of amaxes that ranks reduce does not grow with each change."""
    layer = nfp.Linear(32, 32, bias=False)
    recipes = [recipe.DelayedScaling(amax_history_len=4), recipe.MXFP8BlockScaling()]
    for step in range(6):
        with autocast(recipe=recipes[step % 2]):
            layer(torch.ones(32, 32))
    assert [m.length for m in FP8GlobalStateManager._members.values()] == [3, 2]
    again = delayed_state(n=3)
    FP8GlobalStateManager.add_recipe_state(again)
    FP8GlobalStateManager.remove_recipe_state(again)
    again.amax_history[0] = 7.0
    FP8GlobalStateManager.reduce_and_update_fp8_tensors()
    assert again.scale.tolist() == [1.0, 1.0, 1.0]


def run_rank(rank: int, address: str, folder: str) -> None:
    """Runs one of two processes, with two layers and a third whose amaxes are not reduced.

    A layer between the first two is deleted, but its state is still alive on rank 0.
    """
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=address, rank=rank, world_size=2, timeout=timedelta(seconds=60)
    )
    first, second = delayed_state(n=2), delayed_state(n=1)
    alone, gone = delayed_state(n=1, reduce_amax=False), delayed_state(n=3)
    older = delayed_state("forward", margin=1)  # its recipe has no other state; deleted on rank 1
    for state in (older, first, gone, second, alone):
        FP8GlobalStateManager.add_recipe_state(state)
    kept = [gone, older] if rank == 0 else []
    del gone, older, state
    gc.collect()
    quantizers = [q for state in (first, second, alone) for q in state.make_quantizers()]
    for i, quantizer in enumerate(quantizers):
        quantizer(torch.full((2, 2), float((rank + 1) * (i + 1))))
    if rank == 1:
        quantizers[0].amax.zero_()  # as if rank 1 had not used this quantizer
    for state in kept:
        state.amax_history[0] = 1000.0
    with autocast():
        pass
    reference = CurrentScalingQuantizerRef(
        torch.float8_e4m3fn,
        with_amax_reduction=True,
        amax_reduction_group=torch.distributed.group.WORLD,
    )
    found = {
        "reference": reference(torch.full((2, 2), rank + 1.0)).scale.tolist(),
        "scales": [first.scale.tolist(), second.scale.tolist(), alone.scale.tolist()],
        "newest": [s.amax_history[-1].tolist() for s in (first, second, alone)],
    }
    torch.save(found, Path(folder) / f"{rank}.pt")
    torch.distributed.destroy_process_group()


def test_amaxes_are_the_largest_of_two_processes(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    torch.multiprocessing.spawn(run_rank, (address, str(tmp_path)), nprocs=2)
    ranks = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    for rank, found in enumerate(ranks):
        own = float((rank + 1) * 4)
        assert found["reference"] == [torch.reciprocal(torch.tensor(448.0) / 2).item()]
        assert found["newest"] == [[1.0, 4.0], [6.0], [own]]
        f32 = torch.tensor(448.0)
        assert found["scales"] == [[448.0, 112.0], [(f32 / 6).item()], [448.0 / own]]
