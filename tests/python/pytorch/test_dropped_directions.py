# SPDX-License-Identifier: Apache-2.0
"""Tests that writes to an alias that dropped a direction also update it in other aliases."""

import gc
import re
from collections.abc import Callable

import pytest
import torch
from families import ALL, SCHEMES, assert_same_buffers, buffers, sample, snapshot
from narrowfloat.pytorch.tensor.storage import _dropped
from writes import KINDS as MORE

from narrowfloat import pytorch as nfp

# test_float8_aliases.py tests per-tensor FP8. nvfp4_row_scaled is made without columns.
KINDS = {
    name: make
    for name, make in {**ALL, **MORE}.items()
    if not name.startswith("float8_") and name not in ("identity", "nvfp4_row_scaled")
}
BLOCKS = [name for name in KINDS if name in SCHEMES]
TILES = ["blockwise_2d", "nvfp4_2d"]
every = pytest.mark.parametrize("kind", KINDS)
directions = pytest.mark.parametrize("direction", ["rowwise", "columnwise"])

Write = Callable[[nfp.QuantizedTensor, nfp.QuantizedTensor], object]


def quantized(kind: str, seed: int = 5) -> nfp.QuantizedTensor:
    return KINDS[kind]()(sample(256, 256, seed=seed)).detach()


def without(tensor: nfp.QuantizedTensor, direction: str) -> nfp.QuantizedTensor:
    tensor.update_usage(**{f"{direction}_usage": False})
    assert not tensor.get_usages()[direction]
    return tensor


def fill_one_direction(tensor: nfp.QuantizedTensor, other: nfp.QuantizedTensor) -> None:
    quantizer = tensor._quantizer.copy()
    quantizer.set_usage(**tensor.get_usages())
    quantizer.quantize(sample(256, 256, seed=8), out=tensor)


WRITES: dict[str, Write] = {
    "zero_": lambda t, other: t.zero_(),
    "copy_": lambda t, other: t.copy_(sample(256, 256, seed=8)),
    "copy_ of codes": lambda t, other: t.copy_(other),
    "quantize_": lambda t, other: t.quantize_(sample(256, 256, seed=8)),
    "out of a quantizer of one direction": fill_one_direction,
}
ALIASES: dict[str, Callable[[nfp.QuantizedTensor], nfp.QuantizedTensor]] = {
    "detach": lambda t: t.detach(),
    "alias": torch.ops.aten.alias,
    "alias of an alias": lambda t: t.detach().view(256, 256),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("way", ALIASES)
@directions
@every
def test_a_write_reaches_the_direction_that_an_alias_dropped(
    kind: str, direction: str, way: str, write: str
) -> None:
    whole, other, expected = quantized(kind), quantized(kind, seed=8), quantized(kind)
    alias = without(ALIASES[way](whole), direction)
    WRITES[write](alias, other)
    WRITES[write](expected, other)
    assert_same_buffers(whole, expected, "the alias with both directions")
    # A quantizer of one direction drops the other one again, except in children of hybrids.
    assert alias.get_usages()[direction] == ("out of" not in write or kind not in BLOCKS)


@every
def test_values_that_are_read_are_written_in_both_directions(kind: str) -> None:
    whole, expected = quantized(kind), quantized(kind)
    without(whole.detach(), "columnwise").mul_(0.5)
    expected.mul_(0.5)
    assert_same_buffers(whole, expected, "the alias with both directions")


@pytest.mark.parametrize("kind", BLOCKS)
def test_a_quantizer_of_one_direction_writes_what_aliases_have(kind: str) -> None:
    """Checks that it drops the other direction only in the tensor that it writes."""
    whole, expected = quantized(kind), quantized(kind)
    alias = whole.detach()
    alias._quantizer.set_usage(columnwise=False)
    alias.quantize_(sample(256, 256, seed=8))
    expected.quantize_(sample(256, 256, seed=8))
    assert_same_buffers(whole, expected, "the alias with both directions")


@pytest.mark.parametrize("kind", [kind for kind in BLOCKS if kind != "blockwise_2d"])
def test_a_view_that_dropped_a_direction_is_written(kind: str) -> None:
    whole, expected = quantized(kind), quantized(kind)
    without(whole.view(2, 128, 256), "columnwise").zero_()
    assert_same_buffers(whole, expected.zero_(), "the whole")
    without(whole.detach(), "columnwise").view(2, 128, 256).copy_(
        sample(256, 256, seed=8).view(2, 128, 256)
    )
    assert_same_buffers(whole, expected.copy_(sample(256, 256, seed=8)), "the whole")


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "identity" not in kind])
def test_a_part_that_dropped_a_direction_is_written(kind: str) -> None:
    whole, expected = quantized(kind), quantized(kind)
    without(whole[:128], "columnwise").zero_()
    expected[:128].zero_()
    assert_same_buffers(whole, expected, "the whole")


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "identity" not in kind])
@directions
def test_a_direction_that_a_part_takes_back_is_that_of_a_part(kind: str, direction: str) -> None:
    """Checks that the write keeps the scales and amaxes that the part shares with the rest."""
    whole, expected = quantized(kind), quantized(kind)
    part = whole[:128]
    alias = part.detach()
    without(part, direction).copy_(sample(128, 256, seed=8) / 64)
    expected[:128].copy_(sample(128, 256, seed=8) / 64)
    assert_same_buffers(alias, expected[:128], "the alias of the part")
    assert_same_buffers(whole, expected, "the whole")


@pytest.mark.parametrize("kind", BLOCKS)
def test_a_whole_is_written_after_a_part_and_an_alias_dropped_a_direction(kind: str) -> None:
    whole, expected = quantized(kind), quantized(kind)
    part, alias = without(whole[:128], "columnwise"), without(whole.detach(), "columnwise")
    alias.mul_(0.5)
    assert_same_buffers(whole, expected.mul_(0.5), "the whole")
    part.zero_()
    expected[:128].zero_()
    assert_same_buffers(whole, expected, "the whole")


@every
def test_a_part_of_an_alias_that_dropped_a_direction_refuses(kind: str) -> None:
    whole = quantized(kind)
    before = snapshot(whole)
    alias = without(whole.detach(), "columnwise")
    part = alias[:128]
    message = (
        f"{type(part).__name__} of shape (128, 256): another tensor over these codes has "
        "columnwise buffers that a write here would not reach; write that tensor"
    )
    for write in (part.zero_, lambda: part.mul_(0.5), lambda: part.copy_(whole[:128].clone())):
        with pytest.raises(RuntimeError, match=f"^{re.escape(message)}$"):
            write()
    assert_same_buffers(whole, before, "refused writes")
    alias[:128] = 0.0  # writes the whole
    assert_same_buffers(alias, whole, "both directions")
    assert not whole[:128].dequantize().any()


@every
def test_a_direction_that_nobody_has_stays_away(kind: str) -> None:
    whole = quantized(kind)
    alias = without(whole.detach(), "columnwise")
    del whole
    gc.collect()
    alias.zero_()
    assert not alias.get_usages()["columnwise"]
    alias[:128].zero_()


@pytest.mark.parametrize("kind", TILES)
def test_aliases_share_the_columns_that_they_derive(kind: str) -> None:
    whole, expected = without(quantized(kind), "columnwise"), quantized(kind)
    aliases = [whole, whole.detach()]
    for alias in aliases:
        alias.update_usage(rowwise_usage=True, columnwise_usage=True)
    assert whole._columnwise_data.data_ptr() == aliases[1]._columnwise_data.data_ptr()
    aliases[1].mul_(0.5)
    assert_same_buffers(whole, expected.mul_(0.5), "the alias")


@pytest.mark.parametrize("kind", BLOCKS)
@directions
def test_aliases_share_a_direction_that_a_write_makes(kind: str, direction: str) -> None:
    whole, expected = without(quantized(kind), direction), quantized(kind)
    alias = whole.detach()
    for tensor, seed in ((alias, 8), (whole, 9), (alias, 10)):
        tensor.quantize_(sample(256, 256, seed=seed))
        expected.quantize_(sample(256, 256, seed=seed))
        assert_same_buffers(alias, expected, "the alias")
    assert_same_buffers(whole, expected, "the whole")


@pytest.mark.parametrize("kind", TILES)
def test_a_part_takes_back_the_columns_of_the_whole(kind: str) -> None:
    whole, expected = quantized(kind), quantized(kind)
    part = without(whole[128:], "columnwise")
    part.update_usage(rowwise_usage=True, columnwise_usage=True)
    assert_same_buffers(part, whole[128:], "the part")
    part.zero_()
    expected[128:].zero_()
    assert_same_buffers(whole, expected, "the whole")


@pytest.mark.parametrize("kind", TILES)
def test_a_part_derives_its_columns_in_place(kind: str) -> None:
    whole, expected = quantized(kind), quantized(kind)
    for name in ("_columnwise_data", "_columnwise_scale_inv"):
        whole.__dict__[name][:].zero_()
    for part in whole.split(128):
        part._create_columnwise()
    assert_same_buffers(whole, expected, "the whole")


@pytest.mark.parametrize("kind", TILES)
def test_a_write_past_the_columns_that_a_part_derived_is_refused(kind: str) -> None:
    whole = without(quantized(kind), "columnwise")
    part = whole[:128]
    part.update_usage(rowwise_usage=True, columnwise_usage=True)
    with pytest.raises(RuntimeError, match="a write here would not reach"):
        whole.zero_()
    part.zero_()
    assert not whole[:128].dequantize().any()


@every
def test_values_of_a_program_are_not_written_after_the_tensor_dropped_them(kind: str) -> None:
    x = sample(256, 256)
    before = x.clone()
    tensor = without(KINDS[kind]()(x).detach(), "columnwise")
    tensor.zero_()
    assert torch.equal(x, before)


def test_freed_memory_is_not_written() -> None:
    whole = quantized("mxfp8")
    alias = without(whole.detach(), "columnwise")
    for buffer in (whole._columnwise_data, whole._columnwise_scale_inv):
        buffer.untyped_storage().resize_(0)
    alias.zero_()
    assert not alias.get_usages()["columnwise"]


def test_nothing_is_kept_alive() -> None:
    gc.collect()
    before = len(_dropped._recorded)
    for kind in KINDS:
        whole = quantized(kind)
        alias = without(whole.detach(), "columnwise")
        assert len(_dropped._recorded) == before + 1 and buffers(alias)
        del whole, alias
        gc.collect()
        assert len(_dropped._recorded) == before
    without(quantized("mxfp8"), "columnwise")
    assert len(_dropped._recorded) == before
