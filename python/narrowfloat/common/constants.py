# SPDX-License-Identifier: Apache-2.0
"""Constants of TransformerEngine's kernels that several frameworks share."""

__all__ = ["MASKED_SCORE"]

MASKED_SCORE = -10000.0
"""The value that the kernels of softmax write over a masked score."""
