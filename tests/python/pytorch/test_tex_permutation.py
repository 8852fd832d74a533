# SPDX-License-Identifier: Apache-2.0
"""Compares the native module's sorting of tokens by expert, and its padding, with loops."""

from collections.abc import Callable

import pytest
import torch
from bounds import assert_near
from narrowfloat.pytorch import tex
from narrowfloat.pytorch.constants import TE_DType
from narrowfloat.pytorch.tex import permutation

Tensor = torch.Tensor
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.uint8]


def routing(tokens: int, choices: int, experts: int) -> Tensor:
    """Returns different experts for every token."""
    torch.manual_seed(6)
    return torch.stack([torch.randperm(experts)[:choices] for _ in range(tokens)]).int()


def sorted_choices(indices: Tensor) -> list[tuple[int, int]]:
    """Returns (token, choice) by expert, then by token."""
    pairs = [(t, k) for t in range(indices.shape[0]) for k in range(indices.shape[1])]
    return sorted(pairs, key=lambda pair: (int(indices[pair]), pair))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tokens,choices,kept", [(7, 3, 0), (7, 3, 10), (5, 1, -1), (4, 2, 8)])
def test_permute(tokens: int, choices: int, kept: int, dtype: torch.dtype) -> None:
    indices = routing(tokens, choices, 4)
    x = (torch.rand(tokens, 9) * 100).to(dtype)[:, :6]
    rows, row_id_map, _ = tex.moe_permute_fwd(x, TE_DType[dtype], indices, kept, [], 64)
    order = sorted_choices(indices)[: kept if kept > 0 else None]
    assert rows.dtype == dtype and row_id_map.dtype == torch.int32
    assert torch.equal(rows, torch.stack([x[token] for token, _ in order]))
    expected = [-1] * (tokens * choices)
    for row, (token, choice) in enumerate(order):
        expected[choice * tokens + token] = row
    assert row_id_map.tolist() == expected


@pytest.mark.parametrize("cached", [permutation.CACHED_ELEMENTS, 12, 1])
@pytest.mark.parametrize("dtype", DTYPES[:3])
@pytest.mark.parametrize("kept", [0, 10])
@pytest.mark.parametrize("weighted", [False, True])
def test_unpermute_and_gradients(
    weighted: bool, kept: int, dtype: torch.dtype, cached: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(permutation, "CACHED_ELEMENTS", cached)  # all tokens, two or one at a time
    tokens, choices = 7, 3
    indices = routing(tokens, choices, 4)
    x = torch.randn(tokens, 6).to(dtype)
    rows, row_id_map, _ = tex.moe_permute_fwd(x, TE_DType[dtype], indices, kept, [], 64)
    rows = torch.randn(rows.shape).to(dtype)
    prob = torch.rand(tokens, choices) if weighted else torch.empty(0)
    order = sorted_choices(indices)[: kept or None]

    exact_rows = rows.double().requires_grad_()
    weights = prob.double() if weighted else torch.ones(tokens, choices, dtype=torch.float64)
    weights.requires_grad_()
    sums = [torch.zeros(6, dtype=torch.float64) for _ in range(tokens)]
    for row, (token, choice) in enumerate(order):
        sums[token] = sums[token] + exact_rows[row] * weights[token, choice]
    exact = torch.stack(sums)
    out = tex.moe_unpermute_fwd(rows, TE_DType[dtype], row_id_map, prob, tokens, choices)
    reach = rows.double().abs().max() * choices
    assert out.dtype == dtype
    assert_near(out, exact.detach(), reach, 2 * choices, "forward")
    grad = torch.randn(tokens, 6).to(dtype)
    again = tex.moe_permute_bwd(rows, TE_DType[dtype], row_id_map, prob, tokens, choices)
    assert torch.equal(again, out)
    if weighted:
        exact.backward(grad.double())
        dx, dprob = tex.moe_unpermute_bwd(grad, rows, TE_DType[dtype], row_id_map, prob)
        assert dx.dtype == dtype and dprob.dtype == torch.float32
        assert_near(dx, exact_rows.grad, grad.double().abs().max(), 2, "rows")
        terms = grad.double().abs().max() * rows.double().abs().max() * 6
        assert_near(dprob, weights.grad, terms, 8, "probabilities")


def test_one_choice_without_probabilities() -> None:
    indices = routing(6, 1, 3)
    x, grad = torch.randn(6, 4), torch.randn(6, 4)
    rows, row_id_map, _ = tex.moe_permute_fwd(x, tex.DType.kFloat32, indices, 0, [], 6)
    dx, _ = tex.moe_unpermute_bwd(grad, rows, tex.DType.kFloat32, row_id_map, torch.empty(0))
    back = tex.moe_unpermute_fwd(dx, tex.DType.kFloat32, row_id_map, None, 6, 1)
    assert torch.equal(back, grad)


@pytest.mark.parametrize("dtype", DTYPES)
def test_padding_and_back(dtype: torch.dtype) -> None:
    rows, padded = [3, 0, 4], [4, 0, 8]
    x = (torch.rand(7, 5) * 100).to(dtype)
    wide = torch.full((14, 5), 7).to(dtype)
    tex.fused_multi_row_padding(x, wide, rows, padded)
    zeros = torch.zeros(1, 5).to(dtype)
    expected = torch.cat((x[:3], zeros, x[3:], *[zeros] * 4))
    assert torch.equal(wide[:12], expected) and wide[12:].eq(7).all()
    back = torch.zeros(7, 5).to(dtype)
    tex.fused_multi_row_unpadding(wide, back, padded, rows)
    assert torch.equal(back, x)


@pytest.mark.parametrize(
    "call,message",
    [
        (
            lambda x: tex.moe_permute_fwd(x, None, torch.ones(2, 2), 0, [], 0),
            "moe_permute_fwd: indices must have shape (3, choices), got (2, 2)",
        ),
        (
            lambda x: tex.moe_unpermute_fwd(x, None, torch.zeros(5).int(), None, 3, 2),
            "moe_unpermute_fwd: the map must have 2 rows for each of 3 tokens, got 5 elements",
        ),
        (
            lambda x: tex.fused_multi_row_padding(x, x, [2], [1]),
            "fused_multi_row_padding: every part needs as many rows with padding as without, or "
            "more, got [2] and [1]",
        ),
        (
            lambda x: tex.fused_multi_row_padding(x, x, [2, 1], [2, 2]),
            "fused_multi_row_padding: the output must have two dimensions and 4 rows, got shape "
            "(3, 4)",
        ),
        (
            lambda x: tex.fused_multi_row_unpadding(x, x, [4], [3]),
            "fused_multi_row_unpadding: the input must have two dimensions and 4 rows, got shape "
            "(3, 4)",
        ),
    ],
)
def test_bad_shapes_are_refused(call: Callable, message: str) -> None:
    x = torch.ones(3, 4)
    with pytest.raises(ValueError) as caught:
        call(x)
    assert str(caught.value) == message and torch.equal(x, torch.ones(3, 4))
