# SPDX-License-Identifier: Apache-2.0
"""Tests that a write to an alias of a per-tensor FP8 tensor updates all transposes."""

import copy
import io
import pickle
from collections.abc import Callable

import pytest
import torch
from families import E4M3, sample
from narrowfloat.pytorch.tensor.storage.grouped_tensor_storage import GroupedTensorStorage

from narrowfloat import pytorch as nfp


def saved_float8(*shape: int) -> nfp.Float8Tensor:
    return nfp.Float8CurrentScalingQuantizer(E4M3)(sample(*shape, seed=3)).detach()


def without_transpose() -> nfp.Float8Tensor:
    tensor = nfp.Float8CurrentScalingQuantizer(E4M3, columnwise=False)(sample(8, 6)).detach()
    assert tensor._transpose is None
    return tensor


def make_transposes(*tensors: nfp.Float8Tensor) -> None:
    for tensor in tensors:
        tensor.update_usage(rowwise_usage=True, columnwise_usage=True)


def assert_transposed(*tensors: nfp.Float8Tensor) -> None:
    for tensor in tensors:
        if tensor._has_columnwise():
            assert torch.equal(tensor._transpose, tensor._data.movedim(-1, 0))


ALIASES = {
    "alias": lambda t: t.detach(),
    "aten alias": lambda t: torch.ops.aten.alias(t),
    "data": lambda t: t.data,
    "rows": lambda t: t[:4],
    "row": lambda t: t[2],
    "columns": lambda t: t[:, 2:4],
    "view": lambda t: t.view(4, 12),
    "view of a view": lambda t: t.view(2, 24).view(8, 6)[1:],
    "strided": lambda t: t.as_strided((2, 2), (3, 1), 20),
    "unsqueezed": lambda t: t.unsqueeze(0),
    "type": lambda t: nfp.Float8Tensor.make_like(t, dtype=torch.bfloat16),
}


@pytest.mark.parametrize("way", ALIASES)
def test_a_transpose_made_after_an_alias_follows_it(way: str) -> None:
    tensor = without_transpose()
    alias = ALIASES[way](tensor)
    make_transposes(tensor)
    alias.fill_(0.5)
    assert_transposed(tensor, alias)
    assert tensor._has_columnwise()
    tensor.zero_()
    assert_transposed(tensor, alias)


@pytest.mark.parametrize("way", ALIASES)
def test_transposes_of_their_own_follow_each_other(way: str) -> None:
    tensor = without_transpose()
    alias = ALIASES[way](tensor)
    make_transposes(tensor, alias)
    tensor.fill_(0.25)
    assert_transposed(tensor, alias)
    alias.zero_()
    assert_transposed(tensor, alias)
    tensor.quantize_(sample(8, 6, seed=9))
    assert_transposed(tensor, alias)
    tensor.copy_(saved_float8(8, 6))
    assert_transposed(tensor, alias)


def test_an_alias_without_its_transpose_keeps_that_of_the_whole() -> None:
    tensor = saved_float8(8, 6)
    alias = tensor.detach()
    alias.update_usage(rowwise_usage=True, columnwise_usage=False)
    alias.copy_(without_transpose())
    assert tensor._has_columnwise()
    assert_transposed(tensor)


def test_codes_follow_an_alias_that_has_only_the_transpose() -> None:
    tensor, other = saved_float8(8, 6), without_transpose()
    alias = tensor.detach()
    for each in (alias, other):
        make_transposes(each)
        each.update_usage(rowwise_usage=False, columnwise_usage=True)
    alias.copy_(other)
    assert_transposed(tensor)
    assert torch.equal(alias.dequantize(), tensor.dequantize())


def test_copies_follow_nothing() -> None:
    tensor = saved_float8(8, 6)
    tensor.detach()
    for made in (copy.deepcopy(tensor), pickle.loads(pickle.dumps(tensor)), tensor.clone()):
        before = made._transpose.clone()
        tensor.zero_()
        assert torch.equal(made._transpose, before)
        assert_transposed(tensor, made)
        tensor.copy_(saved_float8(8, 6))


def test_aliases_that_are_gone_are_forgotten() -> None:
    tensor = saved_float8(8, 6)
    for _ in range(100):
        make_transposes(tensor[:4], without_transpose())
        tensor.view(-1).view(8, 6)
    assert len(tensor._data.untyped_storage()._float8_pairs) < 20


def test_a_tensor_with_aliases_is_swapped() -> None:
    """Swaps as Module.to() and Module.to_empty() do, which refuse tensors with weak references."""
    tensor, other = saved_float8(8, 6), without_transpose()
    kept = tensor.detach()
    torch.utils.swap_tensors(tensor, other)
    other.zero_()
    assert not kept._transpose.any() and tensor._data.any()


def loaded_together(tensor: nfp.Float8Tensor) -> nfp.Float8Tensor:
    """Replaces a tensor by one that was loaded with an alias; returns the alias."""
    file = io.BytesIO()
    torch.save([tensor, tensor.detach()], file)
    file.seek(0)
    tensor.data, alias = torch.load(file, weights_only=True)
    return alias


def assigned(tensor: nfp.Float8Tensor) -> nfp.Float8Tensor:
    alias = saved_float8(8, 6)
    alias.data = tensor
    return without_its_transpose(alias)


def without_its_transpose(alias: nfp.Float8Tensor) -> nfp.Float8Tensor:
    alias.update_usage(rowwise_usage=True, columnwise_usage=False)
    return alias


def compiled_view(tensor: nfp.Float8Tensor) -> nfp.Float8Tensor:
    torch._dynamo.reset()
    return torch.compile(lambda t: t.view(2, 4, 6), backend="aot_eager")(tensor)


NOT_BY_AN_OPERATOR: dict[str, Callable[[nfp.Float8Tensor], nfp.Float8Tensor]] = {
    "loaded together": loaded_together,
    "copy.copy": copy.copy,
    "compiled view": compiled_view,
    "assigned data": assigned,
    "constructed": lambda t: without_its_transpose(
        nfp.Float8Tensor(shape=t.shape, dtype=t.dtype, **t.get_metadata())
    ),
}


@pytest.mark.parametrize("way", NOT_BY_AN_OPERATOR)
def test_aliases_that_no_operator_made_follow_each_other(way: str) -> None:
    tensor = saved_float8(8, 6)
    alias = NOT_BY_AN_OPERATOR[way](tensor)
    alias.copy_(sample(8, 6, seed=9).view(alias.shape))
    assert tensor._has_columnwise() and alias._has_columnwise()
    assert torch.equal(tensor.dequantize(), alias.dequantize().view(8, 6))
    assert_transposed(tensor, alias)
    tensor.copy_(sample(8, 6, seed=10))
    assert_transposed(tensor, alias)


def test_members_of_a_group_follow_a_member() -> None:
    quantizer = nfp.Float8CurrentScalingQuantizer(E4M3)
    group = GroupedTensorStorage.make_grouped_tensor_with_shapes(
        2, [(8, 6)] * 2, quantizer, "cpu", torch.float32
    )
    group.quantize([sample(8, 6)] * 2)
    member = without_its_transpose(group.split_into_quantized_tensors()[0])
    member.copy_(sample(8, 6, seed=9))
    assert_transposed(*group.split_into_quantized_tensors())


def test_a_write_to_a_transpose_reaches_the_transpose_of_another_alias() -> None:
    tensor = saved_float8(8, 6)
    view = tensor.view(2, 4, 6)
    make_transposes(view)
    only_transpose = tensor.detach()
    only_transpose.update_usage(rowwise_usage=False)
    only_transpose.copy_(torch.zeros(8, 6))
    assert not view._transpose.any() and not tensor.dequantize().any()
    assert_transposed(tensor, view)


def test_a_write_reaches_an_alias_through_the_transpose_that_they_share() -> None:
    tensor = saved_float8(8, 6)
    alias = tensor.detach()
    tensor.update_usage(rowwise_usage=False)
    tensor.copy_(sample(8, 6, seed=9))
    tensor.unsqueeze(0).copy_(sample(1, 8, 6, seed=10))
    assert torch.equal(alias.dequantize(), tensor.dequantize())
    assert_transposed(tensor, alias)


def test_all_parts_of_one_step_are_updated() -> None:
    """Checks parts that share both buffers of the whole."""
    tensor = saved_float8(8, 6)
    parts = [tensor[:4], tensor[4:]]
    alias = without_its_transpose(tensor.detach())
    for part in parts:
        part.detach().update_usage(columnwise_usage=False)
    without_its_transpose(tensor.detach())
    alias.zero_()
    assert_transposed(tensor, *parts)


def test_pairs_keep_no_memory_alive() -> None:
    tensor = saved_float8(8, 6)
    view = tensor.view(4, 12)
    memory = tensor._data.untyped_storage()
    assert len(memory._float8_pairs) == 1 and memory._float8_pairs[0].is_alive()
    without_its_transpose(tensor)
    assert not view._data.untyped_storage()._float8_pairs[0].is_alive()
