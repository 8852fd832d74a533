# SPDX-License-Identifier: Apache-2.0
"""Replaces torch.nn.Module.float(), half() and bfloat16(), for quantized parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_CASTS = {"float": torch.float32, "half": torch.float16, "bfloat16": torch.bfloat16}


def _cast(method: str, dtype: torch.dtype) -> Callable[[Any], Any]:
    def cast(self: torch.nn.Module) -> torch.nn.Module:
        def change(tensor: torch.Tensor) -> torch.Tensor:
            # Quantized tensors, narrowfloat's and TransformerEngine's, keep their bytes: only the
            # nominal type changes.
            make_like = getattr(type(tensor), "make_like", None)
            if make_like is not None:
                return make_like(tensor, dtype=dtype)
            return tensor.to(dtype) if tensor.is_floating_point() else tensor

        return self._apply(change)

    cast.__name__ = method
    cast.__doc__ = f"Casts floating-point parameters to {dtype}; quantized ones keep their bytes."
    vars(cast)["of_narrowfloat"] = True
    return cast


def install() -> None:
    """Replaces the methods, unless they are replaced already.

    TransformerEngine's import replaces them with methods for its own tensors only, so
    `narrowfloat.te` calls this function again after that import.
    """
    for method, dtype in _CASTS.items():
        if not hasattr(getattr(torch.nn.Module, method), "of_narrowfloat"):
            setattr(torch.nn.Module, method, _cast(method, dtype))
