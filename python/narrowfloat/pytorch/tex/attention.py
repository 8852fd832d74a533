# SPDX-License-Identifier: Apache-2.0
"""Entries that convert attention's layouts and fill its caches.

There is no fused attention: get_fused_attn_backend() returns that no backend is available.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch.nn import functional

from narrowfloat.pytorch.tex.enums import NVTE_Fused_Attn_Backend, NVTE_QKV_Format

__all__ = [
    "convert_bshd_to_thd",
    "convert_thd_to_bshd",
    "copy_to_kv_cache",
    "fa_prepare_bwd",
    "fa_prepare_fwd",
    "get_cudnn_version",
    "get_fused_attn_backend",
    "multi_tensor_pad_last_dim",
    "multi_tensor_transpose_to_bhsd",
]

Tensor = torch.Tensor
_CUDNN_VERSION = 91900  # 9.19.0: the first with unfused attention in all checks of 2.20


def get_cudnn_version() -> int:
    """Returns the version of a cuDNN release that programs accept for these layouts.

    It has the format of cuDNN's own query; cuDNN is not called.
    """
    return _CUDNN_VERSION


def get_fused_attn_backend(*args: Any, **kwargs: Any) -> object:
    """Returns "no backend" of fused attention, and the reason.

    With a single argument for all parameters (TransformerEngine 2.20.2 and later), returns a pair.
    With one argument per parameter, as before, returns the backend only.
    """
    backend = NVTE_Fused_Attn_Backend.NVTE_No_Backend
    one = len(args) + len(kwargs) == 1
    return (backend, "fused attention needs a GPU") if one else backend


@torch.no_grad()
def convert_thd_to_bshd(tensor: Tensor, cu_seqlens: Tensor, b: int, max_seq_len: int) -> Tensor:
    """Returns packed sequences, one per row, padded with 0.

    Shapes: (t, h, d) to (b, max_seq_len, h, d). Errors: ValueError if a sequence is longer.
    """
    bounds = cu_seqlens.tolist()[: b + 1]
    lengths = [stop - start for start, stop in pairwise(bounds)]
    if len(lengths) < b or max(lengths, default=0) > max_seq_len:
        raise ValueError(
            f"convert_thd_to_bshd: needs {b} sequences of at most {max_seq_len} tokens, got "
            f"lengths {lengths}"
        )
    out = tensor.new_zeros((b, max_seq_len, *tensor.shape[1:]))
    for i, length in enumerate(lengths):
        out[i, :length] = tensor[bounds[i] : bounds[i] + length]
    return out


@torch.no_grad()
def convert_bshd_to_thd(tensor: Tensor, cu_seqlens: Tensor, t: int) -> Tensor:
    """Returns the valid tokens of every row, packed; the rest of the result is 0.

    Shapes: (b, s, h, d) to (t, h, d). Errors: ValueError if the tokens do not fit.
    """
    bounds = cu_seqlens.tolist()[: tensor.shape[0] + 1]
    lengths = [stop - start for start, stop in pairwise(bounds)]
    if bounds[-1] > t or max(lengths, default=0) > tensor.shape[1]:
        raise ValueError(
            f"convert_bshd_to_thd: needs sequences of at most {tensor.shape[1]} and {t} tokens in "
            f"all, got lengths {lengths}"
        )
    out = tensor.new_zeros((t, *tensor.shape[2:]))
    for i, length in enumerate(lengths):
        out[bounds[i] : bounds[i] + length] = tensor[i, :length]
    return out


def _reindex(caches: tuple[Tensor, ...], slots: list[int], old_lengths: list[int]) -> None:
    """Moves the cached tokens of sequence i to slot i.

    slots: the previous slots of the sequences; entries after the last decrease are unused.
    """
    descents = [i + 1 for i in range(len(slots) - 1) if slots[i + 1] < slots[i]]
    for i in range(descents[-1] if descents else len(slots)):
        if slots[0] == 0 and slots[i] == i:
            continue
        for cache in caches:
            cache[i, : old_lengths[i]] = cache[slots[i], : old_lengths[i]].clone()


@torch.no_grad()
def copy_to_kv_cache(
    new_k: Tensor,
    new_v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    page_table: Tensor,
    cu_new_lens: Tensor,
    cu_cached_lens: Tensor,
    qkv_format: int,
    b: int,
    max_ctx_len: int,
    max_seq_len: int,
    max_pages_per_seq: int,
    is_non_paged: bool,
) -> None:
    """Appends new tokens of keys and values to the cached ones of their sequences.

    Shapes: caches (b, max_seq_len, h, d), or pages of max_seq_len / max_pages_per_seq tokens;
    page_table (b, max_pages_per_seq), flat or not, or the previous slots of the sequences.
    cu_cached_lens counts the new tokens too.
    Errors: ValueError for another format than bshd, sbhd and thd, or a full cache.
    """
    layout = NVTE_QKV_Format(int(qkv_format))
    known = NVTE_QKV_Format.NVTE_BSHD, NVTE_QKV_Format.NVTE_SBHD, NVTE_QKV_Format.NVTE_THD
    if layout not in known:
        raise ValueError(
            f"copy_to_kv_cache: the format must be bshd, sbhd or thd, got {layout.name}"
        )
    new, total = cu_new_lens.diff().tolist()[:b], cu_cached_lens.diff().tolist()[:b]
    if max(total, default=0) > max_seq_len:
        raise ValueError(
            f"copy_to_kv_cache: sequences must have at most {max_seq_len} tokens, got {total}"
        )
    old = [t - n for t, n in zip(total, new, strict=True)]
    if is_non_paged:
        _reindex((k_cache, v_cache), page_table.flatten().tolist()[:b], old)
    first = cu_new_lens.tolist()
    page_size = max_seq_len // max_pages_per_seq
    pages = page_table.reshape(-1, max_pages_per_seq).long()
    for i in range(b):
        positions = torch.arange(old[i], total[i], device=k_cache.device)
        if is_non_paged:
            place = (torch.full_like(positions, i), positions)
        else:
            place = (pages[i, positions // page_size], positions % page_size)
        for source, cache in ((new_k, k_cache), (new_v, v_cache)):
            if layout == NVTE_QKV_Format.NVTE_THD:
                tokens = source[first[i] : first[i] + new[i]]
            elif layout == NVTE_QKV_Format.NVTE_SBHD:
                tokens = source[: new[i], i]
            else:
                tokens = source[i, : new[i]]
            cache[place] = tokens


@torch.no_grad()
def fa_prepare_fwd(qkvi: Tensor) -> Tensor:
    """Separates interleaved queries, keys and values, with the batch dimension first.

    Shapes: a view (s, b, n, h) of the queries in memory of (s, b, n, 3, h), to (3, b, s, n, h).
    Errors: ValueError for another view.
    """
    s, b, n, h = qkvi.shape
    if qkvi.stride() != (3 * h * n * b, 3 * h * n, 3 * h, 1):
        raise ValueError(
            "fa_prepare_fwd: needs the queries' view of interleaved queries, keys and values, got "
            f"strides {qkvi.stride()} for shape {tuple(qkvi.shape)}"
        )
    whole = qkvi.as_strided((s, b, n, 3, h), (*qkvi.stride()[:3], h, 1))
    return whole.permute(3, 1, 0, 2, 4).contiguous()


@torch.no_grad()
def fa_prepare_bwd(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Returns gradients (b, s, n, h) of queries, keys and values as one (s, b, n, 3 * h)."""
    if not q.shape == k.shape == v.shape or q.dim() != 4:
        raise ValueError(
            "fa_prepare_bwd: needs three tensors of one shape (b, s, n, h), got "
            f"{[tuple(t.shape) for t in (q, k, v)]}"
        )
    return torch.cat([t.transpose(0, 1) for t in (q, k, v)], -1)


@torch.no_grad()
def multi_tensor_transpose_to_bhsd(
    inputs: Sequence[Tensor | None],
    original_format: str,
    outputs: Sequence[Tensor | None] = (),
) -> list[Tensor | None]:
    """Returns tensors of format "sbhd" or "bshd" as bhsd, in `outputs` if given.

    None stays None. Errors: ValueError for another format or number of outputs.
    """
    if original_format not in ("sbhd", "bshd") or len(outputs) not in (0, len(inputs)):
        raise ValueError(
            "multi_tensor_transpose_to_bhsd: needs the format sbhd or bshd and no outputs or one "
            f"per input, got {original_format!r} and {len(outputs)} outputs"
        )
    order = (1, 2, 0, 3) if original_format == "sbhd" else (0, 2, 1, 3)
    results: list[Tensor | None] = []
    for i, tensor in enumerate(inputs):
        given = outputs[i] if outputs else None
        if tensor is None:
            results.append(None)
        elif given is None:
            results.append(tensor.detach().permute(order).contiguous())
        else:
            results.append(given.copy_(tensor.detach().permute(order)))
    return results


@torch.no_grad()
def multi_tensor_pad_last_dim(inputs: Sequence[Tensor], alignment: int) -> list[Tensor]:
    """Returns matrices padded with zero columns to a multiple of `alignment`.

    A contiguous matrix without need of padding is returned itself.
    """
    if alignment < 1 or any(tensor.dim() != 2 for tensor in inputs):
        raise ValueError(
            "multi_tensor_pad_last_dim: needs matrices and a positive alignment, got shapes "
            f"{[tuple(tensor.shape) for tensor in inputs]} and {alignment}"
        )
    missing = [-tensor.shape[1] % alignment for tensor in inputs]
    return [
        functional.pad(tensor, (0, columns)) if columns else tensor.contiguous()
        for tensor, columns in zip(inputs, missing, strict=True)
    ]
