# SPDX-License-Identifier: Apache-2.0
"""Tests that verbs copy no tensors, use torch's number of threads, and release the GIL."""

import threading
import time

import pytest
import torch
from families import SCHEMES, assert_same_buffers, buffers, sample
from narrowfloat.pytorch import _native

from narrowfloat import _core
from narrowfloat import pytorch as nfp


@pytest.mark.parametrize("kind", list(SCHEMES))
def test_strided_rows_are_read_where_they_lie(kind: str) -> None:
    quantizer = SCHEMES[kind]()
    wide = sample(128, 512)
    strided, transposed = wide[:, :256], sample(256, 128).t()
    for x in (strided, transposed, sample(2, 64, 512)[:, :, ::2]):
        assert_same_buffers(
            quantizer(x).detach(), quantizer(x.contiguous()).detach(), "strided input"
        )


@pytest.mark.parametrize("kind", list(SCHEMES))
def test_in_place_allocates_no_tensor_of_its_size(kind: str) -> None:
    quantizer, x = SCHEMES[kind](), sample(512, 512)
    out = quantizer(x).detach()
    with torch.no_grad(), torch.profiler.profile(profile_memory=True) as profile:
        quantizer.quantize(x, out=out)
    # The profile counts the memory that torch allocates. Scalars such as seeds are allowed.
    allocated = sum(max(event.cpu_memory_usage, 0) for event in profile.events())
    assert allocated < 4096


def test_threads_are_those_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    quantizer = SCHEMES["mxfp8"]()

    class Spy:
        def quantize(self, *arguments: object) -> None:
            asked.append(arguments[-1])

    monkeypatch.setattr(_native, "verbs", Spy())
    before = torch.get_num_threads()
    for threads in (1, 2):
        torch.set_num_threads(threads)
        quantizer(sample())
    torch.set_num_threads(before)
    assert asked == [1, 2]


@pytest.mark.parametrize("kind", list(SCHEMES))
def test_bytes_do_not_depend_on_threads(kind: str) -> None:
    before = torch.get_num_threads()
    results = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        results.append(SCHEMES[kind]()(sample(1024, 512)).detach())
    torch.set_num_threads(before)
    assert_same_buffers(results[0], results[1], "threads")


def test_the_lock_is_let_go() -> None:
    """Checks that another thread runs while a large tensor is quantized."""
    x = torch.randn(4096, 4096)
    quantizer = SCHEMES["nvfp4"]()
    out = quantizer(x).detach()
    stamps: list[float] = []
    running = True

    def count() -> None:
        while running:
            stamps.append(time.perf_counter())
            time.sleep(0.0005)

    counter = threading.Thread(target=count)
    counter.start()
    begin = time.perf_counter()
    for _ in range(3):
        _native.verbs.quantize(
            quantizer._spec(), x, out._role_buffers(), None, None, None, None, 0, 0, 1
        )
    end = time.perf_counter()
    running = False
    counter.join()
    assert sum(begin < stamp < end for stamp in stamps) >= 3


def test_buffers_keep_their_memory() -> None:
    for make in SCHEMES.values():
        quantizer = make()
        out = quantizer(sample()).detach()
        places = {name: buffer.data_ptr() for name, buffer in buffers(out).items()}
        quantizer.quantize(sample(seed=2), out=out)
        assert places == {name: buffer.data_ptr() for name, buffer in buffers(out).items()}


def test_plans_come_from_the_planner() -> None:
    spec = _core.make_spec("nvfp4", True, True, swizzled=True)
    assert spec.text == "nvfp4:columnwise=1,swizzled=1"
    planned = _native.plan(spec, (64, 128))
    assert [buffer.role for buffer in planned] == [
        "rowwise_data", "rowwise_scale_inv", "columnwise_data", "columnwise_scale_inv",
        "amax_rowwise", "amax_columnwise",
    ]  # fmt: skip
    assert planned[0].dtype is torch.uint8 and planned[0].shape == (64, 64)
    assert _native.make_spec("nvfp4", True, True) is _native.make_spec("nvfp4", True, True)
    assert isinstance(nfp.NVFP4Quantizer()._spec(), _core.QuantSpec)
