# SPDX-License-Identifier: Apache-2.0
"""Tests reshape() of parts with non-contiguous codes: a view if strides allow it, else a copy."""

from collections.abc import Callable

import pytest
import torch
from families import E4M3, assert_nothing_shared, assert_same_buffers, delayed, sample, snapshot
from narrowfloat.pytorch._read_only import ReadOnlyValues

from narrowfloat import pytorch as nfp

Cut = Callable[[torch.Tensor], torch.Tensor]

KINDS: dict[str, Callable[[], nfp.Quantizer]] = {
    "float8_delayed": delayed,
    "float8_current": lambda: nfp.Float8CurrentScalingQuantizer(E4M3),
    "float8_rows": lambda: nfp.Float8CurrentScalingQuantizer(E4M3, columnwise=False),
    "identity": nfp.IdentityQuantizer,
    "hybrid_float8_identity": lambda: nfp.HybridQuantizer(
        rowwise_quantizer=nfp.Float8CurrentScalingQuantizer(E4M3),
        columnwise_quantizer=nfp.IdentityQuantizer(),
    ),
}
every = pytest.mark.parametrize("kind", list(KINDS))

COPIES: dict[str, Cut] = {
    "columns": lambda t: t[:, :128].reshape(-1),
    "last columns": lambda t: t.chunk(2, -1)[1].reshape(-1, 16),
    "steps": lambda t: t[::2].reshape(-1),
    "some rows of each matrix": lambda t: t.view(2, 128, 256)[:, :64].reshape(-1, 256),
}
VIEWS: dict[str, Cut] = {
    "rows": lambda t: t[:128].reshape(-1),
    "matrices of columns": lambda t: t[:, :128].reshape(2, 128, 128),
    "the shape itself": lambda t: t[:, :128].reshape(256, 128),
}
OPERATORS: dict[str, Cut] = {
    "flatten": lambda t: t[:, :128].flatten(),
    "torch.flatten": lambda t: torch.flatten(t[::2]),
    "torch.reshape": lambda t: torch.reshape(t[:, 128:], (-1, 16)),
    "ravel": lambda t: t[:, :128].ravel(),
    "flatten of two dimensions": lambda t: t.view(2, 128, 256)[:, :64].flatten(0, 1),
}


def quantized(kind: str) -> nfp.QuantizedTensor:
    return KINDS[kind]()(sample(256, 256)).detach()


@pytest.mark.parametrize("name", list(COPIES))
@every
def test_reshape_copies_where_strides_allow_no_view(kind: str, name: str) -> None:
    tensor = quantized(kind)
    before, wanted = snapshot(tensor), COPIES[name](tensor.dequantize())
    made = COPIES[name](tensor)
    assert type(made) is type(tensor) and torch.equal(made.dequantize(), wanted)
    assert_nothing_shared(tensor, made)
    made.fill_(100.0)
    assert_same_buffers(tensor, before, "the whole, after a write to the copy")


@pytest.mark.parametrize("name", list(VIEWS))
@every
def test_reshape_is_a_view_where_strides_allow_one(kind: str, name: str) -> None:
    tensor = quantized(kind)
    plain = tensor.dequantize().clone()
    made = VIEWS[name](tensor)
    assert type(made) is type(tensor)
    made.zero_()
    VIEWS[name](plain).zero_()
    assert torch.equal(tensor.dequantize(), plain)


@pytest.mark.parametrize("name", list(OPERATORS))
@every
def test_operators_that_reshape_read_values(kind: str, name: str) -> None:
    """Checks operators that view the wrapper, which is contiguous except in high precision."""
    tensor = quantized(kind)
    before, wanted = snapshot(tensor), OPERATORS[name](tensor.dequantize())
    made = OPERATORS[name](tensor)
    assert torch.equal(made.dequantize(), wanted)
    if kind == "identity":
        made.zero_()
    else:
        assert type(made) is ReadOnlyValues
        with pytest.raises(RuntimeError, match="are read-only"):
            made.zero_()
    assert_same_buffers(tensor, before, "the whole")


def test_transposed_values_in_high_precision_reshape() -> None:
    x = sample(6, 8)
    tensor = nfp.IdentityQuantizer()(x.t())
    for flat in (tensor.reshape(-1), tensor.flatten(), tensor.clone().flatten()):
        assert type(flat) is nfp.IdentityTensor and torch.equal(flat.dequantize(), x.t().flatten())
    assert tensor.clone()._hp_data.stride() == x.t().stride()


@every
def test_gradients_pass_through_a_copy(kind: str) -> None:
    leaf = torch.nn.Parameter(quantized(kind))
    (leaf[:, :128].reshape(-1) * 3).sum().backward()
    assert (leaf.grad[:, :128] == 3).all() and not leaf.grad[:, 128:].any()


@pytest.mark.parametrize("kind", ["float8_current", "identity", "hybrid_float8_identity"])
def test_reshape_in_a_graph(kind: str) -> None:
    tensor = quantized(kind)
    for cut in (COPIES["columns"], COPIES["steps"], VIEWS["matrices of columns"]):
        made = torch.compile(cut, backend="aot_eager", fullgraph=True)(tensor)
        assert type(made) is type(tensor) and torch.equal(
            made.dequantize(), cut(tensor).dequantize()
        )


ROWS: dict[str, Callable[[], nfp.Quantizer]] = {
    "mxfp8": lambda: nfp.MXFP8Quantizer(E4M3, columnwise=False),
    "blockwise": lambda: nfp.Float8BlockQuantizer(
        E4M3, rowwise=True, columnwise=False, block_scaling_dim=1
    ),
    "nvfp4": lambda: nfp.NVFP4Quantizer(columnwise=False),
    "hybrid": lambda: nfp.HybridQuantizer(
        rowwise_quantizer=nfp.MXFP8Quantizer(E4M3), columnwise_quantizer=nfp.IdentityQuantizer()
    ),
    **KINDS,
}


@pytest.mark.parametrize("kind", list(ROWS))
def test_rows_have_an_outer_product(kind: str) -> None:
    """Checks torch.outer(), which views a row as a column: no blocks of a row allow that."""
    tensor = ROWS[kind]()(sample(64, 64)).detach()
    plain = tensor.dequantize()
    first, second = tensor[0], tensor[1]
    assert first.dim() == 1 and isinstance(first, nfp.QuantizedTensor)
    product = torch.outer(first, second)
    assert type(product) is torch.Tensor
    assert torch.equal(product, torch.outer(plain[0], plain[1]))
    column = torch.ops.aten.view.default(first, [64, 1])
    assert torch.equal(column.dequantize(), plain[0].view(64, 1))
    assert torch.equal(first.flatten().dequantize(), plain[0])
