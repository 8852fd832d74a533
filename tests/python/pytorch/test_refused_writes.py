# SPDX-License-Identifier: Apache-2.0
"""Tests that skipped and refused writes change no buffer, direction or setting."""

from collections.abc import Callable

import pytest
import torch
from families import ALL, E4M3, E5M2, SCHEMES, assert_same_buffers, sample, snapshot

from narrowfloat import pytorch as nfp

KINDS = [kind for kind in SCHEMES if kind in ALL and kind != "nvfp4_row_scaled"]
Write = Callable[[nfp.QuantizedTensor, torch.Tensor], object]


def refuse(write: Callable[[], object], error: type[Exception]) -> None:
    with pytest.raises(error, match=r"^quantize: "):
        write()


WRITES: dict[str, Write] = {
    "a flag of 1": lambda t, x: t.quantize_(x, noop_flag=torch.ones(1)),
    "float64": lambda t, x: refuse(lambda: t.quantize_(x.double()), TypeError),
    "a flag of integers": lambda t, x: refuse(
        lambda: t.quantize_(x, noop_flag=torch.zeros(1, dtype=torch.int64)), TypeError
    ),
    "two flags": lambda t, x: refuse(lambda: t.quantize_(x, noop_flag=torch.zeros(2)), ValueError),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("kind", KINDS)
def test_missing_columns_are_not_added(kind: str, write: str) -> None:
    tensor = ALL[kind]()(sample(256, 256)).detach()
    tensor.update_usage(rowwise_usage=True, columnwise_usage=False)
    before = snapshot(tensor)
    WRITES[write](tensor, sample(256, 256, seed=8))
    assert tensor.get_usages() == {"rowwise": True, "columnwise": False}
    assert_same_buffers(tensor, before, write)


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("kind", KINDS)
def test_columns_that_the_quantizer_does_not_make_stay(kind: str, write: str) -> None:
    tensor = ALL[kind]()(sample(256, 256)).detach()
    tensor._quantizer.set_usage(columnwise=False)
    before = snapshot(tensor)
    WRITES[write](tensor, sample(256, 256, seed=8))
    assert_same_buffers(tensor, before, write)


@pytest.mark.parametrize("kind", KINDS)
def test_a_skipped_write_takes_no_direction_of_an_alias(kind: str) -> None:
    whole = ALL[kind]()(sample(256, 256)).detach()
    alias = whole.detach()
    alias.update_usage(rowwise_usage=True, columnwise_usage=False)
    alias.quantize_(sample(256, 256, seed=8), noop_flag=torch.ones(1))
    assert not alias.get_usages()["columnwise"]


def test_new_buffers_are_dropped_if_the_scale_is_refused() -> None:
    quantizer = nfp.Float8Quantizer(torch.ones(1), torch.zeros(1), E4M3)
    tensor = quantizer(sample(32, 32)).detach()
    tensor.update_usage(columnwise_usage=False)
    tensor._quantizer.scale = torch.ones(1, dtype=torch.float16)
    with pytest.raises(ValueError, match=r"^quantize: scale must be float32"):
        tensor.quantize_(sample(32, 32, seed=8))
    assert not tensor.get_usages()["columnwise"] and tensor._transpose is None


def test_a_skipped_write_keeps_the_format() -> None:
    tensor = nfp.Float8CurrentScalingQuantizer(E4M3)(sample(32, 32)).detach()
    before = tensor.dequantize()
    other = nfp.Float8CurrentScalingQuantizer(E5M2)
    other.update_quantized(sample(32, 32, seed=8), tensor, noop_flag=torch.ones(1))
    assert torch.equal(tensor.dequantize(), before)
    other.update_quantized(sample(32, 32, seed=8), tensor, noop_flag=torch.zeros(1))
    assert_same_buffers(tensor, other(sample(32, 32, seed=8)), "a flag of 0")


def test_a_skipped_write_keeps_a_stale_transpose_stale() -> None:
    tensor = nfp.Float8CurrentScalingQuantizer(E4M3)(sample(32, 32)).detach()
    tensor._reset_caches()
    tensor.quantize_(sample(32, 32, seed=8), noop_flag=torch.ones(1))
    assert not tensor.get_usages()["columnwise"]
