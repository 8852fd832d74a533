# SPDX-License-Identifier: Apache-2.0
"""Combines the answers of the six quantizers of a layer."""

from collections.abc import Iterable

from narrowfloat.debug.pytorch.debug_quantization import DebugQuantizer


def next_iter_when_debug_should_be_run(quantizers: Iterable[DebugQuantizer]) -> int | None:
    """Returns the earliest iteration that one of them wants to be asked in, or None."""
    wanted = [quantizer.get_next_debug_iter() for quantizer in quantizers]
    return min((iteration for iteration in wanted if iteration is not None), default=None)


def any_feature_enabled(quantizers: Iterable[DebugQuantizer]) -> bool:
    """Returns whether at least one of them does other than its parent would."""
    return any(quantizer.any_feature_enabled() for quantizer in quantizers)
