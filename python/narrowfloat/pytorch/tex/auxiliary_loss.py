# SPDX-License-Identifier: Apache-2.0
"""Entries for the auxiliary loss that balances tokens over experts.

All arithmetic is in float32. Among equal scores the expert with the lower number comes first.
"""

import torch

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
    "fused_moe_aux_loss_bwd",
    "fused_moe_aux_loss_fwd",
    "fused_moe_aux_loss_fwd_graph_safe",
    "fused_score_for_moe_aux_loss_bwd",
    "fused_score_for_moe_aux_loss_fwd",
]

Tensor = torch.Tensor


@torch.no_grad()
def fused_score_for_moe_aux_loss_fwd(
    logits: Tensor,
    topk: int,
    score_function: str,
    routing_map_format: int = NVTERoutingMapFormat.BYTEMAP,
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns (scores that add up to 1 per token, routing map of the top-k, tensor for backward).

    The first and the last are float32. Errors: ValueError for invalid arguments.
    """
    entry = "fused_score_for_moe_aux_loss_fwd"
    check_scores(entry, score_function)
    leading, experts = logits.shape[:-1], logits.shape[-1]
    check_topk(entry, topk, experts)
    x = logits.detach().float().reshape(-1, experts)
    elementwise = ELEMENTWISE.get(score_function)
    if elementwise is None:
        scores = torch.softmax(x, -1)
        saved = scores.clone()
    else:
        scores, saved = elementwise.score(x), elementwise.saved(x)
        scores = scores / (scores.sum(-1, keepdim=True) + EPSILON)
    routing = routing_map_of(top(scores, topk)[1], experts, leading, routing_map_format)
    saved = saved.clone() if saved is x else saved
    return scores.view(logits.shape), routing, saved.view(logits.shape)


@torch.no_grad()
def fused_score_for_moe_aux_loss_bwd(
    intermediate_output: Tensor,
    grad_scores: Tensor,
    grad_logits: Tensor,
    topk: int,
    score_function: str,
) -> None:
    """Writes the gradient of the logits of fused_score_for_moe_aux_loss_fwd() to `grad_logits`."""
    check_scores("fused_score_for_moe_aux_loss_bwd", score_function)
    saved, grad = intermediate_output, grad_scores.detach().float()
    elementwise = ELEMENTWISE.get(score_function)
    if elementwise is None:
        grad = saved * (grad - (grad * saved).sum(-1, keepdim=True))
    else:
        grad = normalization_gradient(grad, elementwise.from_saved(saved), 1.0)
        grad = elementwise.gradient(grad, saved)
    grad_logits.copy_(grad)


@torch.no_grad()
def fused_moe_aux_loss_fwd(
    probs: Tensor,
    tokens_per_expert: Tensor,
    total_num_tokens: int | Tensor,
    num_experts: int,
    num_rows: int,
    num_cols: int,
    topk: int,
    coeff: float,
) -> tuple[Tensor, Tensor]:
    """Returns (loss, [coefficient, loss] in float32); the loss measures the imbalance of experts.

    The loss is the sum over experts of tokens times summed probabilities, times experts * coeff /
    topk / tokens / tokens. Shapes: probs (rows, columns), tokens_per_expert (columns); columns are
    the experts of one or more sequences. Errors: ValueError for shapes that do not agree.
    """
    entry = "fused_moe_aux_loss_fwd"
    if tuple(probs.shape) != (num_rows, num_cols) or tokens_per_expert.numel() != num_cols:
        raise ValueError(
            f"{entry}: needs probs of ({num_rows}, {num_cols}) and as many counts as columns, got "
            f"{tuple(probs.shape)} and {tokens_per_expert.numel()}"
        )
    if topk < 1 or int(total_num_tokens) < 1 or num_experts < 1 or num_cols % num_experts:
        raise ValueError(
            f"{entry}: needs positive topk and tokens, and columns that experts divide, got "
            f"{topk}, {int(total_num_tokens)}, {num_cols} columns and {num_experts} experts"
        )
    total = torch.tensor(float(total_num_tokens), device=probs.device)
    coefficient = torch.tensor(num_experts * coeff, device=probs.device) / topk / total / total
    sums = probs.detach().float().sum(0) * tokens_per_expert.float()
    loss = (sums * coefficient).sum()
    return loss.to(probs.dtype), torch.stack((coefficient, loss))


def fused_moe_aux_loss_fwd_graph_safe(
    probs: Tensor,
    tokens_per_expert: Tensor,
    total_num_tokens: Tensor,
    num_experts: int,
    num_rows: int,
    num_cols: int,
    topk: int,
    coeff: float,
) -> tuple[Tensor, Tensor]:
    """Returns fused_moe_aux_loss_fwd() for a number of tokens given as a tensor."""
    return fused_moe_aux_loss_fwd(
        probs, tokens_per_expert, total_num_tokens, num_experts, num_rows, num_cols, topk, coeff
    )


@torch.no_grad()
def fused_moe_aux_loss_bwd(
    Const_buf: Tensor,
    tokens_per_expert: Tensor,
    num_rows: int,
    num_cols: int,
    grad_aux_loss: Tensor,
) -> Tensor:
    """Returns the gradient of the probabilities of fused_moe_aux_loss_fwd(), (num_rows, num_cols).

    Const_buf: the forward's second result. The result has the dtype of grad_aux_loss.
    """
    if tokens_per_expert.numel() != num_cols:
        raise ValueError(
            f"fused_moe_aux_loss_bwd: needs one count per column, got {tokens_per_expert.numel()} "
            f"for {num_cols} columns"
        )
    row = Const_buf[0] * tokens_per_expert.float() * grad_aux_loss.detach().float()
    return row.to(grad_aux_loss.dtype).expand(num_rows, num_cols).contiguous()
