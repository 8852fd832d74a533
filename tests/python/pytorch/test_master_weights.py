# SPDX-License-Identifier: Apache-2.0
"""Tests that weights from sharded master copies have the bytes of weights from whole copies."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from families import ALL, E4M3, E5M2, assert_same_buffers, buffers, sample, snapshot
from narrowfloat.pytorch.tensor import _master_weights
from narrowfloat.pytorch.tensor.utils import (
    cast_master_weights_to_fp8,
    post_all_gather_processing,
    quantize_master_weights,
    replace_raw_data,
)

from narrowfloat import pytorch as nfp

KINDS = ["float8_delayed", "float8_current", "mxfp8", "mxfp8_2d", "blockwise_2d", "nvfp4_2d",
         "identity"]  # fmt: skip
SHAPE = (160, 192)  # whole blocks of 32 and 16; the last block of 128 is shorter
every = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    """Yields a process group of only this process."""
    place = Path(tmp_path_factory.mktemp("group")) / "rendezvous"
    torch.distributed.init_process_group("gloo", init_method=place.as_uri(), rank=0, world_size=1)
    yield torch.distributed.GroupMember.WORLD
    torch.distributed.destroy_process_group()


def reductions_of(run: Callable[[int], None], ranks: int) -> None:
    """Runs the ranks one after another, twice, with emulated reductions.

    The first round records the operands of all ranks. The second round returns their maxima.
    """
    put_in: list[list[torch.Tensor]] = []
    original = _master_weights.reduce_max
    for rank in range(ranks):
        seen: list[torch.Tensor] = []
        _master_weights.reduce_max = lambda t, g, seen=seen: seen.append(t.clone())
        run(rank)
        put_in.append(seen)
    for rank in range(ranks):
        rounds = iter(zip(*put_in, strict=True))
        _master_weights.reduce_max = lambda t, g, rounds=rounds: t.copy_(
            torch.stack(next(rounds)).amax(0)
        )
        run(rank)
    _master_weights.reduce_max = original


@every
@pytest.mark.parametrize("cuts", [[0, 30720], [0, 7000, 7000, 30720], [0, 30000, 30720]], ids=str)
def test_pieces_make_the_whole(kind: str, cuts: list[int]) -> None:
    master = sample(*SHAPE, seed=31).reshape(-1) * 3
    quantizer = ALL[kind]()
    start = quantizer(sample(*SHAPE, dtype=torch.bfloat16)).detach()
    whole = quantizer(master.view(SHAPE).to(torch.bfloat16)).detach()
    ranks = len(cuts) - 1
    weights = [start.clone() for _ in range(ranks)]

    def run(rank: int) -> None:
        piece = master[cuts[rank] : cuts[rank + 1]]
        held = piece if piece.numel() else None
        offset = cuts[rank] if piece.numel() else None
        quantize_master_weights([weights[rank]], [held], [offset], None)

    reductions_of(run, ranks)
    gathered = weights[0]
    for rank, weight in enumerate(weights):  # emulates an all-gather of the codes
        for name, buffer in buffers(weight).items():
            if name.endswith("data") and "columnwise" not in name:
                per_byte = 2 if kind.startswith("nvfp4") else 1
                part = slice(cuts[rank] // per_byte, cuts[rank + 1] // per_byte)
                buffers(gathered)[name].view(-1)[part] = buffer.view(-1)[part]
            elif name == "_columnwise_data":
                part = slice(cuts[rank], cuts[rank + 1])
                buffers(gathered)[name].view(-1)[part] = buffer.view(-1)[part]
            else:
                if name not in ("_transpose",):
                    assert torch.equal(buffer, buffers(whole)[name]), f"{name} of rank {rank}"
    post_all_gather_processing([gathered])
    post_all_gather_processing([gathered])
    assert_same_buffers(gathered, whole, "gathered")


@every
def test_a_piece_changes_no_other_codes(kind: str, group: object) -> None:
    weight = ALL[kind]()(sample(*SHAPE)).detach()
    name = next(n for n in buffers(weight) if n.endswith("data"))
    codes = buffers(weight)[name].clone().view(-1)
    cast_master_weights_to_fp8([weight], [sample(64, 192)[:40].reshape(-1)], [9600], group)
    per_byte = 2 if kind.startswith("nvfp4") else 1
    after = buffers(weight)[name].view(-1)
    first, last = 9600 // per_byte, (9600 + 40 * 192) // per_byte
    assert torch.equal(after[:first], codes[:first]) and torch.equal(after[last:], codes[last:])


def test_several_weights_share_one_reduction(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[torch.Tensor] = []
    monkeypatch.setattr(_master_weights, "reduce_max", lambda t, g: calls.append(t))
    kinds = ["float8_current", "float8_current", "mxfp8", "mxfp8"]
    weights = [ALL[kind]()(sample(*SHAPE, dtype=torch.bfloat16)).detach() for kind in kinds]
    quantize_master_weights(weights, [None] * 4, [None] * 4, None)
    assert [call.dtype for call in calls] == [torch.float32, torch.bfloat16]
    assert calls[0].numel() == 2 and not any(call.any() for call in calls)
    rows, cols = SHAPE
    assert calls[1].numel() == 2 * (rows * (cols // 32) + (rows // 32) * cols)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (
            nfp.Float8BlockQuantizer(E4M3, rowwise=True, columnwise=True),
            nfp.Float8BlockQuantizer(E4M3, rowwise=True, columnwise=True, amax_epsilon=1.0),
        ),
        (
            nfp.Float8CurrentScalingQuantizer(E4M3),
            nfp.Float8CurrentScalingQuantizer(E4M3, force_pow_2_scales=True),
        ),
        (nfp.MXFP8Quantizer(E4M3), nfp.MXFP8Quantizer(E5M2)),
    ],
    ids=["epsilon", "pow_2", "dtype"],
)
def test_weights_of_a_bucket_share_their_options(
    first: nfp.Quantizer, second: nfp.Quantizer
) -> None:
    weights = [quantizer(sample(*SHAPE)).detach() for quantizer in (first, second)]
    before = [snapshot(weight) for weight in weights]
    with pytest.raises(
        ValueError, match=r"^quantize_master_weights: .* weights must share the options \("
    ):
        quantize_master_weights(weights, [sample(*SHAPE).reshape(-1)] * 2, [0, 0], None)
    for weight, old in zip(weights, before, strict=True):
        assert_same_buffers(weight, old, "unchanged")


def test_half_bytes_are_refused_before_a_scale_is_written() -> None:
    weight = ALL["nvfp4_2d"]()(sample(*SHAPE)).detach()
    before = snapshot(weight)
    with pytest.raises(
        ValueError,
        match=(
            r"^quantize_master_weights: pieces of an NVFP4Tensor must be whole bytes, "
            r"got \[1, 4\)$"
        ),
    ):
        quantize_master_weights([weight], [torch.full((3,), 1e3)], [1], None)
    assert_same_buffers(weight, before, "unchanged")


@pytest.mark.parametrize("start", [None, -1, 160 * 192 - 3])
def test_offsets_lie_within_the_weight(start: int | None) -> None:
    weight = ALL["float8_current"]()(sample(*SHAPE)).detach()
    before = snapshot(weight)
    with pytest.raises(
        ValueError,
        match=r"^quantize_master_weights: a master must lie within its weight of .* "
        r"elements, got .* from offset .* on$",
    ):
        quantize_master_weights([weight], [torch.ones(4)], [start], None)
    assert_same_buffers(weight, before, "unchanged")


@pytest.mark.parametrize(
    ("kind", "shape", "message"),
    [
        ("blockwise_1d", SHAPE, "Float8BlockwiseQTensor weights need 2-D quantization"),
        ("nvfp4", SHAPE, "NVFP4Tensor weights need 2-D quantization"),
        ("mxfp8", (2, 32, 64), "MXFP8Tensor weights must be matrices, got (2, 32, 64)"),
    ],
)
def test_weights_that_cannot(kind: str, shape: tuple[int, ...], message: str) -> None:
    weight = ALL[kind]()(sample(*shape)).detach()
    before = snapshot(weight)
    with pytest.raises(ValueError) as raised:
        quantize_master_weights([weight], [None], [None], None)
    assert str(raised.value) == f"quantize_master_weights: {message}"
    assert_same_buffers(weight, before, "unchanged")


def test_weights_need_quantizers_and_shards_their_rows() -> None:
    weight = ALL["mxfp8"]()(sample(*SHAPE)).detach()
    weight._quantizer = None
    with pytest.raises(ValueError) as raised:
        quantize_master_weights([weight], [None], [None], None)
    assert str(raised.value) == "quantize_master_weights: the weight needs a quantizer, got None"
    transposed = nfp.Float8CurrentScalingQuantizer(E4M3)(sample(*SHAPE)).detach()
    transposed.update_usage(rowwise_usage=False)
    before = snapshot(transposed)
    with pytest.raises(NotImplementedError) as refused:
        quantize_master_weights([transposed], [torch.ones(4)], [0], None, [transposed])
    assert str(refused.value) == (
        "quantize_master_weights: shards of weights that have only their transpose are not "
        "supported"
    )
    assert_same_buffers(transposed, before, "unchanged")


def hybrid(**options: str) -> nfp.HybridQuantizedTensor:
    quantizer = nfp.HybridQuantizer(
        rowwise_quantizer=nfp.Float8CurrentScalingQuantizer(E4M3),
        columnwise_quantizer=nfp.IdentityQuantizer(),
        **options,
    )
    return quantizer(sample(*SHAPE, dtype=torch.bfloat16)).detach()


def test_hybrid_weights(group: object) -> None:
    weight, master = hybrid(), sample(*SHAPE, seed=33).reshape(-1)
    quantize_master_weights([weight], [master], [0], group)
    post_all_gather_processing([weight])
    plain = master.view(SHAPE).to(torch.bfloat16)
    expected = nfp.Float8CurrentScalingQuantizer(E4M3, columnwise=False)(plain).detach()
    assert torch.equal(weight.rowwise_sub_storage._data, expected._data)
    assert torch.equal(weight.columnwise_sub_storage.dequantize(), plain)


def test_hybrid_weights_that_cannot() -> None:
    cases = [
        (
            hybrid(columnwise_source="rowwise_dequantized"),
            NotImplementedError,
            "columns of dequantized rows are not supported",
        ),
        (
            ALL["hybrid_mxfp8_identity"]()(sample()).detach(),
            NotImplementedError,
            "a MXFP8Tensor in a hybrid weight is not supported",
        ),
        (
            hybrid(),
            ValueError,
            "a hybrid weight of shape (160, 192) with two directions needs its whole master, got 4 "
            "of 30720 elements; update_usage() drops a direction",
        ),
    ]
    for weight, error, message in cases:
        before = snapshot(weight)
        with pytest.raises(error) as raised:
            quantize_master_weights([weight], [torch.ones(4)], [0], None)
        assert str(raised.value) == f"quantize_master_weights: {message}"
        assert_same_buffers(weight, before, "unchanged")
    empty = hybrid()
    empty.update_usage(rowwise_usage=False, columnwise_usage=False)
    with pytest.raises(ValueError) as raised:
        quantize_master_weights([empty], [None], [None], None)
    assert str(raised.value) == "quantize_master_weights: the hybrid weight has no data"
    with pytest.raises(ValueError, match=r"^post_all_gather_processing: not available for Tensor$"):
        post_all_gather_processing([torch.zeros(2)])


@pytest.mark.parametrize("kind", ["float8_current", "blockwise_2d", "nvfp4", "identity"])
def test_raw_data_moves(kind: str) -> None:
    weight = ALL[kind]()(sample(*SHAPE)).detach()
    name = next(n for n in buffers(weight) if n.endswith("data"))
    before, old = snapshot(weight), buffers(weight)[name]
    place = torch.empty_like(old)
    replace_raw_data(weight, place)
    assert buffers(weight)[name] is place
    assert_same_buffers(weight, before, "the same bytes")
    with pytest.raises(ValueError, match=r"^replace_raw_data: new_raw_data must be"):
        replace_raw_data(weight, torch.empty(SHAPE, dtype=torch.int32))


def test_raw_data_that_cannot_move() -> None:
    with pytest.raises(NotImplementedError, match=r"not available for MXFP8Tensor$"):
        replace_raw_data(ALL["mxfp8"]()(sample()).detach(), torch.empty(1))
    with pytest.raises(ValueError, match=r"not available for Tensor$"):
        replace_raw_data(torch.zeros(2), torch.zeros(2))
    weight = hybrid()
    place = torch.empty_like(weight.rowwise_sub_storage._data)
    replace_raw_data(weight, place)
    assert weight.rowwise_sub_storage._data is place
    weight.update_usage(rowwise_usage=False)
    with pytest.raises(
        NotImplementedError, match=r"^replace_raw_data: the hybrid tensor has no rowwise child$"
    ):
        replace_raw_data(weight, place)


def test_an_absent_piece_is_on_the_device_of_its_weight() -> None:
    weight = ALL["mxfp8"]()(sample().to("meta")).detach()
    piece = _master_weights.make_piece(weight, None, None, None)
    assert piece.values.is_meta and piece.start == piece.end == 0
