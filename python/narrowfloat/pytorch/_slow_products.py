# SPDX-License-Identifier: Apache-2.0
"""The 16-bit dtypes with slow products in PyTorch on this processor."""

import platform

import torch


def _slow_dtypes() -> frozenset[torch.dtype]:
    """Returns float16 and, on x86 processors without AVX-512, bfloat16.

    There PyTorch multiplies item by item: float32 products, rounded once, were 4 to 100 times as
    fast as float16 products and 25 times as fast as bfloat16 products (AVX2, 1024 x 1024 matrices).
    """
    is_x86 = platform.machine().lower() in ("x86_64", "amd64")
    has_avx512 = torch.backends.cpu.get_cpu_capability().startswith("AVX512")
    return frozenset({torch.float16} | ({torch.bfloat16} if is_x86 and not has_avx512 else set()))


SLOW_DTYPES = _slow_dtypes()
# The most lines that PyTorch multiplies by a matrix faster than it widens the matrix to float32, if
# the sums run along the last dimension of both. On AVX2, 1 to 4 tokens by 1024 x 1024 weights took
# 0.2 to 1.0 ms, and 0.4 to 1.3 ms in float32; by 4096 x 2048 weights, 2 to 7 and 26 to 35 ms.
FEW_LINES = 4
