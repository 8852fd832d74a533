# SPDX-License-Identifier: Apache-2.0
"""Tests that splits of quantized tensors have PyTorch's number of pieces, and its errors."""

from collections.abc import Callable

import pytest
import torch
from families import ALL, assert_same_buffers, sample, snapshot

from narrowfloat import pytorch as nfp

Call = Callable[[torch.Tensor], object]
every = pytest.mark.parametrize("kind", list(ALL))


def quantized(kind: str, *shape: int) -> nfp.QuantizedTensor:
    return ALL[kind]()(sample(*shape)).detach()


REFUSED: dict[str, Call] = {
    "negative": lambda t: t.split(-1),
    "negative among sizes": lambda t: t.split([512, -256]),
    "zero": lambda t: t.split(0),
    "another sum": lambda t: t.split([1, 2]),
    "no sizes": lambda t: t.split([]),
    "no dimension": lambda t: t[0, 0].split(1),
    "dimension out of range": lambda t: t.split(16, 5),
    "unsafe negative": lambda t: t.unsafe_split(-1),
    "unsafe sizes": lambda t: t.unsafe_split_with_sizes([1, 2]),
}
SPLIT: dict[str, Call] = {
    "empty rows": lambda t: t[10:10].split(128),
    "empty rows by zero": lambda t: t[10:10].split(0),
    "empty rows without sizes": lambda t: t[10:10].split([]),
    "empty rows in chunks": lambda t: t[10:10].chunk(3),
    "columns of empty rows": lambda t: t[:0].split(128, 1),
    "an empty piece": lambda t: t.split([0, 256]),
    "negative dimension": lambda t: t.split(128, -2),
    "unsafe": lambda t: t.unsafe_chunk(2),
}


@pytest.mark.parametrize("kind", list(ALL))
def test_an_empty_piece_leaves_the_others_aliases(kind: str) -> None:
    tensor = quantized(kind, 256, 256)
    full, empty = tensor.split([256, 0])
    assert empty.shape == tensor[:0].shape == (0, 256) and empty.dtype == tensor.dtype
    tensor[:0].zero_()
    empty.zero_()
    assert tensor.dequantize().any()
    full.zero_()
    assert not tensor.dequantize().any()


@pytest.mark.parametrize("name", list(REFUSED))
@every
def test_sizes_that_torch_refuses(kind: str, name: str) -> None:
    tensor = quantized(kind, 256, 256)
    with pytest.raises((RuntimeError, IndexError)) as wanted:
        REFUSED[name](tensor.dequantize())
    with pytest.raises(type(wanted.value)) as got:
        REFUSED[name](tensor)
    assert str(got.value) == str(wanted.value)


@pytest.mark.parametrize("name", list(SPLIT))
@every
def test_pieces_that_torch_gives(kind: str, name: str) -> None:
    tensor = quantized(kind, 256, 256)
    pieces, wanted = SPLIT[name](tensor), SPLIT[name](tensor.dequantize())
    assert [piece.shape for piece in pieces] == [piece.shape for piece in wanted]
    for piece, plain in zip(pieces, wanted, strict=True):
        assert torch.equal(piece.dequantize(), plain)


@every
def test_splits_of_a_tensor_without_rows(kind: str) -> None:
    tensor = quantized(kind, 0, 256)
    for call in (lambda t: t.split(128), lambda t: t.split(0), lambda t: t.chunk(3)):
        assert [p.shape for p in call(tensor)] == [p.shape for p in call(torch.empty(0, 256))]
    assert tensor.split([]) == ()


UNSAFE: dict[str, Call] = {
    "unsafe_chunk": lambda t: t.unsafe_chunk(2),
    "unsafe_split": lambda t: t.unsafe_split(128),
    "unsafe_split of columns": lambda t: t.unsafe_split(128, -1),
    "unsafe_split_with_sizes": lambda t: torch.unsafe_split_with_sizes(t, [128, 128]),
    "pieces off the blocks": lambda t: t.unsafe_split_with_sizes([5, 251]),
    "pieces of values": lambda t: t.t().unsafe_split(128),
    "sizes of values": lambda t: t[::2].unsafe_split_with_sizes([5, 123], 0),
}


@pytest.mark.parametrize("name", list(UNSAFE))
@every
def test_a_write_to_an_unsafe_piece_arrives_or_is_refused(kind: str, name: str) -> None:
    tensor = quantized(kind, 256, 256)
    plain, before = tensor.dequantize().clone(), snapshot(tensor)
    piece, wanted = UNSAFE[name](tensor)[1], UNSAFE[name](plain)[1]
    assert torch.equal(piece.dequantize(), wanted)
    try:
        piece.zero_()
    except RuntimeError as error:
        assert "are read-only, because a write to them would not reach the tensor" in str(error)
        assert_same_buffers(tensor, before, "a refused write")
        assert torch.equal(piece.dequantize(), wanted)
        return
    wanted.zero_()
    assert torch.equal(tensor.dequantize(), plain) and not piece.dequantize().any()
