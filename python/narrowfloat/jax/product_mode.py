# SPDX-License-Identifier: Apache-2.0
"""The mode of products of quantized tensors: reproducible, or fast."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import jax
from jax._src import config

from narrowfloat import _core
from narrowfloat.common.process_setting import ProcessSetting

REPRODUCIBLE, FAST = "reproducible", "fast"

_NAME = "narrowfloat_product_mode"

# A configuration option of JAX: functions that were compiled in the other mode are compiled again.
_mode = config.enum_state(
    name=_NAME,
    enum_values=[REPRODUCIBLE, FAST],
    default=_core.product_mode() if os.environ.get("NF_PRODUCT") else REPRODUCIBLE,
    help="How narrowfloat.jax multiplies quantized tensors.",
    include_in_jit_key=True,
    include_in_trace_context=True,
)
# get_global(): programs may also set the option by jax.config.update().
_process = ProcessSetting(_mode.value, partial(jax.config.update, _NAME), _mode.get_global)


class product_mode:
    """Sets the mode of products, for the process or, as a context, for this thread until its end.

    "reproducible" gives the same bytes on every machine and at every number of threads. "fast"
    expands codes to bfloat16 if that is exact, and XLA multiplies with float32 sums; other products
    and products of groups do not change. A function that was traced in one mode is traced again in
    the other. Constructing the object sets the mode of the process until `with` enters it, and a
    trace in another thread at that moment uses it. The initial mode is the value of NF_PRODUCT,
    else "reproducible".
    Errors: ValueError for another mode.
    """

    def __init__(self, mode: str) -> None:
        if mode not in (REPRODUCIBLE, FAST):
            _core.product_mode(str(mode))
        self.mode = mode
        self._contexts: list[AbstractContextManager] = []
        _process.set(self, mode)

    def __enter__(self) -> product_mode:
        _process.take_back(self)
        self._contexts.append(_mode(self.mode))
        self._contexts[-1].__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._contexts.pop().__exit__(*error)


def get_product_mode() -> str:
    """Returns the mode of products, "reproducible" or "fast"."""
    return _mode.value


def mode_of_this_thread(mode: str) -> AbstractContextManager:
    """Returns a context that sets the mode of this thread, and not of the process."""
    return _mode(mode)
