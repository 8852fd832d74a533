# SPDX-License-Identifier: Apache-2.0
"""Tests collectives that a program batches, because gloo corrupts a batch of several dtypes."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from lookalike import Run, write
from narrowfloat.te import runtime

# The second process is late, so that the first one has its results only when wait() returns.
PROGRAM = """
    import time
    import torch
    import torch.distributed as dist
    from torch.distributed import _coalescing_manager

    def gathered(is_async):
        codes = torch.full((6,), 200 + rank, dtype=torch.uint8, device="cuda")
        values = torch.full((4,), 1.5 + rank, dtype=torch.bfloat16, device="cuda")
        all_codes, all_values = codes.new_zeros(12), values.new_zeros(8)
        time.sleep(rank)
        with _coalescing_manager(async_ops=is_async) as batch:
            for out, part in ((all_codes, codes), (all_values, values)):
                dist.all_gather_into_tensor(out, part, async_op=is_async)
        if is_async:
            batch.wait()
        return all_codes.tolist() + all_values.tolist()

    dist.init_process_group("nccl")
    rank = dist.get_rank()
    expected = [200] * 6 + [201] * 6 + [1.5] * 4 + [2.5] * 4
    # One write for both, so that lines of two processes do not mix.
    found = [gathered(is_async) == expected for is_async in (False, True)]
    print(str(found) + chr(10), end="", flush=True)
    dist.destroy_process_group()
    """


@pytest.fixture
def group() -> Iterator[None]:
    """Makes a group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_a_batch_of_several_dtypes_is_gathered_and_waited_for(run: Run, tmp_path: Path) -> None:
    write(tmp_path, {"train.py": PROGRAM})
    launcher = "-m", "torch.distributed.run", "--nproc-per-node", "2"
    done = run(*launcher, "-m", "narrowfloat.te", "train.py")
    assert done.stdout.splitlines() == ["[True, True]"] * 2, done.stderr


@pytest.mark.parametrize("is_async", [False, True])
def test_every_collective_that_can_be_batched_runs(group: None, is_async: bool) -> None:
    x, parts, whole = torch.ones(2), torch.zeros(2), torch.zeros(2, dtype=torch.uint8)
    with runtime.coalescing_manager(None, torch.device("cpu"), is_async) as batch:
        dist.all_reduce(x, op=dist.ReduceOp.MAX, async_op=is_async)
        dist.reduce_scatter_tensor(parts, torch.full((2,), 3.0), async_op=is_async)
        dist.all_gather_into_tensor(whole, torch.full((2,), 7, dtype=torch.uint8))
    assert len(batch.works) == (3 if is_async else 0)
    batch.wait()
    assert [each.tolist() for each in (x, parts, whole)] == [[1, 1], [3, 3], [7, 7]]


def test_a_batch_ends_with_an_error_of_the_program(group: None) -> None:
    x = torch.ones(2)
    with pytest.raises(KeyError), runtime.coalescing_manager():
        dist.all_reduce(x)
        raise KeyError
    dist.all_reduce(x)  # in no batch
    with runtime.coalescing_manager():
        dist.all_reduce(x)


def test_batches_of_a_group_cannot_nest(group: None) -> None:
    message = "coalescing_manager: must not be entered twice for a group"
    with runtime.coalescing_manager():
        with pytest.raises(ValueError, match=f"^{message}$"), runtime.coalescing_manager():
            pass
