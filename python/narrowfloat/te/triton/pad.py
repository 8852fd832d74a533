# SPDX-License-Identifier: Apache-2.0
"""Padding of scales to the tiles of a GPU's products."""

import torch

from narrowfloat.pytorch.constants import DType
from narrowfloat.pytorch.tensor.mxfp8_tensor import MXFP8Quantizer


def pad_columnwise_scale_inv(inp: torch.Tensor) -> torch.Tensor:
    """Returns a matrix of scales, padded with zeros below and to the right to whole tiles."""
    # The scales of the smallest tensor fill one tile.
    rows, cols = MXFP8Quantizer(DType.kFloat8E4M3).get_scale_shape((1, 1), columnwise=False)
    return torch.nn.functional.pad(inp, (0, -inp.shape[1] % cols, 0, -inp.shape[0] % rows))
