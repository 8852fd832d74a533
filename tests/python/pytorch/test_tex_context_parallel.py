# SPDX-License-Identifier: Apache-2.0
"""Compares functions of context parallelism on packed sequences with loops over tokens."""

from collections.abc import Callable

import pytest
import torch
from bounds import assert_near
from narrowfloat.pytorch import tex

Tensor = torch.Tensor
LENGTHS = [4, 8, 4]
BOUNDS = torch.tensor([0, 4, 12, 16], dtype=torch.int32)
HALVES = {  # tokens of the first and second halves of the sequences
    0: [0, 1, 4, 5, 6, 7, 12, 13],
    1: [2, 3, 8, 9, 10, 11, 14, 15],
}


@pytest.mark.parametrize("half", [0, 1])
@pytest.mark.parametrize("shape", [(16, 2, 3), (2, 16, 2, 3)])
def test_halves_are_read(shape: tuple, half: int) -> None:
    x = torch.randn(shape)
    read = tex.thd_read_half_tensor(x, BOUNDS, half)
    assert torch.equal(read, x[..., HALVES[half], :, :])
    longer = torch.cat((x, x[..., :2, :, :]), -3)
    assert tex.thd_read_half_tensor(longer, BOUNDS, half)[..., 8:, :, :].eq(0).all()


def sums(packed: bool, tokens: int = 16) -> Tensor:
    """Returns logarithms of softmax sums, (heads, tokens) or (sequences, heads, longest)."""
    return torch.randn(2, tokens) if packed else torch.randn(3, 2, tokens // 2)


def at(lse: Tensor, packed: bool, sequence: int, position: int, token: int) -> Tensor:
    """Returns a view of the sums of a token's heads."""
    return lse[:, token] if packed else lse[sequence, :, position]


def tokens_of(half: int) -> list[tuple[int, int, int]]:
    """Returns (sequence, position, token) of a half of every sequence."""
    found = []
    for i, length in enumerate(LENGTHS):
        first = half * length // 2
        found += [(i, first + k, int(BOUNDS[i]) + first + k) for k in range(length // 2)]
    return found


@pytest.mark.parametrize("packed", [False, True])
def test_sums_of_second_halves(packed: bool) -> None:
    torch.manual_seed(31)
    lse, step = sums(packed), sums(packed, 8)
    read = tex.thd_read_second_half_lse(lse, BOUNDS, packed, 8 if packed else 4)
    exact = lse.double()
    for row, (i, position, token) in enumerate(tokens_of(1)):
        half = position - LENGTHS[i] // 2
        here = at(lse, packed, i, position, token)
        assert torch.equal(at(read, packed, i, half, row), here)
        both = torch.stack((here.double(), at(step, packed, i, half, row).double()))
        at(exact, packed, i, position, token).copy_(both.logsumexp(0))
    tex.thd_second_half_lse_correction(lse, step, BOUNDS, packed)
    # An exponential and a logarithm with errors of 4 ulp each, and a sum.
    assert_near(lse, exact, 2 + exact.abs(), 12, "sums")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("half", [False, True])
def test_outputs_are_corrected(half: bool, packed: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(32)
    tokens = 8 if half else 16
    lse, step_lse = sums(packed), sums(packed, tokens)
    out, step = torch.randn(16, 2, 3).to(dtype), torch.randn(tokens, 2, 3).to(dtype)
    exact, terms = out.double(), torch.zeros(16, 2, 3, dtype=torch.float64)
    places = tokens_of(1) if half else sorted(tokens_of(0) + tokens_of(1), key=lambda t: t[2])
    for row, (i, position, token) in enumerate(places):
        column = position - LENGTHS[i] // 2 if half else position
        difference = at(step_lse, packed, i, column, row) - at(lse, packed, i, position, token)
        factor = difference.double().exp()[:, None]
        value = step[row].double()
        terms[token] = value * factor
    tex.thd_out_correction(out, step, lse, step_lse, BOUNDS, half, packed)
    # The term is rounded to the dtype, then the sum: half an ulp each. In float32, a difference of
    # values below 8 and its exponential are off by less than 2**-20 of the term.
    slack = torch.finfo(dtype).eps * (2 * terms.abs() + exact.abs()) + 2**-20 * terms.abs()
    assert ((out.double() - (exact + terms)).abs() - slack).max() <= 0


def test_outputs_of_0_add_nothing_whatever_their_sums() -> None:
    out, step = torch.ones(16, 2, 3), torch.zeros(16, 2, 3)
    tex.thd_out_correction(
        out, step, torch.zeros(2, 16), torch.full((2, 16), float("inf")), BOUNDS, False, True
    )
    assert out.eq(1).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(16, 2, 3), (2, 16, 2, 3)])
@pytest.mark.parametrize(
    "actions",
    [("add", "none"), ("copy", "none"), ("none", "add"), ("none", "copy"), ("add", "copy"),
     ("copy", "add")],
)  # fmt: skip
def test_gradients_are_corrected(actions: tuple, shape: tuple, dtype: torch.dtype) -> None:
    grad = torch.randn(shape).to(dtype)
    tokens = 8 if "none" in actions else 16
    step = torch.randn(*shape[:-3], tokens, 2, 3).to(dtype)
    expected = grad.clone()
    for half, action in enumerate(actions):
        for row, token in enumerate(HALVES[half]):
            value = step[..., row if "none" in actions else token, :, :]
            if action == "add":
                expected[..., token, :, :] += value
            elif action == "copy":
                expected[..., token, :, :] = value
    tex.thd_grad_correction(grad, step, BOUNDS, *actions)
    assert torch.equal(grad, expected)


def test_partitions_are_chunks_and_their_mirror_images() -> None:
    assert tex.thd_get_partitioned_indices(BOUNDS, 16, 2, 0).tolist() == [
        0, 3, 4, 5, 10, 11, 12, 15]  # fmt: skip
    second = tex.thd_get_partitioned_indices(BOUNDS, 16, 2, 1)
    assert second.tolist() == [1, 2, 6, 7, 8, 9, 13, 14] and second.dtype == torch.int32
    x = torch.randn(16, 3)
    ranked = tex.thd_sequence_order_to_cp_rank_order(x, BOUNDS, 2, 16)
    assert torch.equal(ranked[8:], x[second.long()])
    assert torch.equal(tex.thd_cp_rank_order_to_sequence_order(ranked, BOUNDS, 2, 16), x)


def test_tokens_that_pad_are_not_copied() -> None:
    out, x = torch.zeros(10, 2), torch.randn(10, 2)
    padded = torch.tensor([0, 4, 4, 10], dtype=torch.int32)
    valid = torch.tensor([0, 3, 3, 5], dtype=torch.int32)
    tex.thd_copy_valid_tokens_from_per_split_to_rank_local(out, x, padded, valid)
    copied = [0, 1, 2, 4, 5]
    assert torch.equal(out[copied], x[copied])
    assert out[[3, 6, 7, 8, 9]].eq(0).all()


@pytest.mark.parametrize(
    "call,message",
    [
        (
            lambda x: tex.thd_read_half_tensor(x[0, 0], BOUNDS, 0),
            "thd_read_half_tensor: needs shape (t, h, d) or (2, t, h, d), got (3,)",
        ),
        (
            lambda x: tex.thd_grad_correction(x, x, BOUNDS, "add", "add"),
            'thd_grad_correction: the halves must take two different words of "add", "copy" and '
            "\"none\", got ('add', 'add')",
        ),
        (
            lambda x: tex.thd_out_correction(x, x, x, x, BOUNDS, True, False),
            "thd_out_correction: the step of out (16, 2, 3) must have shape (8, 2, 3), got "
            "(16, 2, 3)",
        ),
        (
            lambda x: tex.thd_get_partitioned_indices(BOUNDS, 16, 4, 0),
            "thd_get_partitioned_indices: sequences must end at 16 tokens and divide into 8 chunks,"
            " got bounds [0, 4, 12, 16]",
        ),
        (
            lambda x: tex.thd_get_partitioned_indices(BOUNDS, 16, 2, 2),
            "thd_get_partitioned_indices: rank must be in [0, 2), got 2",
        ),
        (
            lambda x: tex.thd_second_half_lse_correction(x, x, BOUNDS, True),
            "thd_second_half_lse_correction: needs two tensors of 2 dimensions that differ in the "
            "last, got shapes (16, 2, 3) and (16, 2, 3)",
        ),
        (
            lambda x: tex.thd_sequence_order_to_cp_rank_order(x[:4], BOUNDS, 2, 16),
            "thd_sequence_order_to_cp_rank_order: needs 16 tokens, got shape (4, 2, 3)",
        ),
        (
            lambda x: tex.thd_copy_valid_tokens_from_per_split_to_rank_local(
                x, x[:4], BOUNDS, BOUNDS[:2]
            ),
            "thd_copy_valid_tokens_from_per_split_to_rank_local: needs equal shapes of output and "
            "input, and of bounds, got (16, 2, 3), (4, 2, 3), (4,) and (2,)",
        ),
    ],
)
def test_bad_arguments_are_refused(call: Callable, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        call(torch.ones(16, 2, 3))
    assert str(caught.value) == message
