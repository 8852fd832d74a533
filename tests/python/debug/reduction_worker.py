# SPDX-License-Identifier: Apache-2.0
"""Runs one rank of the reduction tests, and writes {case: "ok" or the traceback} as JSON.

Run as `reduction_worker.py RANK WORLD PORT OUT`.
"""

import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any
from unittest import mock

import nvdlfw_inspect.api as debug_api
import torch
import torch.distributed as dist
from narrowfloat.debug.features.utils import get_reduction_params
from narrowfloat.debug.features.utils.stats_buffer import STATS_BUFFERS
from sessions import logged, section, session, te

from narrowfloat import debug
from narrowfloat import pytorch as nfp

STATS = ["min", "max", "mean", "std", "l1_norm", "l2_norm", "cur_amax", "dynamic_range"]
FREQ = 2


def config(tensor: str) -> dict:
    return section(LogTensorStats={"tensors": [tensor], "stats": STATS, "freq": FREQ})


def part_of(rank: int) -> torch.Tensor:
    """Returns a tensor whose length, mean and range differ between ranks."""
    torch.manual_seed(rank)
    return torch.randn(16 * (rank + 1), 8) * 10**rank + 50 * rank


def feed(tensor: torch.Tensor, name: str, step: int, layer: str = "layer", **more: Any) -> None:
    on, _ = te().inspect_tensor_enabled(layer, tensor_name=name, iteration=step)
    if on:
        arguments = {"tp_group": None, "tp_size": 1, **more}
        te().inspect_tensor(layer, tensor_name=name, tensor=tensor, iteration=step, **arguments)


def flush() -> dict[str, torch.Tensor]:
    return {key[2]: value for key, value in STATS_BUFFERS.log_stats().items()}


def assert_of(found: dict[str, torch.Tensor], x: torch.Tensor) -> None:
    x = x.double()
    wanted = {"min": x.min(), "max": x.max(), "mean": x.mean(), "std": x.std(), "l2_norm": x.norm()}
    for name, value in wanted.items():
        torch.testing.assert_close(found[name].double(), value, rtol=1e-6, atol=1e-9, msg=name)


def everything(world: int) -> torch.Tensor:
    return torch.cat([part_of(rank) for rank in range(world)])


def case_activations_count_together(rank: int, world: int, group: Any) -> None:
    """Checks that all ranks count, with or without a chosen group, for unequal microbatches."""
    for chosen in (None, dist.group.WORLD):
        with session(config("activation")):
            if chosen is not None:
                debug_api.set_tensor_reduction_group(chosen)
            for half in part_of(rank).chunk(2 + rank):
                feed(half, "activation", 0)
            assert_of(flush(), everything(world))


def case_a_group_of_one_keeps_to_itself(rank: int, world: int, group: Any) -> None:
    with session(config("activation")):
        debug_api.set_tensor_reduction_group(group)
        feed(part_of(rank), "activation", 0)
        assert_of(flush(), part_of(rank))


def case_weights_count_over_the_tensor_parallel_group(rank: int, world: int, group: Any) -> None:
    for tp_group, tp_size, reduce, shared in (
        (dist.group.WORLD, world, True, True),
        (dist.group.WORLD, world, False, False),
        (dist.group.WORLD, 1, True, False),
        (None, world, True, False),
    ):
        debug.set_weight_tensor_tp_group_reduce(reduce)
        with session(config("weight")):
            feed(part_of(rank), "weight", 0, tp_group=tp_group, tp_size=tp_size)
            assert_of(flush(), everything(world) if shared else part_of(rank))
        debug.set_weight_tensor_tp_group_reduce(True)


def case_weights_without_reduction_wait_for_no_rank(rank: int, world: int, group: Any) -> None:
    """Covers a pipeline stage whose ranks have no selected layer: they never take part."""
    with session(config("weight")), mock.patch.object(dist, "all_gather_object") as exchanged:
        debug_api.set_tensor_reduction_group(group)
        feed(part_of(rank), "weight", 0)
        assert_of(flush(), part_of(rank))
    assert not exchanged.called
    with session(config("weight")):
        debug_api.set_tensor_reduction_group(group)
        assert get_reduction_params("weight", None, 1) == (True, group, False)


def case_a_rank_without_the_layer_takes_part(rank: int, world: int, group: Any) -> None:
    """Covers an expert without input: it takes part by its schedule, so no other rank waits."""
    with session(config("activation")) as folder:
        for step in range(4 * FREQ):
            skipped = rank == 0 and step in (FREQ, 2 * FREQ)
            if not skipped:
                feed(part_of(rank), "activation", step)
            debug_api.step()
        lines = logged(folder, rank)
    steps = {step for name, step in lines if name == "layer_activation_max"}
    assert steps == ({0, 3 * FREQ} if rank == 0 else {0, FREQ, 2 * FREQ, 3 * FREQ}), steps
    others = torch.cat([part_of(other) for other in range(1, world)])
    for step in steps:
        seen = everything(world) if step in (0, 3 * FREQ) else others
        assert abs(lines["layer_activation_max", step] - float(seen.max())) < 1e-3


def case_layers_that_only_one_rank_has(rank: int, world: int, group: Any) -> None:
    with session(config("activation")):
        feed(part_of(rank), "activation", 0, layer=f"layer{rank}")
        feed(part_of(rank), "activation", 0, layer="shared")
        found = STATS_BUFFERS.log_stats()
    assert {key[0] for key in found} == {f"layer{rank}", "shared"}
    own = {key[2]: value for key, value in found.items() if key[0] != "shared"}
    assert_of(own, part_of(rank))
    both = {key[2]: value for key, value in found.items() if key[0] == "shared"}
    assert_of(both, everything(world))


def case_quantized_statistics(rank: int, world: int, group: Any) -> None:
    stats = ["underflows%", "mse", "scale_inv_max"]
    blocks = section(LogFp8TensorStats={"tensors": ["activation"], "stats": stats})
    quantizer = nfp.MXFP8Quantizer(nfp.DType.kFloat8E4M3)
    # Each block holds 32 magnitudes from 1e-9 to 1, so some of its values become zero on each rank.
    parts = [2.0**-r * torch.logspace(-9, 0, 32).repeat(32 * (r + 1), 1) for r in range(world)]
    q = quantizer(parts[rank])
    with session(blocks):
        forms = {"rowwise_quantized_tensor": q, "columnwise_quantized_tensor": q}
        feed(parts[rank], "activation", 0, quantizer=quantizer, **forms)
        found = flush()
    whole = torch.cat(parts)
    values = quantizer(whole).dequantize()
    lost = float((values == 0).sum()) / whole.numel() * 100
    assert lost > 0 and abs(float(found["underflows%"]) - lost) < 1e-4
    error = float(((whole.double() - values.double()) ** 2).mean())
    assert abs(float(found["mse"]) / error - 1) < 1e-6
    assert found["scale_inv_max"] == quantizer(whole)._rowwise_scale_inv.max()


def case_dumps_lie_by_rank(rank: int, world: int, group: Any) -> None:
    blocks = section(DumpTensors={"tensors": ["activation"], "high_precision_tensor": True})
    with session(blocks) as folder:
        feed(part_of(rank), "activation", 0)
        names = [str(path.relative_to(folder)) for path in folder.glob("tensor_dumps/**/*.pt")]
    assert names == [f"tensor_dumps/rank_{rank}/iter_000000/layer_activation.pt"], names


CASES: dict[str, Callable[[int, int, Any], None]] = {
    name.removeprefix("case_"): case
    for name, case in list(globals().items())
    if name.startswith("case_")
}


def main() -> None:
    rank, world, port, out = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    groups = [dist.new_group([member]) for member in range(world)]
    results = {}
    for name, case in CASES.items():
        try:
            case(rank, world, groups[rank])
            results[name] = "ok"
        except Exception:
            results[name] = traceback.format_exc()
        dist.barrier()
    with open(f"{out}{rank}", "w") as file:
        json.dump(results, file)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
