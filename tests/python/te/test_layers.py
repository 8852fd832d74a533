# SPDX-License-Identifier: Apache-2.0
"""Trains TransformerEngine's own modules on the CPU under every recipe."""

import io
import math
from importlib import metadata

import narrowfloat.te  # noqa: F401  before TransformerEngine
import pytest
import torch

pytest.importorskip("transformer_engine", reason="TransformerEngine is not installed")

from layers import (  # isort: skip
    BF16,
    MODULES,
    RECIPES,
    WIDTH,
    forward,
    layer,
    llama_layer,
    mlp,
    sample,
    te,
    train,
)

VERSION = tuple(int(part) for part in metadata.version("transformer_engine").split(".")[:2])
QUANTIZED = [name for name in RECIPES if name not in ("none", "custom")]


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("module", MODULES)
def test_a_module_trains_and_repeats_itself(module: str, recipe: str) -> None:
    if (module, recipe) == ("ops.Sequential", "block") and VERSION < (2, 18):
        pytest.skip("TransformerEngine 2.17 refuses this recipe in operations")
    first, second = train(module, recipe), train(module, recipe)
    assert all(math.isfinite(loss) for loss in first.losses)
    assert len(set(first.losses)) == len(first.losses), "parameters changed in every step"
    assert first.losses == second.losses
    assert torch.equal(first.output, second.output)
    assert all(map(torch.equal, first.parameters, second.parameters))


@pytest.mark.parametrize("recipe", QUANTIZED)
def test_a_recipe_changes_the_output_as_much_as_its_codes_do(recipe: str) -> None:
    exact, quantized = train("Linear", "none", 1).output, train("Linear", recipe, 1).output
    error = (quantized.float() - exact.float()).norm() / exact.float().norm()
    # Independent roundings of both factors. Codes with 3 mantissa bits err by 2^-4 at most and
    # by 0.026 in the root mean square, with 1 bit by four times as much. Sums keep the ratio.
    assert 0.01 < error < (0.2 if recipe == "nvfp4" else 0.05)


@pytest.mark.parametrize("recipe", QUANTIZED)
def test_quantized_parameters_train_with_the_fused_optimizer(recipe: str) -> None:
    chosen = RECIPES[recipe]()
    with te.quantized_model_init(recipe=chosen):
        module = te.Linear(WIDTH, WIDTH, params_dtype=BF16)
    optimizer = te.optimizers.FusedAdam(module.parameters(), lr=1e-2, master_weights=True)
    before, x = module.weight.dequantize().clone(), sample()
    for _ in range(3):
        optimizer.zero_grad()
        forward(module, x, chosen).float().square().mean().backward()
        optimizer.step()
    assert isinstance(module.weight, te.QuantizedTensor)
    moved = (module.weight.dequantize() - before).abs().max()
    assert 0.01 < moved < 0.1  # three steps of at most 0.01, and the codes' roundings


@pytest.mark.parametrize("recipe", QUANTIZED)
def test_a_quantized_layer_is_saved_and_loaded(recipe: str) -> None:
    chosen, file = RECIPES[recipe](), io.BytesIO()
    with te.quantized_model_init(recipe=chosen):
        saved, loaded = layer(fuse_qkv_params=True), layer(fuse_qkv_params=True)
    x = sample()
    torch.save(saved.state_dict(), file)
    file.seek(0)
    loaded.load_state_dict(torch.load(file, weights_only=False))
    assert torch.equal(forward(saved, x, chosen), forward(loaded, x, chosen))


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("recipe", ["none", *(name for name in QUANTIZED if name != "nvfp4")])
def test_a_checkpointed_layer_gives_the_same_gradients(recipe: str, reentrant: bool) -> None:
    gradients = []
    for wrap in (False, True):
        torch.manual_seed(2)
        # Not GELU, which TransformerEngine fuses with a bias, except in some checkpoints.
        module, chosen, x = llama_layer(), RECIPES[recipe](), sample()
        with te.autocast(enabled=chosen is not None, recipe=chosen):
            y = te.checkpoint(module, x, use_reentrant=reentrant) if wrap else module(x)
        y.float().square().mean().backward()
        gradients.append([x.grad, *(p.grad for p in module.parameters())])
    assert all(map(torch.equal, *gradients))


def test_dropout_is_repeated_when_a_layer_is_computed_again() -> None:
    tracker = te.CudaRNGStatesTracker()
    tracker.add("model-parallel-rng", 1)
    outputs = []
    for _ in range(2):
        torch.manual_seed(3)
        module = te.TransformerLayer(WIDTH, WIDTH, 4, hidden_dropout=0.5, params_dtype=BF16)
        x = sample()
        y = te.checkpoint(module, x, get_rng_state_tracker=lambda: tracker, use_reentrant=True)
        y.float().sum().backward()
        outputs.append(x.grad)
        tracker.reset()
        tracker.add("model-parallel-rng", 1)
    assert torch.equal(*outputs)


def test_gradients_are_added_to_main_grad() -> None:
    module = te.Linear(WIDTH, WIDTH, params_dtype=BF16, fuse_wgrad_accumulation=True)
    module.weight.main_grad = torch.ones(WIDTH, WIDTH)
    x = sample()
    forward(module, x, None).float().sum().backward()
    rows = x.detach().float().reshape(-1, WIDTH)
    # Every element of the output has gradient 1; products of ones and bf16 are exact in float32,
    # and so the sums err by their order alone.
    bound = rows.abs().sum(0) * rows.shape[0] * 2.0**-23
    assert ((module.weight.main_grad - 1 - rows.sum(0)).abs() <= bound + 2.0**-20).all()


def test_a_checkpointed_mlp_trains() -> None:
    module, x = mlp(checkpoint=True), sample()
    forward(module, x, RECIPES["mxfp8"]()).float().sum().backward()
    assert torch.isfinite(x.grad).all()


def test_autocast_of_the_cpu_is_seen() -> None:
    module = te.Linear(WIDTH, WIDTH)
    with torch.autocast("cpu", dtype=BF16), te.autocast(enabled=True):
        assert module(sample().float()).dtype == BF16


def test_graphs_are_refused_by_name() -> None:
    module = te.Linear(WIDTH, WIDTH, params_dtype=BF16)
    with pytest.raises(NotImplementedError, match=r"^narrowfloat\.te: CUDA graphs need a GPU$"):
        te.make_graphed_callables(module, (sample(),))


def test_modules_cast_native_parameters_beside_transformer_engine() -> None:
    """Checks that our tensors keep their bytes after TransformerEngine replaces Module.float()."""
    from narrowfloat.pytorch import DType, MXFP8Quantizer

    quantizer, module = MXFP8Quantizer(DType.kFloat8E4M3), torch.nn.Module()
    module.weight = torch.nn.Parameter(quantizer(torch.randn(64, 64)).detach())
    before = module.weight._rowwise_data
    module.float()
    assert module.weight.dtype == torch.float32 and module.weight.requires_grad
    assert module.weight._rowwise_data is before
