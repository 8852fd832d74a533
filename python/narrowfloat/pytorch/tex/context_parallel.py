# SPDX-License-Identifier: Apache-2.0
"""Entries for context parallelism over packed sequences (thd).

Every sequence is cut in two halves, or in two chunks per rank, of which a rank holds chunk `rank`
from the front and from the end. cu_seqlens are the sequences' bounds, int32 (sequences + 1,).
"""

from itertools import pairwise

import torch

__all__ = [
    "thd_copy_valid_tokens_from_per_split_to_rank_local",
    "thd_cp_rank_order_to_sequence_order",
    "thd_get_partitioned_indices",
    "thd_grad_correction",
    "thd_out_correction",
    "thd_read_half_tensor",
    "thd_read_second_half_lse",
    "thd_second_half_lse_correction",
    "thd_sequence_order_to_cp_rank_order",
]

Tensor = torch.Tensor


def _arange(start: int, stop: int, like: Tensor) -> Tensor:
    return torch.arange(start, stop, device=like.device)


def _half_tokens(cu_seqlens: Tensor, half: int) -> Tensor:
    """Returns the tokens of the first (0) or second (1) half of every sequence."""
    bounds = [bound // 2 for bound in cu_seqlens.tolist()]
    return torch.cat(
        [
            _arange(start, stop, cu_seqlens) + bounds[i + half]
            for i, (start, stop) in enumerate(pairwise(bounds))
        ]
    )


def _token_dimension(entry: str, tensor: Tensor) -> int:
    if tensor.dim() not in (3, 4):
        raise ValueError(
            f"{entry}: needs shape (t, h, d) or (2, t, h, d), got {tuple(tensor.shape)}"
        )
    return tensor.dim() - 3


@torch.no_grad()
def thd_read_half_tensor(tensor: Tensor, cu_seqlens: Tensor, half_idx: int) -> Tensor:
    """Returns the first (0) or second (1) half of every sequence.

    Shapes: (t, h, d) or (2, t, h, d), t halved; tokens after the last sequence are 0.
    """
    dim = _token_dimension("thd_read_half_tensor", tensor)
    shape = list(tensor.shape)
    shape[dim] //= 2
    out = tensor.new_zeros(shape)
    tokens = _half_tokens(cu_seqlens, half_idx)
    out.narrow(dim, 0, tokens.numel()).copy_(tensor.detach().index_select(dim, tokens))
    return out


def _halves_of_lse(
    entry: str, lse: Tensor, half: Tensor, cu_seqlens: Tensor, packed: bool
) -> list[tuple[Tensor, Tensor]]:
    """Returns views of each sequence's second half in `lse`, and of its place in `half`.

    Shapes: packed (h, t) and (h, t / 2), else (b, h, s) and (b, h, s / 2).
    """
    rank = 2 if packed else 3
    if lse.dim() != rank or half.dim() != rank or lse.shape[:-1] != half.shape[:-1]:
        raise ValueError(
            f"{entry}: needs two tensors of {rank} dimensions that differ in the last, got shapes "
            f"{tuple(lse.shape)} and {tuple(half.shape)}"
        )
    bounds = [bound // 2 for bound in cu_seqlens.tolist()]
    pairs = []
    for i, (start, stop) in enumerate(pairwise(bounds)):
        if packed:
            pairs.append((lse[:, start + stop : 2 * stop], half[:, start:stop]))
        else:
            length = stop - start
            pairs.append((lse[i, :, length : 2 * length], half[i, :, :length]))
    return pairs


@torch.no_grad()
def thd_second_half_lse_correction(
    lse: Tensor, lse_per_step: Tensor, cu_seqlens: Tensor, lse_packed: bool
) -> None:
    """Adds a step's softmax sums to the sums of the second halves, in place.

    Both are logarithms: log(exp(a) + exp(b)). Shapes: packed (h, t), else (b, h, s), float32.
    """
    entry = "thd_second_half_lse_correction"
    for whole, half in _halves_of_lse(entry, lse, lse_per_step, cu_seqlens, lse_packed):
        larger, smaller = torch.maximum(whole, half), torch.minimum(whole, half)
        whole.copy_(larger + torch.log1p(torch.exp(smaller - larger)))


@torch.no_grad()
def thd_read_second_half_lse(
    lse: Tensor, cu_seqlens: Tensor, lse_packed: bool, second_half_lse_seqlen: int
) -> Tensor:
    """Returns the softmax sums of the second halves, padded with 0.

    Shapes: (h, second_half_lse_seqlen) if packed, else (b, h, second_half_lse_seqlen).
    """
    half = lse.new_zeros((*lse.shape[:-1], second_half_lse_seqlen))
    pairs = _halves_of_lse("thd_read_second_half_lse", lse, half, cu_seqlens, lse_packed)
    for whole, target in pairs:
        target.copy_(whole)
    return half


def _token_sums(lse: Tensor, cu_seqlens: Tensor, halved: bool, offset: int, packed: bool) -> Tensor:
    """Returns softmax sums by token, (t, h). offset: halves to skip in each sequence."""
    bounds = [bound // 2 if halved else bound for bound in cu_seqlens.tolist()]
    parts = []
    for i, (start, stop) in enumerate(pairwise(bounds)):
        if packed:
            first = start + offset * stop
            parts.append(lse[:, first : first + stop - start])
        else:
            first = offset * (stop - start)
            parts.append(lse[i, :, first : first + stop - start])
    return torch.cat(parts, -1).t()


@torch.no_grad()
def thd_out_correction(
    out: Tensor,
    out_per_step: Tensor,
    lse: Tensor,
    lse_per_step: Tensor,
    cu_seqlens: Tensor,
    only_second_half: bool,
    lse_packed: bool,
) -> None:
    """Adds a step's attention times exp(lse_per_step - lse) to `out`, in place.

    The step covers whole sequences or only second halves. Terms are rounded to the dtype before the
    addition. Shapes: out (t, h, d).
    """
    expected = (out.shape[0] // (2 if only_second_half else 1), *out.shape[1:])
    if out.dim() != 3 or tuple(out_per_step.shape) != expected:
        raise ValueError(
            f"thd_out_correction: the step of out {tuple(out.shape)} must have shape {expected}, "
            f"got {tuple(out_per_step.shape)}"
        )
    half = bool(only_second_half)
    whole = _token_sums(lse, cu_seqlens, half, int(half), lse_packed)
    step = _token_sums(lse_per_step, cu_seqlens, half, 0, lse_packed)
    count = whole.shape[0]
    tokens = _half_tokens(cu_seqlens, 1) if half else _arange(0, count, out)
    values = out_per_step[:count].float()
    terms = torch.where(values == 0, 0.0, values * torch.exp(step - whole)[..., None])
    out[tokens] = out[tokens] + terms.to(out.dtype)


@torch.no_grad()
def thd_grad_correction(
    grad: Tensor, grad_per_step: Tensor, cu_seqlens: Tensor, first_half: str, second_half: str
) -> None:
    """Adds or copies a step's gradients to the halves of every sequence, in place.

    first_half, second_half: "add", "copy" or "none"; a step has the tokens of both halves, or of
    only one half if the other is "none". Shapes: (t, h, d) or (2, t, h, d).
    Errors: ValueError for other words, or if both are equal.
    """
    actions = first_half, second_half
    if not set(actions) <= {"add", "copy", "none"} or first_half == second_half:
        raise ValueError(
            'thd_grad_correction: the halves must take two different words of "add", "copy" and '
            f'"none", got {actions}'
        )
    dim = _token_dimension("thd_grad_correction", grad)
    halves = [_half_tokens(cu_seqlens, half) for half in (0, 1)]
    for tokens, action in zip(halves, actions, strict=True):
        if action == "none":
            continue
        source = _arange(0, tokens.numel(), grad) if "none" in actions else tokens
        values = grad_per_step.index_select(dim, source)
        if action == "add":
            values = grad.index_select(dim, tokens) + values
        grad.index_copy_(dim, tokens, values)


def _partition(cu_seqlens: Tensor, world_size: int, rank: int) -> Tensor:
    """Returns the tokens of a rank: of each sequence, chunk `rank` from the front and the end."""
    parts = []
    bounds = cu_seqlens.tolist()
    for start, stop in pairwise(bounds):
        chunk = (stop - start) // (2 * world_size)
        for index in (rank, 2 * world_size - 1 - rank):
            parts.append(_arange(start + index * chunk, start + (index + 1) * chunk, cu_seqlens))
    return torch.cat(parts)


def _check_partition(entry: str, cu_seqlens: Tensor, total: int, world_size: int) -> None:
    bounds = cu_seqlens.tolist()
    pieces = 2 * world_size
    fits = world_size > 0 and total > 0 and not any(bound % pieces for bound in [*bounds, total])
    if not fits or len(bounds) < 2 or bounds[-1] != total:
        raise ValueError(
            f"{entry}: sequences must end at {total} tokens and divide into {pieces} chunks, got "
            f"bounds {bounds}"
        )


@torch.no_grad()
def thd_get_partitioned_indices(
    cu_seqlens: Tensor, total_tokens: int, world_size: int, rank: int
) -> Tensor:
    """Returns the indices of a rank's tokens, int32 of total_tokens / world_size.

    Errors: ValueError unless every sequence divides into two chunks per rank.
    """
    _check_partition("thd_get_partitioned_indices", cu_seqlens, total_tokens, world_size)
    if not 0 <= rank < world_size:
        raise ValueError(
            f"thd_get_partitioned_indices: rank must be in [0, {world_size}), got {rank}"
        )
    return _partition(cu_seqlens, world_size, rank).to(torch.int32)


def _rank_order(entry: str, inp: Tensor, cu_seqlens: Tensor, cp_size: int, total: int) -> Tensor:
    _check_partition(entry, cu_seqlens, total, cp_size)
    if inp.dim() < 1 or inp.shape[0] != total:
        raise ValueError(f"{entry}: needs {total} tokens, got shape {tuple(inp.shape)}")
    return torch.cat([_partition(cu_seqlens, cp_size, rank) for rank in range(cp_size)])


@torch.no_grad()
def thd_sequence_order_to_cp_rank_order(
    inp: Tensor, cu_seqlens: Tensor, cp_size: int, total_tokens: int
) -> Tensor:
    """Returns the tokens in the order of ranks: tokens of rank 0, then of rank 1, and so on."""
    entry = "thd_sequence_order_to_cp_rank_order"
    return inp.detach()[_rank_order(entry, inp, cu_seqlens, cp_size, total_tokens)]


@torch.no_grad()
def thd_cp_rank_order_to_sequence_order(
    inp: Tensor, cu_seqlens: Tensor, cp_size: int, total_tokens: int
) -> Tensor:
    """Returns tokens in the order of the sequences, given the order of ranks."""
    entry = "thd_cp_rank_order_to_sequence_order"
    order = _rank_order(entry, inp, cu_seqlens, cp_size, total_tokens)
    out = torch.empty_like(inp, memory_format=torch.contiguous_format)
    out[order] = inp.detach()
    return out


@torch.no_grad()
def thd_copy_valid_tokens_from_per_split_to_rank_local(
    out: Tensor, inp: Tensor, cu_seqlens_padded: Tensor, cu_seqlens: Tensor
) -> None:
    """Copies the tokens of every sequence, without padding, to the same places of `out`.

    cu_seqlens_padded: offsets of the sequences; cu_seqlens: bounds without padding.
    """
    if out.shape != inp.shape or cu_seqlens.shape != cu_seqlens_padded.shape:
        raise ValueError(
            "thd_copy_valid_tokens_from_per_split_to_rank_local: needs equal shapes of output and "
            f"input, and of bounds, got {tuple(out.shape)}, {tuple(inp.shape)}, "
            f"{tuple(cu_seqlens_padded.shape)} and {tuple(cu_seqlens.shape)}"
        )
    begins, lengths = cu_seqlens_padded.tolist(), cu_seqlens.diff().tolist()
    for i, length in enumerate(lengths):
        stop = min(begins[i] + length, begins[i + 1], inp.shape[0])
        out[begins[i] : stop] = inp[begins[i] : stop]
