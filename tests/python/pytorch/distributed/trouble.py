# SPDX-License-Identifier: Apache-2.0
"""Scenarios of ranks that die, fail or wait forever."""

import os
import time

import torch
import torch.distributed as dist
from models import random, sharded_net


def die() -> None:
    """Ends rank 1 while the others gather."""
    net = sharded_net("mxfp8", 128 * dist.get_world_size())
    if dist.get_rank() == 1:
        os._exit(9)
    net(random(2, 128, seed=1))


def fail() -> None:
    """Raises on rank 1 while the others gather."""
    net = sharded_net("mxfp8", 128 * dist.get_world_size())
    if dist.get_rank() == 1:
        raise ArithmeticError("rank 1 has had enough")
    net(random(2, 128, seed=1))


def hang() -> None:
    """Sleeps on rank 1 while the others wait for it."""
    if dist.get_rank() == 1:
        time.sleep(600)
    dist.all_reduce(torch.zeros(1))


def scenarios(world: int) -> dict[str, object]:
    return {name: globals()[name] for name in os.environ["NF_TEST_TROUBLE"].split()}
