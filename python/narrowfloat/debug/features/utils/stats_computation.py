# SPDX-License-Identifier: Apache-2.0
"""Statistics of tensors, under TransformerEngine's module name.

Only imports names, because the host executes every file below the features at every initialize().
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
