# SPDX-License-Identifier: Apache-2.0
"""Runs a step of an MLP that the processes of a group share, under every recipe.

usage: torchrun -m narrowfloat.te parallel_program.py; written for CUDA.
"""

import torch
import torch.distributed as dist
import transformer_engine.pytorch as te
from layers import BF16, RECIPES, WIDTH


def split_mlp(group: dist.ProcessGroup, sequence_parallel: bool) -> torch.nn.Module:
    """Returns this process's part of an MLP."""
    torch.manual_seed(0)
    return te.LayerNormMLP(
        WIDTH,
        4 * WIDTH,
        set_parallel_mode=True,
        tp_group=group,
        tp_size=dist.get_world_size(group),
        sequence_parallel=sequence_parallel,
        params_dtype=BF16,
        device="cuda",
    )


def step(module: torch.nn.Module, name: str, group: dist.ProcessGroup, rows: int) -> torch.Tensor:
    """Runs one step under a recipe and returns the output."""
    recipe = RECIPES[name]()
    x = torch.randn(rows, 1, WIDTH, dtype=BF16, device="cuda", requires_grad=True)
    with te.autocast(enabled=recipe is not None, recipe=recipe, amax_reduction_group=group):
        y = module(x)
    y.float().square().mean().backward()
    torch.cuda.synchronize()
    assert x.grad.is_cuda
    assert torch.isfinite(x.grad).all()
    assert all(torch.isfinite(p.grad).all() for p in module.parameters())
    return y


def main() -> None:
    """Runs every recipe with and without sequence parallelism."""
    dist.init_process_group("nccl")
    torch.cuda.set_device(dist.get_rank())
    group = dist.new_group(range(dist.get_world_size()), backend="nccl")
    whole = 2 * WIDTH
    for sequence_parallel in (False, True):
        rows = whole // dist.get_world_size() if sequence_parallel else whole
        for name in RECIPES:
            if name == "custom":
                continue
            module = split_mlp(group, sequence_parallel)
            torch.manual_seed(1 + dist.get_rank() * sequence_parallel)
            y = step(module, name, group, rows)
            others = [torch.empty_like(y) for _ in range(dist.get_world_size())]
            dist.all_gather(others, y.detach())
            same = all(torch.equal(other, y) for other in others)
            assert tuple(y.shape) == (rows, 1, WIDTH)
            assert same != sequence_parallel, "each process has its rows, or all have the same"
            if dist.get_rank() == 0:
                print(name, sequence_parallel, flush=True)
    dist.destroy_process_group()


main()
