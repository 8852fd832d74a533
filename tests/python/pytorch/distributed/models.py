# SPDX-License-Identifier: Apache-2.0
"""Makes a small network with quantized weights, sharded or whole, and compares its buffers."""

from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from families import ALL, E4M3, assert_same_buffers, buffers, snapshot
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from narrowfloat import pytorch as nfp

RATE = 0.125
E5M2 = nfp.DType.kFloat8E5M2


def reduced(quantizer: nfp.Quantizer) -> nfp.Quantizer:
    """Sets with_amax_reduction, one amax on all ranks, if the quantizer has it. Returns it."""
    if hasattr(quantizer, "with_amax_reduction"):
        quantizer.with_amax_reduction = True
    return quantizer


def hybrid(rowwise: nfp.Quantizer, columnwise: nfp.Quantizer) -> nfp.HybridQuantizer:
    return nfp.HybridQuantizer(rowwise_quantizer=rowwise, columnwise_quantizer=columnwise)


FAMILIES: dict[str, Callable[[], nfp.Quantizer]] = {
    **{name: make for name, make in ALL.items() if not name.startswith("hybrid")},
    "float8_delayed": lambda: nfp.Float8Quantizer(torch.full((1,), 64.0), torch.zeros(1), E4M3),
    "hybrid_mxfp8_identity": ALL["hybrid_mxfp8_identity"],
    "hybrid_float8": lambda: hybrid(
        nfp.Float8CurrentScalingQuantizer(E5M2), nfp.IdentityQuantizer()
    ),
    "hybrid_blockwise": lambda: hybrid(
        nfp.Float8BlockQuantizer(E4M3, rowwise=True, columnwise=True), nfp.MXFP8Quantizer(E4M3)
    ),
}
ANY_ROWS = ("float8_current", "float8_delayed", "identity", "hybrid_float8")


def random(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def require_gathered(weight: torch.Tensor, whole: nfp.QuantizedTensor) -> None:
    """Asserts that every buffer of the gathered weight has the bytes of the whole weight."""
    assert type(weight) is type(whole), f"{type(weight)}, expected {type(whole)}"
    assert weight.shape == whole.shape, f"{weight.shape}, expected {whole.shape}"
    present = snapshot(weight)  # copies: NumPy would prevent FSDP2 from freeing memory
    assert present, "no buffer was gathered"
    wanted = buffers(whole)
    assert_same_buffers(present, {name: wanted[name] for name in present}, "gathered")


def require_shard(parameter: DTensor, whole: nfp.QuantizedTensor) -> None:
    """Asserts that the local shard is quantized, and has its rows of the whole, bit for bit."""
    local = parameter._local_tensor
    assert type(local) is type(whole), f"{type(local)}, expected {type(whole)}"
    chunks = whole.dequantize().chunk(dist.get_world_size())
    rank = dist.get_rank()
    rows = chunks[rank] if rank < len(chunks) else chunks[0][:0]
    assert torch.equal(local.dequantize(), rows)


class Product(torch.autograd.Function):
    """Multiplies x by the transposed weight. Both passes compare it with the whole weight."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx,
        x: torch.Tensor,
        weight: torch.Tensor,
        whole: nfp.QuantizedTensor | None,
    ) -> torch.Tensor:
        ctx.weight, ctx.whole = weight, whole
        ctx.save_for_backward(x)
        if whole is not None:
            require_gathered(weight, whole)
            ctx.values = whole.dequantize()
        else:
            ctx.values = weight.dequantize()
        return F.linear(x, ctx.values.to(x.dtype))

    @staticmethod
    def backward(
        ctx: torch.autograd.function.FunctionCtx, grad: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, None]:
        (x,) = ctx.saved_tensors
        if ctx.whole is not None:
            require_gathered(ctx.weight, ctx.whole)
        return grad @ ctx.values.to(grad.dtype), grad.t() @ x, None


class Layer(torch.nn.Module):
    """A product with a weight. A gathered weight must be equal to `whole`."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(weight)
        self.whole: nfp.QuantizedTensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Product.apply(x, self.weight, self.whole)


class Outer(torch.nn.Module):
    """A module for fully_shard(), which is then not applied to the owner of the parameter."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.inner = Layer(weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


class Net(torch.nn.Module):
    """Two layers, the first in a separate FSDP2 group, and a plain bias."""

    def __init__(self, first: torch.Tensor, second: torch.Tensor) -> None:
        super().__init__()
        self.first, self.second = Outer(first), Outer(second)
        self.bias = torch.nn.Parameter(torch.zeros(second.shape[0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(F.relu(self.first(x))) + self.bias

    def weights(self) -> list[torch.nn.Parameter]:
        return [self.first.inner.weight, self.second.inner.weight]

    def watch(self, whole: "Net") -> None:
        """Compares the gathered weights, in each pass, with those of another network."""
        for mine, other in ((self.first, whole.first), (self.second, whole.second)):
            mine.inner.whole = other.inner.weight.detach()


def whole_net(family: str, rows: int, columns: int = 128, seed: int = 7) -> Net:
    make = FAMILIES[family]
    first = make()(random(rows, columns, seed=seed)).detach()
    second = make()(random(rows, rows, seed=seed + 1)).detach()
    return Net(first, second)


def sharded_net(
    family: str, rows: int, seed: int = 7, columns: int = 128, **options: object
) -> Net:
    net = whole_net(family, rows, columns, seed)
    fully_shard(net.first, **options)
    fully_shard(net, **options)
    return net
