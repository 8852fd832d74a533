# SPDX-License-Identifier: Apache-2.0
"""The mode of products of quantized tensors: reproducible, or fast."""

from __future__ import annotations

from typing import Any

from narrowfloat import _core

REPRODUCIBLE, FAST = "reproducible", "fast"


class _Setting:
    """The mode of the process. Tracers guard the field where compiled code reads it."""

    def __init__(self) -> None:
        self.mode = _core.product_mode()


_setting = _Setting()


class product_mode:
    """Sets the mode of products, for the process or, as a context, until its end.

    mode: "reproducible" gives the same bytes on every machine and at every number of threads.
    "fast" expands the codes to bfloat16 where that loses nothing, and uses PyTorch's bfloat16
    product for results in bfloat16; other products stay as they are. A layer's backward pass has
    the mode of its forward pass. The first mode is that of the environment's NF_PRODUCT, else
    "reproducible".
    Errors: ValueError for another mode.
    """

    def __init__(self, mode: str) -> None:
        if mode not in (REPRODUCIBLE, FAST):
            _core.product_mode(mode)
        self.mode = mode
        self._before = _setting.mode
        _setting.mode = mode

    def __enter__(self) -> product_mode:
        _setting.mode = self.mode
        return self

    def __exit__(self, *error: Any) -> None:
        _setting.mode = self._before


def get_product_mode() -> str:
    """Returns the mode of products, "reproducible" or "fast"."""
    return _setting.mode
