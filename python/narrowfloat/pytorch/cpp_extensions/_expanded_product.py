# SPDX-License-Identifier: Apache-2.0
"""The fast product: expands codes to bfloat16 exactly, and multiplies with PyTorch."""

from __future__ import annotations

import numpy as np
import torch

from narrowfloat import _core
from narrowfloat.pytorch._arrays import Operand

# About 128 x 128 x 128. In smaller products, expanding takes longer than it saves.
FEWEST_TERMS = 2_000_000


def multiply_expanded(
    first: Operand,
    second: Operand,
    layout: str,
    out: torch.Tensor,
    bias: torch.Tensor | None,
    accumulate: bool,
) -> bool:
    """Writes the product to the matrix `out` with PyTorch's bfloat16 product, if that is possible.

    Returns False, and writes nothing, for a result of another dtype, because PyTorch's product
    returns only bfloat16; for operands that are not exact in bfloat16; for a small product, which
    would be slower; and on a processor without bfloat16 products.
    """
    if first.shape[0] * first.shape[1] * out.shape[1] < FEWEST_TERMS:
        return False
    addends = [tensor for tensor in (bias, out if accumulate else None) if tensor is not None]
    is_bfloat16 = all(tensor.dtype == torch.bfloat16 for tensor in (out, *addends))
    if not is_bfloat16 or len(addends) > 1 or not _core.has_bfloat16_products():
        return False
    expanded = _core.expand_product(
        first.core(), second.core(), layout, threads=torch.get_num_threads()
    )
    if expanded is None:
        return False
    a, b, a_rows_are_lines, b_rows_are_lines, factor = expanded
    left, right = _tensor(a), _tensor(b)
    left = left if a_rows_are_lines else left.t()
    right = right.t() if b_rows_are_lines else right
    # alpha multiplies the fp32 sums, and the addend is added in fp32: one rounding.
    addend = addends[0].detach() if addends else out.new_zeros(())
    with torch.no_grad():
        torch.addmm(addend, left, right, beta=1 if addends else 0, alpha=factor, out=out)
    return True


def _tensor(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
