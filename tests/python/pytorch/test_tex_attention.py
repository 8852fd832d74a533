# SPDX-License-Identifier: Apache-2.0
"""Compares attention's layouts and caches in the native module with loops."""

from collections.abc import Callable

import pytest
import torch
from narrowfloat.pytorch import tex

Tensor = torch.Tensor
BSHD, SBHD, THD = (
    tex.NVTE_QKV_Format.NVTE_BSHD,
    tex.NVTE_QKV_Format.NVTE_SBHD,
    tex.NVTE_QKV_Format.NVTE_THD,
)
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def lengths_to_bounds(lengths: list[int]) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).int()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lengths", [[3, 0, 5], [4]])
def test_packed_to_padded_and_back(lengths: list[int], dtype: torch.dtype) -> None:
    bounds, total = lengths_to_bounds(lengths), sum(lengths)
    packed = torch.randn(total, 2, 5).to(dtype)[..., :3]
    padded = tex.convert_thd_to_bshd(packed, bounds, len(lengths), 6)
    assert padded.shape == (len(lengths), 6, 2, 3) and padded.dtype == dtype
    for i, length in enumerate(lengths):
        assert torch.equal(padded[i, :length], packed[bounds[i] : bounds[i + 1]])
        assert padded[i, length:].eq(0).all()
    back = tex.convert_bshd_to_thd(padded, bounds, total + 2)
    assert torch.equal(back[:total], packed) and back[total:].eq(0).all()


def laid_out(tokens: list[Tensor], layout: tex.NVTE_QKV_Format) -> Tensor:
    """Returns sequences in a layout. Sequences of a batch are padded with 9."""
    if layout == THD:
        return torch.cat(tokens)
    longest = max(len(t) for t in tokens)
    padded = torch.full((len(tokens), longest, *tokens[0].shape[1:]), 9.0)
    for i, t in enumerate(tokens):
        padded[i, : len(t)] = t
    return padded.transpose(0, 1).contiguous() if layout == SBHD else padded


@pytest.mark.parametrize("layout", [BSHD, SBHD, THD])
@pytest.mark.parametrize("paged", [False, True])
def test_caches_get_new_tokens_behind_old_ones(paged: bool, layout: tex.NVTE_QKV_Format) -> None:
    torch.manual_seed(21)
    batch, longest, page = 3, 8, 4
    new_lengths, old_lengths = [2, 1, 3], [0, 3, 5]
    new_k = [torch.randn(n, 2, 4) for n in new_lengths]
    new_v = [torch.randn(n, 2, 6) for n in new_lengths]
    slots = batch * longest // page if paged else batch
    width = page if paged else longest
    k_cache, v_cache = torch.randn(slots, width, 2, 4), torch.randn(slots, width, 2, 6)
    if paged:
        table = torch.randperm(slots).view(batch, longest // page).int()
    else:
        table = torch.arange(batch).int()[:, None]
    expected = [k_cache.clone(), v_cache.clone()]
    for i in range(batch):
        for j in range(new_lengths[i]):
            at = old_lengths[i] + j
            place = (int(table[i, at // page]), at % page) if paged else (i, at)
            expected[0][place], expected[1][place] = new_k[i][j], new_v[i][j]
    totals = [n + o for n, o in zip(new_lengths, old_lengths, strict=True)]
    tex.copy_to_kv_cache(
        laid_out(new_k, layout), laid_out(new_v, layout), k_cache, v_cache, table,
        lengths_to_bounds(new_lengths), lengths_to_bounds(totals), layout, batch,
        max(new_lengths), longest, longest // page if paged else 1, not paged,
    )  # fmt: skip
    assert torch.equal(k_cache, expected[0]) and torch.equal(v_cache, expected[1])


def test_pages_of_whole_sequences_have_a_table_of_one_dimension() -> None:
    cache, new = torch.zeros(3, 4, 1, 2), torch.randn(2, 1, 1, 2)
    tex.copy_to_kv_cache(
        new, new, cache, cache.clone(), torch.tensor([2, 0, 1], dtype=torch.int32),
        torch.tensor([0, 1, 2]), torch.tensor([0, 1, 4]), BSHD, 2, 1, 4, 1, False,
    )  # fmt: skip
    assert torch.equal(cache[2, 0], new[0, 0]) and torch.equal(cache[0, 2], new[1, 0])


def test_sequences_that_moved_take_their_cached_tokens_along() -> None:
    """Moves sequences 1 and 2 from slots 1 and 2 to slots 0 and 1, since sequence 0 has ended."""
    k_cache, v_cache = torch.randn(3, 4, 1, 2), torch.randn(3, 4, 1, 2)
    old = [k_cache.clone(), v_cache.clone()]
    new = torch.randn(3, 1, 1, 2)
    tex.copy_to_kv_cache(
        new, -new, k_cache, v_cache, torch.tensor([[1], [2], [0]], dtype=torch.int32),
        torch.tensor([0, 1, 2, 2]), torch.tensor([0, 3, 5, 5]), BSHD, 3, 1, 4, 1, True,
    )  # fmt: skip
    for cache, before, sign in ((k_cache, old[0], 1), (v_cache, old[1], -1)):
        assert torch.equal(cache[0, :2], before[1, :2]) and torch.equal(
            cache[0, 2], sign * new[0, 0]
        )
        assert torch.equal(cache[1, :1], before[2, :1]) and torch.equal(
            cache[1, 1], sign * new[1, 0]
        )


def test_flash_attention_layouts() -> None:
    s, b, n, h = 5, 2, 3, 4
    interleaved = torch.randn(s, b, n, 3, h)
    apart = tex.fa_prepare_fwd(interleaved[..., 0, :])
    assert apart.shape == (3, b, s, n, h) and apart.is_contiguous()
    for i in range(3):
        assert torch.equal(apart[i], interleaved[..., i, :].transpose(0, 1))
    joined = tex.fa_prepare_bwd(*apart)
    assert joined.is_contiguous() and torch.equal(joined.view(s, b, n, 3, h), interleaved)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.uint8])
def test_transposes(dtype: torch.dtype) -> None:
    x = (torch.rand(5, 2, 3, 4) * 100).to(dtype)
    given = torch.empty(2, 3, 5, 4, dtype=dtype)
    made = tex.multi_tensor_transpose_to_bhsd([x, None, x], "sbhd", [None, None, given])
    assert made[1] is None and made[2] is given
    assert torch.equal(made[0], x.permute(1, 2, 0, 3)) and torch.equal(made[0], given)
    assert made[0].is_contiguous()
    (other,) = tex.multi_tensor_transpose_to_bhsd([x.transpose(0, 1)], "bshd")
    assert torch.equal(other, made[0])


def test_padding_of_columns() -> None:
    x = torch.randn(3, 5)
    wide, same = tex.multi_tensor_pad_last_dim([x, x[:, :4]], 4)
    assert torch.equal(wide[:, :5], x) and wide.shape == (3, 8) and wide[:, 5:].eq(0).all()
    assert torch.equal(same, x[:, :4]) and same.is_contiguous()


def test_no_backend_of_fused_attention_fits() -> None:
    none = tex.NVTE_Fused_Attn_Backend.NVTE_No_Backend
    assert tex.get_fused_attn_backend(object()) == (none, "fused attention needs a GPU")
    assert tex.get_fused_attn_backend(True, 6, 6, 0) is none


@pytest.mark.parametrize(
    "call,message",
    [
        (
            lambda x: tex.convert_thd_to_bshd(x[0], torch.tensor([0, 3]), 1, 2),
            "convert_thd_to_bshd: needs 1 sequences of at most 2 tokens, got lengths [3]",
        ),
        (
            lambda x: tex.convert_bshd_to_thd(x, torch.tensor([0, 3, 6]), 5),
            "convert_bshd_to_thd: needs sequences of at most 3 and 5 tokens in all, got lengths "
            "[3, 3]",
        ),
        (
            lambda x: tex.fa_prepare_fwd(x),
            "fa_prepare_fwd: needs the queries' view of interleaved queries, keys and values, got "
            "strides (48, 16, 4, 1) for shape (2, 3, 4, 4)",
        ),
        (
            lambda x: tex.fa_prepare_bwd(x, x, x[:1]),
            "fa_prepare_bwd: needs three tensors of one shape (b, s, n, h), got [(2, 3, 4, 4), "
            "(2, 3, 4, 4), (1, 3, 4, 4)]",
        ),
        (
            lambda x: tex.multi_tensor_transpose_to_bhsd([x], "thd"),
            "multi_tensor_transpose_to_bhsd: needs the format sbhd or bshd and no outputs or one "
            "per input, got 'thd' and 0 outputs",
        ),
        (
            lambda x: tex.multi_tensor_pad_last_dim([x], 4),
            "multi_tensor_pad_last_dim: needs matrices and a positive alignment, got shapes "
            "[(2, 3, 4, 4)] and 4",
        ),
        (
            lambda x: tex.copy_to_kv_cache(
                x, x, x, x, x, torch.tensor([0, 1]), torch.tensor([0, 4]), BSHD, 1, 1, 3, 1, True
            ),
            "copy_to_kv_cache: sequences must have at most 3 tokens, got [4]",
        ),
        (
            lambda x: tex.copy_to_kv_cache(
                x, x, x, x, x, x, x, tex.NVTE_QKV_Format.NVTE_BHSD, 1, 1, 3, 1, True
            ),
            "copy_to_kv_cache: the format must be bshd, sbhd or thd, got NVTE_BHSD",
        ),
    ],
)
def test_bad_arguments_are_refused(call: Callable, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        call(torch.ones(2, 3, 4, 4))
    assert str(caught.value) == message
