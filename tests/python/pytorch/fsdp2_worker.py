# SPDX-License-Identifier: Apache-2.0
"""One rank of the FSDP2 tests: every family sharded, gathered, used and updated by its side.

Writes {family: "ok" or the traceback} as JSON. Run as `fsdp2_worker.py RANK WORLD PORT OUT`.
"""

import json
import os
import sys
import traceback
import warnings
from collections.abc import Callable

import narrowfloat.pytorch as nfp
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

E4M3 = nfp.DType.kFloat8E4M3
ROWS, COLS, BATCH = 256, 128, 16
RATE = 0.125

FAMILIES: dict[str, Callable[[], nfp.Quantizer]] = {
    "float8_current": lambda: nfp.Float8CurrentScalingQuantizer(E4M3),
    "float8_delayed": lambda: nfp.Float8Quantizer(torch.full((1,), 64.0), torch.zeros(1), E4M3),
    "mxfp8": lambda: nfp.MXFP8Quantizer(E4M3),
    "float8_blockwise": lambda: nfp.Float8BlockQuantizer(E4M3, rowwise=True, columnwise=True),
    "nvfp4": lambda: nfp.NVFP4Quantizer(with_2d_quantization=True),
    "identity": nfp.IdentityQuantizer,
    "hybrid": lambda: nfp.HybridQuantizer(
        rowwise_quantizer=nfp.MXFP8Quantizer(E4M3),
        columnwise_quantizer=nfp.IdentityQuantizer(),
    ),
}
# A split of these formats is plain, so the shard is quantized after sharding, as modules that are
# made on the meta device do.
QUANTIZED_AFTER_SHARDING = ()


class Product(torch.autograd.Function):
    """x times the transposed weight; backward reads the weight as it is gathered then."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx, x: torch.Tensor, weight: torch.Tensor
    ) -> torch.Tensor:
        ctx.weight = weight
        return F.linear(x, weight.dequantize())

    @staticmethod
    def backward(
        ctx: torch.autograd.function.FunctionCtx, grad: torch.Tensor
    ) -> tuple[torch.Tensor, None]:
        assert ctx.weight.get_usages() == {"rowwise": False, "columnwise": True}
        return grad @ ctx.weight.dequantize(), None


class Multiply(torch.nn.Module):
    """x times the transposed weight."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Product.apply(x, self.weight) if x.requires_grad else F.linear(x, self.weight)


class Outer(torch.nn.Module):
    """Is wrapped itself, so that the owner of the parameter is not."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.inner = Multiply(weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


def local_rows(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.chunk(dist.get_world_size())[dist.get_rank()]


def shard(family: str, weight: torch.Tensor, whole: nfp.QuantizedTensor, reshard: bool) -> Outer:
    if family not in QUANTIZED_AFTER_SHARDING:
        model = Outer(whole.clone())
        fully_shard(model, reshard_after_forward=reshard)
        return model
    model = Outer(weight)
    fully_shard(model, reshard_after_forward=reshard)
    plain = model.inner.weight
    quantizer = FAMILIES[family]()
    if hasattr(quantizer, "with_amax_reduction"):
        quantizer.with_amax_reduction = True
    local = quantizer(local_rows(weight).contiguous())
    sharded = DTensor.from_local(local, plain.device_mesh, plain.placements)
    model.inner.weight = torch.nn.Parameter(sharded)
    return model


def buffers_of(tensor: nfp.QuantizedTensor) -> list[torch.Tensor]:
    if isinstance(tensor, nfp.HybridQuantizedTensor):
        return [b for child in tensor._children() for b in buffers_of(child)]
    return [b for b in tensor._tensors() if b is not None]


def check_shard(model: Outer, whole: nfp.QuantizedTensor) -> None:
    """The local shard holds the values of its rows of the unsharded tensor, bit for bit."""
    local = model.inner.weight._local_tensor
    assert type(local) is type(whole), type(local)
    assert torch.equal(local.dequantize(), local_rows(whole.dequantize()))
    if isinstance(whole, nfp.Float8Tensor):
        assert torch.equal(local._scale_inv, whole._scale_inv), "one scale on all shards"
        assert torch.equal(local._data, local_rows(whole._data))


def run(family: str, reshard: bool) -> None:
    torch.manual_seed(7)
    weight = torch.randn(ROWS, COLS)
    x = torch.randn(BATCH, COLS)
    whole = FAMILIES[family]()(weight).detach()
    model = shard(family, weight, whole, reshard)
    check_shard(model, whole)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, foreach=False)
    for _ in range(3):
        y = model(x)
        assert torch.equal(y, F.linear(x, whole.dequantize()))
        y.square().sum().backward()
        grad = model.inner.weight.grad
        wanted = (2 * y.detach()).t() @ x
        assert torch.equal(grad.full_tensor(), wanted)
        optimizer.step()
        optimizer.zero_grad()
        # As the optimizer does it on the shards: in the values, then quantized.
        whole.quantize_(whole.dequantize().add_(wanted, alpha=-RATE))
        check_shard(model, whole)


def run_gradient_of_input(family: str) -> None:
    """Backward reads the column-wise direction of what was gathered for it."""
    torch.manual_seed(8)
    weight = torch.randn(ROWS, COLS)
    x = torch.randn(BATCH, COLS, requires_grad=True)
    whole = FAMILIES[family]()(weight).detach()
    assert whole.get_usages()["columnwise"]
    model = shard(family, weight, whole, True)
    model(x).sum().backward()
    whole.update_usage(rowwise_usage=False, columnwise_usage=True)
    expected = torch.ones(BATCH, ROWS) @ whole.dequantize()
    assert torch.equal(x.grad, expected)


def run_amax_reduction() -> None:
    """Ranks with different inputs share one scale."""
    for quantizer in (
        nfp.Float8CurrentScalingQuantizer(E4M3, with_amax_reduction=True),
        nfp.NVFP4Quantizer(with_amax_reduction=True),
    ):
        x = torch.full((32, 32), 1.0 + dist.get_rank())
        q = quantizer(x)
        amax = torch.tensor([float(dist.get_world_size())])
        if isinstance(q, nfp.Float8Tensor):
            alone = nfp.Float8CurrentScalingQuantizer(E4M3)(amax)
            assert torch.equal(q._scale_inv, alone._scale_inv)
        else:
            assert torch.equal(q._amax_rowwise, amax)
            assert torch.equal(q._amax_columnwise, amax)
        assert q._quantizer.with_amax_reduction is False
        assert q._quantizer.amax_reduction_group is None


def main() -> None:
    rank, world, port, out = sys.argv[1:]
    warnings.simplefilter("ignore")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    dist.init_process_group("gloo", rank=int(rank), world_size=int(world))
    torch.set_num_threads(1)
    cases: dict[str, Callable[[], None]] = {"amax_reduction": run_amax_reduction}
    for family in FAMILIES:
        cases[f"{family}-resharded"] = lambda family=family: run(family, True)
        cases[f"{family}-kept"] = lambda family=family: run(family, False)
    for family in ("float8_current", "mxfp8", "float8_blockwise"):
        cases[f"{family}-input_gradient"] = lambda family=family: run_gradient_of_input(family)
    results = {}
    for name, case in cases.items():
        try:
            case()
            results[name] = "ok"
        except Exception:
            results[name] = traceback.format_exc()
            break  # the other rank may wait in a collective
    with open(f"{out}.{rank}", "w") as file:
        json.dump(results, file)
    if all(result == "ok" for result in results.values()):
        dist.destroy_process_group()
    os._exit(0)


if __name__ == "__main__":
    main()
