# SPDX-License-Identifier: Apache-2.0
"""What the six quantizers of a layer say together."""

from collections.abc import Iterable

from narrowfloat.debug.pytorch.debug_quantization import DebugQuantizer


def next_iter_when_debug_should_be_run(quantizers: Iterable[DebugQuantizer]) -> int | None:
    """The earliest iteration that one of them wants to be asked in; None if none ever does."""
    wanted = [quantizer.get_next_debug_iter() for quantizer in quantizers]
    return min((iteration for iteration in wanted if iteration is not None), default=None)


def any_feature_enabled(quantizers: Iterable[DebugQuantizer]) -> bool:
    """Whether at least one of them does other than its parent would."""
    return any(quantizer.any_feature_enabled() for quantizer in quantizers)
