# SPDX-License-Identifier: Apache-2.0
"""Scenarios of FSDP2, which every rank runs."""

import functools
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from families import E4M3
from models import (
    ANY_ROWS,
    FAMILIES,
    RATE,
    Layer,
    Net,
    hybrid,
    random,
    reduced,
    require_shard,
    sharded_net,
    whole_net,
)
from narrowfloat.common import recipe
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from narrowfloat import pytorch as nfp

STEPS = 3
# The largest relative error of one float32 rounding.
SUM_ROUNDING = 2.0**-24


def backward(net: Net, x: torch.Tensor) -> torch.Tensor:
    """Computes gradients of only rank 0's loss: sums over ranks are exact. Returns the output."""
    y = net(x)
    only = 1.0 if dist.get_rank() == 0 else 0.0
    (y.float().square().sum() * only).backward()
    return y.detach()


def reference_gradients(net: Net, x: torch.Tensor) -> torch.Tensor:
    """Computes the same on one process, divided by the number of ranks as FSDP2 does."""
    y = net(x)
    y.float().square().sum().backward()
    for parameter in net.parameters():
        parameter.grad.div_(dist.get_world_size())
    return y.detach()


def require_same_gradients(net: Net, whole: Net) -> None:
    for (name, mine), other in zip(net.named_parameters(), whole.parameters(), strict=True):
        assert torch.equal(mine.grad.full_tensor(), other.grad), f"gradient of {name}"


def require_same_state(net: Net, whole: Net) -> None:
    for mine, other in zip(net.weights(), whole.weights(), strict=True):
        require_shard(mine, other.detach())
    assert torch.equal(net.bias.full_tensor(), whole.bias)


def optimizer_of(net: Net, adam: bool) -> torch.optim.Optimizer:
    if adam:
        return torch.optim.AdamW(net.parameters(), lr=2.0**-6, foreach=False)
    return torch.optim.SGD(net.parameters(), lr=RATE / 64, foreach=False)


def train(
    family: str,
    rows: int,
    adam: bool = False,
    columns: int = 128,
    unshard: Callable[[Net, int], object] = lambda net, step: None,
    **options: object,
) -> None:
    """Checks that steps of a sharded network have the bits of steps of a whole network.

    unshard: is called before each step.
    """
    whole = whole_net(family, rows, columns)
    net = sharded_net(family, rows, columns=columns, **options)
    net.watch(whole)
    require_same_state(net, whole)
    optimizers = [optimizer_of(each, adam) for each in (net, whole)]
    for step in range(STEPS):
        x = random(8, columns, seed=step)
        unshard(net, step)
        y = backward(net, x)
        assert torch.equal(y, reference_gradients(whole, x)), f"output in step {step}"
        require_same_gradients(net, whole)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        for module in (net, net.first):
            module.reshard()
        require_same_state(net, whole)


def unshard_first(net: Net, step: int) -> None:
    """Gathers explicitly before the first step, when FSDP2 has not yet found the root module."""
    if step == 0:
        net.unshard()
        net.first.unshard(async_op=True)


def unshard_later(net: Net, step: int) -> None:
    if step == 1:
        net.unshard()
        net.first.unshard()


def resharding_changes(family: str) -> None:
    """Switches between gathering weights for each pass and keeping them for both passes."""
    whole, net = whole_net(family, 256), sharded_net(family, 256, reshard_after_forward=True)
    net.watch(whole)
    for step, kept in enumerate((False, True, False)):
        net.set_reshard_after_forward(not kept)
        x = random(8, 128, seed=step)
        assert torch.equal(backward(net, x), reference_gradients(whole, x)), f"step {step}"
        require_same_gradients(net, whole)
        for each in (net, whole):
            each.zero_grad()
        for module in (net, net.first):
            module.reshard()


def clip(family: str, rows: int) -> None:
    """Checks clipped steps. The norm is the whole network's except for the order of its sum."""
    whole, net = whole_net(family, rows), sharded_net(family, rows)
    x = random(8, 128, seed=3)
    backward(net, x)
    reference_gradients(whole, x)
    norm = torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5).full_tensor()
    exact = sum(p.grad.double().square().sum() for p in whole.parameters()).sqrt()
    count = sum(p.numel() for p in whole.parameters())
    # One rounding per square and at most `count` of their sum, without cancellation. The root
    # halves the relative error.
    assert abs(norm.double() - exact) <= exact * (count + 2) * SUM_ROUNDING
    torch.nn.utils.clip_grads_with_norm_(whole.parameters(), 0.5, norm)
    require_same_gradients(net, whole)
    for each in (net, whole):
        optimizer_of(each, adam=True).step()
    require_same_state(net, whole)


def mixed_precision(family: str) -> None:
    """Checks that gathered weights have the policy's type and the same bytes."""
    rows = 128 * dist.get_world_size()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    whole, net = whole_net(family, rows), sharded_net(family, rows, mp_policy=policy)
    if family != "identity":
        net.watch(whole)
    x = random(8, 128, seed=4)
    y = backward(net, x)
    for layer in (whole.first.inner, whole.second.inner):
        layer.weight = torch.nn.Parameter(layer.weight.detach().dequantize().bfloat16())
    whole.bias = torch.nn.Parameter(whole.bias.detach().bfloat16())
    assert y.dtype == torch.bfloat16
    assert torch.equal(y, whole(x.bfloat16()))
    for parameter in net.weights():
        assert parameter.grad._local_tensor.dtype == torch.float32


def meta_device(family: str) -> None:
    """Makes a network without memory, shards it, and quantizes each shard."""
    rows = 128 * dist.get_world_size()
    whole = whole_net(family, rows)
    with torch.device("meta"):
        net = Net(torch.empty(rows, 128), torch.empty(rows, rows))
    fully_shard(net.first)
    fully_shard(net)
    net.to_empty(device="cpu")
    values = [random(rows, 128, seed=7), random(rows, rows, seed=8)]
    for layer, plain in zip((net.first.inner, net.second.inner), values, strict=True):
        local = plain.chunk(dist.get_world_size())[dist.get_rank()].contiguous()
        quantizer = FAMILIES[family]()
        if family != "nvfp4_row_scaled":  # each row has its own amax
            quantizer = reduced(quantizer)
        quantized = quantizer(local).detach()
        old = layer.weight
        layer.weight = torch.nn.Parameter(
            DTensor.from_local(quantized, old.device_mesh, old.placements)
        )
    torch.nn.init.zeros_(net.bias)
    net.watch(whole)
    require_same_state(net, whole)
    x = random(8, 128, seed=5)
    assert torch.equal(backward(net, x), reference_gradients(whole, x))
    require_same_gradients(net, whole)


def one_rank_of_two(family: str) -> None:
    """Checks replicas of a network that is sharded over one rank."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(), 1), mesh_dim_names=("all", "one"))
    whole, net = whole_net(family, 128), whole_net(family, 128)
    fully_shard(net, mesh=mesh)
    net.watch(whole)
    x = random(8, 128, seed=6)
    assert torch.equal(backward(net, x), reference_gradients(whole, x))


def amax_reduction() -> None:
    """Checks that ranks with different inputs have one scale."""
    amax = torch.tensor([float(dist.get_world_size())])
    x = torch.full((32, 32), 1.0 + dist.get_rank())
    current = nfp.Float8CurrentScalingQuantizer(E4M3, with_amax_reduction=True)(x)
    assert torch.equal(current._scale_inv, nfp.Float8CurrentScalingQuantizer(E4M3)(amax)._scale_inv)
    blocks = nfp.NVFP4Quantizer(with_amax_reduction=True)(x)
    assert torch.equal(blocks._amax_rowwise, amax) and torch.equal(blocks._amax_columnwise, amax)
    for q in (current, blocks):
        assert q._quantizer.with_amax_reduction is False
        assert q._quantizer.amax_reduction_group is None


def swizzled() -> nfp.Quantizer:
    quantizer = nfp.MXFP8Quantizer(E4M3)
    quantizer.optimize_for_gemm = True
    return quantizer


def refused(quantizer: nfp.Quantizer, rows: int, message: str) -> None:
    """Checks that fully_shard(), or the first gather of the weight, raises on every rank."""
    layer = Layer(quantizer(random(rows, 128, seed=1)).detach())
    with pytest.raises(RuntimeError, match=message):
        fully_shard(layer)
        layer(random(2, 128, seed=2))


def refusals() -> None:
    parts = dist.get_world_size() + 1
    start = r"^\w+ weight of Layer of shape \S+ \d+\) cannot be sharded: "
    cut = start + r"\d+ rows of a shard are not whole blocks of "
    tiles = nfp.Float8BlockQuantizer(E4M3, rowwise=True, columnwise=True)
    runs = nfp.Float8BlockQuantizer(E4M3, rowwise=True, columnwise=True, block_scaling_dim=1)
    refused(nfp.MXFP8Quantizer(E4M3), 32 * parts, cut + "32$")
    refused(nfp.NVFP4Quantizer(), 16 * parts, cut + "16$")
    refused(tiles, 128 * parts, cut + "128$")
    refused(tiles, 128 * (parts - 1) - 1, cut + "128$")
    refused(runs, 128 * parts, cut + "128$")
    refused(hybrid(nfp.IdentityQuantizer(), nfp.MXFP8Quantizer(E4M3)), 32 * parts, cut + "32$")
    even = 128 * dist.get_world_size()
    columns = nfp.NVFP4Quantizer(row_scaled_nvfp4=True)
    refused(columns, even, start + "its amaxes cannot be cut along the rows$")
    refused(swizzled(), even, start + "its scales are GEMM-swizzled$")


def init_recipe(family: str) -> recipe.Recipe:
    if family == "float8_delayed":
        return recipe.DelayedScaling()

    def make(role: nfp.QuantizerRole) -> nfp.Quantizer:
        made = FAMILIES[family]()
        of_backward = role is not None and role.tensor_type == "grad_output"
        return getattr(made, "columnwise_quantizer", made) if of_backward else made

    return recipe.CustomRecipe(qfactory=make)


def reset_after_sharding(family: str, rows: int, device: str) -> None:
    """Checks that reset_parameters() of a sharded layer makes shards of rank 0's whole layer."""
    rank, chosen = dist.get_rank(), init_recipe(family)
    torch.manual_seed(3)
    with nfp.quantized_model_init(recipe=chosen, preserve_high_precision_init_val=True):
        whole = nfp.Linear(128, rows)
        layer = nfp.Linear(128, rows, device=device)
    fully_shard(layer)
    before = layer.weight
    torch.manual_seed(3 + rank)
    layer.reset_parameters()
    assert device == "meta" or layer.weight is before
    require_shard(layer.weight, whole.weight.detach())
    assert torch.equal(layer.bias.full_tensor(), whole.bias)
    drawn = whole.weight.get_high_precision_init_val().chunk(dist.get_world_size())[rank]
    kept = layer.weight._local_tensor
    assert torch.equal(kept.get_high_precision_init_val(), drawn)
    kept.clear_high_precision_init_val()
    assert kept.get_high_precision_init_val() is None
    x = random(32, 128, seed=4).requires_grad_()
    passes = []
    for each in (layer, whole):
        with nfp.autocast(recipe=chosen):
            y = each(x)
        (dx,) = torch.autograd.grad(y.square().sum(), x)
        passes.append((y, dx))
    (y, dx), (whole_y, whole_dx) = passes
    assert torch.equal(y, whole_y)
    assert torch.equal(dx, whole_dx)


def reset_plain() -> None:
    """Checks the same for plain parameters, sharded and replicated."""
    world = dist.get_world_size()
    mesh = init_device_mesh("cpu", (1, world), mesh_dim_names=("all", "shard"))
    replicas = init_device_mesh("cpu", (world, 1), mesh_dim_names=("all", "shard"))
    torch.manual_seed(3)
    whole = nfp.GroupedLinear(2, 24, 17)
    for chosen in (mesh, replicas):
        layer = nfp.GroupedLinear(2, 24, 17, device="meta")
        fully_shard(layer, mesh=chosen)
        torch.manual_seed(3 + dist.get_rank())
        layer.reset_parameters()
        for (name, mine), other in zip(layer.named_parameters(), whole.parameters(), strict=True):
            assert torch.equal(mine.full_tensor(), other), name


def different_scales() -> None:
    """Checks that shards with different scales cannot be gathered."""
    layer = Layer(random(64, 128, seed=1))
    fully_shard(layer)
    old = layer.weight
    local = nfp.Float8CurrentScalingQuantizer(E4M3)(
        old._local_tensor.detach() * (1 + dist.get_rank())
    ).detach()
    layer.weight = torch.nn.Parameter(
        DTensor.from_local(local, old.device_mesh, old.placements, run_check=False)
    )
    with pytest.raises(
        RuntimeError,
        match=r"^fsdp_post_all_gather: the shards of a Float8Tensor must share one _scale_inv, got "
        r"\[.*\]; quantize them with a reduced amax or one given scale \(parameter .*weight\)$",
    ):
        layer(random(2, 128, seed=2))


Scenario = Callable[[], None]


def scenarios(world: int) -> dict[str, Scenario]:
    even = 128 * world
    found: dict[str, Scenario] = {"amax_reduction": amax_reduction}
    for family in FAMILIES:
        found[f"{family}-clip"] = functools.partial(clip, family, even)
        options = {"reshard_after_forward": True}
        found[f"{family}-resharded"] = functools.partial(train, family, even, **options)
    found["refusals"] = refusals
    found["different_scales"] = different_scales
    found["reset_plain"] = reset_plain
    for family in FAMILIES:
        if family == "nvfp4_row_scaled":  # is made without columns, which a layer's backward needs
            continue
        for device in ("meta", "cpu"):
            reset = functools.partial(reset_after_sharding, family, even, device)
            found[f"{family}-reset_{device}"] = reset
    for family in ANY_ROWS:
        found[f"{family}-clip_uneven"] = functools.partial(clip, family, 99 + world)
        found[f"{family}-uneven"] = functools.partial(train, family, 99 + world, True)
        reset = functools.partial(reset_after_sharding, family, 99 + world, "meta")
        found[f"{family}-reset_uneven"] = reset
    found["identity-empty"] = functools.partial(train, "identity", world + 1)
    found["float8_current-empty"] = functools.partial(train, "float8_current", world + 1)
    if world > 2:
        return found
    for family in FAMILIES:
        found[f"{family}-resharding_changes"] = functools.partial(resharding_changes, family)
        options = {"reshard_after_forward": False}
        found[f"{family}-kept"] = functools.partial(train, family, even, True, **options)
        found[f"{family}-mixed_precision"] = functools.partial(mixed_precision, family)
        found[f"{family}-meta_device"] = functools.partial(meta_device, family)
        found[f"{family}-unshard_first"] = functools.partial(
            train, family, even, unshard=unshard_first
        )
        options = {"columns": 64, "unshard": unshard_later, "reshard_after_forward": True}
        found[f"{family}-unshard_later"] = functools.partial(train, family, even, **options)
        found[f"{family}-one_rank"] = functools.partial(one_rank_of_two, family)
    return found
