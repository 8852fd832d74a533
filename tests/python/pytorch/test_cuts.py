# SPDX-License-Identifier: Apache-2.0
"""Parts of quantized tensors: what is written to them is written to the whole, and nothing else."""

from collections.abc import Callable

import pytest
import torch
from families import ALL, assert_same_buffers, buffers, sample, snapshot

from narrowfloat import pytorch as nfp

aten = torch.ops.aten
BLOCKS = [kind for kind in ALL if not kind.startswith(("float8", "identity"))]
every = pytest.mark.parametrize("kind", list(ALL))
blocks = pytest.mark.parametrize("kind", BLOCKS)

CUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "rows": lambda t: t[128:256],
    "last rows": lambda t: t[256:],
    "narrow": lambda t: t.narrow(0, 128, 128),
    "negative": lambda t: t[-128:],
    "columns": lambda t: t[:, 128:256],
    "columns of rows": lambda t: t[128:256][:, 256:],
    "split": lambda t: t.split(128)[1],
    "split with sizes": lambda t: t.split([128, 256])[1],
    "split columns": lambda t: t.split(128, -1)[2],
    "chunk": lambda t: t.chunk(3)[2],
    "detached": lambda t: t.detach()[128:256].detach(),
    "view of rows": lambda t: t[128:384].view(2, 128, 384),
    "select": lambda t: t.view(3, 128, 384)[1],
    "unbind": lambda t: t.view(3, 128, 384).unbind()[2],
    "unsqueezed": lambda t: t[128:256].unsqueeze(0),
    "as_strided": lambda t: t.as_strided((128, 384), (384, 1), 128 * 384),
}
WRITES: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "copy_": lambda part, x: part.copy_(x),
    "quantize_": lambda part, x: part.quantize_(x),
    "out": lambda part, x: torch.add(x, 0, out=part),
    "set item": lambda part, x: part.__setitem__(slice(None), x),
}


def quantized(kind: str, *shape: int) -> nfp.QuantizedTensor:
    return ALL[kind]()(sample(*shape)).detach()


def small(*shape: int, seed: int = 31) -> torch.Tensor:
    """Values that fit under the scale of any sample."""
    return sample(*shape, seed=seed).clamp(-1, 1)


def why_not(kind: str, name: str) -> str | None:
    if kind == "nvfp4_row_scaled" and "columns" in name:
        return "an amax of a row serves all of its columns"
    if kind == "blockwise_2d" and name in ("view of rows", "select", "unbind"):
        return "views of square tiles keep the last two dimensions"
    return None


@pytest.mark.parametrize("name", list(CUTS))
@blocks
def test_a_cut_is_an_alias_of_whole_blocks(kind: str, name: str) -> None:
    if (reason := why_not(kind, name)) is not None:
        pytest.skip(reason)
    tensor = quantized(kind, 384, 384)
    plain = tensor.dequantize()
    part, wanted = CUTS[name](tensor), CUTS[name](plain)
    assert type(part) is type(tensor) and part.shape == wanted.shape
    assert torch.equal(part.dequantize(), wanted)
    part.zero_()
    wanted.zero_()
    assert torch.equal(tensor.dequantize(), plain) and not part.dequantize().any()


@pytest.mark.parametrize(
    ("name", "write"),
    [(name, "copy_") for name in CUTS] + [("rows", write) for write in list(WRITES)[1:]],
)
@blocks
def test_writing_to_a_cut_changes_its_blocks_alone(kind: str, name: str, write: str) -> None:
    """Blocks of a scale of their own: the bytes of quantizing the new values as a whole."""
    if (reason := why_not(kind, name)) is not None:
        pytest.skip(reason)
    source = sample(384, 384)
    source[0, 0] = 100.0  # the largest magnitude stays where nothing is written
    tensor = ALL[kind]()(source).detach()
    part = CUTS[name](tensor)
    CUTS[name](source).copy_(x := small(*part.shape))
    WRITES[write](part, x)
    expected = ALL[kind]()(source).detach()
    assert_same_buffers(tensor, expected, f"{kind} {name}")
    assert torch.equal(part.dequantize(), CUTS[name](expected.dequantize()))


@blocks
def test_a_cut_without_padding_stands_alone_once_it_is_copied(kind: str) -> None:
    tensor = quantized(kind, 384, 384)
    part = tensor[128:256]
    wanted = part.dequantize()
    for copied in (part.clone(), part.to("cpu", copy=True)):
        assert torch.equal(copied.dequantize(), wanted)
        alone = ALL[kind]()(sample(384, 384)[128:256]).detach()
        assert {n: b.shape for n, b in buffers(copied).items()} == {
            n: b.shape for n, b in buffers(alone).items()
        }
        before = snapshot(tensor)
        copied.zero_()
        assert_same_buffers(tensor, before, "the source of a copy")


@blocks
def test_raw_copies_between_cuts(kind: str) -> None:
    """How FSDP2 and distributed checkpoints move shards."""
    tensor = quantized(kind, 384, 384)
    pieces = [piece.clone() for piece in tensor.split(128)]
    other = ALL[kind]()(sample(384, 384)).detach().zero_()
    for index, piece in enumerate(pieces):
        other.narrow(0, 128 * index, 128).copy_(piece)
    assert torch.equal(other.dequantize(), tensor.dequantize())
