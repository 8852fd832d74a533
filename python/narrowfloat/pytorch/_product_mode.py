# SPDX-License-Identifier: Apache-2.0
"""The mode of products of quantized tensors: reproducible, or fast."""

from __future__ import annotations

import threading
from typing import Any

import torch

from narrowfloat import _core
from narrowfloat.common.process_setting import ProcessSetting

REPRODUCIBLE, FAST = "reproducible", "fast"


# Tracers guard this value if compiled code reads it.
_setting = ProcessSetting(_core.product_mode())
_of_thread = threading.local()


class product_mode:
    """Sets the mode of products, for the process or, as a context, until the context ends.

    mode: "reproducible" gives the same bytes on every machine and at every number of threads.
    "fast" expands codes to bfloat16 if that is exact, and uses PyTorch's bfloat16 product for
    results in bfloat16; other products do not change. A layer's backward pass has the mode of its
    forward pass. If contexts overlap in several threads, the latest one that has not ended applies
    to all threads. The initial mode is the value of NF_PRODUCT, else "reproducible".
    Errors: ValueError for another mode.
    """

    def __init__(self, mode: str) -> None:
        if mode not in (REPRODUCIBLE, FAST):
            _core.product_mode(str(mode))
        self.mode = mode
        self._before = _setting.value
        self._is_set = True  # so that an entered context does not set it again
        self._set()

    def _set(self) -> None:
        if torch.compiler.is_compiling():  # tracers do not support locks
            _setting.value = self.mode
        else:
            _setting.set(self, self.mode)

    def __enter__(self) -> product_mode:
        if not self._is_set:
            self._set()
        self._is_set = False
        return self

    def __exit__(self, *error: Any) -> None:
        if torch.compiler.is_compiling():
            _setting.value = self._before
        else:
            _setting.take_back(self, with_later=True)


class mode_of_this_thread:
    """Sets the mode of products of this thread, as a context."""

    def __init__(self, mode: str) -> None:
        self.mode = mode

    def __enter__(self) -> mode_of_this_thread:
        _of_thread.modes = (*getattr(_of_thread, "modes", ()), self.mode)
        return self

    def __exit__(self, *error: Any) -> None:
        _of_thread.modes = _of_thread.modes[:-1]


def get_product_mode() -> str:
    """Returns the mode of products, "reproducible" or "fast"."""
    modes = getattr(_of_thread, "modes", ())
    return modes[-1] if modes else _setting.value
