# SPDX-License-Identifier: Apache-2.0
"""Types of the entries' arguments and results."""

import torch

from narrowfloat.pytorch.constants import DType, FP8BwdTensorIdx, FP8FwdTensorIdx

__all__ = ["DType", "FP8BwdTensors", "FP8FwdTensors", "FP8TensorMeta"]

FP8FwdTensors = FP8FwdTensorIdx
FP8BwdTensors = FP8BwdTensorIdx


class FP8TensorMeta:
    """Holds the fp32 state of delayed scaling: scale, scale_inv (n,) and amax_history (L, n)."""

    scale: torch.Tensor
    scale_inv: torch.Tensor
    amax_history: torch.Tensor
