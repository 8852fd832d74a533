# SPDX-License-Identifier: Apache-2.0
"""Hides operators from torch.utils.checkpoint's selective mode.

The mode keeps the results of some operators, and requires that the second pass runs the same
operators as the first pass. The passes of a layer differ, because the first one computes layouts
and scales that the second one reuses. Hidden operators run again, with the same results.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch.utils import _python_dispatch, checkpoint

_SELECTIVE = (checkpoint._CachingTorchDispatchMode, checkpoint._CachedTorchDispatchMode)
_NOTHING = nullcontext()  # may be entered repeatedly


def hidden_from_checkpoints() -> AbstractContextManager[Any]:
    """Returns a context in which selective checkpoints see no operators; other modes see them."""
    if torch._C._len_torch_dispatch_stack() == 0:
        return _NOTHING
    modes = _python_dispatch._get_current_dispatch_mode_stack()
    if not any(isinstance(mode, _SELECTIVE) for mode in modes):
        return _NOTHING
    return _without_selective_modes()


@contextmanager
def _without_selective_modes() -> Iterator[None]:
    before = _pop_all()
    _push_all([mode for mode in before if not isinstance(mode, _SELECTIVE)])
    try:
        yield
    finally:
        _pop_all()
        _push_all(before)


def _pop_all() -> list[Any]:
    """Empties the stack of modes and returns its modes, the newest first."""
    count = torch._C._len_torch_dispatch_stack()
    return [_python_dispatch._pop_mode() for _ in range(count)]


def _push_all(modes: list[Any]) -> None:
    for mode in reversed(modes):
        _python_dispatch._push_mode(mode)
