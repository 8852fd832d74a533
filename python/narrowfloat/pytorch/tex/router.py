# SPDX-License-Identifier: Apache-2.0
"""Entries for routers of mixtures of experts: scores, top-k and their gradients.

All arithmetic is in float32. Among equal scores, the lower expert number is selected first.
"""

import torch

from narrowfloat.pytorch.tex._bits import unpack
from narrowfloat.pytorch.tex._scores import (
    ELEMENTWISE,
    EPSILON,
    check_scores,
    check_topk,
    normalization_gradient,
    routing_map_of,
    top,
)
from narrowfloat.pytorch.tex.enums import NVTERoutingMapFormat

__all__ = [
    "fused_topk_with_score_function_bwd",
    "fused_topk_with_score_function_fwd",
    "fused_topk_with_score_function_qb_fwd",
]

Tensor = torch.Tensor


def _grouped_top(scores: Tensor, k: int, groups: int, chosen: int) -> tuple[Tensor, Tensor]:
    """Returns the k largest values within the `chosen` best groups of every row.

    A group's score is the sum of its k / chosen largest values.
    """
    tokens, experts = scores.shape
    parts = scores.view(tokens * groups, experts // groups)
    sums = top(parts, k // chosen)[0].sum(-1).view(tokens, groups)
    kept = torch.zeros_like(sums, dtype=torch.bool).scatter_(1, top(sums, chosen)[1], True)
    masked = scores.masked_fill(~kept.repeat_interleave(experts // groups, -1), float("-inf"))
    return top(masked, k)


def _check_groups(entry: str, k: int, experts: int, groups: int | None, chosen: int | None) -> None:
    fits = (
        groups
        and chosen
        and chosen <= groups
        and not experts % groups
        and not k % chosen
        and k // chosen <= experts // groups
    )
    if chosen and not fits:
        raise ValueError(
            f"{entry}: groups must divide {experts} experts and group_topk divide topk {k}, got "
            f"{groups} groups and group_topk {chosen}"
        )


def _routed(
    places: Tensor,
    experts: int,
    leading: torch.Size,
    format_: int,
    out: Tensor | None,
) -> Tensor:
    """Returns the routing map, or `out` filled with the experts' numbers."""
    if out is None:
        return routing_map_of(places, experts, leading, format_)
    return out.copy_(places.view(out.shape))


def _check_indices(
    entry: str, topk_indices: Tensor | None, leading: torch.Size, topk: int, format_: int
) -> None:
    if topk_indices is None:
        return
    if tuple(topk_indices.shape) != (*leading, topk):
        raise ValueError(
            f"{entry}: topk_indices must have shape {(*leading, topk)}, got "
            f"{tuple(topk_indices.shape)}"
        )
    if NVTERoutingMapFormat(int(format_)) != NVTERoutingMapFormat.BYTEMAP:
        raise ValueError(
            f"{entry}: topk_indices replace the routing map and need the format BYTEMAP, got "
            f"{NVTERoutingMapFormat(int(format_)).name}"
        )


def _probabilities(
    values: Tensor, places: Tensor, logits: Tensor, scaling_factor: float | None
) -> Tensor:
    """Returns selected values times the factor at their experts' columns, 0 elsewhere."""
    factor = 1.0 if scaling_factor is None else scaling_factor
    probs = torch.zeros(places.shape[0], logits.shape[-1], device=logits.device)
    return probs.scatter_(1, places, values * factor).to(logits.dtype).view(logits.shape)


def _normalized(values: Tensor) -> Tensor:
    """Returns each row divided by its sum; a row of one value is unchanged."""
    return values / (values.sum(-1, keepdim=True) + EPSILON) if values.shape[-1] > 1 else values


@torch.no_grad()
def fused_topk_with_score_function_fwd(
    logits: Tensor,
    topk: int,
    use_pre_softmax: bool,
    num_groups: int | None,
    group_topk: int | None,
    scaling_factor: float | None,
    score_function: str,
    expert_bias: Tensor | None,
    routing_map_format: int = NVTERoutingMapFormat.BYTEMAP,
    topk_indices: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns (probabilities, routing map or topk_indices, values for the gradient).

    Shapes: logits (..., experts); probabilities are 0 for experts that are not selected. The last
    is float32. expert_bias affects the selection only. With group_topk, experts are selected from
    group_topk of the num_groups groups. Errors: ValueError for arguments that do not fit.
    """
    entry = "fused_topk_with_score_function_fwd"
    check_scores(entry, score_function, expert_bias)
    leading, experts = logits.shape[:-1], logits.shape[-1]
    check_topk(entry, topk, experts)
    _check_groups(entry, topk, experts, num_groups, group_topk)
    _check_indices(entry, topk_indices, leading, topk, routing_map_format)
    x = logits.detach().float().reshape(-1, experts)
    elementwise = ELEMENTWISE.get(score_function)
    if elementwise is not None:
        scores, saved = elementwise.score(x), elementwise.saved(x)
    else:
        scores = torch.softmax(x, -1) if use_pre_softmax else x
        saved = scores
    biased = scores if expert_bias is None else scores + expert_bias.detach()
    if group_topk and num_groups:
        values, places = _grouped_top(biased, topk, num_groups, group_topk)
    else:
        values, places = top(biased, topk)
    if expert_bias is not None:
        values = values - expert_bias.detach()[places]
    if elementwise is not None:
        values = _normalized(values)
    elif not use_pre_softmax:
        values = torch.softmax(values, -1)
        saved = torch.full_like(x, float("-inf")).scatter_(1, places, values)
    routing = _routed(places, experts, leading, routing_map_format, topk_indices)
    saved = saved.clone() if saved is x else saved
    return _probabilities(values, places, logits, scaling_factor), routing, saved.view(logits.shape)


def _count_bins(raw: Tensor, cutoff: Tensor, bounds: Tensor, histogram: Tensor) -> None:
    """Counts each expert's missing bias (cutoff - raw score) in its histogram."""
    experts, bins = histogram.shape
    scale = bins / (bounds[1] - bounds[0])
    index = torch.floor((cutoff[:, None] - raw - bounds[0]) * scale).clamp_(0, bins - 1).long()
    index += torch.arange(experts, device=raw.device) * bins
    counts = torch.bincount(index.flatten(), minlength=experts * bins)
    histogram += counts.view(experts, bins).to(histogram.dtype)


def _check_histogram(entry: str, experts: int, histogram: Tensor, bounds: Tensor) -> None:
    if histogram.dim() != 2 or histogram.shape[0] != experts or histogram.dtype != torch.int32:
        raise ValueError(
            f"{entry}: histogram must be int32 of shape ({experts}, bins), got {histogram.dtype} "
            f"of {tuple(histogram.shape)}"
        )
    lower, upper = bounds.tolist()
    if not float("-inf") < lower < upper < float("inf"):
        raise RuntimeError(  # callers expect this class
            f"{entry}: bin_bounds must be finite with lower < upper, got [{lower}, {upper}]"
        )


@torch.no_grad()
def fused_topk_with_score_function_qb_fwd(
    logits: Tensor,
    topk: int,
    scaling_factor: float | None,
    expert_bias: Tensor,
    routing_map_format: int,
    topk_indices: Tensor | None,
    histogram: Tensor,
    bin_bounds: Tensor,
    histogram_mode: int,
    bin_bounds_validated: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Returns probabilities, routing, sigmoid scores, cutoffs and the histogram (updated in place).

    Selects by sigmoid scores plus bias; the cutoff of a token is its largest score that is not
    selected. The histogram counts, per expert, the differences cutoff - score.
    Errors: ValueError for arguments that do not fit; RuntimeError for bounds that do not ascend.
    """
    entry = "fused_topk_with_score_function_qb_fwd"
    leading, experts = logits.shape[:-1], logits.shape[-1]
    check_topk(entry, topk, experts - 1)
    _check_histogram(entry, experts, histogram, bin_bounds)
    _check_indices(entry, topk_indices, leading, topk, routing_map_format)
    raw = torch.sigmoid(logits.detach().float().reshape(-1, experts))
    bias = expert_bias.detach()
    biased = raw + bias
    cutoff = torch.topk(biased, topk + 1, dim=-1).values[:, -1].contiguous()
    values, places = top(biased, topk)
    values = _normalized(values - bias[places])
    _count_bins(raw, cutoff, bin_bounds, histogram)
    routing = _routed(places, experts, leading, routing_map_format, topk_indices)
    probs = _probabilities(values, places, logits, scaling_factor)
    return probs, routing, raw.view(logits.shape), cutoff, histogram


def _selected(routing: Tensor, experts: int, dense: bool, format_: int) -> Tensor:
    """Returns the mask of the experts that every token selected, (tokens, experts)."""
    if dense:
        places = routing.reshape(-1, routing.shape[-1]).long()
        empty = torch.zeros(places.shape[0], experts, dtype=torch.bool, device=routing.device)
        return empty.scatter_(1, places, True)
    if NVTERoutingMapFormat(int(format_)) == NVTERoutingMapFormat.BITMAP_U8:
        routing = unpack(routing, experts)
    return routing.reshape(-1, experts).bool()


@torch.no_grad()
def fused_topk_with_score_function_bwd(
    routing_map: Tensor,
    intermediate_output: Tensor,
    grad_probs: Tensor,
    grad_logits: Tensor,
    topk: int,
    use_pre_softmax: bool,
    scaling_factor: float | None,
    score_function: str,
    use_dense_indices: bool | int = False,
    routing_map_format: int = NVTERoutingMapFormat.BYTEMAP,
) -> None:
    """Writes the gradient of fused_topk_with_score_function_fwd()'s logits to `grad_logits`."""
    entry = "fused_topk_with_score_function_bwd"
    if not isinstance(use_dense_indices, bool):  # TransformerEngine 2.17: the format
        use_dense_indices, routing_map_format = False, use_dense_indices
    check_scores(entry, score_function)
    experts = grad_probs.shape[-1]
    check_topk(entry, topk, experts)
    kept = _selected(routing_map, experts, use_dense_indices, routing_map_format)
    saved = intermediate_output.reshape(-1, experts)
    grad = grad_probs.detach().float().reshape(-1, experts)
    grad = grad * (1.0 if scaling_factor is None else scaling_factor) * kept
    elementwise = ELEMENTWISE.get(score_function)
    if elementwise is not None:
        if topk > 1:
            grad = normalization_gradient(grad, elementwise.from_saved(saved), kept)
        grad = elementwise.gradient(grad, saved)
    else:
        weights = saved if use_pre_softmax else saved.masked_fill(~kept, 0.0)
        grad = weights * (grad - (grad * weights).sum(-1, keepdim=True))
    grad_logits.copy_(grad.view(grad_logits.shape))
