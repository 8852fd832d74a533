# SPDX-License-Identifier: Apache-2.0
"""Entries that sort tokens by expert and pad the rows of each expert."""

from collections.abc import Iterator, Sequence

import torch

from narrowfloat.pytorch.constants import DType
from narrowfloat.pytorch.tex._cache import CACHED_ELEMENTS

__all__ = [
    "fused_multi_row_padding",
    "fused_multi_row_unpadding",
    "moe_permute_bwd",
    "moe_permute_fwd",
    "moe_unpermute_bwd",
    "moe_unpermute_fwd",
]

Tensor = torch.Tensor
_DROPPED = -1


@torch.no_grad()
def moe_permute_fwd(
    input: Tensor,
    dtype: DType,
    indices: Tensor,
    num_out_tokens: int,
    workspace: list[Tensor],
    max_expanded_token_num: int,
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Returns (rows sorted by expert, map of each token's choices to rows, workspace).

    Shapes: input (tokens, columns), indices (tokens, choices). The map is int32 of choices * tokens
    elements, choice by choice. The choices past num_out_tokens are dropped and marked with -1; 0 or
    less keeps all. Tokens of an expert keep their order.
    Errors: ValueError unless `indices` has a row per token.
    """
    tokens = input.shape[0]
    if indices.dim() != 2 or indices.shape[0] != tokens:
        raise ValueError(
            f"moe_permute_fwd: indices must have shape ({tokens}, choices), got "
            f"{tuple(indices.shape)}"
        )
    choices = indices.shape[1]
    order = torch.sort(indices.reshape(-1), stable=True).indices
    kept = order[:num_out_tokens] if num_out_tokens > 0 else order
    token, choice = kept // choices, kept % choices
    row_id_map = torch.full((choices, tokens), _DROPPED, dtype=torch.int32, device=input.device)
    row_id_map[choice, token] = torch.arange(kept.numel(), dtype=torch.int32, device=input.device)
    return input.detach()[token], row_id_map.view(-1), workspace


def _runs(tokens: int, columns: int) -> Iterator[slice]:
    """Yields ranges of tokens whose elements fit in a cache, for faster operators."""
    step = max(1, CACHED_ELEMENTS // max(1, columns))
    for begin in range(0, tokens, step):
        yield slice(begin, begin + step)


def _rows_of_choice(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the positions in `rows` of kept choices, and their rows."""
    kept = (rows != _DROPPED).nonzero()[:, 0]
    return kept, rows[kept].long()


def _check_map(entry: str, row_id_map: Tensor, tokens: int, choices: int) -> None:
    if row_id_map.numel() != tokens * choices:
        raise ValueError(
            f"{entry}: the map must have {choices} rows for each of {tokens} tokens, got "
            f"{row_id_map.numel()} elements"
        )


@torch.no_grad()
def moe_unpermute_fwd(
    input: Tensor,
    dtype: DType,
    row_id_map: Tensor,
    prob: Tensor | None,
    num_tokens: int,
    topK: int,
) -> Tensor:
    """Returns, for each token, the sum of its choices' rows, times their probabilities if given.

    Sums are in float32, choice after choice. Errors: ValueError for a map of another size.
    """
    _check_map("moe_unpermute_fwd", row_id_map, num_tokens, topK)
    weights = None if prob is None or prob.numel() == 0 else prob.detach()
    places, source = row_id_map.view(topK, num_tokens), input.detach()
    out = torch.empty(num_tokens, input.shape[1], dtype=input.dtype, device=input.device)
    for run in _runs(*out.shape):
        total = torch.zeros(out[run].shape, device=input.device)
        for choice in range(topK):
            kept, rows = _rows_of_choice(places[choice, run])
            values = source[rows].float()
            if weights is not None:
                values *= weights[run][kept, choice, None].float()
            total.index_add_(0, kept, values)
        out[run] = total
    return out


def moe_permute_bwd(
    input: Tensor,
    dtype: DType,
    row_id_map: Tensor,
    prob: Tensor | None,
    num_tokens: int,
    topK: int,
) -> Tensor:
    """Returns the gradient of moe_permute_fwd()'s input: moe_unpermute_fwd() of the gradient."""
    return moe_unpermute_fwd(input, dtype, row_id_map, prob, num_tokens, topK)


@torch.no_grad()
def moe_unpermute_bwd(
    input_bwd: Tensor, input_fwd: Tensor, dtype: DType, row_id_map: Tensor, prob: Tensor
) -> tuple[Tensor, Tensor]:
    """Returns the gradients of moe_unpermute_fwd()'s rows and, in float32, of its probabilities.

    An empty `prob` means one choice with probability 1. Rows without a choice get gradient 0.
    Errors: ValueError for a map of another size.
    """
    tokens = input_bwd.shape[0]
    weighted = prob.numel() > 0
    choices = prob.shape[1] if weighted else 1
    _check_map("moe_unpermute_bwd", row_id_map, tokens, choices)
    places, source = row_id_map.view(choices, tokens), input_fwd.detach()
    act_grad = torch.zeros(input_fwd.shape, dtype=input_bwd.dtype, device=input_bwd.device)
    prob_grad = torch.zeros(tokens, choices, device=input_bwd.device)
    for run in _runs(*input_bwd.shape):
        grad = input_bwd.detach()[run].float()
        for choice in range(choices):
            kept, rows = _rows_of_choice(places[choice, run])
            values = grad[kept]
            prob_grad[run][kept, choice] = (values * source[rows].float()).sum(-1)
            if weighted:
                values *= prob.detach()[run][kept, choice, None].float()
            act_grad[rows] = values.to(act_grad.dtype)
    return act_grad, prob_grad


def _check_rows(entry: str, tensor: Tensor, rows: Sequence[int], what: str) -> None:
    if tensor.dim() != 2 or sum(rows) > tensor.shape[0]:
        raise ValueError(
            f"{entry}: the {what} must have two dimensions and {sum(rows)} rows, got shape "
            f"{tuple(tensor.shape)}"
        )


def _check_pairs(entry: str, rows: Sequence[int], padded: Sequence[int]) -> None:
    fits = len(rows) == len(padded) and all(r <= p for r, p in zip(rows, padded, strict=True))
    if not fits:
        raise ValueError(
            f"{entry}: every part needs as many rows with padding as without, or more, got "
            f"{list(rows)} and {list(padded)}"
        )


@torch.no_grad()
def fused_multi_row_padding(
    input: Tensor,
    output: Tensor,
    input_row_list: Sequence[int],
    padded_input_row_list: Sequence[int],
) -> None:
    """Copies sections of rows to `output` and pads each with rows of 0.

    Errors: ValueError before anything is written, for lists that do not fit the tensors.
    """
    entry = "fused_multi_row_padding"
    _check_pairs(entry, input_row_list, padded_input_row_list)
    _check_rows(entry, input, input_row_list, "input")
    _check_rows(entry, output, padded_input_row_list, "output")
    read = written = 0
    for rows, padded in zip(input_row_list, padded_input_row_list, strict=True):
        output[written : written + rows] = input[read : read + rows]
        output[written + rows : written + padded] = 0
        read, written = read + rows, written + padded


@torch.no_grad()
def fused_multi_row_unpadding(
    input: Tensor,
    output: Tensor,
    input_row_list: Sequence[int],
    unpadded_input_row_list: Sequence[int],
) -> None:
    """Copies sections of rows to `output` without their padding.

    Errors: ValueError before anything is written, for lists that do not fit the tensors.
    """
    entry = "fused_multi_row_unpadding"
    _check_pairs(entry, unpadded_input_row_list, input_row_list)
    _check_rows(entry, input, input_row_list, "input")
    _check_rows(entry, output, unpadded_input_row_list, "output")
    read = written = 0
    for padded, rows in zip(input_row_list, unpadded_input_row_list, strict=True):
        output[written : written + rows] = input[read : read + rows]
        read, written = read + padded, written + rows
