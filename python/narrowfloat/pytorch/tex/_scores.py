# SPDX-License-Identifier: Apache-2.0
"""Scores of experts, their gradients, and top-k selection."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch.nn import functional

from narrowfloat.pytorch.tex._bits import pack
from narrowfloat.pytorch.tex.enums import NVTERoutingMapFormat

__all__: list[str] = []

Tensor = torch.Tensor
EPSILON = 1e-20  # added to sums before they are divisors
_SOFTPLUS_IS_LINEAR = 20.0  # above this, log(1 + exp(x)) is x in float32


def _sqrt_softplus(x: Tensor) -> Tensor:
    return functional.softplus(x, threshold=_SOFTPLUS_IS_LINEAR).sqrt()


def _sqrt_softplus_gradient(grad: Tensor, x: Tensor) -> Tensor:
    slope = torch.where(x > _SOFTPLUS_IS_LINEAR, 1.0, torch.sigmoid(x))
    return grad * (slope / (2 * _sqrt_softplus(x) + EPSILON))


class Score(NamedTuple):
    """An elementwise score function, and the functions for its backward pass."""

    score: Callable[[Tensor], Tensor]
    saved: Callable[[Tensor], Tensor]  # computed from the logits, for backward
    from_saved: Callable[[Tensor], Tensor]  # computes the scores from `saved`
    gradient: Callable[[Tensor, Tensor], Tensor]  # of (gradient of the scores, saved)


ELEMENTWISE = {
    "sigmoid": Score(torch.sigmoid, torch.sigmoid, lambda y: y, torch.ops.aten.sigmoid_backward),
    "sqrtsoftplus": Score(_sqrt_softplus, lambda x: x, _sqrt_softplus, _sqrt_softplus_gradient),
}


def check_scores(entry: str, score_function: str, bias: Tensor | None = None) -> None:
    """Raises ValueError for an unknown function, or a bias that it does not support."""
    if score_function != "softmax" and score_function not in ELEMENTWISE:
        raise ValueError(
            f"{entry}: score_function must be softmax, sigmoid or sqrtsoftplus, got "
            f"{score_function!r}"
        )
    if bias is not None and score_function == "softmax":
        raise ValueError(f"{entry}: expert_bias needs score_function sigmoid or sqrtsoftplus")


def check_topk(entry: str, topk: int, experts: int) -> None:
    """Raises ValueError unless topk is at least 1 and at most the number of experts."""
    if not 0 < topk <= experts:
        raise ValueError(f"{entry}: topk must be in [1, {experts}], got {topk}")


def top(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Returns the k largest values of every row and their indices; among equals the first ones."""
    values, places = torch.topk(scores, k, dim=-1)
    tied = ((scores >= values[:, -1:]).sum(-1) > k).nonzero()[:, 0]
    if tied.numel():
        ordered = torch.sort(scores[tied], dim=-1, descending=True, stable=True)
        values[tied], places[tied] = ordered.values[:, :k], ordered.indices[:, :k]
    return values, places


def routing_map_of(places: Tensor, experts: int, leading: torch.Size, format_: int) -> Tensor:
    """Returns the routing map of the experts at `places`: booleans or packed bits."""
    selected = torch.zeros(places.shape[0], experts, dtype=torch.bool, device=places.device)
    selected = selected.scatter_(1, places, True).view(*leading, experts)
    bitmap = NVTERoutingMapFormat(int(format_)) == NVTERoutingMapFormat.BITMAP_U8
    return pack(selected) if bitmap else selected


def normalization_gradient(grad: Tensor, scores: Tensor, kept: Tensor | float) -> Tensor:
    """Returns the gradient of scores that were divided by the sum of the kept scores."""
    kept_scores = scores * kept
    total = kept_scores.sum(-1, keepdim=True) + EPSILON
    along = (grad * kept_scores).sum(-1, keepdim=True)
    return (grad / total - along / (total * total)) * kept
