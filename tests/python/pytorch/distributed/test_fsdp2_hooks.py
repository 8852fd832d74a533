# SPDX-License-Identifier: Apache-2.0
"""Tests FSDP2's hooks on one process: sent buffers, and tensors made of gathered buffers."""

import pytest
import torch
from families import ALL, E4M3, HYBRIDS, assert_same_buffers, buffers, sample, snapshot

from narrowfloat import pytorch as nfp


def gathered(kind: str, rows: int) -> tuple[nfp.QuantizedTensor, nfp.QuantizedTensor]:
    """Returns the tensor of the concatenated buffers of two shards, and the whole tensor."""
    x = sample(2 * rows, 128)
    whole = ALL[kind]()(x).detach()
    shards = [ALL[kind]()(part.contiguous()).detach() for part in x.split(rows)]
    if isinstance(whole, nfp.Float8Tensor):
        shards = list(whole.split(rows))
    sent = [shard.fsdp_extract_buffers() for shard in shards]
    assert sent[0][1] == sent[1][1]
    joined = [torch.cat(pair) for pair in zip(sent[0][0], sent[1][0], strict=True)]
    target = shards[0].clone()
    target.fsdp_assign_gathered(joined, sent[0][1])
    return target, whole


@pytest.mark.parametrize("kind", ["mxfp8", "mxfp8_2d", "blockwise_2d", "identity"])
def test_buffers_of_shards_join(kind: str) -> None:
    target, whole = gathered(kind, 128)
    assert_same_buffers(target, whole, "joined")


def test_float8_travels_as_codes_or_as_a_transpose() -> None:
    target, whole = gathered("float8_current", 6)
    assert torch.equal(target._data, whole._data) and target._transpose_invalid
    whole.update_usage(rowwise_usage=False)
    shards = list(whole.split(6))
    sent = [shard.fsdp_extract_buffers() for shard in shards]
    assert shards[0].fsdp_buffer_fields() == ("_transpose",)
    assert sent[0][1]["transport_layout"] == "columnwise_m_major"
    assert sent[0][0][0].shape == (6, 128)
    shards[0].fsdp_assign_gathered([torch.cat([s[0][0] for s in sent])], sent[0][1])
    assert torch.equal(shards[0]._transpose, whole._transpose)
    with pytest.raises(RuntimeError, match=r"^fsdp_assign_gathered: unknown transport_layout"):
        shards[0].fsdp_assign_gathered([sent[0][0][0]], {**sent[0][1], "transport_layout": "x"})
    shards[1]._transpose_invalid = True
    with pytest.raises(RuntimeError, match=r"^fsdp_extract_buffers: the transpose is invalid$"):
        shards[1].fsdp_extract_buffers()


def test_mxfp8_keeps_a_partial_block_of_columnwise_scales() -> None:
    scales = torch.zeros(4, 128, dtype=torch.uint8)
    scales[:2] = torch.arange(2, dtype=torch.uint8).view(2, 1) + 1
    tensor = nfp.MXFP8Tensor(
        shape=(48, 128), dtype=torch.float32, rowwise_data=None, rowwise_scale_inv=None,
        columnwise_data=torch.zeros(48, 128, dtype=torch.uint8), columnwise_scale_inv=scales,
        fp8_dtype=E4M3, quantizer=None, with_gemm_swizzled_scales=False,
    )  # fmt: skip
    sent, meta = tensor.fsdp_extract_buffers()
    assert torch.equal(sent[1], scales[:2])
    assert meta == {"field_names": ("_columnwise_data", "_columnwise_scale_inv")}


def test_gathered_geometry_is_checked_first() -> None:
    tensor = ALL["blockwise_2d"]()(sample(128, 128)).detach()
    sent, meta = tensor.fsdp_extract_buffers()
    before = snapshot(tensor)
    bad = [*sent]
    bad[1] = torch.ones(3, 1)
    with pytest.raises(RuntimeError) as raised:
        tensor.fsdp_assign_gathered(bad, meta)
    assert str(raised.value) == (
        "fsdp_assign_gathered: the gathered scale geometry is (3, 1), a tensor of shape (128, 128) "
        "has (1, 4)"
    )
    with pytest.raises(
        RuntimeError,
        match=f"^fsdp_assign_gathered: {type(tensor).__name__} needs 4 buffers, got 1$",
    ):
        tensor.fsdp_assign_gathered(sent[:1], meta)
    assert_same_buffers(tensor, before, "unchanged")


def test_shards_that_cannot_travel() -> None:
    swizzled = nfp.MXFP8Quantizer(E4M3)
    swizzled.optimize_for_gemm = True
    with pytest.raises(NotImplementedError, match=r"GEMM-swizzled$"):
        swizzled(sample()).fsdp_extract_buffers()
    with pytest.raises(RuntimeError) as raised:
        ALL["blockwise_2d"]()(sample(96, 128)).fsdp_extract_buffers()
    assert str(raised.value) == (
        "FSDP2 needs Float8BlockwiseQTensor shards of whole blocks: the local flattened M "
        "dimension 96 is not a multiple of 128"
    )
    with pytest.raises(
        NotImplementedError, match=r"^.* class does not implement fsdp_buffer_fields function$"
    ):
        ALL["nvfp4"]()(sample()).fsdp_buffer_fields()


@pytest.mark.parametrize("kind", ["float8_current", "mxfp8", "blockwise_2d"])
def test_hooks_need_fsdp2(kind: str) -> None:
    parameter = ALL[kind]()(sample()).detach()
    before = snapshot(parameter)
    with pytest.raises(RuntimeError, match=r"Linear must be in an FSDP2 parameter group$"):
        parameter.fsdp_pre_all_gather(None, parameter.shape, (256, 1), torch.nn.Linear(2, 2), None)
    assert_same_buffers(parameter, before, "unchanged")


@pytest.mark.parametrize("module", [None, torch.nn.Linear(2, 2)], ids=["none", "no_group"])
@pytest.mark.parametrize("quantizer", [nfp.NVFP4Quantizer(), nfp.MXFP8Quantizer(E4M3)])
def test_swizzled_scales_are_refused_before_the_group_is_looked_up(
    quantizer: nfp.Quantizer, module: torch.nn.Module | None
) -> None:
    quantizer.optimize_for_gemm = True
    with pytest.raises(NotImplementedError, match="GEMM-swizzled"):
        quantizer(sample()).fsdp_pre_all_gather(None, None, None, module, None)


def hooks(
    shard: nfp.QuantizedTensor, usages: tuple[bool, bool], out: nfp.QuantizedTensor | None = None
) -> tuple[tuple[torch.Tensor, ...], nfp.QuantizedTensor]:
    """Returns the buffers that a shard sends for `usages`, and the tensor of only these."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(shard), "_gather_usages", lambda *arguments: usages)
        sent, metadata = shard.fsdp_pre_all_gather(None, None, None, None, None)
        made, outputs = shard.fsdp_post_all_gather(sent, metadata, shard.dtype, out=out)
    assert outputs is sent
    return sent, made


def test_nvfp4_sends_what_it_can() -> None:
    swizzled = nfp.NVFP4Quantizer(with_2d_quantization=True)
    swizzled.optimize_for_gemm = True
    with pytest.raises(NotImplementedError, match=r"GEMM-swizzled$"):
        hooks(swizzled(sample()).detach(), (True, False))
    tiles = ALL["nvfp4_2d"]()(sample(48, 64)).detach()
    sent, made = hooks(tiles, (True, True))
    assert [tuple(buffer.shape) for buffer in sent] == [(48, 32), (48, 4)]
    assert_same_buffers(made, tiles, "derived columns")
    runs = ALL["nvfp4"]()(sample(48, 64)).detach()
    sent, made = hooks(runs, (False, True))
    assert [tuple(buffer.shape) for buffer in sent] == [(24, 64), (3, 128)]
    wanted = {name: b for name, b in buffers(runs).items() if "columnwise" in name}
    assert_same_buffers(made, wanted, "columns that travelled")


def test_identity_sends_its_logical_type() -> None:
    tensor = nfp.IdentityQuantizer()(sample()).detach().to_dtype(torch.bfloat16)
    with pytest.raises(NotImplementedError, match=r"whose values are torch.float32$"):
        hooks(tensor, (True, True))


def test_shards_need_every_field_that_is_sent() -> None:
    shard = ALL["mxfp8"]()(sample()).detach()
    shard._rowwise_scale_inv = None
    with pytest.raises(RuntimeError) as raised:
        hooks(shard, (True, False))
    assert str(raised.value) == (
        "fsdp_pre_all_gather: MXFP8Tensor needs _rowwise_scale_inv, got None"
    )


def test_hybrid_children_that_cannot_travel() -> None:
    tensor = HYBRIDS["hybrid_nvfp4_mxfp8"]()(sample()).detach()
    with pytest.raises(
        NotImplementedError,
        match=(
            r"^FSDP2 cannot gather a hybrid tensor whose rowwise sub-storage is "
            r"NVFP4Tensor, which has no fsdp_buffer_fields\(\)\. Use a supported "
            r"sub-quantizer: per-tensor FP8, MXFP8, block-scaled FP8, or high "
            r"precision$"
        ),
    ):
        tensor.fsdp_pre_all_gather(None, tensor.shape, (256, 1), None, None)
    child = nfp.MXFP8Quantizer(E4M3)
    child.internal = True
    quantizer = nfp.HybridQuantizer(
        rowwise_quantizer=child, columnwise_quantizer=nfp.IdentityQuantizer()
    )
    tensor = quantizer(sample())
    with pytest.raises(NotImplementedError) as raised:
        tensor.fsdp_pre_all_gather(None, tensor.shape, (256, 1), None, None)
    assert str(raised.value) == (
        "FSDP2 cannot gather a hybrid tensor with a storage-only rowwise sub-storage, "
        "MXFP8TensorStorage"
    )


def test_later_gathers_reuse_the_object() -> None:
    """Passes the object of the first gather as `out`, as FSDP2 does, which ignores results."""
    whole = ALL["mxfp8"]()(sample()).detach()
    _, first = hooks(whole, (True, False))
    assert torch.equal(first.dequantize(), whole.dequantize())
    whole.quantize_(sample(seed=4))
    _, again = hooks(whole, (False, True), out=first)
    assert again is first and first.get_usages() == {"rowwise": False, "columnwise": True}
    assert torch.equal(first._columnwise_data, whole._columnwise_data)
    assert first._quantizer.get_usages() == {"rowwise": False, "columnwise": True}
    assert set(buffers(first)) == {"_columnwise_data", "_columnwise_scale_inv"}


@pytest.mark.parametrize("shape", [(256, 128), (320, 64)], ids=str)
def test_nvfp4_and_identity_are_gathered_alike_in_every_pass(shape: tuple[int, int]) -> None:
    for kind in ("nvfp4_2d", "identity"):
        shard = ALL[kind]()(sample(*shape, dtype=torch.bfloat16)).detach()
        sent, metadata = shard.fsdp_pre_all_gather(
            mesh=None, orig_size=None, contiguous_orig_stride=None, module=None, mp_policy=None
        )
        joined = tuple(torch.cat([buffer, buffer]) for buffer in sent)
        first, _ = shard.fsdp_post_all_gather(joined, metadata, param_dtype=torch.bfloat16)
        assert type(first) is type(shard) and first.shape == (2 * shape[0], shape[1])
        assert first.get_usages() == {"rowwise": True, "columnwise": True}
        assert torch.equal(first.dequantize(), torch.cat([shard.dequantize()] * 2))
        again, _ = shard.fsdp_post_all_gather(
            joined, metadata, param_dtype=torch.bfloat16, out=first
        )
        assert again is first
        if kind == "nvfp4_2d":
            assert torch.equal(first._amax_columnwise, shard._amax_columnwise)
