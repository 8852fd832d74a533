# SPDX-License-Identifier: Apache-2.0
"""Compares rotary embeddings of the native module with rotations of complex numbers."""

from collections.abc import Callable

import pytest
import torch
from bounds import assert_near
from narrowfloat.pytorch import tex
from narrowfloat.pytorch.tex import rope

Tensor = torch.Tensor
SBHD, BSHD, THD = (
    tex.NVTE_QKV_Format.NVTE_SBHD,
    tex.NVTE_QKV_Format.NVTE_BSHD,
    tex.NVTE_QKV_Format.NVTE_THD,
)
# Sines and cosines of angles below 4 are off by at most 2 ulp of 1; 2 products and a sum follow.
ROUNDINGS = 8
WIDTH, DIM = 6, 10  # the last columns have no angle
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.fixture(params=[rope.CACHED_ELEMENTS, 2 * 2 * DIM, 1], ids=["whole", "two tokens", "one"])
def cached(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets the number of elements that are processed at a time."""
    monkeypatch.setattr(rope, "CACHED_ELEMENTS", request.param)


def angles(positions: int, width: int = WIDTH) -> Tensor:
    """Returns angles whose two halves are equal: columns i and i + width / 2 are a pair."""
    torch.manual_seed(4)
    half = torch.rand(positions, 1, 1, width // 2) * 4
    return torch.cat((half, half), -1)


def rotated(x: Tensor, angle: Tensor, interleaved: bool) -> Tensor:
    """Returns x in float64, its pairs rotated as complex numbers. angle: (..., WIDTH / 2)."""
    x, angle = x.double(), angle.double()
    width = 2 * angle.shape[-1]
    if interleaved:
        pairs = torch.view_as_complex(x[..., :width].unflatten(-1, (-1, 2)).contiguous())
    else:
        pairs = torch.complex(*x[..., :width].chunk(2, -1))
    turned = pairs * torch.polar(torch.ones_like(angle), angle)
    if interleaved:
        flat = torch.view_as_real(turned).flatten(-2)
    else:
        flat = torch.cat((turned.real, turned.imag), -1)
    return torch.cat((flat, x[..., width:]), -1)


def paired(freqs: Tensor, interleaved: bool) -> tuple[Tensor, Tensor]:
    """Returns freqs in the order of the columns, and one angle per pair."""
    half = freqs[:, 0, 0, : freqs.shape[-1] // 2]
    if interleaved:
        return half.repeat_interleave(2, -1)[:, None, None].contiguous(), half
    return freqs, half


def check(x: Tensor, freqs: Tensor, expected_angle: Tensor, interleaved: bool, rest: tuple) -> None:
    """Checks forward and backward; expected_angle broadcasts over heads."""
    y = tex.fused_rope_forward(x, freqs, *rest)
    exact = rotated(x, expected_angle, interleaved)
    magnitude = x.double().abs().amax(-1, keepdim=True) * 2
    assert y.dtype == x.dtype and y.is_contiguous()
    assert_near(y, exact, magnitude, ROUNDINGS, "forward")
    assert torch.equal(y[..., WIDTH:], x[..., WIDTH:])
    grad = torch.randn(x.shape).to(x.dtype)
    back = tex.fused_rope_backward(grad, freqs, *rest)
    exact_back = rotated(grad, -expected_angle, interleaved)  # inverse: the transpose
    reach = grad.double().abs().amax(-1, keepdim=True) * 2
    assert_near(back, exact_back, reach, ROUNDINGS, "backward")


@pytest.mark.usefixtures("cached")
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("starts", [None, [3, 0, 5]])
@pytest.mark.parametrize("layout", [SBHD, BSHD])
@pytest.mark.parametrize("dtype", DTYPES)
def test_batches(
    dtype: torch.dtype, layout: tex.NVTE_QKV_Format, starts: list | None, interleaved: bool
) -> None:
    freqs, half = paired(angles(16), interleaved)
    x = torch.randn(7, 3, 2, DIM + 2).to(dtype)[..., :DIM]
    begin = torch.tensor(starts or [0, 0, 0])
    angle = half[torch.arange(7)[:, None] + begin][:, :, None]
    if layout == BSHD:
        x, angle = x.transpose(0, 1), angle.transpose(0, 1)
    given = None if starts is None else torch.tensor(starts, dtype=torch.int32)
    check(x, freqs, angle, interleaved, (given, layout, interleaved, None, 1, 0))


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_rank_holds_a_chunk_and_its_mirror_image(rank: int) -> None:
    freqs, half = paired(angles(24), False)
    x = torch.randn(8, 1, 2, DIM)
    whole = list(range(24))
    chunks = [whole[i : i + 4] for i in range(0, 24, 4)]
    angle = half[torch.tensor(chunks[rank] + chunks[5 - rank])][:, None, None]
    check(x, freqs, angle, False, (None, SBHD, False, None, 3, rank))


@pytest.mark.usefixtures("cached")
@pytest.mark.parametrize("starts", [None, [2, 0, 1]])
def test_packed_sequences(starts: list | None) -> None:
    freqs, half = paired(angles(16), False)
    x = torch.randn(12, 2, DIM)
    bounds, begin = [0, 3, 3, 10], starts or [0, 0, 0]
    positions = [begin[i] + k for i in range(3) for k in range(bounds[i + 1] - bounds[i])]
    given = None if starts is None else torch.tensor(starts, dtype=torch.int32)
    rest = (given, THD, False, torch.tensor(bounds, dtype=torch.int32), 1, 0)
    check(x[:10], freqs, half[torch.tensor(positions)][:, None], False, rest)
    # Tokens after the last sequence.
    assert tex.fused_rope_forward(x, freqs, *rest)[10:].eq(0).all()


def test_packed_sequences_of_a_rank() -> None:
    freqs, half = paired(angles(16), False)
    bounds = torch.tensor([0, 8, 24], dtype=torch.int32)
    first, second = [0, 1, 2, 3, 4, 5, 6, 7], list(range(16))
    mine = [*first[2:4], *first[4:6], *second[4:8], *second[8:12]]
    x = torch.randn(12, 2, DIM)
    check(x, freqs, half[torch.tensor(mine)][:, None], False, (None, THD, False, bounds, 2, 1))


@pytest.mark.parametrize("layout", [SBHD, BSHD])
def test_queries_keys_and_values_together(layout: tex.NVTE_QKV_Format) -> None:
    q_freqs, k_freqs = angles(16), angles(16).flip(0).contiguous()
    qkv = torch.randn(5, 2, 3, 4 * DIM)
    rest = ([2 * DIM, DIM, DIM], layout, False, 1, 0)
    q, k, v = tex.fused_qkv_rope_forward(qkv, q_freqs, k_freqs, None, *rest)
    plain_q = qkv[..., : 2 * DIM].reshape(5, 2, 6, DIM)
    one = (None, layout, False, None, 1, 0)
    assert torch.equal(q, tex.fused_rope_forward(plain_q, q_freqs, *one))
    assert torch.equal(k, tex.fused_rope_forward(qkv[..., 2 * DIM : 3 * DIM], k_freqs, *one))
    assert torch.equal(v, qkv[..., 3 * DIM :]) and v.is_contiguous()
    grad = tex.fused_qkv_rope_backward(q, k, v, q_freqs, k_freqs, *rest)
    assert grad.shape == qkv.shape
    # The transpose of a rotation is its inverse.
    assert_near(grad, qkv.double(), qkv.double().abs().max() * 4, 2 * ROUNDINGS, "inverse")


@pytest.mark.parametrize(
    "call,message",
    [
        (
            lambda x, f: tex.fused_rope_forward(x, f[..., :5], None, SBHD, False, None, 1, 0),
            "fused_rope_forward: freqs must have shape (positions, 1, 1, even number), got "
            "(4, 1, 1, 5)",
        ),
        (
            lambda x, f: tex.fused_rope_forward(x, f.half(), None, SBHD, False, None, 1, 0),
            "fused_rope_forward: freqs must be float32, got torch.float16",
        ),
        (
            lambda x, f: tex.fused_rope_backward(x, f[:2], None, SBHD, False, None, 1, 0),
            "fused_rope_backward: freqs must have every position, got 2 for position 2",
        ),
        (
            lambda x, f: tex.fused_rope_forward(x[..., :4], f, None, SBHD, False, None, 1, 0),
            "fused_rope_forward: the input must have 4 dimensions, the last at least 6, got shape "
            "(3, 2, 2, 4)",
        ),
        (
            lambda x, f: tex.fused_rope_forward(x[0], f, None, THD, False, None, 1, 0),
            "fused_rope_forward: packed sequences need cu_seqlens of one dimension",
        ),
        (
            lambda x, f: tex.fused_rope_forward(
                x[0], f, None, THD, False, torch.tensor([0, 3]), 1, 0
            ),
            "fused_rope_forward: cu_seqlens ends at 3 tokens, but the input has 2",
        ),
        (
            lambda x, f: tex.fused_qkv_rope_forward(x, f, f, None, [4, 2, 2], SBHD, False, 1, 0),
            "fused_qkv_rope_forward: the split must be widths of queries, keys and values that add "
            "up to 10, the first a multiple of the second, got [4, 2, 2]",
        ),
    ],
)
def test_bad_shapes_are_refused(call: Callable, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        call(torch.ones(3, 2, 2, DIM), angles(4))
    assert str(caught.value) == message
