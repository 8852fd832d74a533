# SPDX-License-Identifier: Apache-2.0
"""What a reference quantizer is told of a matrix product."""

import enum
from dataclasses import dataclass

import torch


class GEMMType(enum.Enum):
    """Which of a linear layer's three products."""

    FPROP = "fprop"
    DGRAD = "dgrad"
    WGRAD = "wgrad"


@dataclass(frozen=True)
class MMParams:
    """Dtype of the result (None: the caller says it elsewhere) and how sums are kept."""

    out_dtype: torch.dtype | None = None
    use_split_accumulator: bool = True
