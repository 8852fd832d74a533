# SPDX-License-Identifier: Apache-2.0
"""Scenarios of tensor-parallel quantized layers, which every rank runs."""

import copy
import functools
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from families import E4M3, SCHEMES, assert_same_buffers, snapshot
from linear_by_hand import RECIPES
from models import random
from narrowfloat.common.recipe import DelayedScaling, MXFP8BlockScaling
from narrowfloat.pytorch import autocast, quantized_model_init
from narrowfloat.pytorch.distributed import QuantizedColwiseParallel, gather_along_first_dim
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from narrowfloat import pytorch as nfp

IN, OUT, TOKENS = 256, 512, 256  # halves are whole blocks in every format
# Recipes whose shards of a weight have the bytes of the whole weight: no scale is shared.
OF_BLOCKS = ("mxfp8", "float8_block", "custom_mxfp8")

WITHOUT_BLOCKS_OF_ROWS = ("delayed", "current", "current_e4m3_pow2", "nvfp4")
GATHERS = (((256,), 0), ((2, 256), 1), ((256, 2), 0), ((2, 32), 1))
# A quantizer with one scale or amax, its buffer, and the values for shards of ones and of twos. For
# an amax a these are the inverse of the largest power of two up to 448 / a, and a itself.
OWN_SCALES: dict[str, tuple[Callable[[], nfp.Quantizer], str, list[float]]] = {
    "current": (
        lambda: nfp.Float8CurrentScalingQuantizer(E4M3, force_pow_2_scales=True),
        "_scale_inv",
        [2.0**-8, 2.0**-7],
    ),
    "nvfp4": (nfp.NVFP4Quantizer, "_amax_rowwise", [1.0, 2.0]),
}
ALL_RECIPES = {
    **RECIPES,
    "delayed_alone": lambda: DelayedScaling(amax_history_len=4, reduce_amax=False),
    "high_precision": lambda: MXFP8BlockScaling(backward_override="high_precision"),
    "dequantized": lambda: MXFP8BlockScaling(backward_override="dequantized"),
}


@functools.cache
def mesh() -> DeviceMesh:
    return init_device_mesh("cpu", (dist.get_world_size(),))


def part(tensor: torch.Tensor, dim: int) -> torch.Tensor:
    """Returns this rank's part of a tensor."""
    return tensor.chunk(dist.get_world_size(), dim)[dist.get_rank()].contiguous()


def under(recipe: str | None) -> object:
    if recipe is None:
        return nullcontext()
    return autocast(recipe=ALL_RECIPES[recipe](), amax_reduction_group=mesh().get_group())


def layer(recipe: str | None, quantized: bool = False) -> nfp.Linear:
    """Returns the same layer on all ranks. Amaxes of earlier layers are no longer reduced."""
    nfp.quantization.FP8GlobalStateManager.reset()
    torch.manual_seed(3)
    init = quantized_model_init(recipe=ALL_RECIPES[recipe]()) if quantized else nullcontext()
    with init:
        made = nfp.Linear(IN, OUT, dtype=torch.bfloat16, name="tested")
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            parameter.copy_(tokens(*parameter.shape, seed=len(name)))
    return made


def tokens(*shape: int, seed: int) -> torch.Tensor:
    return random(*shape, seed=seed).bfloat16()


def run(
    net: torch.nn.Module, recipe: str | None, x: torch.Tensor, dy: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Returns y and the gradients of the input and of this rank's parameters."""
    net.zero_grad()
    x = x.detach().requires_grad_()
    with under(recipe):
        y = net(x)
    y.backward(dy)
    gradients = {f"d{name}": local(p.grad) for name, p in net.named_parameters()}
    return {"y": y.detach(), "dx": x.grad, **gradients}


def local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def summed(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the sum over two ranks, in the type of the tensor. Two terms have one order."""
    total = tensor.clone()
    dist.all_reduce(total)
    return total


def assert_equal(got: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    """Asserts that `got` has the tensors of `wanted`, bit for bit."""
    for name, other in wanted.items():
        mine = got[name]
        assert mine.dtype == other.dtype and mine.shape == other.shape, name
        assert torch.equal(mine, other), f"{name}: {(mine != other).sum()} of {mine.numel()} differ"


def own_layer(whole: nfp.Linear, dim: int) -> nfp.Linear:
    """Returns an unsharded layer with this rank's part of the parameters of `whole`.

    In a row-parallel sum only rank 0 adds the bias to its term.
    """
    bias = dim == 0 or dist.get_rank() == 0
    out, inside = (OUT // 2, IN) if dim == 0 else (OUT, IN // 2)
    made = nfp.Linear(inside, out, bias=bias, dtype=torch.bfloat16, name="tested")
    weight = whole.weight.detach().chunk(2, dim)[dist.get_rank()].clone()
    made.weight = torch.nn.Parameter(weight)
    if bias:
        values = whole.bias.detach()
        made.bias = torch.nn.Parameter(part(values, 0) if dim == 0 else values.clone())
    return made


def column(recipe: str | None, quantized: bool) -> None:
    """Compares y, dw and db with a layer of the part of the weight, dx with its sum over ranks."""
    whole = layer(recipe, quantized)
    net = parallelize_module(copy.deepcopy(whole), mesh(), ColwiseParallel())
    own = own_layer(whole, 0)
    assert type(local(net.weight.data)) is type(own.weight.data)
    x, dy = tokens(TOKENS, IN, seed=5), tokens(TOKENS, OUT, seed=6)
    for _ in range(2):  # delayed scaling has other scales the second time
        got, wanted = (run(each, recipe, x, part(dy, 1)) for each in (net, own))
        wanted["dx"] = summed(wanted["dx"])
        assert_equal(got, wanted)
    if recipe in OF_BLOCKS:
        wanted = run(whole, recipe, x, dy)
        assert_equal(got, {"y": part(wanted["y"], 1), "dweight": part(wanted["dweight"], 0)})


def row(recipe: str | None, quantized: bool) -> None:
    """Compares y with the sum of both ranks' terms, and gradients with those of the terms."""
    whole = layer(recipe, quantized)
    net = parallelize_module(copy.deepcopy(whole), mesh(), RowwiseParallel())
    own = own_layer(whole, 1)
    x, dy = tokens(TOKENS, IN, seed=5), tokens(TOKENS, OUT, seed=6)
    for _ in range(2):
        got, wanted = (run(each, recipe, part(x, 1), dy) for each in (net, own))
        wanted["y"] = summed(wanted["y"])
        assert_equal(got, wanted)
        assert torch.equal(got["dbias"], dy.sum(0, dtype=torch.float32).bfloat16())
    if recipe in OF_BLOCKS:
        wanted = run(whole, recipe, x, dy)
        assert_equal(got, {"dx": part(wanted["dx"], 1), "dweight": part(wanted["dweight"], 1)})
        assert_near(got["y"], wanted["y"], x, whole)


def assert_near(y: torch.Tensor, wanted: torch.Tensor, x: torch.Tensor, whole: nfp.Linear) -> None:
    """Compares a sum of two rounded terms with the sum rounded once.

    A rounding to bfloat16 is at most 2^-8 of a sum of magnitudes: one for the two terms, one for
    their sum, one for `wanted`. The sums in float32 add less than one more. A decoded code has at
    most twice the magnitude of its value, where half of the smallest subnormal is rounded up. So
    products of codes have at most four times the magnitude of products of values.
    """
    sums = x.float().abs() @ whole.weight.detach().float().abs().t() + whole.bias.detach().abs()
    assert torch.all((y.float() - wanted.float()).abs() <= 4 * 2.0**-8 * 4 * sums)


@contextmanager
def recorded_gathers() -> Iterator[set[torch.dtype]]:
    """Yields the set of types of the tensors that are gathered inside."""
    original, types = dist.all_gather_into_tensor, set()

    def record(out: torch.Tensor, own: torch.Tensor, **options: object) -> object:
        types.add(own.dtype)
        return original(out, own, **options)

    dist.all_gather_into_tensor = record
    try:
        yield types
    finally:
        dist.all_gather_into_tensor = original


def gather(family: str, shape: tuple[int, ...], codes_travel: bool) -> None:
    """Compares gathered bytes with quantizing all rows; with delayed scaling also the amax."""
    quantizer, reference = SCHEMES[family](), SCHEMES[family]()
    x = tokens(shape[0] * dist.get_world_size(), *shape[1:], IN, seed=5)
    with recorded_gathers() as types:
        got, work = gather_along_first_dim(part(x, 0), mesh().get_group(), quantizer=quantizer)
    wanted = reference(x)
    assert work is None and type(got) is type(wanted)
    assert_same_buffers(snapshot(got), snapshot(wanted), family)
    assert codes_travel == (torch.bfloat16 not in types), types
    if quantizer.SCALE_IS_GIVEN:
        assert torch.equal(quantizer.amax, reference.amax) and quantizer.amax > 0


def gather_column(
    recipe: str | None, shape: tuple[int, ...], dim: int, codes_travel: bool, **options: bool
) -> None:
    """Checks that the style that gathers codes has the bits of ColwiseParallel."""
    whole = layer(recipe)
    for name, value in options.items():
        setattr(whole, name, value)
    x, dy = tokens(*shape, IN, seed=5), tokens(*shape, OUT, seed=6)
    results = []
    for style in (ColwiseParallel, QuantizedColwiseParallel):
        net = parallelize_module(copy.deepcopy(whole), mesh(), style(input_layouts=Shard(dim)))
        with recorded_gathers() as types:
            results.append([run(net, recipe, part(x, dim), part(dy, -1)) for _ in range(2)])
    for wanted, got in zip(*results, strict=True):
        assert_equal(got, wanted)
    if recipe is not None:
        assert codes_travel == (torch.bfloat16 not in types), types


class Net(torch.nn.Module):
    """Two layers, one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = layer("mxfp8"), layer("mxfp8")
        self.down.weight = torch.nn.Parameter(tokens(IN, OUT, seed=9))
        self.down.bias = torch.nn.Parameter(tokens(IN, seed=10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.nn.functional.relu(self.up(x)))


def sharded_tokens() -> None:
    """Checks a network whose input and output are DTensors of parts of the tokens."""
    x, dy = tokens(TOKENS, IN, seed=5), tokens(TOKENS, IN, seed=6)
    results = []
    for style in (ColwiseParallel, QuantizedColwiseParallel):
        plan = {
            "up": style(input_layouts=Shard(0)),
            "down": RowwiseParallel(output_layouts=Shard(0), use_local_output=False),
        }
        net = parallelize_module(Net(), mesh(), plan)
        given = distribute_tensor(x, mesh(), [Shard(0)]).requires_grad_()
        with under("mxfp8"):
            y = net(given)
        assert y.placements == (Shard(0),) and y.shape == x.shape
        y.backward(distribute_tensor(dy, mesh(), [Shard(0)]))
        gradients = {f"d{name}": local(p.grad) for name, p in net.named_parameters()}
        results.append({"y": local(y.detach()), "dx": local(given.grad), **gradients})
    assert_equal(results[1], results[0])


def second_order() -> None:
    """Checks that gradients through a gather of codes have no derivative."""
    style = QuantizedColwiseParallel(input_layouts=Shard(0))
    net = parallelize_module(layer("mxfp8"), mesh(), style)
    x = part(tokens(TOKENS, IN, seed=5), 0).requires_grad_()
    with under("mxfp8"):
        y = net(x).tanh()
    (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="second-order gradients are not supported"):
        gradient.square().sum().backward()


def uneven_tokens() -> None:
    """Checks that DTensor gathers values if the parts of tokens differ in length."""
    x = tokens(96, IN, seed=5)[:33]
    whole = layer("current")
    net = parallelize_module(copy.deepcopy(whole), mesh(), QuantizedColwiseParallel())
    own = own_layer(whole, 0)
    with under("current"), torch.no_grad(), recorded_gathers() as types:
        assert torch.equal(net(distribute_tensor(x, mesh(), [Shard(0)])), own(x))
    assert not types


def microbatches() -> None:
    """Checks that microbatches share a weight that is quantized once, from this rank's part."""
    whole = layer("mxfp8")
    net = parallelize_module(copy.deepcopy(whole), mesh(), ColwiseParallel())
    x = tokens(TOKENS, IN, seed=5)
    with under("mxfp8"), torch.no_grad():
        first, kept = whole(x, is_first_microbatch=True), net(x, is_first_microbatch=True)
        assert torch.equal(kept, part(first, 1))
        local(net.weight).zero_()
        assert torch.equal(net(x, is_first_microbatch=False), kept)
        assert not torch.equal(net(x, is_first_microbatch=True), kept)


def autocast_of_torch() -> None:
    """Checks that torch.autocast casts parts of the input before they are quantized."""
    whole, x = layer("mxfp8").float(), random(TOKENS, IN, seed=5)
    net = parallelize_module(copy.deepcopy(whole), mesh(), QuantizedColwiseParallel())
    with under("mxfp8"), torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        assert torch.equal(net(part(x, 0)), part(whole(x), 1))


def refused() -> None:
    x = tokens(TOKENS, IN, seed=5)
    net = parallelize_module(layer("mxfp8"), mesh(), ColwiseParallel())
    given = distribute_tensor(x, mesh(), [Shard(1)])
    with under("mxfp8"):
        with pytest.raises(
            TypeError,
            match=r"^Linear tested: the input and weight must both be DTensors or both be tensors, "
            r"got Tensor and DTensor$",
        ):
            net.forward(x)
        with pytest.raises(
            NotImplementedError,
            match=r"^Linear tested: weight with the placement Shard\(dim=0\) needs an input with "
            r"the placement Replicate or Shard of a dimension of tokens, got Shard\(dim=1\)$",
        ):
            net.forward(given)
        for option in ("fp8_output", "fp8_grad"):
            with pytest.raises(NotImplementedError, match=f"^Linear: {option} needs a weight"):
                net(x, **{option: True})
        net.return_bias = True
        with pytest.raises(NotImplementedError) as raised:
            net(x)
        assert str(raised.value) == (
            "Linear tested: return_bias needs a weight that is not a DTensor"
        )
    replica = layer("mxfp8")
    for name, parameter in list(replica.named_parameters()):
        whole = distribute_tensor(parameter.detach(), mesh(), [Replicate()])
        replica.register_parameter(name, torch.nn.Parameter(whole))
    message = (
        r"^Linear tested: weight must have the placement Shard\(0\) or Shard\(1\) on a mesh of one "
        r"dimension, got \(Replicate\(\),\)$"
    )
    with under("mxfp8"), pytest.raises(NotImplementedError, match=message):
        replica(given)


def refused_groups() -> None:
    """Checks the error: GroupedLinear would use a rank's part of a weight as the whole."""
    net = nfp.GroupedLinear(1, IN, OUT, bias=False, dtype=torch.bfloat16, name="group")
    weight = distribute_tensor(net.weight0.detach(), mesh(), [Shard(0)])
    net.weight0 = torch.nn.Parameter(weight)
    message = r"^GroupedLinear group: weight0 must not be a DTensor, got \(Shard\(dim=0\),\)$"
    with under("mxfp8"), pytest.raises(NotImplementedError, match=message):
        net(tokens(32, IN, seed=5), [32])


def own_scales(kind: str) -> None:
    """Checks that shards with different scales are not joined, but load on the same ranks."""
    quantizer, name, scales = OWN_SCALES[kind]
    whole = torch.ones(256, 128)
    whole[128:] = 2
    quantized = quantizer()(whole).detach()
    weight = distribute_tensor(quantized, mesh(), [Shard(0)])
    with torch.no_grad():
        weight.mul_(1.0)
    rank = dist.get_rank()
    assert getattr(local(weight), name).tolist() == [scales[rank]]
    cls = type(quantized).__name__
    with pytest.raises(RuntimeError) as raised:
        weight.full_tensor()
    assert str(raised.value) == (
        f"all_gather: the shards of a {cls} must share one {name}, got "
        f"{[[scale] for scale in scales]}; quantize them with a reduced amax or one given scale, "
        "or gather dequantize() of each"
    )
    values = DTensor.from_local(local(weight).dequantize(), mesh(), [Shard(0)])
    assert torch.equal(values.full_tensor(), whole)

    folder = [tempfile.mkdtemp() if rank == 0 else ""]
    dist.broadcast_object_list(folder, 0)
    dcp.save({"weight": weight}, checkpoint_id=folder[0])
    loaded = distribute_tensor(quantizer()(torch.zeros(256, 128)).detach(), mesh(), [Shard(0)])
    dcp.load({"weight": loaded}, checkpoint_id=folder[0])
    assert_same_buffers(snapshot(local(loaded)), snapshot(local(weight)), kind)
    target = quantizer()(torch.zeros(256, 128)).detach()
    dcp.load({"weight": target}, checkpoint_id=folder[0])
    with pytest.raises(RuntimeError) as raised:
        target.dequantize()
    assert str(raised.value) == (
        f"{cls}: rows 0 to 127 have lost their scale, because a part was copied with another one: "
        f"all rows must share one {name}, which was {scales[0]} and is {scales[1]}; copy the rest "
        "with that scale too, or write the whole tensor; shards with scales of their own load on "
        "as many ranks as saved them"
    )


def cut_blocks() -> None:
    """Checks that halves of a weight which end inside a block are refused before a product."""
    for style, size, x in (
        (ColwiseParallel, (32, 96), tokens(32, 32, seed=5)),
        (RowwiseParallel, (96, 32), tokens(32, 48, seed=5)),
    ):
        net = nfp.Linear(*size, dtype=torch.bfloat16, name="cut")
        parallelize_module(net, mesh(), style())
        message = r"^Linear cut: the shards of weight must be whole blocks of MXFP8Quantizer, got "
        with under("mxfp8"), pytest.raises(ValueError, match=message):
            net(x)


def scenarios(world: int) -> dict[str, Callable[[], None]]:
    found: dict[str, Callable[[], None]] = {}
    for recipe in [None, *RECIPES]:  # without a recipe DTensor itself multiplies
        for quantized in (False, True) if recipe is not None else ():
            for scenario in (column, row):
                name = f"{scenario.__name__}-{recipe}-{'quantized' if quantized else 'plain'}"
                found[name] = functools.partial(scenario, recipe, quantized)
        for shape, dim in GATHERS:
            # Hybrids have two formats, and halves of 16 rows end inside blocks of 32 and 128.
            travel = recipe != "hybrid" and (shape != (2, 32) or recipe in WITHOUT_BLOCKS_OF_ROWS)
            found[f"gather_column-{recipe}-{shape}-{dim}"] = functools.partial(
                gather_column, recipe, shape, dim, travel
            )
    for family in SCHEMES:
        for shape in ((128,), (64, 2), (16,)):
            cut = shape == (16,) and family.startswith(("mxfp8", "blockwise"))
            travel = not cut and family != "nvfp4_row_scaled"
            travel &= len(shape) == 1 or family not in ("nvfp4", "nvfp4_4over6")
            found[f"gather-{family}-{shape}"] = functools.partial(gather, family, shape, travel)
    for recipe in ("mxfp8", "current", "nvfp4"):
        found[f"gather_column-{recipe}-saves_input"] = functools.partial(
            gather_column, recipe, (256,), 0, True, save_original_input=True
        )
    found["gather_column-delayed_alone"] = functools.partial(
        gather_column, "delayed_alone", (256,), 0, True
    )
    for recipe in ("high_precision", "dequantized"):
        found[f"gather_column-{recipe}"] = functools.partial(
            gather_column, recipe, (256,), 0, False
        )
    for kind in OWN_SCALES:
        found[f"own_scales-{kind}"] = functools.partial(own_scales, kind)
    for scenario in (
        sharded_tokens,
        second_order,
        uneven_tokens,
        microbatches,
        autocast_of_torch,
        refused,
        refused_groups,
        cut_blocks,
    ):
        found[scenario.__name__] = scenario
    return found
