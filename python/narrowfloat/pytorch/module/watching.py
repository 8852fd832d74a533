# SPDX-License-Identifier: Apache-2.0
"""The six tensors of a linear product, and the place where debugging takes them over.

Layers know nothing of debugging. `narrowfloat.debug.pytorch.layer` registers itself here.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from narrowfloat.pytorch.quantized_tensor import Quantizer


class Slots(NamedTuple):
    """The quantizers of a layer's six tensors; None is high precision.

    The order is the one in which debug features are asked.
    """

    activation: Quantizer | None = None
    weight: Quantizer | None = None
    output: Quantizer | None = None
    dgrad: Quantizer | None = None
    wgrad: Quantizer | None = None
    gradient: Quantizer | None = None


class Watcher(Protocol):
    """Decides once per forward pass whether a layer's tensors are watched."""

    name: str

    def is_running(self) -> bool:
        """Returns whether passes may be watched now; graphs hold only passes that are not."""

    def watch_group(self, parents: Sequence[Slots]) -> list[Slots] | None:
        """Returns quantizers that watch `parents`, or None where the layer runs as usual."""


WatcherFactory = Callable[[str, Any, int, bool], Watcher]

_factory: WatcherFactory | None = None
_numbers = itertools.count(1)


def set_watcher_factory(factory: WatcherFactory | None) -> None:
    """Sets what makes a layer's watcher; None: no watching.

    Its arguments are the layer's name, tp_group, tp_size, and whether the layer is being made.
    """
    global _factory
    _factory = factory


def watcher_factory() -> WatcherFactory | None:
    """Returns what set_watcher_factory() set last."""
    return _factory


def next_layer_number() -> int:
    """Returns the number of a layer without a name: 1, 2, ... in the order of the calls."""
    return next(_numbers)


def is_watching(quantizer: Quantizer | None) -> bool:
    """Returns whether the quantizer watches another one, which is its parent_quantizer."""
    return hasattr(quantizer, "parent_quantizer")
