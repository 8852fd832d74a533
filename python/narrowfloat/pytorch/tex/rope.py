# SPDX-License-Identifier: Apache-2.0
"""Entries for rotary position embeddings. Angles and products are in float32."""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch

from narrowfloat.pytorch.tex._cache import CACHED_ELEMENTS
from narrowfloat.pytorch.tex.enums import NVTE_QKV_Format

__all__ = [
    "fused_qkv_rope_backward",
    "fused_qkv_rope_forward",
    "fused_rope_backward",
    "fused_rope_forward",
]

Tensor = torch.Tensor


def _check_angles(entry: str, freqs: Tensor) -> None:
    if freqs.dim() != 4 or freqs.shape[1:3] != (1, 1) or freqs.shape[3] % 2:
        raise ValueError(
            f"{entry}: freqs must have shape (positions, 1, 1, even number), got "
            f"{tuple(freqs.shape)}"
        )
    if freqs.dtype != torch.float32:
        raise ValueError(f"{entry}: freqs must be float32, got {freqs.dtype}")


def _local_positions(length: int, cp_size: int, cp_rank: int, device: torch.device) -> Tensor:
    """Returns the positions of a rank's part of a sequence.

    A sequence is cut in 2 * cp_size chunks; a rank holds the chunks number cp_rank from both ends.
    """
    positions = torch.arange(length, device=device)
    if cp_size > 1:
        half = length // 2
        positions[:half] += cp_rank * half
        positions[half:] += length * cp_size - (cp_rank + 1) * half - half
    return positions


def _packed_positions(
    entry: str, tokens: int, cu_seqlens: Tensor, starts: Tensor | None, cp_size: int, cp_rank: int
) -> Tensor:
    """Returns the position of every token of packed sequences."""
    bounds = [bound // cp_size for bound in cu_seqlens.tolist()]
    if bounds[-1] > tokens:
        raise ValueError(
            f"{entry}: cu_seqlens ends at {bounds[-1]} tokens, but the input has {tokens}"
        )
    first = [0] * len(bounds) if starts is None else starts.tolist()
    parts = [
        _local_positions(stop - start, cp_size, cp_rank, cu_seqlens.device) + first[i]
        for i, (start, stop) in enumerate(pairwise(bounds))
    ]
    return torch.cat(parts)


def _angles(
    entry: str,
    shape: torch.Size,
    freqs: Tensor,
    starts: Tensor | None,
    qkv_format: int,
    cu_seqlens: Tensor | None,
    cp: tuple[int, int],
) -> Tensor:
    """Returns the angles of every token, to broadcast over heads.

    Shapes: (tokens, 1, d), (s, 1 or b, 1, d) or (1 or b, s, 1, d).
    Errors: ValueError for shapes that do not agree and positions that `freqs` does not have.
    """
    _check_angles(entry, freqs)
    packed = NVTE_QKV_Format(int(qkv_format)) == NVTE_QKV_Format.NVTE_THD
    if len(shape) != (3 if packed else 4) or shape[-1] < freqs.shape[-1]:
        raise ValueError(
            f"{entry}: the input must have {3 if packed else 4} dimensions, the last at least "
            f"{freqs.shape[-1]}, got shape {tuple(shape)}"
        )
    if packed:
        if cu_seqlens is None or cu_seqlens.dim() != 1:
            raise ValueError(f"{entry}: packed sequences need cu_seqlens of one dimension")
        positions = _packed_positions(entry, shape[0], cu_seqlens, starts, *cp)
    else:
        sequence_first = NVTE_QKV_Format(int(qkv_format)) == NVTE_QKV_Format.NVTE_SBHD
        positions = _local_positions(shape[0 if sequence_first else 1], *cp, freqs.device)
        positions = positions[:, None] if sequence_first else positions[None]
        if starts is not None:
            starts = starts.to(positions.dtype)
            positions = positions + (starts[None] if sequence_first else starts[:, None])
    if positions.numel() and int(positions.max()) >= freqs.shape[0]:
        raise ValueError(
            f"{entry}: freqs must have every position, got {freqs.shape[0]} for position "
            f"{int(positions.max())}"
        )
    return freqs[positions, 0]  # the dimension of heads remains


def _swapped(x: Tensor, interleaved: bool) -> Tensor:
    """Returns (-b, a) for the pairs (a, b): neighbours if interleaved, else of both halves."""
    if interleaved:
        return torch.stack((-x[..., 1::2], x[..., 0::2]), -1).flatten(-2)
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)


def _rotated(x: Tensor, angles: Tensor, interleaved: bool, backward: bool) -> Tensor:
    """Returns the rotated tensor; columns without an angle are copied.

    Tokens after the last sequence become 0.
    """
    width = angles.shape[-1]
    out = torch.zeros(x.shape, dtype=x.dtype, device=x.device)
    source, target, cosine, sine = x, out, angles.cos(), angles.sin()
    if x.dim() == 3:
        covered = angles.shape[0]
        source, target = x[:covered, None], out[:covered, None]
        cosine, sine = cosine[:, None], sine[:, None]
    cosine, sine = (of.expand(*source.shape[:2], 1, width) for of in (cosine, sine))
    for part in _parts(source.shape):
        values = source[part][..., :width].float()
        if backward:  # the transpose of forward: swaps the products, negated
            rotated = (values * cosine[part]).sub_(_swapped(values * sine[part], interleaved))
        else:
            rotated = (values * cosine[part]).add_(_swapped(values, interleaved).mul_(sine[part]))
        target[part][..., :width].copy_(rotated)
        target[part][..., width:].copy_(source[part][..., width:])
    return out


def _parts(shape: Sequence[int]) -> Iterator[tuple[slice, slice]]:
    """Yields parts of the first two dimensions whose elements fit in a cache.

    Six operators read each part; this is four times as fast as passes over all elements.
    """
    rows, columns, *inner = shape
    wide = max(1, CACHED_ELEMENTS // max(1, math.prod(inner)))  # tokens
    high = max(1, wide // max(1, columns))
    for row in range(0, rows, high):
        for column in range(0, columns, wide):
            yield slice(row, row + high), slice(column, column + wide)


@torch.no_grad()
def fused_rope_forward(
    input: Tensor,
    freqs: Tensor,
    start_positions: Tensor | None,
    qkv_format: int,
    interleaved: bool,
    cu_seqlens: Tensor | None,
    cp_size: int,
    cp_rank: int,
) -> Tensor:
    """Returns `input` with pairs of its last dimension rotated by their token's angles.

    Shapes: input in the order of qkv_format, freqs (positions, 1, 1, d), start_positions (b,).
    Errors: ValueError for shapes that do not agree.
    """
    cp = cp_size, cp_rank
    angles = _angles(
        "fused_rope_forward", input.shape, freqs, start_positions, qkv_format, cu_seqlens, cp
    )
    return _rotated(input, angles, interleaved, False)


@torch.no_grad()
def fused_rope_backward(
    output_grads: Tensor,
    freqs: Tensor,
    start_positions: Tensor | None,
    qkv_format: int,
    interleaved: bool,
    cu_seqlens: Tensor | None,
    cp_size: int,
    cp_rank: int,
) -> Tensor:
    """Returns the gradient of fused_rope_forward()'s input; arguments are the same."""
    cp = cp_size, cp_rank
    angles = _angles(
        "fused_rope_backward", output_grads.shape, freqs, start_positions, qkv_format, cu_seqlens,
        cp,
    )  # fmt: skip
    return _rotated(output_grads, angles, interleaved, True)


def _check_split(entry: str, width: int, split: Sequence[int]) -> None:
    if len(split) != 3 or sum(split) != width or min(split) < 1 or split[0] % split[1]:
        raise ValueError(
            f"{entry}: the split must be widths of queries, keys and values that add up to "
            f"{width}, the first a multiple of the second, got {list(split)}"
        )


@torch.no_grad()
def fused_qkv_rope_forward(
    qkv_input: Tensor,
    q_freqs: Tensor,
    k_freqs: Tensor,
    start_positions: Tensor | None,
    qkv_split_arg_list: Sequence[int],
    qkv_format: int,
    interleaved: bool,
    cp_size: int,
    cp_rank: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns queries and keys, rotated, and values out of one tensor; all contiguous.

    Shapes: qkv_input (s, b, groups, sum of the split) or (b, s, ...); queries have
    split[0] / split[1] heads per group.
    """
    entry = "fused_qkv_rope_forward"
    _check_split(entry, qkv_input.shape[-1], qkv_split_arg_list)
    q, k, v = qkv_input.split(list(qkv_split_arg_list), -1)
    q = q.reshape(*q.shape[:2], -1, k.shape[-1])
    rotated = []
    for part, freqs in ((q, q_freqs), (k, k_freqs)):
        cp = cp_size, cp_rank
        angles = _angles(entry, part.shape, freqs, start_positions, qkv_format, None, cp)
        rotated.append(_rotated(part, angles, interleaved, False))
    return rotated[0], rotated[1], v.contiguous()


@torch.no_grad()
def fused_qkv_rope_backward(
    q_grad_out: Tensor,
    k_grad_out: Tensor,
    v_grad_out: Tensor,
    q_freqs: Tensor,
    k_freqs: Tensor,
    qkv_split_arg_list: Sequence[int],
    qkv_format: int,
    interleaved: bool,
    cp_size: int,
    cp_rank: int,
) -> Tensor:
    """Returns the gradient of fused_qkv_rope_forward()'s input, of sequences that start at 0."""
    entry = "fused_qkv_rope_backward"
    rotated = []
    for grad, freqs in ((q_grad_out, q_freqs), (k_grad_out, k_freqs)):
        angles = _angles(entry, grad.shape, freqs, None, qkv_format, None, (cp_size, cp_rank))
        rotated.append(_rotated(grad, angles, interleaved, True))
    q = rotated[0].reshape(*k_grad_out.shape[:3], -1)
    _check_split(
        entry, q.shape[-1] + k_grad_out.shape[-1] + v_grad_out.shape[-1], qkv_split_arg_list
    )
    return torch.cat((q, rotated[1], v_grad_out), -1)
