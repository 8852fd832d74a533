# SPDX-License-Identifier: Apache-2.0
"""Runs one step of delayed scaling on torch tensors, by the core's rule or a recipe's functions."""

from collections.abc import Sequence

import torch

from narrowfloat import _core
from narrowfloat.common.recipe import DelayedScaling
from narrowfloat.pytorch import _verbs


def update_amax_and_scale(
    amax_history: torch.Tensor,
    scale: torch.Tensor,
    fp8_max: float,
    recipe: DelayedScaling,
    reduced_amax: torch.Tensor | None = None,
) -> None:
    """Rotates `amax_history` and updates `scale`, both in place, so that views change too.

    Shapes:  amax_history float32 (L, n), row 0 the newest; scale and reduced_amax float32 (n,).
    reduced_amax: the newest amaxes over all processes; nonzero ones replace row 0.
    Errors:  as narrowfloat.update_delayed_scale.
    """
    if recipe.scaling_factor_compute_algo is None and not callable(recipe.amax_compute_algo):
        fused_update(
            amax_history, scale, fp8_max, recipe.margin, recipe.amax_compute_algo, reduced_amax
        )
    else:
        _update_by_functions(amax_history, scale, fp8_max, recipe, reduced_amax)


def fused_update(
    amax_history: torch.Tensor,
    scale: torch.Tensor,
    fp8_max: float,
    margin: float,
    algo: str,
    reduced_amax: torch.Tensor | None = None,
) -> None:
    """Applies the core's rule in place. Shapes and errors: as update_amax_and_scale.

    Writes through NumPy on the CPU: outside of inference mode PyTorch raises for a write to a state
    that was made in it. On CUDA a kernel writes.
    """
    if amax_history.is_cuda or scale.is_cuda:
        _update_on_device(amax_history, scale, fp8_max, margin, algo, reduced_amax)
        return
    history, scales = amax_history.detach().numpy(), scale.detach().numpy()
    reduced = None if reduced_amax is None else reduced_amax.detach().contiguous().numpy()
    history[:], scales[:] = _core.update_delayed_scale(
        history, scales, fp8_max, margin, algo, reduced
    )


@torch.inference_mode()  # in which a state made in inference mode can be written, too
def _update_on_device(
    amax_history: torch.Tensor,
    scale: torch.Tensor,
    fp8_max: float,
    margin: float,
    algo: str,
    reduced_amax: torch.Tensor | None,
) -> None:
    """Implements fused_update() in device memory, on the current stream. Reads no value."""
    states = amax_history.data, scale.data
    history, scales = (state.contiguous() for state in states)
    reduced = None if reduced_amax is None else reduced_amax.data.contiguous()
    _verbs.verbs.update_delayed_scale(history, scales, fp8_max, margin, algo, reduced)
    for state, updated in zip(states, (history, scales), strict=True):
        if updated is not state:
            state.copy_(updated)


def update_scale(
    amax: torch.Tensor, scale: torch.Tensor, fp8_max: float, margin: float
) -> torch.Tensor:
    """Writes the scale of each amax to `scale`, by the core's rule, and returns it.

    Shapes: amax and scale float32 (n,). Errors: as narrowfloat.update_delayed_scale.
    """
    # A history of one step.
    fused_update(amax.reshape(1, -1).clone(), scale, fp8_max, margin, "most_recent")
    return scale


@torch.no_grad()
def split_and_copy(
    buffer: torch.Tensor, outputs: Sequence[torch.Tensor], chunk_sizes: Sequence[int]
) -> None:
    """Copies consecutive parts of `buffer` into `outputs`.

    Shapes: buffer (sum of chunk_sizes, ...); each output as its part.
    Errors: ValueError, before anything is written, unless there is one output per part and the
    sizes add up; RuntimeError as Tensor.copy_.
    """
    if len(outputs) != len(chunk_sizes) or sum(chunk_sizes) != buffer.shape[0]:
        raise ValueError(
            "split_and_copy: chunk_sizes must have one size per output and add up to "
            f"{buffer.shape[0]}, got {list(chunk_sizes)} for {len(outputs)} outputs"
        )
    for part, output in zip(buffer.split(list(chunk_sizes)), outputs, strict=True):
        output.copy_(part)


@torch.no_grad()
def _update_by_functions(
    amax_history: torch.Tensor,
    scale: torch.Tensor,
    fp8_max: float,
    recipe: DelayedScaling,
    reduced_amax: torch.Tensor | None,
) -> None:
    """Calls the recipe's own functions, and always shifts the history."""
    if reduced_amax is not None:
        amax_history[0].copy_(torch.where(reduced_amax != 0, reduced_amax, amax_history[0]))
    if callable(recipe.amax_compute_algo):
        amax = recipe.amax_compute_algo(amax_history)
    elif recipe.amax_compute_algo == "max":
        amax = amax_history.amax(dim=0)
    else:
        amax = amax_history[0].clone()
    compute = recipe.scaling_factor_compute_algo
    if compute is not None:
        scale.copy_(compute(amax, scale, fp8_max, recipe))
    else:
        update_scale(amax, scale, fp8_max, recipe.margin)
    if amax_history.shape[0] > 1:
        amax_history.copy_(torch.roll(amax_history, -1, 0))
    amax_history[0].zero_()
