# SPDX-License-Identifier: Apache-2.0
"""Tests dropout of the native module: masks of bits, and the kept elements."""

import pytest
import torch
from narrowfloat.pytorch import tex
from narrowfloat.pytorch.tensor.float8_tensor import Float8CurrentScalingQuantizer


def bits(mask: torch.Tensor) -> list[bool]:
    """Returns the booleans of a mask; the lowest bit of a byte is the first."""
    return [bool(byte >> bit & 1) for byte in mask.tolist() for bit in range(8)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("probability", [0.0, 0.1, 0.75])
def test_forward_and_backward_agree(probability: float, dtype: torch.dtype) -> None:
    torch.manual_seed(8)
    x = torch.randn(4, 3, 16).to(dtype)[:, :2]
    out, mask = tex.dropout_fwd(x, probability)
    keep = torch.tensor(bits(mask)).view(4, 2, 16)
    expected = (x.float() * keep * (1 / (1 - probability))).to(dtype)
    assert out.dtype == dtype and mask.dtype == torch.uint8
    assert torch.equal(out, expected)
    grad = torch.randn(4, 2, 16).to(dtype)
    expected = (grad.float() * keep * (1 / (1 - probability))).to(dtype)
    assert torch.equal(tex.dropout_bwd(grad, mask, probability), expected)
    target, given = torch.empty_like(grad), torch.empty_like(out)
    assert tex.dropout_bwd(grad, mask, probability, target) is target
    assert torch.equal(target, expected)
    assert tex.dropout_fwd(x, probability, given)[0] is given


def test_probability_is_in_steps_of_1_256() -> None:
    torch.manual_seed(9)
    x = torch.ones(1 << 20)
    for probability, steps in ((0.1, 25), (0.5, 128), (0.003, 0)):
        kept = float(tex.dropout_fwd(x, probability)[0].ne(0).float().mean())
        exact = 1 - steps / 256
        # Five standard deviations of the mean of 2**20 random numbers.
        assert abs(kept - exact) <= 5 * (exact * (1 - exact) / (1 << 20)) ** 0.5
    torch.manual_seed(9)
    again = tex.dropout_fwd(x, 0.1)[1]
    torch.manual_seed(9)
    assert torch.equal(tex.dropout_fwd(x, 0.1)[1], again)


def test_infinities_are_dropped_and_codes_are_decoded() -> None:
    x = torch.full((64,), float("inf"))
    out, mask = tex.dropout_fwd(x, 0.5)
    assert out.tolist() == [float("inf") if keep else 0 for keep in bits(mask)]
    quantized = Float8CurrentScalingQuantizer(tex.DType.kFloat8E4M3)(torch.randn(8, 16).bfloat16())
    assert torch.equal(tex.dropout_fwd(quantized, 0.0)[0], quantized.dequantize())


def test_bad_arguments_are_refused() -> None:
    for call, message in (
        (
            lambda: tex.dropout_fwd(torch.ones(7), 0.5),
            "dropout_fwd: needs a multiple of 8 elements, got shape (7,)",
        ),
        (
            lambda: tex.dropout_fwd(torch.ones(8), 1.0),
            "dropout_fwd: dropout_probability must be at least 0 and less than 1, got 1.0",
        ),
        (
            lambda: tex.dropout_bwd(torch.ones(8), torch.ones(2, dtype=torch.uint8), 0.5),
            "dropout_bwd: the mask must have one bit per element, got 16 bits for 8 elements",
        ),
    ):
        with pytest.raises(ValueError) as caught:
            call()
        assert str(caught.value) == message
