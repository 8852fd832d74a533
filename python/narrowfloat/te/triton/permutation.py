# SPDX-License-Identifier: Apache-2.0
"""Moves the rows of tokens to their experts and back.

A map of rows is int32 (tokens, 2 * experts + 1). The last column is the number n of a token's
experts. The first n columns are its rows in the permuted matrix, in descending order; n columns
from `experts` on are the experts of these rows. Other columns are unspecified.
"""

from typing import NamedTuple

import torch


class _Routes(NamedTuple):
    """Every pair of a token and one of its experts, and its row in the permuted matrix."""

    token: torch.Tensor
    expert: torch.Tensor
    row: torch.Tensor

    @classmethod
    def of(
        cls, row_id_map: torch.Tensor, experts: int, rows: int, pad_offsets: torch.Tensor | None
    ) -> "_Routes":
        """Returns the routes of a map, without routes to rows >= `rows`."""
        places = torch.arange(experts)
        token, place = torch.nonzero(places < row_id_map[:, -1:], as_tuple=True)
        expert = row_id_map[token, experts + place].long()
        row = row_id_map[token, place].long()
        if pad_offsets is not None:
            row = row + pad_offsets[expert].long()
        kept = row < rows
        return cls(token[kept], expert[kept], row[kept])


@torch.no_grad()
def make_row_id_map(routing_map: torch.Tensor, num_tokens: int, num_experts: int) -> torch.Tensor:
    """Returns the map of rows, sorted by expert and then by token. routing_map: a mask."""
    mask = routing_map.bool()
    by_expert = mask.t()
    rows = torch.full(by_expert.shape, -1, dtype=torch.int32)
    rows[by_expert] = torch.arange(int(mask.sum()), dtype=torch.int32)
    descending, experts = rows.t().sort(dim=1, descending=True, stable=True)
    count = mask.sum(1, keepdim=True)
    return torch.cat((descending, experts.int(), count.int()), 1)


@torch.no_grad()
def permute_with_mask_map(
    inp: torch.Tensor,
    row_id_map: torch.Tensor,
    probs: torch.Tensor | None,
    scale: torch.Tensor | None,
    pad_offsets: torch.Tensor | None,
    num_tokens: int,
    num_experts: int,
    num_out_tokens: int,
    hidden_size: int,
    scale_hidden_dim: int,
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """Returns the permuted rows, scales and probabilities. A route of probability 0 gives zeros."""
    routes = _Routes.of(row_id_map, num_experts, num_out_tokens, pad_offsets)
    rows = inp[routes.token]
    permuted_probs = permuted_scale = None
    if probs is not None:
        chosen = probs[routes.token, routes.expert] if probs.ndim > 1 else probs[routes.token]
        permuted_probs = torch.zeros(num_out_tokens, dtype=probs.dtype)
        permuted_probs[routes.row] = chosen
        rows = rows.masked_fill((chosen == 0)[:, None], 0)
    if scale is not None:
        permuted_scale = torch.zeros(num_out_tokens, scale_hidden_dim, dtype=scale.dtype)
        permuted_scale[routes.row] = scale[routes.token]
    output = torch.zeros(num_out_tokens, hidden_size, dtype=inp.dtype)
    output[routes.row] = rows
    return output, permuted_scale, permuted_probs


@torch.no_grad()
def unpermute_with_mask_map(
    inp: torch.Tensor,
    row_id_map: torch.Tensor,
    merging_probs: torch.Tensor | None,
    permuted_probs: torch.Tensor | None,
    pad_offsets: torch.Tensor | None,
    num_tokens: int,
    num_experts: int,
    hidden_size: int,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Returns each token's sum over its experts, in float32 and then rounded, and probabilities."""
    routes = _Routes.of(row_id_map, num_experts, inp.shape[0], pad_offsets)
    rows = inp[routes.row].float()
    if merging_probs is not None:
        rows = rows * merging_probs[routes.token, routes.expert].float()[:, None]
    output = torch.zeros(num_tokens, hidden_size).index_add_(0, routes.token, rows).to(inp.dtype)
    if permuted_probs is None:
        return output, None
    probs = torch.zeros(num_tokens, num_experts, dtype=permuted_probs.dtype)
    probs[routes.token, routes.expert] = permuted_probs[routes.row]
    return output, probs


@torch.no_grad()
def unpermute_with_mask_map_bwd_with_merging_probs(
    fwd_output_grad: torch.Tensor,
    row_id_map: torch.Tensor,
    fwd_input: torch.Tensor,
    merging_probs: torch.Tensor,
    pad_offsets: torch.Tensor | None,
    num_tokens: int,
    num_experts: int,
    num_out_tokens: int,
    hidden_size: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the gradients of unpermute_with_mask_map() for its rows and its merging_probs."""
    routes = _Routes.of(row_id_map, num_experts, num_out_tokens, pad_offsets)
    grad = fwd_output_grad[routes.token].float()
    probs = merging_probs[routes.token, routes.expert].float()
    rows_grad = torch.zeros(num_out_tokens, hidden_size, dtype=fwd_output_grad.dtype)
    rows_grad[routes.row] = (grad * probs[:, None]).to(rows_grad.dtype)
    probs_grad = torch.zeros(num_tokens, num_experts, dtype=merging_probs.dtype)
    products = (grad * fwd_input[routes.row].float()).sum(1)
    probs_grad[routes.token, routes.expert] = products.to(probs_grad.dtype)
    return rows_grad, probs_grad


@torch.no_grad()
def make_chunk_sort_map(
    split_sizes: torch.Tensor, sorted_indices: torch.Tensor, num_tokens: int, num_splits: int
) -> torch.Tensor:
    """Returns each row's new position when chunks are put in the order of `sorted_indices`."""
    sizes, order = split_sizes.long(), sorted_indices.long()
    begins = sizes.cumsum(0) - sizes
    new_begins = torch.empty_like(begins)
    new_begins[order] = sizes[order].cumsum(0) - sizes[order]
    chunk = torch.repeat_interleave(torch.arange(num_splits), sizes)
    return (torch.arange(chunk.numel()) + (new_begins - begins)[chunk]).int()


@torch.no_grad()
def sort_chunks_by_map(
    inp: torch.Tensor,
    row_id_map: torch.Tensor,
    probs: torch.Tensor | None,
    num_tokens: int,
    hidden_size: int,
    is_forward: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Returns rows and probabilities at their new positions; if not forward, at the old ones."""
    places = row_id_map.long()

    def moved(rows: torch.Tensor) -> torch.Tensor:
        if not is_forward:
            return rows[places]
        return torch.empty_like(rows).index_copy_(0, places, rows)

    return moved(inp), None if probs is None else moved(probs)
