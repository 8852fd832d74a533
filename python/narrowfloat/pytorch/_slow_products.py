# SPDX-License-Identifier: Apache-2.0
"""The 16-bit dtypes whose products are slow in PyTorch on this processor."""

import platform

import torch


def _slow_dtypes() -> frozenset[torch.dtype]:
    """Returns float16 and, on x86 processors without AVX-512, bfloat16.

    There PyTorch multiplies item by item: products of float32, rounded once, were 4 to 100 times as
    fast as those of float16 and 25 times as fast as those of bfloat16 (AVX2, 1024 x 1024 matrices).
    """
    is_x86 = platform.machine().lower() in ("x86_64", "amd64")
    has_avx512 = torch.backends.cpu.get_cpu_capability().startswith("AVX512")
    return frozenset({torch.float16} | ({torch.bfloat16} if is_x86 and not has_avx512 else set()))


SLOW_DTYPES = _slow_dtypes()
