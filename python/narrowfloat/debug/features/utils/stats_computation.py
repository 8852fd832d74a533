# SPDX-License-Identifier: Apache-2.0
"""Statistics of tensors, where TransformerEngine has them.

The host executes every file below the features at every initialize(), so what is defined here is
defined elsewhere.
"""

from narrowfloat.debug._statistic_values import (
    BlockwiseDynamicRangeStat,
    computation,
    compute_max_blockwise_dynamic_range,
    count_nonzero_codes,
)

__all__ = [
    "BlockwiseDynamicRangeStat",
    "computation",
    "compute_max_blockwise_dynamic_range",
    "count_nonzero_codes",
]
