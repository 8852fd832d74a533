# SPDX-License-Identifier: Apache-2.0
"""Runs functions of several operators like one fused kernel, which rounds only its results."""

import functools
from collections.abc import Callable
from typing import Any

import torch


def _float32(value: object) -> object:
    """Returns a floating-point tensor in float32, and other values unchanged."""
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.float()
    return value


def in_float32(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function computing in float32, with results in its first argument's dtype."""

    @functools.wraps(function)
    def run(first: torch.Tensor, *others: Any) -> torch.Tensor | tuple[torch.Tensor, ...]:
        results = function(first.float(), *map(_float32, others))
        if isinstance(results, tuple):
            return tuple(result.to(first.dtype) for result in results)
        return results.to(first.dtype)

    return run
