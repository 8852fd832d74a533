# SPDX-License-Identifier: Apache-2.0
"""The six tensors of a linear product, and the interface that debugging implements.

Layers do not import debugging. `narrowfloat.debug.pytorch.layer` registers itself here.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from narrowfloat.pytorch.quantized_tensor import Quantizer


class Slots(NamedTuple):
    """The quantizers of a layer's six tensors; None is high precision.

    Debug features are queried in this order.
    """

    activation: Quantizer | None = None
    weight: Quantizer | None = None
    output: Quantizer | None = None
    dgrad: Quantizer | None = None
    wgrad: Quantizer | None = None
    gradient: Quantizer | None = None


class Watcher(Protocol):
    """Decides once per forward pass whether debugging replaces a layer's quantizers."""

    name: str

    def is_running(self) -> bool:
        """Returns whether passes may be debugged now; graphs contain only passes that are not."""

    def watch_group(self, parents: Sequence[Slots]) -> list[Slots] | None:
        """Returns debug quantizers over `parents`, or None for a normal pass."""


WatcherFactory = Callable[[str, Any, int, bool], Watcher]

_factory: WatcherFactory | None = None
_numbers = itertools.count(1)


def set_watcher_factory(factory: WatcherFactory | None) -> None:
    """Sets the function that makes a layer's watcher; None disables watchers.

    Its arguments are the layer's name, tp_group, tp_size, and whether the layer is being made.
    """
    global _factory
    _factory = factory


def watcher_factory() -> WatcherFactory | None:
    """Returns the function that set_watcher_factory() set last."""
    return _factory


def next_layer_number() -> int:
    """Returns the number of a layer without a name: 1, 2, ... in the order of the calls."""
    return next(_numbers)


def is_watching(quantizer: Quantizer | None) -> bool:
    """Returns whether this is a debug quantizer, which wraps its parent_quantizer."""
    return hasattr(quantizer, "parent_quantizer")
