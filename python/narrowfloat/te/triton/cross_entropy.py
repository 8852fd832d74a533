# SPDX-License-Identifier: Apache-2.0
"""Cross entropy over logits that may be split by columns over the processes of a group."""

from typing import Any

import torch
import torch.distributed as dist

from narrowfloat.pytorch._types import Group

# The columns of the statistics.
_MAX, _SUM, _TARGET, _TOTAL = range(4)


def _first_class(logits: torch.Tensor, rank: int) -> int:
    """Returns the class of this process's first column."""
    return rank * logits.shape[-1]


def _local_statistics(logits: torch.Tensor, target: torch.Tensor, rank: int) -> torch.Tensor:
    """Returns per row the maximum, the sum of exponentials, the target's logit and the sum."""
    column = target - _first_class(logits, rank)
    is_here = (column >= 0) & (column < logits.shape[-1])
    picked = logits.gather(1, column.clamp(0, logits.shape[-1] - 1)[:, None])[:, 0]
    largest = logits.amax(1)
    return torch.stack(
        (
            largest,
            torch.exp(logits - largest[:, None]).sum(1),
            torch.where(is_here, picked, -torch.inf),
            logits.sum(1),
        ),
        1,
    )


def _global_statistics(local: torch.Tensor, group: Group, world_size: int) -> torch.Tensor:
    """Returns _local_statistics() of whole rows."""
    if world_size == 1:
        return local
    parts = [torch.empty_like(local) for _ in range(world_size)]
    dist.all_gather(parts, local, group=group)
    every = torch.stack(parts)
    largest = every[..., _MAX].amax(0)
    exponentials = (every[..., _SUM] * torch.exp(every[..., _MAX] - largest)).sum(0)
    return torch.stack(
        (largest, exponentials, every[..., _TARGET].amax(0), every[..., _TOTAL].sum(0)), 1
    )


def _losses(
    statistics: torch.Tensor, target: torch.Tensor, smoothing: float, classes: int, ignored: int
) -> torch.Tensor:
    """Returns the loss of each row; 0 for rows of the ignored class."""
    log_sum = statistics[:, _MAX] + statistics[:, _SUM].log()
    loss = log_sum - statistics[:, _TARGET]
    if smoothing > 0:
        mean = log_sum - statistics[:, _TOTAL] / classes
        loss = loss * (1 - smoothing) + smoothing * mean
    return torch.where(target == ignored, 0.0, loss)


@torch.no_grad()
def cross_entropy_forward(
    _input: torch.Tensor,
    target: torch.Tensor,
    label_smoothing: float,
    reduce_loss: bool,
    dist_process_group: Group,
    ignore_idx: int,
    overwrite_input: bool | None = None,
) -> tuple:
    """Returns the loss and the arguments of cross_entropy_backward().

    Without `overwrite_input`, for TransformerEngine before 2.19: the loss and the gradient.
    """
    rank = 0 if dist_process_group is None else dist.get_rank(dist_process_group)
    world_size = 1 if dist_process_group is None else dist.get_world_size(dist_process_group)
    target = target.contiguous()
    rows = target.reshape(-1)
    logits = _input.reshape(-1, _input.shape[-1]).float()
    local = _local_statistics(logits, rows, rank)
    statistics = _global_statistics(local, dist_process_group, world_size)
    classes = logits.shape[-1] * world_size
    loss = _losses(statistics, rows, label_smoothing, classes, ignore_idx)
    count = (rows != ignore_idx).sum().clamp(min=1).reshape(1) if reduce_loss else None
    loss = loss.reshape(target.shape) if count is None else loss.sum() / count
    saved = _input if overwrite_input else _input.clone(memory_format=torch.contiguous_format)
    stats = statistics[:, :_TARGET]
    if overwrite_input is not None:
        return loss, saved, stats, target, count, rank, world_size
    settings = (label_smoothing, reduce_loss, rank, world_size, ignore_idx)
    ones = torch.ones((() if reduce_loss else rows.shape), dtype=torch.float32)
    return loss, cross_entropy_backward(saved, stats, target, count, ones, *settings)


@torch.no_grad()
def cross_entropy_backward(saved_input: torch.Tensor, *args: Any) -> torch.Tensor:
    """Overwrites the saved logits with their gradient and returns them.

    args: statistics, target, number of rows not ignored, gradient, label_smoothing, reduce_loss,
    rank, world_size, ignore_idx; before 2.19 only the factor of the saved gradient.
    """
    if len(args) <= 2:
        factor = args[0] if args[0].ndim == 0 else args[0].reshape(*saved_input.shape[:-1], 1)
        return saved_input.mul_(factor)
    stats, target, count, grad_output, smoothing, reduce_loss, rank, world_size, ignored = args
    logits = saved_input.reshape(-1, saved_input.shape[-1]).float()
    rows = target.reshape(-1)
    grad = torch.exp(logits - stats[:, :1]) / stats[:, 1:]
    grad -= smoothing / (logits.shape[-1] * world_size)
    column = rows - _first_class(logits, rank)
    here = torch.nonzero((column >= 0) & (column < logits.shape[-1]))[:, 0]
    grad[here, column[here]] -= 1 - smoothing
    factor = grad_output.reshape(-1, 1).float()
    grad *= factor / count if reduce_loss else factor
    grad[rows == ignored] = 0
    return saved_input.copy_(grad.reshape(saved_input.shape))
