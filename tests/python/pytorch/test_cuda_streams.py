# SPDX-License-Identifier: Apache-2.0
"""Tests CUDA tensors: streams, graphs, and numbers that stay in device memory.

In no_synchronization(), PyTorch's synchronizing calls raise. In a capture, all such calls raise.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from cuda_cases import (
    MARKS,
    QUANTIZERS,
    assert_same,
    no_synchronization,
    on_host,
    seed,
)
from families import E4M3, assert_same_buffers, buffers, sample
from narrowfloat.common.recipe import DelayedScaling
from narrowfloat.pytorch import tex
from narrowfloat.pytorch.quantization.delayed_update import update_amax_and_scale
from torch_golden import assert_tensor

from narrowfloat import pytorch as nfp

pytestmark = MARKS


@pytest.mark.parametrize("name", QUANTIZERS)
def test_updates_in_place_and_noop(name: str) -> None:
    x, y = sample(128, 128).bfloat16(), sample(128, 128, seed=6).bfloat16()
    quantizer, reference = QUANTIZERS[name]("cuda"), QUANTIZERS[name]("cpu")
    seed(11)
    made = quantizer(x.cuda())
    before = on_host(made)
    places = {name: buffer.data_ptr() for name, buffer in buffers(made).items()}
    on, off = torch.ones(1, device="cuda"), torch.zeros(1, device="cuda")
    source = y.cuda()
    with no_synchronization():
        quantizer.update_quantized(source, made, noop_flag=on)
    assert_same_buffers(on_host(made), before, f"{name} with a noop of 1")
    seed(12)
    with no_synchronization():
        quantizer.update_quantized(source, made, noop_flag=off)
    seed(12)
    assert_same(made, reference(y), f"{name} written again")
    if name not in ("identity", "hybrid"):
        assert {n: buffer.data_ptr() for n, buffer in buffers(made).items()} == places


def test_amax_of_delayed_scaling() -> None:
    x = torch.tensor([[1.0, -5.0], [float("nan"), 2.0]], device="cuda")
    for old, noop, expected in [
        (0.0, 0.0, 5.0), (7.0, 0.0, 7.0), (0.5, 1.0, 0.5), (float("nan"), 0.0, float("nan")),
    ]:  # fmt: skip
        history = torch.full((4, 3), old, device="cuda")
        quantizer = nfp.Float8Quantizer(torch.ones(1, device="cuda"), history[0][1], E4M3)
        out = quantizer.make_empty(x.shape, device="cuda")
        quantizer.update_quantized(x, out, noop_flag=torch.full((1,), noop, device="cuda"))
        assert_tensor(history[0][1:2].cpu(), torch.tensor([expected]), f"from {old}")
        assert_tensor(history[1].cpu(), torch.full((3,), old), "the other rows")


@pytest.mark.parametrize("algo", ["max", "most_recent"])
def test_delayed_scaling_over_steps(algo: str) -> None:
    recipe = DelayedScaling(amax_history_len=3, amax_compute_algo=algo, margin=1)
    states = {
        device: (torch.zeros(3, 2, device=device), torch.ones(2, device=device))
        for device in ("cuda", "cpu")
    }
    with torch.inference_mode():  # in-place operators refuse such tensors outside
        states["cuda"] = (states["cuda"][0].clone(), states["cuda"][1].clone())
    for step in range(6):
        x = sample(64, 96, seed=step) * 2.0**step
        codes = {}
        for device, (history, scale) in states.items():
            source = x.to(device)
            quantizers = [
                nfp.Float8Quantizer(scale[i : i + 1], history[0][i : i + 1], E4M3) for i in (0, 1)
            ]
            codes[device] = [q(source * (i + 1)) for i, q in enumerate(quantizers)]
            codes[device].append(quantizers[0](source * 0.5))  # smaller: the amax stays
            update_amax_and_scale(history, scale, 448.0, recipe)
        for i, (actual, expected) in enumerate(zip(codes["cuda"], codes["cpu"], strict=True)):
            assert_same(actual, expected, f"step {step}, tensor {i}")
        for actual, expected in zip(states["cuda"], states["cpu"], strict=True):
            assert_tensor(actual.cpu(), expected, f"state after step {step}")


def test_fused_update_after_reduction() -> None:
    results = []
    for device in ("cuda", "cpu"):
        histories = [(sample(4, n, seed=n).abs()).to(device) for n in (2, 3)]
        wide = torch.ones(3, 5, device=device)
        scales = [torch.ones(2, device=device), wide[0, ::2]]  # the second is not contiguous
        newest = torch.tensor([0.0, 2.0, 3.0, 0.0, 1e-30], device=device)
        tex.fused_amax_and_scale_update_after_reduction(newest, histories, scales, "max", E4M3, 0.0)
        results.append([t.cpu() for t in (*histories, *scales, wide)])
    for actual, expected in zip(*results, strict=True):
        assert_tensor(actual, expected, "fused update")


@pytest.mark.parametrize("name", QUANTIZERS)
def test_runs_on_the_current_stream(name: str) -> None:
    x, late = sample(256, 256).bfloat16(), sample(256, 256, seed=8).bfloat16()
    quantizer, reference = QUANTIZERS[name]("cuda"), QUANTIZERS[name]("cpu")
    source, new = x.cuda(), late.cuda()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        quantizer(source).dequantize()  # loads kernels, and fills PyTorch's cache of memory
    torch.cuda.synchronize()
    seed(3)
    with torch.cuda.stream(side):
        torch.cuda._sleep(200_000_000)  # about 100 ms
        source.copy_(new)
        made = quantizer(source)
        values = made.dequantize()
        done = torch.cuda.Event()
        done.record()
        assert not done.query(), f"{name}: the call has waited for the stream"
    side.synchronize()
    seed(3)
    expected = reference(late)
    assert_same(made, expected, f"{name} on a side stream")
    assert_tensor(values.cpu(), expected.dequantize(), f"{name} decoded on a side stream")


def capture(run: Callable[[], Any]) -> tuple[torch.cuda.CUDAGraph, Any]:
    """Runs `run`, captures a second run, and returns its graph and its result."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = run()
    return graph, result


@pytest.mark.parametrize("name", QUANTIZERS)
def test_graphs(name: str) -> None:
    x = sample(128, 256).bfloat16()
    quantizer, reference = QUANTIZERS[name]("cuda"), QUANTIZERS[name]("cpu")
    source = x.cuda()

    def run() -> tuple[Any, torch.Tensor]:
        seed(3)
        made = quantizer(source)
        return made, made.dequantize()

    graph, (made, values) = capture(run)
    for step in (21, 22):
        new = sample(128, 256, seed=step).bfloat16() * step
        source.copy_(new)
        graph.replay()
        seed(3)  # a graph repeats the random numbers of its capture
        expected = reference(new)
        if name != "identity":  # its tensor is the source, which has changed
            assert_same(made, expected, f"{name} replayed")
        assert_tensor(values.cpu(), expected.dequantize(), f"{name} decoded in a graph")


def test_a_graph_reads_scale_amax_and_noop_from_memory() -> None:
    scale, history = torch.ones(1, device="cuda"), torch.zeros(4, 1, device="cuda")
    quantizer = nfp.Float8Quantizer(scale, history[0], E4M3)
    source, noop = sample(64, 64).cuda(), torch.zeros(1, device="cuda")
    out = quantizer.make_empty(source.shape, device="cuda")
    recipe = DelayedScaling(amax_history_len=4)

    def run() -> None:
        quantizer.update_quantized(source, out, noop_flag=noop)
        update_amax_and_scale(history, scale, 448.0, recipe)

    graph, _ = capture(run)
    scale.fill_(1)
    history.zero_()
    own_scale, own_history = torch.ones(1), torch.zeros(4, 1)
    reference = nfp.Float8Quantizer(own_scale, own_history[0], E4M3)
    expected = reference.make_empty(source.shape)
    for step in range(5):
        x, skips = sample(64, 64, seed=step) * 3**step, float(step == 3)
        source.copy_(x)
        noop.fill_(skips)
        graph.replay()
        reference.update_quantized(x, expected, noop_flag=torch.full((1,), skips))
        update_amax_and_scale(own_history, own_scale, 448.0, recipe)
        assert_same_buffers(on_host(out), expected, f"step {step}")
        assert_tensor(scale.cpu(), own_scale, f"scale after step {step}")
        assert_tensor(history.cpu(), own_history, f"history after step {step}")


def test_current_stays_on_the_device() -> None:
    """Checks that quantizing neither waits for the device nor copies from the host."""
    x = sample(128, 256).bfloat16().cuda()
    noop = torch.zeros(1, device="cuda")
    quantizers = [make("cuda") for make in QUANTIZERS.values()]
    kept = [quantizer(x) for quantizer in quantizers]
    with no_synchronization():
        for quantizer, out in zip(quantizers, kept, strict=True):
            quantizer(x).dequantize()
            quantizer.quantize(x, out=out)
            tex.quantize(x, quantizer, None, noop)
            tex.bgrad_quantize(x, quantizer)
            tex.split_quantize(x, [64, 64], [quantizer] * 2)
        tex.group_quantize(x, quantizers[0], 2, None)
        tex.group_quantize(x, nfp.MXFP8Quantizer(E4M3), 2, None)
