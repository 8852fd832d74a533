# SPDX-License-Identifier: Apache-2.0
"""Tests LogTensorStats: values, microbatches, weights, names in the log."""

import math
from typing import Any

import nvdlfw_inspect.api as debug_api
import pytest
import torch
from narrowfloat.debug.features.utils.stats_buffer import STATS_BUFFERS
from narrowfloat.debug.features.utils.stats_computation import (
    BlockwiseDynamicRangeStat,
    compute_max_blockwise_dynamic_range,
)
from sessions import STORED, logged, section, session, te

from narrowfloat import pytorch as nfp

STATS = ["min", "max", "mean", "std", "l1_norm", "l2_norm", "cur_amax", "dynamic_range"]
BLOCKWISE = [{"max_blockwise_dynamic_range": {"block_size": 4, "dims": dims}} for dims in (1, 2)]


def log_of(tensors: str = "activation", **keys: Any) -> dict:
    return section(LogTensorStats={"tensors": [tensors], "stats": STATS, **keys})


def feed(tensor: torch.Tensor | None, name: str = "activation", step: int = 0, **more: Any) -> None:
    te().inspect_tensor(
        "layer", tensor_name=name, tensor=tensor, iteration=step, tp_group=None, **more
    )


def flush() -> dict[str, torch.Tensor]:
    """Returns the values of the buffers, by statistic."""
    return {str(key[2]): value for key, value in STATS_BUFFERS.log_stats().items()}


def expected(x: torch.Tensor) -> dict[str, float]:
    """Computes the statistics in float64 by torch."""
    x = x.double()
    size = x.abs()
    return {
        "min": x.min(),
        "max": x.max(),
        "mean": x.mean(),
        "std": x.std(),
        "l1_norm": size.sum(),
        "l2_norm": x.norm(),
        "cur_amax": size.max(),
        "dynamic_range": size.max().log2() - size[size != 0].min().log2(),
    }


def assert_statistics(found: dict[str, torch.Tensor], x: torch.Tensor) -> None:
    for name, value in expected(x).items():
        assert found[name].dtype == torch.float32 and found[name].shape == ()
        rtol, atol = (1e-6, 1e-6) if name == "mean" else (STORED, 0)  # torch's mean is float32
        torch.testing.assert_close(found[name].double(), value, rtol=rtol, atol=atol, msg=name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_values(dtype: torch.dtype) -> None:
    torch.manual_seed(3)
    x = torch.randn(100, 100, 5).to(dtype)
    x[0] = 0
    with session(log_of()):
        feed(x)
        assert_statistics(flush(), x)


@pytest.mark.parametrize("seed", range(8))
def test_a_mean_is_that_of_torch_to_the_last_bit(seed: int) -> None:
    x = torch.rand(100, 100, 5, generator=torch.Generator().manual_seed(seed))
    with session(log_of(stats=["mean", "std"])):
        feed(x)
        assert flush()["mean"] == x.mean()


def test_sums_do_not_lose_what_float32_would() -> None:
    x = torch.rand(1 << 20) + 1
    with session(log_of(stats=["l1_norm", "mean"])):
        feed(x)
        found = flush()
    torch.testing.assert_close(found["l1_norm"].double(), x.double().sum(), rtol=STORED, atol=0)


@pytest.mark.parametrize("pieces", [2, 3])
def test_microbatches_are_their_concatenation(pieces: int) -> None:
    """Feeds microbatches of different means, lengths and ranges; the last one is only zeros."""
    parts = [torch.randn(40 * (i + 1), 8) * 10**i + 100 * i for i in range(pieces)]
    parts.append(torch.zeros(8, 8))
    with session(log_of(stats=[*STATS, *BLOCKWISE])):
        for part in parts:
            feed(part)
        together = flush()
        feed(torch.cat(parts))
        once = flush()
    assert_statistics(together, torch.cat(parts))
    assert together.keys() == once.keys() and len(together) == len(STATS) + 2
    for name, value in once.items():
        rtol, atol = (1e-6, 1e-6) if name == "mean" else (STORED, 0)
        torch.testing.assert_close(together[name], value, rtol=rtol, atol=atol, msg=name)


def test_of_a_weight_the_first_microbatch_counts() -> None:
    with session(log_of("weight")):
        feed(torch.ones(4), "weight")
        feed(torch.full((4,), 9.0), "weight")
        assert flush()["max"] == 1
        feed(torch.full((4,), 9.0), "weight")
        assert flush()["max"] == 9


def test_empty_tensors_are_passed_over() -> None:
    with session(log_of(stats=[*STATS, *BLOCKWISE])):
        feed(torch.empty(0, 8))
        assert flush() == {}
        feed(torch.empty(0, 8))
        feed(torch.ones(4, 8))
        feed(torch.empty(0, 8))
        assert flush()["mean"] == 1


def test_edges_of_values() -> None:
    with session(log_of()):
        feed(torch.zeros(4, 4))
        found = flush()
        assert found["dynamic_range"] == math.inf and found["std"] == 0
        feed(torch.full((1,), -3.0))
        found = flush()
        assert found["std"].isnan() and found["dynamic_range"] == 0 and found["cur_amax"] == 3
        feed(torch.tensor([1.0, math.nan]))
        assert all(value.isnan() for value in flush().values())
        feed(torch.tensor([1.0, -math.inf]))
        found = flush()
        assert found["min"] == -math.inf and found["cur_amax"] == math.inf


def test_a_weight_that_is_kept_quantized() -> None:
    q = nfp.MXFP8Quantizer(nfp.DType.kFloat8E4M3)(torch.randn(32, 32))
    with session(log_of("weight")):
        forms = {"rowwise_quantized_tensor": q, "columnwise_quantized_tensor": q}
        feed(None, "weight", quantizer=None, **forms)
        assert_statistics(flush(), q.dequantize())


@pytest.mark.parametrize("case", ["quantized", "codes", "none"])
def test_what_is_no_high_precision_tensor(case: str) -> None:
    q = nfp.MXFP8Quantizer(nfp.DType.kFloat8E4M3)(torch.randn(32, 32))
    tensor = {"quantized": q, "codes": q._rowwise_data, "none": None}[case]
    with (
        session(log_of()),
        pytest.raises(
            AssertionError,
            match=r"^.* Tensor .* must be in high precision when using log_tensor_stats\. "
            r"Use log_fp8_tensor_stats for FP8 tensors\.$",
        ),
    ):
        feed(tensor)


def test_lines_of_the_log_follow_the_schedule() -> None:
    with session(log_of(stats=["max", "mean"], freq=3, start_step=1, end_step=9)) as folder:
        for step in range(12):
            on, _ = te().inspect_tensor_enabled("layer", tensor_name="activation", iteration=step)
            if on:
                feed(torch.full((4,), float(step)), step=step)
            debug_api.step()
        lines = logged(folder)
    assert lines == {
        (f"layer_activation_{stat}", step): step for stat in ("max", "mean") for step in (3, 6, 9)
    }


def test_nothing_is_logged_twice_and_layers_keep_apart() -> None:
    with session(log_of(stats=["max"])):
        feed(torch.ones(2), step=200)
        te().inspect_tensor(
            "other", tensor_name="activation", tensor=torch.zeros(2), iteration=200, tp_group=None
        )
        assert STATS_BUFFERS.log_stats() == {
            ("layer", "activation", "max", 200): 1,
            ("other", "activation", "max", 200): 0,
        }
        assert STATS_BUFFERS.log_stats() == {}
        assert te().inspect_tensor_enabled("x", tensor_name="wgrad", iteration=0) == (False, None)


def test_the_end_of_a_session_forgets() -> None:
    with session(log_of(stats=["max"])):
        feed(torch.ones(2))
    with session(log_of(stats=["min"])) as folder:
        debug_api.step()
        feed(torch.ones(2), step=1)
        debug_api.step()
        assert logged(folder) == {("layer_activation_min", 1): 1}


def test_another_logger_and_no_file() -> None:
    from nvdlfw_inspect.logging import BaseLogger

    class Logger(BaseLogger):
        def __init__(self) -> None:
            self.lines: list[tuple] = []

        def log_scalar(self, name: str, value: float, iteration: int, **kwargs: Any) -> None:
            assert type(value) is float
            self.lines.append((name, value, iteration))

    logger = Logger()
    with session(log_of(stats=["max"]), statistics_logger=logger) as folder:
        feed(torch.full((2,), 3.0), step=7)
        debug_api.step()
        assert not (folder / "nvdlfw_inspect_statistics_logs").exists()
    assert logger.lines == [("layer_activation_max", 3.0, 7)]


# Blocks.

A, B, EPSILON = 1000.0, 50.0, 0.01


def striped(rows: int = 64) -> torch.Tensor:
    """Returns one row of A, three rows of B, and rows of EPSILON."""
    x = torch.full((rows, 64), EPSILON)
    x[0], x[1:4] = A, B
    return x


@pytest.mark.parametrize(
    ("block_size", "dims", "both", "wanted"),
    [
        (4, 1, False, 0.0),
        (4, 1, True, math.log2(A / B)),
        (4, 2, False, math.log2(A / B)),
        (4, 2, True, math.log2(A / B)),
        (8, 1, True, math.log2(A / EPSILON)),
        (8, 2, False, math.log2(A / EPSILON)),
        (1, 1, True, 0.0),
        (64, 2, False, math.log2(A / EPSILON)),
    ],
)
def test_ranges_of_blocks(block_size: int, dims: int, both: bool, wanted: float) -> None:
    stat = BlockwiseDynamicRangeStat(block_size=block_size, dims=dims, max_over_orientations=both)
    result = compute_max_blockwise_dynamic_range(striped(), stat)
    assert result.item() == pytest.approx(wanted, rel=STORED)
    deep = striped().reshape(4, 16, 64)
    assert compute_max_blockwise_dynamic_range(deep, stat).item() == result.item()


def test_zeros_do_not_count_in_blocks() -> None:
    stat = BlockwiseDynamicRangeStat(4, 1, False)
    x = torch.zeros(2, 8)
    assert compute_max_blockwise_dynamic_range(x, stat) == 0
    x[0, 0], x[0, 1] = 8.0, -2.0
    assert compute_max_blockwise_dynamic_range(x, stat) == 2


@pytest.mark.parametrize(
    ("shape", "stat"),
    [
        ((4, 6), (4, 1, False)),  # 24 items are six blocks, which would cross rows
        ((6, 4), (4, 1, True)),
        ((6, 8), (4, 2, False)),
        ((8, 6), (4, 2, False)),
    ],
)
def test_blocks_do_not_cross_rows(shape: tuple, stat: tuple) -> None:
    size, dims, both = stat
    rows, cols = shape[::-1] if both else shape
    with pytest.raises(AssertionError) as raised:
        compute_max_blockwise_dynamic_range(torch.ones(shape), BlockwiseDynamicRangeStat(*stat))
    assert str(raised.value) == (
        f"Blocks of {size if dims == 2 else 1} x {size} do not divide a tensor of {rows} x {cols}: "
        f"its numel ({rows * cols}) is not divisible by block_size ({size}) in whole blocks."
    )


def test_other_dimensions_of_blocks() -> None:
    with pytest.raises(AssertionError, match="dims must be 1 or 2, got 3"):
        compute_max_blockwise_dynamic_range(torch.ones(4, 4), BlockwiseDynamicRangeStat(4, 3))


@pytest.mark.parametrize("tensor", ["activation", "weight", "gradient", "output"])
def test_operands_of_forward_gemms_are_looked_at_along_both_ways(tensor: str) -> None:
    both = tensor in ("activation", "weight")
    suffix = "_max_over_orientations" if both else ""
    with session(log_of(tensor, stats=["dynamic_range", *BLOCKWISE])) as folder:
        feed(striped(), tensor)
        debug_api.step()
        lines = logged(folder)
    name = f"layer_{tensor}_max_blockwise_dynamic_range_block_size_4_dims_"
    assert {key for key, _ in lines} == {
        f"layer_{tensor}_dynamic_range",
        f"{name}1{suffix}",
        f"{name}2{suffix}",
    }
    ranges = [lines[f"{name}{dims}{suffix}", 0] for dims in (1, 2)]
    wanted = math.log2(A / B)
    # The log has 4 decimals.
    assert ranges == pytest.approx([wanted if both else 0, wanted], abs=0.5e-4)


def test_blocks_are_by_default_runs_of_an_mx_block() -> None:
    stats = [{"max_blockwise_dynamic_range": {}}]
    with session(log_of("gradient", stats=stats)):
        feed(torch.ones(2, 64), "gradient")
        assert list(flush()) == ["max_blockwise_dynamic_range_block_size_32_dims_1"]
