# SPDX-License-Identifier: Apache-2.0
"""Entries for attention's softmax: scaled, masked, causal, and their gradients.

All arithmetic is in float32; results are rounded once to the input's dtype.
"""

import torch

from narrowfloat.common.constants import MASKED_SCORE

__all__ = [
    f"scaled_{mask}softmax_{direction}"
    for mask in ("", "aligned_causal_masked_", "masked_", "upper_triang_masked_")
    for direction in ("backward", "forward")
]

Tensor = torch.Tensor


def _check_rank(entry: str, tensor: Tensor, rank: int) -> None:
    if tensor.dim() != rank:
        raise ValueError(f"{entry}: needs {rank} dimensions, got shape {tuple(tensor.shape)}")


def _scaled(input: Tensor, scale: float) -> Tensor:
    return input.detach().float().mul(scale)


def _causal_mask(queries: int, keys: int, device: torch.device) -> Tensor:
    """Returns the mask (queries, keys) of hidden keys; none is hidden from the last query."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device).triu(keys - queries + 1)


@torch.no_grad()
def scaled_softmax_forward(input: Tensor, scale_factor: float) -> Tensor:
    """Returns softmax(scale * input) over the last of four dimensions."""
    _check_rank("scaled_softmax_forward", input, 4)
    return torch.softmax(_scaled(input, scale_factor), -1).to(input.dtype)


@torch.no_grad()
def scaled_masked_softmax_forward(input: Tensor, mask: Tensor, scale_factor: float) -> Tensor:
    """Returns softmax(scale * input) over keys with mask 0; zeros for rows without such keys.

    Shapes: input (batches, heads, queries, keys), mask (1 or batches, 1, queries, keys).
    """
    _check_rank("scaled_masked_softmax_forward", input, 4)
    batches, _, queries, keys = input.shape
    if tuple(mask.shape) not in ((1, 1, queries, keys), (batches, 1, queries, keys)):
        raise ValueError(
            f"scaled_masked_softmax_forward: mask must have shape (1 or {batches}, 1, {queries}, "
            f"{keys}), got {tuple(mask.shape)}"
        )
    scores = _scaled(input, scale_factor).masked_fill_(mask == 1, MASKED_SCORE)
    empty = scores.amax(-1, keepdim=True) == MASKED_SCORE if keys else mask[..., :0]
    return torch.softmax(scores, -1).masked_fill_(empty, 0.0).to(input.dtype)


@torch.no_grad()
def scaled_upper_triang_masked_softmax_forward(input: Tensor, scale_factor: float) -> Tensor:
    """Returns softmax(scale * input) of (batches, length, length) over keys up to the query."""
    _check_rank("scaled_upper_triang_masked_softmax_forward", input, 3)
    if input.shape[1] != input.shape[2]:
        raise ValueError(
            "scaled_upper_triang_masked_softmax_forward: needs as many keys as queries, got shape "
            f"{tuple(input.shape)}"
        )
    queries, keys = input.shape[1:]
    mask = _causal_mask(queries, keys, input.device)
    scores = _scaled(input, scale_factor).masked_fill_(mask, float("-inf"))
    return torch.softmax(scores, -1).to(input.dtype)


@torch.no_grad()
def scaled_aligned_causal_masked_softmax_forward(input: Tensor, scale_factor: float) -> Tensor:
    """Returns softmax(scale * input) over four dimensions; the last query attends to every key.

    If there are more queries than keys, queries without a key get equal weights.
    """
    _check_rank("scaled_aligned_causal_masked_softmax_forward", input, 4)
    queries, keys = input.shape[2:]
    mask = _causal_mask(queries, keys, input.device)
    scores = _scaled(input, scale_factor).masked_fill_(mask, MASKED_SCORE)
    return torch.softmax(scores, -1).to(input.dtype)


@torch.no_grad()
def _gradient(entry: str, grad: Tensor, result: Tensor, scale: float, rank: int) -> Tensor:
    _check_rank(entry, grad, rank)
    if grad.shape != result.shape:
        raise ValueError(
            f"{entry}: gradient and result must have one shape, got {tuple(grad.shape)} and "
            f"{tuple(result.shape)}"
        )
    y = result.float()
    weighted = grad.float() * y
    weighted.addcmul_(y, weighted.sum(-1, keepdim=True), value=-1)
    return weighted.mul_(scale).to(grad.dtype)


def scaled_softmax_backward(
    output_grad: Tensor, softmax_results: Tensor, scale_factor: float
) -> Tensor:
    """Returns the gradient of scaled_softmax_forward()'s input, in the gradient's dtype."""
    return _gradient("scaled_softmax_backward", output_grad, softmax_results, scale_factor, 4)


def scaled_masked_softmax_backward(
    output_grad: Tensor, softmax_results: Tensor, scale_factor: float
) -> Tensor:
    """Returns the gradient of scaled_masked_softmax_forward()'s input."""
    entry = "scaled_masked_softmax_backward"
    return _gradient(entry, output_grad, softmax_results, scale_factor, 4)


def scaled_upper_triang_masked_softmax_backward(
    output_grad: Tensor, softmax_results: Tensor, scale_factor: float
) -> Tensor:
    """Returns the gradient of scaled_upper_triang_masked_softmax_forward()'s input."""
    entry = "scaled_upper_triang_masked_softmax_backward"
    return _gradient(entry, output_grad, softmax_results, scale_factor, 3)


def scaled_aligned_causal_masked_softmax_backward(
    output_grad: Tensor, softmax_results: Tensor, scale_factor: float
) -> Tensor:
    """Returns the gradient of scaled_aligned_causal_masked_softmax_forward()'s input."""
    entry = "scaled_aligned_causal_masked_softmax_backward"
    return _gradient(entry, output_grad, softmax_results, scale_factor, 4)
