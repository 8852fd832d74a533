# SPDX-License-Identifier: Apache-2.0
"""Tests that a write to a part of a quantized tensor changes the whole only in that part."""

import copy
import gc
import pickle
from collections.abc import Callable

import pytest
import torch
from families import ALL, assert_same_buffers, buffers, sample, snapshot
from narrowfloat.pytorch.tensor.storage._stale import StaleCodes

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
    "a flag of 2": lambda part, x: part.quantize_(x, noop_flag=torch.full((1,), 2.0)),
    "out": lambda part, x: torch.add(x, 0, out=part),
    "set item": lambda part, x: part.__setitem__(slice(None), x),
}


def quantized(kind: str, *shape: int) -> nfp.QuantizedTensor:
    return ALL[kind]()(sample(*shape)).detach()


def small(*shape: int, seed: int = 31) -> torch.Tensor:
    """Returns magnitudes up to 1, which are below the amax of any sample."""
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
    """Compares with quantizing the changed values as a whole, since each block has its scale."""
    if (reason := why_not(kind, name)) is not None:
        pytest.skip(reason)
    source = sample(384, 384)
    source[0, 0] = 100.0  # the largest magnitude, which no part contains
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
    """Copies parts as FSDP2 and distributed checkpoints copy shards."""
    tensor = quantized(kind, 384, 384)
    pieces = [piece.clone() for piece in tensor.split(128)]
    other = ALL[kind]()(sample(384, 384)).detach().zero_()
    for index, piece in enumerate(pieces):
        other.narrow(0, 128 * index, 128).copy_(piece)
    assert torch.equal(other.dequantize(), tensor.dequantize())


def test_a_value_that_needs_another_scale_is_refused() -> None:
    quantizer = nfp.Float8CurrentScalingQuantizer(nfp.DType.kFloat8E4M3)
    tensor = quantizer(torch.ones(4, 8)).detach()
    before = snapshot(tensor)
    with pytest.raises(
        ValueError,
        match=r"^quantize: a part of this Float8Tensor shares its scale with the rest, which takes "
        "magnitudes up to 1, got 100; write the whole tensor to change the scale$",
    ):
        tensor[:2] = 100
    assert_same_buffers(tensor, before, "a refused write")
    tensor[:2] = -1
    tensor[0].zero_()
    assert tensor.dequantize()[:, 0].tolist() == [0, -1, 1, 1]
    assert torch.equal(tensor._scale_inv, before["_scale_inv"])
    assert torch.equal(tensor._transpose, tensor._data.t())


@pytest.mark.parametrize("kind", ["nvfp4", "nvfp4_2d", "hybrid_nvfp4_mxfp8"])
def test_an_amax_is_shared_by_the_parts(kind: str) -> None:
    tensor = quantized(kind)
    before = snapshot(tensor)
    with pytest.raises(ValueError, match=r"^quantize: a part of this NVFP4Tensor shares its scale"):
        tensor[:32] = 100
    assert_same_buffers(tensor, before, "a refused write")


@pytest.mark.parametrize("kind", ["float8_current", "nvfp4", "nvfp4_2d", "nvfp4_4over6"])
def test_parts_take_the_values_that_they_hold(kind: str) -> None:
    """Checks tensors whose largest decoded value may exceed the amax by a rounding error."""
    for seed in range(40):
        tensor = ALL[kind]()(sample(64, 64, seed=seed)).detach()
        values = tensor.dequantize()
        for part in tensor.chunk(2):
            part.mul_(1.0)
        assert torch.equal(tensor.dequantize(), values)


def test_the_error_of_a_value_that_hardly_exceeds_has_its_digits() -> None:
    tensor = nfp.NVFP4Quantizer()(torch.ones(64, 64)).detach()
    with pytest.raises(ValueError, match=r"magnitudes up to 1, got 1\.000001; write the whole"):
        tensor[:32] = 1 + 8 * torch.finfo(torch.float32).eps


def test_an_amax_of_a_column_is_never_changed_by_a_part() -> None:
    whole = nfp.NVFP4Quantizer(row_scaled_nvfp4=True)(sample(64, 64)).detach()
    before = snapshot(whole)
    with pytest.raises(RuntimeError, match="read-only"):
        whole[:16].fill_(100)
    assert_same_buffers(whole, before, "whole")


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_parts_take_nan_and_refuse_infinity(value: float) -> None:
    tensor = quantized("float8_current", 4, 8)
    if value != value:
        tensor[1] = value
        assert tensor.dequantize()[1].isnan().all() and not tensor.dequantize()[2:].isnan().any()
        return
    with pytest.raises(ValueError, match="got inf"):
        tensor[1] = value


def test_a_part_raises_the_amax_of_delayed_scaling() -> None:
    quantizer = ALL["float8_delayed"]()
    tensor = quantizer(torch.full((4, 8), 2.0)).detach()
    tensor[:2] = 5
    assert quantizer.amax.item() == 5 and tensor.dequantize()[:, 0].tolist() == [5, 5, 2, 2]


def test_largest_magnitudes_fit_their_own_scale() -> None:
    """Checks that the amax is accepted, although the stored scale_inv is rounded."""
    for seed in range(200):
        tensor = ALL["float8_current"]()(x := sample(2, 16, seed=seed)).detach()
        before = snapshot(tensor)
        tensor[:] = x
        tensor[:1], tensor[1:] = x[:1], x[1:]
        assert_same_buffers(tensor, before, f"seed {seed}")


@pytest.mark.parametrize("kind", ["float8_delayed", "float8_current"])
def test_views_without_a_transpose_keep_that_of_the_whole(kind: str) -> None:
    tensor = quantized(kind, 8, 6)
    tensor.view(-1)[:5] = 0
    assert not tensor.dequantize().reshape(-1)[:5].any()
    tensor.as_strided((2, 2), (3, 1), 20).zero_()
    tensor.view(4, 12).detach()[1].fill_(1)
    assert torch.equal(tensor._transpose, tensor._data.t())


def saved(kind: str, factor: float) -> nfp.QuantizedTensor:
    return ALL[kind]()(sample(128, 64, seed=8) * factor).detach()


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("kind", ALL)
def test_a_checkpoint_is_loaded_piece_by_piece(kind: str, dim: int) -> None:
    if (kind == "nvfp4_row_scaled" and dim == 1) or kind.startswith("blockwise"):
        pytest.skip("no such pieces")
    model, wanted = quantized(kind, 128, 64), saved(kind, 7.0)
    if kind == "float8_delayed":
        wanted._scale_inv.fill_(0.5)
    for index, piece in enumerate(wanted.split(32, dim)):
        model.detach().narrow(dim, 32 * index, 32).copy_(piece.clone())
    assert_same_buffers(model, wanted, "loaded")
    assert torch.equal(model.dequantize(), wanted.dequantize())


@pytest.mark.parametrize("kind", ["float8_current", "nvfp4"])
def test_codes_without_their_scale_are_never_read(kind: str) -> None:
    model, wanted = quantized(kind, 128, 64), saved(kind, 7.0)
    alias = model.detach()
    model[32:64].copy_(wanted[32:64])
    assert torch.equal(model[32:64].dequantize(), wanted[32:64].dequantize())
    message = f"^{type(model).__name__}: rows 0 to 127 have lost their scale, because a part was "
    for read in (
        lambda: model.dequantize(), lambda: alias + 1, lambda: model.clone(),
        lambda: torch.empty_like(alias).copy_(alias), lambda: pickle.dumps(model),
        lambda: model[:32].dequantize(), lambda: model.to("cpu", copy=True),
        lambda: copy.deepcopy(alias), lambda: torch.ones(3, 64) @ alias.t(),
    ):  # fmt: skip
        with pytest.raises(RuntimeError, match=message):
            read()
    model[64:].zero_()
    with pytest.raises(
        RuntimeError,
        match=(
            r"^.*: rows 0 to .* have lost their scale, because a part was "
            r"copied with another one: all rows must share one (_scale_inv|_amax_rowwise), which "
            r"was [0-9.]+ and is [0-9.]+; copy the rest with that scale too, or write the whole "
            r"tensor; shards with scales of their own load on as many ranks as saved them$"
        ),
    ):
        alias.dequantize()
    model.quantize_(sample(128, 64))
    assert_same_buffers(alias, quantized(kind, 128, 64), "written as a whole")
    assert torch.equal(alias.dequantize(), quantized(kind, 128, 64).dequantize())


def test_a_part_of_zeros_takes_another_scale() -> None:
    """Copies as FSDP2 does to pad a short shard."""
    whole = quantized("float8_current", 4, 8).new_zeros(4, 8)
    piece = saved("float8_current", 7.0)[:3, :8]
    whole.narrow(0, 0, 3).copy_(piece)
    assert torch.equal(whole.dequantize()[:3], piece.dequantize())
    assert not whole.dequantize()[3:].any()


@pytest.mark.parametrize("kind", ["float8_current", "mxfp8", "blockwise_2d", "nvfp4"])
def test_a_saved_part_stands_alone(kind: str) -> None:
    tensor = quantized(kind, 384, 384)
    loaded = pickle.loads(pickle.dumps(tensor[128:256]))
    assert torch.equal(loaded.dequantize(), tensor[128:256].dequantize())
    loaded.quantize_(sample(128, 384) * 1000)
    assert_same_buffers(tensor, quantized(kind, 384, 384), "the whole")


@pytest.mark.parametrize("kind", ["float8_current", "nvfp4"])
def test_marks_of_a_deleted_tensor_are_not_counted(kind: str) -> None:
    gc.collect()
    before = StaleCodes.live
    model = quantized(kind, 128, 64)
    model[32:64].copy_(saved(kind, 7.0)[32:64])
    assert StaleCodes.live == before + 1
    del model
    gc.collect()
    assert StaleCodes.live == before
