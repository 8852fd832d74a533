# SPDX-License-Identifier: Apache-2.0
"""Makes quantizers of every kind on a device, and compares CUDA tensors with CPU tensors."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import pytest
import torch
from families import E4M3, E5M2, assert_same_buffers, buffers, sample
from torch_golden import assert_tensor

from narrowfloat import pytorch as nfp


def why_not() -> str:
    """Returns why CUDA tensors cannot be quantized here; empty if they can."""
    if not torch.cuda.is_available():
        return "needs a CUDA device, and torch.cuda.is_available() is false"
    try:
        nfp.MXFP8Quantizer(E4M3)(torch.zeros(32, 32, device="cuda"))
    except NotImplementedError as error:
        return str(error)
    return ""


WHY_NOT = why_not()
MARKS = [pytest.mark.gpu, pytest.mark.skipif(WHY_NOT != "", reason=WHY_NOT or "runs")]

Make = Callable[[str], nfp.Quantizer]  # returns a quantizer on a device
Made: TypeAlias = Any  # a quantized tensor, or the type and text of an error


def delayed(dtype: nfp.DType = E4M3, scale: float = 3.0) -> Make:
    def make(device: str) -> nfp.Quantizer:
        state = torch.full((1,), scale, device=device), torch.zeros(1, device=device)
        return nfp.Float8Quantizer(*state, dtype)

    return make


def of(cls: type, *args: Any, swizzled: bool = False, **options: Any) -> Make:
    def make(device: str) -> nfp.Quantizer:
        quantizer = cls(*args, **options)
        quantizer.optimize_for_gemm = swizzled
        return quantizer

    return make


CURRENT, MXFP8 = nfp.Float8CurrentScalingQuantizer, nfp.MXFP8Quantizer
BLOCKS, NVFP4 = nfp.Float8BlockQuantizer, nfp.NVFP4Quantizer
BOTH = {"rowwise": True, "columnwise": True}
RHT = {"with_rht": True, "with_post_rht_amax": True}
QUANTIZERS: dict[str, Make] = {
    "delayed_e4m3": delayed(),
    "delayed_e5m2": delayed(E5M2, 0.37),
    "current_e4m3": of(CURRENT, E4M3),
    "current_e5m2": of(CURRENT, E5M2, force_pow_2_scales=True),
    "current_epsilon": of(CURRENT, E4M3, amax_epsilon=100.0),
    "mxfp8_e4m3": of(MXFP8, E4M3),
    "mxfp8_e5m2": of(MXFP8, E5M2),
    "mxfp8_swizzled": of(MXFP8, E4M3, swizzled=True),
    "mxfp8_2d": of(MXFP8, E4M3, with_2d_quantization=True),
    "block1x128": of(BLOCKS, E4M3, block_scaling_dim=1, **BOTH),
    "block1x128_e5m2": of(BLOCKS, E5M2, block_scaling_dim=1, force_pow_2_scales=False, **BOTH),
    "block128x128": of(BLOCKS, E4M3, **BOTH),
    "nvfp4": of(NVFP4),
    "nvfp4_swizzled": of(NVFP4, swizzled=True),
    "nvfp4_2d": of(NVFP4, with_2d_quantization=True),
    "nvfp4_rht": of(NVFP4, **RHT),
    "nvfp4_2d_rht": of(NVFP4, with_2d_quantization=True, **RHT),
    "nvfp4_stochastic": of(NVFP4, stochastic_rounding=True),
    "nvfp4_row_scaled": of(NVFP4, columnwise=False, row_scaled_nvfp4=True),
    "nvfp4_4over6": of(NVFP4, nvfp4_use_4over6=True, nvfp4_e4m3_max=256),
    "identity": lambda device: nfp.IdentityQuantizer(),
    "hybrid": lambda device: nfp.HybridQuantizer(
        rowwise_quantizer=nfp.NVFP4Quantizer(),
        columnwise_quantizer=nfp.MXFP8Quantizer(E4M3),
        columnwise_source="rowwise_dequantized",
    ),
}
DIRECTIONS = {"rowwise": (True, False), "columnwise": (False, True), "both": (True, True)}
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SHAPES = [(32, 64), (128, 256), (384, 160), (1, 32), (16, 16), (3, 32, 64), (2, 64, 96), (0, 64)]
ODD_SHAPES = [(1, 1), (7, 13), (33, 65), (130, 48), (129, 257), (5, 3, 129), (64,)]


def sample_with_blocks(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Returns values whose magnitudes differ from block to block, with zeros among them."""
    x = sample(*shape) if 0 not in shape else torch.zeros(shape)
    if x.dim() > 1 and x.numel():
        x = x * torch.logspace(-3, 3, x.shape[-1]).roll(x.shape[0])
        x[..., : x.shape[-1] // 3] *= (torch.arange(x.shape[-2]) % 5 != 0)[:, None]
    return x.to(dtype)


def seed(number: int) -> None:
    """Seeds the CPU's generator, which stochastic rounding reads. Seeding CUDA's generators would
    be refused in a capture."""
    torch.default_generator.manual_seed(number)


def on_host(made: Made) -> dict[str, torch.Tensor]:
    return {name: buffer.cpu() for name, buffer in buffers(made).items()}


def assert_on_cuda(made: Made, what: str) -> None:
    for name, buffer in buffers(made).items():
        assert buffer.is_cuda, f"{what}: {name} is on {buffer.device}"
    assert made.device == torch.device("cuda", torch.cuda.current_device()), what


def outcome(call: Callable[[], Any]) -> Made:
    """Returns the result, or the type and text of the error."""
    try:
        return call()
    except (NotImplementedError, RuntimeError, ValueError) as error:
        return type(error), str(error)


def assert_same(actual: Made, expected: Made, what: str) -> None:
    """Asserts that buffers and values, or the error, are the same as on the CPU."""
    if isinstance(expected, tuple):
        assert actual == expected, what
        return
    assert not isinstance(actual, tuple), f"{what}: {actual}"
    assert_on_cuda(actual, what)
    if not expected.numel():  # nothing is written
        shapes = {n: (b.shape, b.dtype) for n, b in buffers(expected).items()}
        assert {n: (b.shape, b.dtype) for n, b in buffers(actual).items()} == shapes, what
        return
    assert_same_buffers(on_host(actual), expected, what)
    for dtype in DTYPES:
        values = outcome(lambda d=dtype: actual.dequantize(dtype=d))
        wanted = outcome(lambda d=dtype: expected.dequantize(dtype=d))
        if isinstance(wanted, tuple):
            assert values == wanted, what
            continue
        assert values.is_cuda, what
        values = values.cpu()
        if what.startswith("identity"):  # PyTorch converts, to another NaN on a GPU
            values, wanted = (t.masked_fill(t.isnan(), torch.nan) for t in (values, wanted))
        assert_tensor(values, wanted, f"{what}, decoded to {dtype}")


def quantize_on_both(make: Make, usages: tuple[bool, bool], x: torch.Tensor) -> tuple[Made, Made]:
    """Returns the outcomes on CUDA and on the CPU, with the strides of `x`, a CPU tensor."""
    made = []
    for device in ("cuda", "cpu"):
        quantizer = make(device)
        quantizer.set_usage(rowwise=usages[0], columnwise=usages[1])
        source = x.to(device, memory_format=torch.preserve_format)
        seed(11)  # for stochastic rounding
        made.append(outcome(lambda q=quantizer, s=source: q(s)))
    return made[0], made[1]


@contextmanager
def no_synchronization() -> Iterator[None]:
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
