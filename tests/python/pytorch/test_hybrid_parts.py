# SPDX-License-Identifier: Apache-2.0
"""Tests parts of hybrid tensors whose NVFP4 columns are flattened to a matrix, unlike the rows."""

import re
import types
from collections.abc import Callable

import pytest
import torch
from families import E4M3, assert_same_buffers, buffers, sample, snapshot
from narrowfloat.pytorch._read_only import ReadOnlyValues

from narrowfloat import pytorch as nfp

Cut = Callable[[torch.Tensor], torch.Tensor]
aten = torch.ops.aten

ROWS: dict[str, Callable[[], nfp.Quantizer]] = {
    "mxfp8": lambda: nfp.MXFP8Quantizer(E4M3),
    "nvfp4": lambda: nfp.NVFP4Quantizer(),
    "float8": lambda: nfp.Float8CurrentScalingQuantizer(E4M3),
    "identity": nfp.IdentityQuantizer,
}
every = pytest.mark.parametrize("rows", list(ROWS))

# Parts of a tensor of shape (8, 32, 64) with whole blocks of both children.
CUTS: dict[str, Cut] = {
    "matrices": lambda t: t[2:4],
    "narrow": lambda t: t.narrow(0, 3, 2),
    "negative": lambda t: t[-1:],
    "columns": lambda t: t[:, :, 32:],
    "split": lambda t: t.split(2)[1],
    "split with sizes": lambda t: t.split([2, 6])[1],
    "split columns": lambda t: t.split(32, -1)[1],
    "chunk": lambda t: t.chunk(4)[3],
    "select": lambda t: t[3],
    "select from the end": lambda t: t[-2],
    "unbind": lambda t: t.unbind()[5],
    "as_strided": lambda t: t.as_strided((2, 32, 64), (2048, 64, 1), 4096),
    "one matrix's rows": lambda t: t[4:5][:, 16:],
    "rows of a fourth dimension": lambda t: t[None][:, 2:5],
    "columns of a fourth dimension": lambda t: t[:, None][..., 32:],
    "matrix of a view": lambda t: t.view(2, 4, 32, 64)[1],
    "rows of a matrix": lambda t: t.view(256, 64)[None][:, 64:128],
}
VALUES: dict[str, Cut] = {
    "rows of each matrix": lambda t: t[:, :16],
    "last dimension": lambda t: t[..., None],
    "one column": lambda t: t[..., 3],
    "steps": lambda t: t[::2],
    "as_strided": lambda t: t.as_strided((4, 32, 64), (4096, 64, 1), 0),
    "split of rows": lambda t: t.split(16, 1)[1],
    "unbind columns": lambda t: t.unbind(-1)[7],
    "unbind rows": lambda t: t.unbind(1)[7],
}


def quantizer(rows: str) -> nfp.HybridQuantizer:
    return nfp.HybridQuantizer(
        rowwise_quantizer=ROWS[rows](), columnwise_quantizer=nfp.NVFP4Quantizer()
    )


def quantized(rows: str, *shape: int) -> nfp.HybridQuantizedTensor:
    return quantizer(rows)(sample(*shape)).detach()


def codes(tensor: nfp.HybridQuantizedTensor) -> dict[str, torch.Tensor]:
    return {name: buffer for name, buffer in buffers(tensor).items() if name.endswith("data")}


@pytest.mark.parametrize("name", list(CUTS))
@every
def test_a_part_cuts_both_children_alike(rows: str, name: str) -> None:
    """Compares the bytes after a write to a part with quantizing the changed whole tensor."""
    source = sample(8, 32, 64)
    source[0, 0, 0] = 100.0  # the largest magnitude, which no part contains
    tensor = quantizer(rows)(source.clone()).detach()
    part, target = CUTS[name](tensor), CUTS[name](source)
    assert type(part) is nfp.HybridQuantizedTensor and part.shape == target.shape
    assert torch.equal(part.dequantize(), CUTS[name](tensor.dequantize()))
    columns = part.columnwise_sub_storage
    assert columns.shape.numel() == part.numel() and columns.shape[-1] == part.shape[-1]
    assert columns.dim() == len(columns.stride()) == len(columns.shape)
    target.copy_(new := sample(*target.shape, seed=31).clamp(-1, 1))
    part.copy_(new)
    assert_same_buffers(tensor, quantizer(rows)(source).detach(), f"{rows} {name}")
    target.zero_()
    part.zero_()
    assert_same_buffers(codes(tensor), codes(quantizer(rows)(source)), f"{rows} {name} of zeros")


@pytest.mark.parametrize("name", list(VALUES))
@every
def test_other_parts_are_read_only_values(rows: str, name: str) -> None:
    tensor = quantized(rows, 8, 32, 64)
    before = snapshot(tensor)
    part = VALUES[name](tensor)
    assert type(part) is ReadOnlyValues
    assert torch.equal(part, VALUES[name](tensor.dequantize()))
    with pytest.raises(RuntimeError, match="are read-only"):
        part.zero_()
    assert_same_buffers(tensor, before, "a refused write")


@every
def test_rows_of_a_matrix_iterate(rows: str) -> None:
    tensor = quantized(rows, 64, 96)
    plain = tensor.dequantize()
    for way in (list, lambda t: t.unbind(0), lambda t: t.split([5, 59]), lambda t: t.unbind(1)):
        for row, wanted in zip(way(tensor), way(plain), strict=True):
            assert torch.equal(row, wanted) and type(row) is ReadOnlyValues
    assert torch.equal(tensor.chunk(5, 1)[4], plain.chunk(5, 1)[4])


def test_pieces_of_rows_that_cut_blocks_are_refused() -> None:
    for cut, length in (lambda t: t.chunk(3), 22), (lambda t: t.split(40), 40):
        with pytest.raises(
            NotImplementedError,
            match="^split: the local shape must be divisible by 16 for every child to stay "
            f"quantized, got pieces of {length}$",
        ):
            cut(quantized("mxfp8", 64, 96))


def test_shards_that_would_be_values_are_refused() -> None:
    """Checks the error: FSDP2 would keep the values as shards in place of the tensor."""
    tensor = quantized("identity", 8, 32, 64)

    def shard(cut: Cut) -> object:
        return cut(tensor)

    places = {"__name__": "torch.distributed.fsdp._fully_shard._fsdp_param", "tensor": tensor}
    within = types.FunctionType(shard.__code__, places, closure=shard.__closure__)
    message = (
        "HybridQuantizedTensor of shape (8, 32, 64) cannot be sharded: its shards cut blocks of a "
        "NVFP4Tensor"
    )
    for cut in (lambda t: t.split(16, 1), lambda t: t.split([16, 16], 1)):
        with pytest.raises(NotImplementedError, match=f"^{re.escape(message)}$"):
            within(cut)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("rows", ["mxfp8", "identity"])
def test_views_in_a_graph(rows: str, backend: str) -> None:
    views: tuple[Cut, ...] = (
        lambda t: t.view(2, 32, 64),
        lambda t: t.unsqueeze(0),
        lambda t: t.unflatten(0, (2, 32)),
        lambda t: t.view(2, 32, 64)[1],
    )
    for view in views:
        tensor = quantized(rows, 64, 64)
        made = torch.compile(view, backend=backend, fullgraph=True)(tensor)
        assert type(made) is nfp.HybridQuantizedTensor
        assert_same_buffers(made, view(tensor), "in a graph")
        assert made.shape == view(tensor).shape


def test_quantizing_three_dimensions_in_a_graph() -> None:
    x = sample(4, 16, 64)
    made = torch.compile(quantizer("mxfp8"), backend="aot_eager", fullgraph=True)(x)
    assert_same_buffers(made, quantizer("mxfp8")(x), "three dimensions")
    assert made.shape == x.shape


def test_gradients_of_flattened_columns_have_the_shape_of_the_input() -> None:
    x = sample(4, 16, 64, requires_grad=True)
    columns = nfp.NVFP4Quantizer(rowwise=False)(x)
    assert columns.shape == (64, 64)
    columns.backward(grad := sample(64, 64, seed=2))
    assert torch.equal(x.grad, grad.view(4, 16, 64))


def test_stacks_with_flattened_columns_multiply_by_their_codes() -> None:
    first, second = quantized("nvfp4", 4, 32, 64), quantized("nvfp4", 4, 64, 32)
    product = torch.bmm(first, second)
    for index in range(4):
        assert torch.equal(product[index], torch.mm(first[index], second[index]))
    first, second = quantized("nvfp4", 4, 24, 64), quantized("nvfp4", 4, 24, 32)  # 1.5 blocks
    wanted = torch.bmm(first.dequantize().mT, second.dequantize())
    assert torch.equal(torch.bmm(first.mT, second), wanted)
