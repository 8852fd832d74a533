# SPDX-License-Identifier: Apache-2.0
"""Compares routers of mixtures of experts in the native module with float64."""

from collections.abc import Callable

import pytest
import torch
from bounds import assert_near
from narrowfloat.pytorch import tex

Tensor = torch.Tensor
TOKENS, EXPERTS, TOPK = (3, 4), 16, 4
BYTES, BITMAP = tex.NVTERoutingMapFormat.BYTEMAP, tex.NVTERoutingMapFormat.BITMAP_U8
# Score functions are off by at most 4 ulp. Logits below 8 add 8 roundings to an exponential. Sums
# of 16 terms, a quotient and the factor follow. Gradients have twice as many roundings.
ROUNDINGS = 64

SCORES: dict[str, Callable[[Tensor], Tensor]] = {
    "sigmoid": torch.sigmoid,
    "sqrtsoftplus": lambda x: torch.nn.functional.softplus(x).sqrt(),
    "softmax": lambda x: torch.softmax(x, -1),
}


def logits_of(dtype: torch.dtype) -> Tensor:
    """Returns logits without ties. Rounding does not change their order."""
    torch.manual_seed(41)
    steps = torch.stack([torch.randperm(EXPERTS) for _ in range(12)]).float()
    return ((steps - EXPERTS / 2) / 2).view(*TOKENS, EXPERTS).to(dtype)


def chosen(scores: Tensor, groups: int | None, kept: int | None) -> Tensor:
    """Returns the indices of the selected experts of every token, best first."""
    rows = []
    for row in scores.flatten(0, -2).tolist():
        allowed = range(EXPERTS)
        if groups:
            size = EXPERTS // groups
            best = [sorted(row[g * size : (g + 1) * size], reverse=True) for g in range(groups)]
            sums = [sum(values[: TOPK // kept]) for values in best]
            top = sorted(range(groups), key=lambda g: -sums[g])[:kept]
            allowed = [e for e in range(EXPERTS) if e // size in top]
        rows.append(sorted(allowed, key=lambda e: -row[e])[:TOPK])
    return torch.tensor(rows)


def mapped(places: Tensor, format_: int) -> Tensor:
    """Returns a routing map in a format."""
    booleans = torch.zeros(places.shape[0], EXPERTS, dtype=torch.bool).scatter_(1, places, True)
    if format_ == BITMAP:
        rows = [
            [sum(1 << bit for bit in range(8) if row[8 * byte + bit]) for byte in range(2)]
            for row in booleans.tolist()
        ]
        return torch.tensor(rows, dtype=torch.uint8).view(*TOKENS, 2)
    return booleans.view(*TOKENS, EXPERTS)


def exact_probabilities(
    x: Tensor, places: Tensor, function: str, pre_softmax: bool, factor: float | None
) -> Tensor:
    """Returns the probabilities in float64, with a graph."""
    x = x.flatten(0, -2)
    if function == "softmax":
        if pre_softmax:
            values = torch.softmax(x, -1).gather(1, places)
        else:
            values = torch.softmax(x.gather(1, places), -1)
    else:
        values = SCORES[function](x).gather(1, places)
        values = values / (values.sum(-1, keepdim=True) + 1e-20)
    zeros = torch.zeros_like(x)
    return zeros.scatter(1, places, values * (factor or 1.0)).view(*TOKENS, EXPERTS)


@pytest.mark.parametrize("format_", [BYTES, BITMAP, torch.int16, torch.int64])
@pytest.mark.parametrize("factor", [None, 2.5])
@pytest.mark.parametrize("groups", [None, 4])
@pytest.mark.parametrize(
    "function,pre_softmax,biased",
    [
        ("softmax", False, False),
        ("softmax", True, False),
        ("sigmoid", False, False),
        ("sigmoid", False, True),
        ("sqrtsoftplus", False, True),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_topk(
    dtype: torch.dtype,
    function: str,
    pre_softmax: bool,
    biased: bool,
    groups: int | None,
    factor: float | None,
    format_: tex.NVTERoutingMapFormat | torch.dtype,
) -> None:
    logits = logits_of(dtype)
    bias = torch.linspace(-2, 2, EXPERTS) if biased else None
    kept = 2 if groups else None
    dense = isinstance(format_, torch.dtype)
    indices = torch.empty(*TOKENS, TOPK, dtype=format_) if dense else None
    layout = BYTES if dense else format_
    probs, routing, saved = tex.fused_topk_with_score_function_fwd(
        logits, TOPK, pre_softmax, groups, kept, factor, function, bias, layout, indices
    )
    exact_x = logits.double().requires_grad_()
    post = function == "softmax" and not pre_softmax
    scores = (exact_x if post else SCORES[function](exact_x)).detach()
    places = chosen(scores if bias is None else scores + bias.double(), groups, kept)
    if dense:
        assert routing is indices and torch.equal(routing.flatten(0, 1).long(), places)
    else:
        assert torch.equal(routing, mapped(places, layout))
    exact = exact_probabilities(exact_x, places, function, pre_softmax, factor)
    assert probs.dtype == dtype and probs.shape == logits.shape and saved.shape == logits.shape
    # The sum and the difference with a bias of at most 2 round magnitudes up to 5. The scores sum
    # up to at least 0.01.
    magnitude = exact.detach() * (1 if bias is None else 500) + 1e-6
    assert_near(probs, exact.detach(), magnitude, ROUNDINGS, "probabilities")

    grad = torch.randn(probs.shape).to(dtype)
    exact.backward(grad.double())
    grad_logits = torch.empty_like(logits)
    tex.fused_topk_with_score_function_bwd(
        routing, saved, grad, grad_logits, TOPK, pre_softmax, factor, function, dense, layout
    )
    reach = 4 * (factor or 1.0) * grad.double().abs().amax(-1, keepdim=True)
    assert_near(grad_logits, exact_x.grad, reach, 2 * ROUNDINGS, "gradient")


def test_the_gradient_takes_the_arguments_of_2_17() -> None:
    logits, made = logits_of(torch.float32), [torch.zeros(*TOKENS, EXPERTS) for _ in range(2)]
    _, routing, saved = topk(logits, TOPK, None, None, None, "sigmoid", None, BITMAP)
    grad = torch.randn(logits.shape)
    for target, rest in zip(made, ((False, BITMAP), (BITMAP,)), strict=True):
        tex.fused_topk_with_score_function_bwd(
            routing, saved, grad, target, TOPK, False, None, "sigmoid", *rest
        )
    assert torch.equal(*made) and made[0].ne(0).any()


def test_a_single_choice_is_not_normalized() -> None:
    logits = logits_of(torch.float32)
    probs = tex.fused_topk_with_score_function_fwd(
        logits, 1, False, None, None, None, "sigmoid", None
    )[0]
    assert torch.equal(probs.sum(-1), torch.sigmoid(logits).amax(-1))


def test_of_equal_scores_the_first_expert_is_chosen() -> None:
    logits = torch.zeros(2, EXPERTS)
    logits[1, 5] = 1
    indices = torch.empty(2, 3, dtype=torch.int32)
    tex.fused_topk_with_score_function_fwd(
        logits, 3, False, None, None, None, "sigmoid", None, BYTES, indices
    )
    assert indices.tolist() == [[0, 1, 2], [5, 0, 1]]


def qb(logits: Tensor, bias: Tensor, bins: int, bounds: Tensor, **options: object) -> tuple:
    histogram = torch.ones(EXPERTS, bins, dtype=torch.int32)
    return tex.fused_topk_with_score_function_qb_fwd(
        logits, TOPK, None, bias, options.get("format_", BYTES), options.get("indices"),
        histogram, bounds, 0,
    )  # fmt: skip


def test_of_scores_at_the_cutoff_the_first_expert_is_chosen() -> None:
    logits = torch.full((1, EXPERTS), -1.0)
    logits[0, : TOPK + 1] = 3  # the cutoff is one of these equal scores
    routing = qb(logits, torch.zeros(EXPERTS), 8, torch.tensor([-1.0, 1.0]))[1]
    assert routing[0].nonzero()[:, 0].tolist() == list(range(TOPK))


@pytest.mark.parametrize("format_", [BYTES, BITMAP])
def test_histogram_counts_how_much_scores_miss_the_cutoff(format_: int) -> None:
    logits, bias = logits_of(torch.float32), torch.linspace(0.5, -0.5, EXPERTS)
    bounds, bins = torch.tensor([-1.5, 1.5]), 8
    probs, routing, raw, cutoff, histogram = qb(logits, bias, bins, bounds, format_=format_)
    plain = tex.fused_topk_with_score_function_fwd(
        logits, TOPK, False, None, None, None, "sigmoid", bias, format_
    )
    for made, expected in zip((probs, routing, raw), plain, strict=True):
        assert torch.equal(made, expected)
    biased = (torch.sigmoid(logits) + bias).flatten(0, 1)
    assert torch.equal(cutoff, biased.sort(-1, descending=True).values[:, TOPK])
    expected = torch.ones(EXPERTS, bins, dtype=torch.int32)
    missing = (cutoff[:, None] - torch.sigmoid(logits).flatten(0, 1)).tolist()
    for row in missing:
        for expert, bias_needed in enumerate(row):
            index = int((bias_needed + 1.5) * bins / 3 // 1)
            expected[expert, min(max(index, 0), bins - 1)] += 1
    assert torch.equal(histogram, expected)


@pytest.mark.parametrize("format_", [BYTES, BITMAP])
@pytest.mark.parametrize("function", SCORES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scores_for_the_auxiliary_loss(dtype: torch.dtype, function: str, format_: int) -> None:
    logits = logits_of(dtype)
    scores, routing, saved = tex.fused_score_for_moe_aux_loss_fwd(logits, TOPK, function, format_)
    exact_x = logits.double().requires_grad_()
    exact = SCORES[function](exact_x)
    if function != "softmax":
        exact = exact / (exact.sum(-1, keepdim=True) + 1e-20)
    assert scores.dtype == torch.float32
    assert_near(scores, exact.detach(), exact.detach(), ROUNDINGS, "scores")
    assert torch.equal(routing, mapped(chosen(exact.detach(), None, None), format_))
    grad = torch.randn(scores.shape)
    exact.backward(grad.double())
    grad_logits = torch.empty_like(logits)
    tex.fused_score_for_moe_aux_loss_bwd(saved, grad, grad_logits, TOPK, function)
    reach = 2 * grad.double().abs().amax(-1, keepdim=True)
    assert_near(grad_logits, exact_x.grad, reach, 2 * ROUNDINGS, "gradient")


@pytest.mark.parametrize("counts", [torch.int32, torch.int64, torch.float32])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_auxiliary_loss(dtype: torch.dtype, counts: torch.dtype) -> None:
    torch.manual_seed(43)
    probs = torch.rand(12, 2 * EXPERTS).to(dtype)
    tokens = torch.randint(0, 9, (2 * EXPERTS,)).to(counts)
    coefficient = EXPERTS * 0.01 / TOPK / 12 / 12
    exact_probs = probs.double().requires_grad_()
    exact = (exact_probs.sum(0) * tokens.double()).sum() * coefficient
    exact.backward(torch.tensor(3.0, dtype=torch.float64))
    rest = (EXPERTS, 12, 2 * EXPERTS, TOPK, 0.01)
    loss, kept = tex.fused_moe_aux_loss_fwd(probs, tokens, 12, *rest)
    safe = tex.fused_moe_aux_loss_fwd_graph_safe(probs, tokens, torch.tensor(12), *rest)
    assert torch.equal(safe[0], loss) and torch.equal(safe[1], kept)
    assert loss.dtype == dtype and loss.shape == () and kept.dtype == torch.float32
    assert_near(loss, exact.detach(), exact.detach(), ROUNDINGS, "loss")  # all terms are positive
    assert_near(kept[1], exact.detach(), exact.detach(), ROUNDINGS, "loss in float32")
    grad = torch.tensor(3.0, dtype=dtype)
    made = tex.fused_moe_aux_loss_bwd(kept, tokens, 12, 2 * EXPERTS, grad)
    assert made.dtype == dtype and made.is_contiguous()
    assert_near(made, exact_probs.grad, exact_probs.grad, 8, "gradient")


INDICES = torch.ones((*TOKENS, TOPK), dtype=torch.int32)


def topk(logits: Tensor, k: int, *rest: object) -> tuple:
    return tex.fused_topk_with_score_function_fwd(logits, k, False, *rest)


@pytest.mark.parametrize(
    "call,error,message",
    [
        (
            lambda x: topk(x, 17, None, None, None, "sigmoid", None),
            ValueError,
            "fused_topk_with_score_function_fwd: topk must be in [1, 16], got 17",
        ),
        (
            lambda x: topk(x, 4, None, None, None, "tanh", None),
            ValueError,
            "fused_topk_with_score_function_fwd: score_function must be softmax, sigmoid or "
            "sqrtsoftplus, got 'tanh'",
        ),
        (
            lambda x: topk(x, 4, None, None, None, "softmax", torch.zeros(16)),
            ValueError,
            "fused_topk_with_score_function_fwd: expert_bias needs score_function sigmoid or "
            "sqrtsoftplus",
        ),
        (
            lambda x: topk(x, 4, 4, 3, None, "sigmoid", None),
            ValueError,
            "fused_topk_with_score_function_fwd: groups must divide 16 experts and group_topk "
            "divide topk 4, got 4 groups and group_topk 3",
        ),
        (
            lambda x: topk(x, 4, None, None, None, "sigmoid", None, BYTES, torch.ones(3).int()),
            ValueError,
            "fused_topk_with_score_function_fwd: topk_indices must have shape (3, 4, 4), got (3,)",
        ),
        (
            lambda x: qb(x, torch.zeros(16), 8, torch.tensor([1.0, 1.0])),
            RuntimeError,
            "fused_topk_with_score_function_qb_fwd: bin_bounds must be finite with lower < upper, "
            "got [1.0, 1.0]",
        ),
        (
            lambda x: tex.fused_moe_aux_loss_fwd(x[0], torch.ones(3), 12, 16, 4, 16, 4, 1.0),
            ValueError,
            "fused_moe_aux_loss_fwd: needs probs of (4, 16) and as many counts as columns, got "
            "(4, 16) and 3",
        ),
        (
            lambda x: topk(x, 4, None, None, None, "sigmoid", None, BITMAP, INDICES),
            ValueError,
            "fused_topk_with_score_function_fwd: topk_indices replace the routing map and need the "
            "format BYTEMAP, got BITMAP_U8",
        ),
        (
            lambda x: tex.fused_topk_with_score_function_qb_fwd(
                x, 4, None, torch.zeros(16), BYTES, None, torch.zeros(16, 8), torch.ones(2), 0
            ),
            ValueError,
            "fused_topk_with_score_function_qb_fwd: histogram must be int32 of shape (16, bins), "
            "got torch.float32 of (16, 8)",
        ),
        (
            lambda x: tex.fused_moe_aux_loss_fwd(x[0], torch.ones(16), 12, 16, 4, 16, 0, 1.0),
            ValueError,
            "fused_moe_aux_loss_fwd: needs positive topk and tokens, and columns that experts "
            "divide, got 0, 12, 16 columns and 16 experts",
        ),
        (
            lambda x: tex.fused_moe_aux_loss_bwd(x[0], torch.ones(3), 4, 16, torch.ones(())),
            ValueError,
            "fused_moe_aux_loss_bwd: needs one count per column, got 3 for 16 columns",
        ),
    ],
)
def test_bad_arguments_are_refused(call: Callable, error: type, message: str) -> None:
    with pytest.raises(error) as caught:
        call(logits_of(torch.float32))
    assert str(caught.value) == message
