# SPDX-License-Identifier: Apache-2.0
"""Tests that copies of parts with non-contiguous codes share no memory with the whole."""

from collections.abc import Callable

import pytest
import torch
from families import (
    ALL,
    E4M3,
    assert_nothing_shared,
    assert_same_buffers,
    buffers,
    sample,
    snapshot,
)

from narrowfloat import pytorch as nfp

KINDS: dict[str, Callable[[], nfp.Quantizer]] = {
    **ALL,
    "float8_rows": lambda: nfp.Float8CurrentScalingQuantizer(E4M3, columnwise=False),
    "mxfp8_rows": lambda: nfp.MXFP8Quantizer(E4M3, columnwise=False),
    "nvfp4_rows": lambda: nfp.NVFP4Quantizer(columnwise=False),
    "hybrid_float8_identity": lambda: nfp.HybridQuantizer(
        rowwise_quantizer=nfp.Float8CurrentScalingQuantizer(E4M3),
        columnwise_quantizer=nfp.IdentityQuantizer(),
    ),
    "hybrid_mxfp8_nvfp4": lambda: nfp.HybridQuantizer(
        rowwise_quantizer=nfp.MXFP8Quantizer(E4M3), columnwise_quantizer=nfp.NVFP4Quantizer()
    ),
}
every = pytest.mark.parametrize("kind", list(KINDS))

STRIDED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "columns": lambda t: t[:, :128],
    "columns of rows": lambda t: t[128:][:, 128:],
    "steps": lambda t: t[::2],
}


def quantized(kind: str, *shape: int) -> nfp.QuantizedTensor:
    return KINDS[kind]()(sample(*shape)).detach()


def stays_quantized(kind: str, name: str) -> bool:
    if name == "steps":
        return kind.startswith("float8") or kind in ("identity", "hybrid_float8_identity")
    return kind != "nvfp4_row_scaled"


@pytest.mark.parametrize("name", list(STRIDED))
@every
def test_a_contiguous_copy_shares_nothing(kind: str, name: str) -> None:
    tensor = quantized(kind, 256, 256)
    before, wanted = snapshot(tensor), STRIDED[name](tensor.dequantize()).clone()
    part = STRIDED[name](tensor)
    assert isinstance(part, nfp.QuantizedTensor) is stays_quantized(kind, name)
    made = part.contiguous()
    assert type(made) is (type(part) if stays_quantized(kind, name) else torch.Tensor)
    assert torch.equal(made.dequantize(), wanted)
    made.fill_(100.0)  # larger than every value of the whole
    assert (made.dequantize() > 90).all()
    assert_same_buffers(tensor, before, "the whole, after a write to the copy")
    if stays_quantized(kind, name):
        assert_nothing_shared(tensor, made)
        assert all(buffer.is_contiguous() for buffer in buffers(made).values())
    copied = STRIDED[name](tensor).contiguous()
    tensor.zero_()
    assert torch.equal(copied.dequantize(), wanted), "a write to the whole changed the copy"


@every
def test_contiguous_tensors_are_their_own_copy(kind: str) -> None:
    tensor = quantized(kind, 256, 256)
    assert tensor.contiguous() is tensor and tensor.view(256, 256).contiguous() is not tensor
    tensor.contiguous().zero_()
    assert not tensor.dequantize().any()


def test_a_copy_in_another_format_shares_nothing() -> None:
    tensor = quantized("float8_current", 2, 4, 8, 16)
    before, wanted = snapshot(tensor), tensor.dequantize()
    made = tensor.contiguous(memory_format=torch.channels_last)
    assert made._data.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(made.dequantize(), wanted)
    assert_nothing_shared(tensor, made)
    made.fill_(100.0)
    assert_same_buffers(tensor, before, "the source")


@every
def test_gradients_pass_through_a_contiguous_copy(kind: str) -> None:
    if not stays_quantized(kind, "columns"):
        pytest.skip("columns are values")
    leaf = torch.nn.Parameter(quantized(kind, 256, 256))
    (leaf[:, :128].contiguous() * 3).sum().backward()
    assert (leaf.grad[:, :128] == 3).all() and not leaf.grad[:, 128:].any()
