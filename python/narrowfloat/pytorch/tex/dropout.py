# SPDX-License-Identifier: Apache-2.0
"""Entries for dropout. Masks are drawn from PyTorch's generator instead of Philox."""

import torch

from narrowfloat.pytorch.tex._bits import BITS, pack, unpack
from narrowfloat.pytorch.tex.casts import plain

__all__ = ["dropout_bwd", "dropout_fwd"]

Tensor = torch.Tensor
_DRAWS = 256  # number of values of a random draw


def _scale(entry: str, probability: float) -> float:
    if not 0 <= probability < 1:
        raise ValueError(
            f"{entry}: dropout_probability must be at least 0 and less than 1, got {probability}"
        )
    return 1 / (1 - probability)


@torch.no_grad()
def dropout_fwd(
    input: Tensor, dropout_probability: float, out: Tensor | None = None
) -> list[Tensor]:
    """Returns [kept values divided by 1 - probability, mask of one bit per element, 1 for kept].

    A draw has eight bits: an element is dropped with floor(256 * probability) / 256.
    Errors: ValueError unless eight divides the elements and the probability is in [0, 1).
    """
    scale = _scale("dropout_fwd", dropout_probability)
    if input.numel() % BITS:
        raise ValueError(
            f"dropout_fwd: needs a multiple of {BITS} elements, got shape {tuple(input.shape)}"
        )
    x = plain(input)
    draws = torch.randint(0, _DRAWS, x.shape, dtype=torch.uint8, device=x.device)
    keep = draws >= int(dropout_probability * _DRAWS)
    mask = pack(keep.view(-1))
    value = torch.where(keep, x.float(), 0.0).mul_(scale).to(x.dtype)
    return [value if out is None else out.copy_(value), mask]


@torch.no_grad()
def dropout_bwd(
    grad_output: Tensor,
    mask: Tensor,
    dropout_probability: float,
    grad_input: Tensor | None = None,
) -> Tensor:
    """Returns the gradient of the values that dropout_fwd() kept, divided by 1 - probability.

    Errors: ValueError unless the mask has one bit per element.
    """
    scale = _scale("dropout_bwd", dropout_probability)
    if mask.numel() * BITS != grad_output.numel():
        raise ValueError(
            f"dropout_bwd: the mask must have one bit per element, got {mask.numel() * BITS} bits "
            f"for {grad_output.numel()} elements"
        )
    keep = unpack(mask.view(-1), grad_output.numel()).view(grad_output.shape)
    value = torch.where(keep, grad_output.float(), 0.0).mul_(scale).to(grad_output.dtype)
    return value if grad_input is None else grad_input.copy_(value)
