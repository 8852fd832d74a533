# SPDX-License-Identifier: Apache-2.0
"""Compares attention's softmax in the native module with float64."""

from collections.abc import Callable

import pytest
import torch
from bounds import assert_near
from narrowfloat.pytorch import tex

Tensor = torch.Tensor
# Scores are products with two roundings. Exponentials are off by at most 4 ulp. A score of
# magnitude s adds s roundings to its exponential: at most 16 here. Sums add up to 40 roundings.
ROUNDINGS = 80
SCALE = 0.75
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def causal(queries: int, keys: int) -> Tensor:
    """Returns the mask of the keys that are hidden from each query. The last query sees all."""
    return torch.arange(keys)[None] > torch.arange(queries)[:, None] + keys - queries


def check(entry: str, shape: tuple, hidden: Tensor | bool, *arguments: Tensor) -> None:
    """Compares a function and its gradient with softmax over the scores that are not hidden."""
    for dtype in DTYPES:
        torch.manual_seed(1)
        wide = (torch.randn(*shape[:-1], shape[-1] + 3) * 4).to(dtype)
        x, grad = wide[..., : shape[-1]], torch.randn(shape).to(dtype)
        y = getattr(tex, f"{entry}_forward")(x, *arguments, SCALE)
        exact_x = x.double().requires_grad_()
        scores = (exact_x * SCALE).masked_fill(torch.as_tensor(hidden), float("-inf"))
        exact = torch.softmax(scores, -1).nan_to_num(0)
        assert y.dtype == dtype
        assert_near(y, exact.detach(), exact.detach(), ROUNDINGS, entry)
        dx = getattr(tex, f"{entry}_backward")(grad, y, SCALE)
        weights, g = y.double(), grad.double()
        expected = SCALE * weights * (g - (g * weights).sum(-1, keepdim=True))
        reach = weights * (g.abs() + (g * weights).abs().sum(-1, keepdim=True))
        assert dx.dtype == dtype
        assert_near(dx, expected, reach, ROUNDINGS, f"{entry} gradient")
        if dtype == torch.float32:
            exact.backward(g)
            assert_near(dx, exact_x.grad, reach, 2 * ROUNDINGS, "gradient")


@pytest.mark.parametrize("keys", [8, 33])
def test_scaled_softmax(keys: int) -> None:
    check("scaled_softmax", (2, 3, 5, keys), False)


@pytest.mark.parametrize("batches", [1, 2])
def test_masked_softmax(batches: int) -> None:
    torch.manual_seed(2)
    mask = torch.rand(batches, 1, 5, 40) > 0.5
    mask[..., 0] = False
    check("scaled_masked_softmax", (2, 3, 5, 40), mask, mask)
    check("scaled_masked_softmax", (2, 3, 5, 40), mask, mask.to(torch.uint8))


def test_rows_without_a_key_are_zero() -> None:
    mask = torch.zeros(1, 1, 2, 8, dtype=torch.uint8)
    mask[..., 0, :] = 1
    y = tex.scaled_masked_softmax_forward(torch.randn(2, 1, 2, 8), mask, SCALE)
    assert torch.equal(y[:, :, 0], torch.zeros(2, 1, 8)) and y[:, :, 1].ne(0).all()


def test_causal_softmax() -> None:
    check("scaled_upper_triang_masked_softmax", (3, 17, 17), causal(17, 17))
    check("scaled_aligned_causal_masked_softmax", (2, 3, 17, 17), causal(17, 17))
    check("scaled_aligned_causal_masked_softmax", (2, 3, 5, 24), causal(5, 24))
    # Queries without a visible key have equal weights.
    y = tex.scaled_aligned_causal_masked_softmax_forward(torch.randn(1, 1, 4, 2), SCALE)
    assert y[0, 0, :2].eq(0.5).all() and y[0, 0, 2].tolist() == [1, 0]


@pytest.mark.parametrize(
    "call,message",
    [
        (
            lambda x: tex.scaled_softmax_forward(x[0], 1.0),
            "scaled_softmax_forward: needs 4 dimensions, got shape (3, 4, 8)",
        ),
        (
            lambda x: tex.scaled_masked_softmax_forward(x, x[:, :, 0] > 0, 1.0),
            "scaled_masked_softmax_forward: mask must have shape (1 or 2, 1, 4, 8), got (2, 3, 8)",
        ),
        (
            lambda x: tex.scaled_upper_triang_masked_softmax_forward(x[0], 1.0),
            "scaled_upper_triang_masked_softmax_forward: needs as many keys as queries, got shape "
            "(3, 4, 8)",
        ),
        (
            lambda x: tex.scaled_softmax_backward(x, x[:1], 1.0),
            "scaled_softmax_backward: gradient and result must have one shape, got (2, 3, 4, 8) "
            "and (1, 3, 4, 8)",
        ),
    ],
)
def test_bad_shapes_are_refused(call: Callable, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        call(torch.ones(2, 3, 4, 8))
    assert str(caught.value) == message
