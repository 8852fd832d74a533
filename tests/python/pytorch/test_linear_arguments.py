# SPDX-License-Identifier: Apache-2.0
"""Tests that every argument of a layer has an effect or is refused by name."""

import inspect
import math
from functools import partial

import pytest
import torch
from narrowfloat.common.recipe import CustomRecipe, DelayedScaling, MXFP8BlockScaling, Recipe
from narrowfloat.pytorch import DType, GroupedLinear, Linear, autocast
from narrowfloat.pytorch.custom_recipes.quantizer_factories import delayed_scaling_factory
from narrowfloat.pytorch.module import watching
from narrowfloat.pytorch.quantization import FP8GlobalStateManager, QuantizerRole
from narrowfloat.pytorch.tensor import Float8Quantizer, HybridQuantizer, IdentityQuantizer

from narrowfloat import pytorch as nfp

BF16 = torch.bfloat16
MXFP8 = MXFP8BlockScaling()


@pytest.fixture(autouse=True)
def fresh_state() -> None:
    FP8GlobalStateManager.reset()


UB = "overlaps products and communication, which needs a GPU"
SHARD = "with tp_size=2 is not supported; shard the layer with DTensor"
GROUPED = "keeps parameters in one grouped tensor, which is not supported"
LAYER_REFUSES = {
    "sequence_parallel": ({"sequence_parallel": True, "tp_size": 2}, SHARD),
    "parallel_mode": ({"parallel_mode": "column", "tp_size": 2}, SHARD),
    "parameters_split": ({"parameters_split": ("q", "k")}, "is not supported"),
    "symmetric_ar_type": ({"symmetric_ar_type": "two_shot"}, UB),
    **{name: ({name: True}, UB) for name in (
        "ub_overlap_ag", "ub_overlap_rs", "ub_overlap_rs_dgrad", "ub_bulk_dgrad", "ub_bulk_wgrad")},
    **{name: ({name: True}, GROUPED) for name in (
        "single_grouped_weight", "single_grouped_bias", "use_grouped_tensor")},
}  # fmt: skip
LAYER_ACTS = {
    "num_gemms", "in_features", "out_features", "bias", "device", "dtype", "params_dtype",
    "init_method", "get_rng_state_tracker", "rng_tracker_name", "return_bias", "name", "ub_name",
    "fuse_wgrad_accumulation", "delay_wgrad_compute", "save_original_input", "tp_group", "tp_size",
}  # fmt: skip


@pytest.mark.parametrize("layer", [Linear, GroupedLinear])
def test_every_argument_of_a_layer_acts_or_is_refused(layer: type) -> None:
    names = set(inspect.signature(layer).parameters)
    assert names <= set(LAYER_REFUSES) | LAYER_ACTS
    sizes = (4, 4) if layer is Linear else (2, 4, 4)
    for name in names & set(LAYER_REFUSES):
        options, reason = LAYER_REFUSES[name]
        with pytest.raises(NotImplementedError) as raised:
            layer(*sizes, **options)
        assert str(raised.value) == (
            f"{layer.__name__}: {name} {reason}, got {name}={options[name]!r}"
        )


@pytest.mark.parametrize("recipe", [None, MXFP8])
def test_an_input_without_dimensions_is_refused(recipe: Recipe | None) -> None:
    message = "^Linear: the input must have one dimension or more, got 0$"
    with autocast(enabled=recipe is not None, recipe=recipe):
        with pytest.raises(RuntimeError, match=message):
            Linear(32, 32)(torch.tensor(1.0))


def test_values_that_contradict_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"^.*: dtype and params_dtype must be the same, got .* and .*$"
    ):
        Linear(4, 4, dtype=torch.float32, params_dtype=BF16)
    with pytest.raises(
        ValueError, match=r"^.*: parallel_mode must be None, 'column' or 'row', got .*$"
    ):
        Linear(4, 4, parallel_mode="diagonal")
    assert Linear(4, 4, params_dtype=BF16, parallel_mode="row").weight.dtype == BF16


class Tracker:
    """A tracker of random states that records the names of forked states."""

    def __init__(self) -> None:
        self.forked: list[object] = []

    def fork(self, name: str = "default") -> object:
        self.forked.append(name)
        return torch.random.fork_rng()


@pytest.mark.parametrize("name", [None, "experts"])
def test_first_values(name: str | None) -> None:
    tracker = Tracker()
    layer = Linear(4, 4, init_method=lambda w: w.fill_(3), rng_tracker_name=name,
                   get_rng_state_tracker=lambda: tracker)  # fmt: skip
    assert (layer.weight == 3).all() and (layer.bias == 0).all()
    assert tracker.forked == [name or "default"]


@pytest.mark.parametrize("recipe", [None, MXFP8], ids=["plain", "mxfp8"])
def test_a_returned_bias_is_not_added(recipe: Recipe | None) -> None:
    torch.manual_seed(0)
    layer, x = Linear(32, 32, return_bias=True), torch.randn(32, 32)
    with autocast(enabled=recipe is not None, recipe=recipe):
        y, bias = layer(x)
        assert torch.equal(bias, layer.bias)
        layer.return_bias = False
        with torch.no_grad():
            layer.bias.zero_()
        assert torch.equal(layer(x), y)


def gradients(layer: Linear, x: torch.Tensor, first: bool | None = None) -> torch.Tensor:
    with autocast(recipe=MXFP8):
        y = layer(x, is_first_microbatch=first)
    y.sum().backward()
    return y


def test_gradients_are_added_to_main_grad() -> None:
    torch.manual_seed(0)
    layer, x = Linear(32, 32, fuse_wgrad_accumulation=True), torch.randn(32, 32)
    twin = Linear(32, 32)
    twin.load_state_dict(layer.state_dict())
    gradients(twin, x)
    expected = twin.weight.grad
    layer.weight.main_grad = torch.ones(32, 32)
    gradients(layer, x)
    assert layer.weight.grad is None and torch.equal(layer.weight.main_grad, expected + 1)
    gradients(layer, x, first=True)
    assert torch.equal(layer.weight.main_grad, expected)
    layer.weight.overwrite_main_grad = True
    layer.weight.grad_added_to_main_grad = False
    gradients(layer, x)
    assert torch.equal(layer.weight.main_grad, expected) and layer.weight.grad_added_to_main_grad
    assert torch.equal(layer.weight.grad, torch.zeros(32, 32))


def test_gradients_of_weights_wait_for_backward_dw() -> None:
    torch.manual_seed(0)
    layer, x = Linear(32, 32, delay_wgrad_compute=True), torch.randn(32, 32, requires_grad=True)
    twin = Linear(32, 32)
    twin.load_state_dict(layer.state_dict())
    for _ in range(2):
        gradients(twin, x)
        gradients(layer, x)
    assert layer.weight.grad is None and layer.bias.grad is None and x.grad is not None
    assert layer.need_backward_dw() and not twin.need_backward_dw()
    layer.backward_dw()
    layer.backward_dw()
    assert torch.equal(layer.weight.grad, twin.weight.grad)
    assert torch.equal(layer.bias.grad, twin.bias.grad)
    with pytest.raises(RuntimeError, match=r"needs a backward pass for each call, got none left$"):
        layer.backward_dw()
    twin.backward_dw()


def test_backward_dw_adds_fused_gradients_only_to_main_grad_and_calls_hooks() -> None:
    torch.manual_seed(0)
    layer = Linear(32, 32, fuse_wgrad_accumulation=True, delay_wgrad_compute=True)
    twin, x, calls = Linear(32, 32), torch.randn(32, 32), []
    twin.load_state_dict(layer.state_dict())
    gradients(twin, x)
    layer.weight.main_grad = torch.zeros(32, 32)
    layer.weight.grad_added_to_main_grad = False

    def note(name: str) -> None:
        assert torch.equal(layer.weight.main_grad, twin.weight.grad)
        assert torch.equal(layer.bias.grad, twin.bias.grad)
        calls.append(name)

    for name in ("first", "second"):
        layer.register_wgrad_accumulation_and_reduce_hooks(partial(note, name))
    gradients(layer, x)
    assert not layer.weight.main_grad.any() and not calls
    layer.backward_dw()
    assert layer.weight.grad is None and layer.weight.grad_added_to_main_grad
    assert calls == ["first", "second"]
    plain = Linear(32, 32)
    plain.register_wgrad_accumulation_and_reduce_hooks(partial(note, "never"))
    gradients(plain, x)
    plain.backward_dw()
    assert calls == ["first", "second"]


def saved_bytes(layer: Linear, x: torch.Tensor) -> tuple[set[int], torch.Tensor]:
    """Returns the addresses of the tensors that forward saves, and the gradient of the weight."""
    places = set()

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        places.add(tensor.data_ptr())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t), autocast(recipe=MXFP8):
        y = layer(x)
    y.sum().backward()
    return places, layer.weight.grad


def test_the_original_input_is_saved_in_place_of_its_codes() -> None:
    torch.manual_seed(0)
    layer, x = Linear(32, 32, save_original_input=True), torch.randn(32, 32)
    twin = Linear(32, 32)
    twin.load_state_dict(layer.state_dict())
    places, gradient = saved_bytes(layer, x)
    others, expected = saved_bytes(twin, x)
    assert x.data_ptr() in places and x.data_ptr() not in others
    assert torch.equal(gradient, expected)
    with autocast(recipe=DelayedScaling()), pytest.raises(ValueError) as raised:
        layer(x)
    assert str(raised.value) == (
        "Linear: save_original_input needs a recipe without delayed scaling, got DelayedScaling"
    )


class Counted(IdentityQuantizer):
    """Counts the tensors that it and its copies quantize."""

    def __init__(self, counts: list[int], safe: bool) -> None:
        super().__init__()
        self.counts, self.safe = counts, safe

    def copy(self) -> IdentityQuantizer:
        made = type(self)(self.counts, self.safe)
        made.set_usage(rowwise=self.rowwise_usage, columnwise=self.columnwise_usage)
        return made

    def quantize_impl(self, tensor: torch.Tensor) -> torch.Tensor:
        self.counts[0] += 1
        return super().quantize_impl(tensor)

    def is_requantization_safe(self) -> bool:
        return self.safe


@pytest.mark.parametrize(
    ("source", "rows_safe", "columns_safe", "row_calls"),
    [
        ("original", False, False, 1),
        ("rowwise_dequantized", True, False, 2),
        ("rowwise_dequantized", False, True, None),
    ],
)
def test_columns_of_the_saved_input(
    source: str, rows_safe: bool, columns_safe: bool, row_calls: int | None
) -> None:
    """Counts the calls: backward makes the columns from the input, or forward has made them."""
    counts = ([0], [0])

    def make(role: QuantizerRole | None) -> IdentityQuantizer | HybridQuantizer:
        if role is None or role.tensor_type != "input":
            return IdentityQuantizer()
        rows, columns = Counted(counts[0], rows_safe), Counted(counts[1], columns_safe)
        return HybridQuantizer(
            rowwise_quantizer=rows, columnwise_quantizer=columns, columnwise_source=source
        )

    layer = Linear(32, 32, save_original_input=True)
    with autocast(recipe=CustomRecipe(qfactory=make)):
        if row_calls is None:
            with pytest.warns(UserWarning, match="save_original_input has no effect"):
                y = layer(torch.randn(32, 32))
        else:
            y = layer(torch.randn(32, 32))
    assert counts == ([1], [0 if row_calls else 1])
    y.sum().backward()
    assert counts == ([row_calls or 1], [1])


def test_delayed_quantizers_of_a_custom_recipe_keep_codes() -> None:
    columns_delayed = HybridQuantizer(
        rowwise_quantizer=IdentityQuantizer(),
        columnwise_quantizer=Float8Quantizer(torch.ones(1), torch.zeros(1), DType.kFloat8E4M3),
    )
    assert not columns_delayed.keeps_columns_of_later()
    layer, x = Linear(32, 32, save_original_input=True), torch.randn(32, 32)
    with autocast(recipe=CustomRecipe(qfactory=delayed_scaling_factory)):
        with pytest.warns(UserWarning, match="save_original_input has no effect"):
            y = layer(x)
    y.sum().backward()
    assert layer.weight.grad is not None


def test_a_tensor_parallel_group_is_for_features() -> None:
    seen, before = [], watching.watcher_factory()
    try:
        watching.set_watcher_factory(lambda *arguments: seen.append(arguments))
        Linear(4, 4, name="mine", tp_size=2)
    finally:
        watching.set_watcher_factory(before)
    assert seen == [("mine", None, 2, True)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(33, 96), (3, 32, 96), (1, 96), (1000, 96)])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("is_grouped", [False, True])
def test_plain_operands_of_a_recipe_give_the_bits_of_the_layer_without(
    dtype: torch.dtype, shape: tuple[int, ...], has_bias: bool, is_grouped: bool
) -> None:
    torch.manual_seed(0)
    x, rows = torch.randn(shape, dtype=dtype), math.prod(shape[:-1])
    sizes = {"bias": has_bias, "params_dtype": dtype}
    layer = nfp.GroupedLinear(2, 96, 80, **sizes) if is_grouped else nfp.Linear(96, 80, **sizes)
    dy = torch.randn(*shape[:-1], 80, dtype=dtype)
    splits = ([rows // 2, rows - rows // 2],) if is_grouped else ()
    recipe = CustomRecipe(qfactory=lambda role: nfp.IdentityQuantizer())
    found = []
    for enabled in (False, True):
        leaf = x.clone().requires_grad_()
        with nfp.autocast(enabled=enabled, recipe=recipe):
            y = layer(leaf, *splits)
        found.append([y, *torch.autograd.grad(y, [leaf, *layer.parameters()], dy)])
    for without, with_recipe in zip(*found, strict=True):
        assert torch.equal(with_recipe, without)
