# SPDX-License-Identifier: Apache-2.0
"""Tests that writes to aliases in the lists of one operator are shared, as for plain tensors."""

import re
from collections.abc import Callable

import pytest
import torch
from families import ALL, assert_same_buffers, sample, snapshot

from narrowfloat import pytorch as nfp

every = pytest.mark.parametrize("kind", list(ALL))

ALIASES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "itself": lambda t: t,
    "detached": lambda t: t.detach(),
    "view": lambda t: t.view(2, 128, 256),
    "columns": lambda t: t[:, :128],
    "rows": lambda t: t.view(256, 256)[128:],
}


def quantized(kind: str, *shape: int) -> nfp.QuantizedTensor:
    return ALL[kind]()(sample(*shape)).detach()


def ones(kind: str) -> nfp.QuantizedTensor:
    return ALL[kind]()(torch.ones(256, 256)).detach()


def is_alias(kind: str, name: str) -> bool:
    if kind == "nvfp4_row_scaled":
        return name != "columns"
    return not (kind == "blockwise_2d" and name == "view")


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", ["itself", "detached", "view"])
@every
def test_an_alias_sees_the_writes_of_the_others(kind: str, name: str) -> None:
    if not is_alias(kind, name):
        pytest.skip("a view of square tiles keeps the last two dimensions")
    tensor, other = ones(kind), ones(kind)
    torch._foreach_mul_([tensor, other, ALIASES[name](tensor)], 2.0)
    assert (tensor.dequantize() == 4).all() and (other.dequantize() == 2).all()
    torch._foreach_mul_([ALIASES[name](tensor), other, tensor], [0.5, 4.0, 0.25])
    assert (tensor.dequantize() == 0.5).all() and (other.dequantize() == 8).all()


@every
def test_operands_see_the_writes_to_their_aliases(kind: str) -> None:
    first, second = ones(kind), ones(kind)
    torch._foreach_add_([first, second], [second.detach(), first.detach()])
    assert (first.dequantize() == 2).all() and (second.dequantize() == 3).all()


def parts_of(kind: str, tensor: torch.Tensor) -> list[torch.Tensor]:
    rows = [tensor[:128], tensor[128:]]
    if not is_alias(kind, "columns"):
        return rows
    return [part[:, columns] for part in rows for columns in (slice(128), slice(128, None))]


@every
def test_parts_that_share_nothing_are_written(kind: str) -> None:
    tensor, wanted = quantized(kind, 256, 256), quantized(kind, 256, 256)
    torch._foreach_neg_(parts_of(kind, tensor))
    for part in parts_of(kind, wanted):
        part.neg_()
    assert_same_buffers(tensor, wanted, "parts in one list")


@pytest.mark.parametrize("name", ["columns", "rows"])
@every
def test_a_tensor_and_its_part_are_refused(kind: str, name: str) -> None:
    if not is_alias(kind, name):
        pytest.skip("columns are values")
    tensor, plain = quantized(kind, 256, 256), torch.ones(3)
    before = snapshot(tensor)
    message = (
        f"aten._foreach_mul_.Scalar: writing tensors that share a part of their memory is not "
        f"supported, got a {type(tensor).__name__} of shape (256, 256) among them; write them one "
        "after another"
    )
    with pytest.raises(NotImplementedError, match=f"^{re.escape(message)}$"):
        torch._foreach_mul_([plain, tensor, ALIASES[name](tensor)], 2.0)
    assert_same_buffers(tensor, before, "a refused write")
    assert (plain == 1).all()


def test_other_overlaps_are_refused() -> None:
    rows = quantized("mxfp8", 64, 64)
    columns = rows.detach()
    columns.update_usage(rowwise_usage=False)
    x = sample(64, 64)
    values = nfp.IdentityQuantizer()(x)
    strided = quantized("float8_current", 64, 64)[:, :32]
    for written in (
        [rows, columns],
        [rows, rows.to_dtype(torch.bfloat16)],
        [x, values],
        [values, x[3:]],
        [values, x.view(torch.float16)],
        [strided, strided.view(2, 32, 32)],
        [strided[:, :16], strided[:, 8:]],
    ):
        with pytest.raises(NotImplementedError, match="that share a part of their memory"):
            torch._foreach_mul_(written, 2.0)
    torch._foreach_neg_([x, strided[:, :16], strided[:, 16:]])


@pytest.mark.parametrize("kind", ["mxfp8", "float8_current"])
def test_aliases_in_a_graph_are_written(kind: str) -> None:
    def double(tensor: torch.Tensor, other: torch.Tensor) -> None:
        torch._foreach_mul_([tensor, other], 2.0)

    tensor, other = ones(kind), ones(kind)
    torch.compile(double, backend="eager")(tensor, other)
    assert (tensor.dequantize() == 2).all() and (other.dequantize() == 2).all()
