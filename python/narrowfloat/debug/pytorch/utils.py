# SPDX-License-Identifier: Apache-2.0
"""Combines the states of the six quantizers of a layer."""

from collections.abc import Iterable

from narrowfloat.debug.pytorch.debug_quantization import DebugQuantizer


def next_iter_when_debug_should_be_run(quantizers: Iterable[DebugQuantizer]) -> int | None:
    """Returns the earliest iteration in which one of the quantizers needs a query, or None."""
    wanted = [quantizer.get_next_debug_iter() for quantizer in quantizers]
    return min((iteration for iteration in wanted if iteration is not None), default=None)


def any_feature_enabled(quantizers: Iterable[DebugQuantizer]) -> bool:
    """Returns whether a feature is enabled for at least one of the quantizers."""
    return any(quantizer.any_feature_enabled() for quantizer in quantizers)
