# SPDX-License-Identifier: Apache-2.0
"""The swizzled layout of scales, which matrix products on GPUs read."""

import torch

from narrowfloat.pytorch import _native
from narrowfloat.pytorch._arrays import operand
from narrowfloat.pytorch.tensor.storage._scheme_storage import SchemeStorage


def swizzle_scales_for_gemm_(
    storage: SchemeStorage, rowwise: bool = True, columnwise: bool = True
) -> None:
    """Swizzles the scales of the given directions in place, if they are present.

    Does nothing if they are swizzled already. Padding becomes zero.
    Errors: ValueError for a format without such a layout.
    """
    if getattr(storage, "_with_gemm_swizzled_scales", False):
        return
    usages = storage.get_usages()
    wanted = {"rowwise": rowwise, "columnwise": columnwise}
    for direction in (name for name, want in wanted.items() if want and usages[name]):
        scale = getattr(storage, f"_{direction}_scale_inv")
        spec, shape, buffers = operand(storage, (direction,)).native()
        place = _native.ROLES.index(f"{direction}_scale_inv")
        moved = torch.empty_like(scale, memory_format=torch.contiguous_format)
        out = (*buffers[:place], moved, *buffers[place + 1 :])
        _native.verbs.swizzle(spec, shape, buffers, out, _native.threads())
        scale.copy_(moved)
    vars(storage)["_with_gemm_swizzled_scales"] = True
