# SPDX-License-Identifier: Apache-2.0
"""Types and sizes under TransformerEngine's names."""

from __future__ import annotations

from enum import IntEnum
from typing import TypeAlias

import numpy as np
import torch

from narrowfloat import _core
from narrowfloat.common.dtypes import ELEMENT_DTYPES, dtype_name

# All forms of a type that DType.cast() accepts.
DTypeSpelling: TypeAlias = "DType | torch.dtype | np.dtype | type | str | int"


class DType(IntEnum):
    """Item types, numbered as in TransformerEngine's native module."""

    kByte = 0
    kInt32 = 2
    kFloat32 = 4
    kFloat16 = 5
    kBFloat16 = 6
    kFloat8E4M3 = 7
    kFloat8E5M2 = 8
    kFloat4E2M1 = 10

    __hash__ = int.__hash__

    @classmethod
    def cast(cls, dtype: DTypeSpelling) -> DType:
        """Returns the DType of a type: a DType, a dtype of PyTorch, NumPy or ml_dtypes, the name of
        a dtype or of an element format such as "e4m3", or an enum or number equal to it.

        Errors: ValueError for another name or number, KeyError for a torch dtype without a DType.
        """
        if isinstance(dtype, cls):
            return dtype
        if isinstance(dtype, torch.dtype):
            return TE_DType[dtype]
        if isinstance(dtype, str | type | np.dtype):
            found = _BY_NAME.get(dtype_name(dtype) or "")
            if found is None:
                raise ValueError(
                    f"DType: dtype must be 'e4m3', 'e5m2', 'e2m1' or one of {', '.join(_BY_NAME)}, "
                    f"got {dtype!r}"
                )
            return found
        return cls(int(dtype))


class FP8FwdTensorIdx(IntEnum):
    """Slots of a layer's forward pass, three per product."""

    GEMM1_INPUT = 0
    GEMM1_WEIGHT = 1
    GEMM1_OUTPUT = 2
    GEMM2_INPUT = 3
    GEMM2_WEIGHT = 4
    GEMM2_OUTPUT = GEMM2_WEIGHT + 1
    GEMM3_INPUT = GEMM2_WEIGHT + 2
    GEMM3_WEIGHT = GEMM2_WEIGHT + 3
    GEMM3_OUTPUT = GEMM2_WEIGHT + 4


class FP8BwdTensorIdx(IntEnum):
    """Slots of a layer's backward pass, two per product."""

    GRAD_OUTPUT1 = 0
    GRAD_INPUT1 = 1
    GRAD_OUTPUT2 = 2
    GRAD_INPUT2 = 3
    GRAD_OUTPUT3 = 4
    GRAD_INPUT3 = GRAD_OUTPUT3 + 1


TE_DType: dict[torch.dtype, DType] = {
    torch.uint8: DType.kByte,
    torch.float8_e4m3fn: DType.kFloat8E4M3,
    torch.float8_e5m2: DType.kFloat8E5M2,
    torch.int32: DType.kInt32,
    torch.float32: DType.kFloat32,
    torch.float16: DType.kFloat16,
    torch.bfloat16: DType.kBFloat16,
}
TE_DType_To_Torch: dict[DType, torch.dtype] = {ours: theirs for theirs, ours in TE_DType.items()}
_BY_NAME: dict[str, DType] = {str(t).removeprefix("torch."): ours for t, ours in TE_DType.items()}
_BY_NAME[ELEMENT_DTYPES["e2m1"]] = DType.kFloat4E2M1

# The names of element formats that names of schemes contain.
ELEMENTS: dict[DType, str] = {_BY_NAME[dtype]: name for name, dtype in ELEMENT_DTYPES.items()}


def element_of(dtype: DType) -> str:
    """Returns the name of an element format. Errors: ValueError if `dtype` is not one."""
    if dtype not in ELEMENTS:
        formats = ", ".join(member.name for member in ELEMENTS)
        raise ValueError(
            f"quantize: a quantizer's dtype must be one of {formats}, got {dtype.name}"
        )
    return ELEMENTS[dtype]


MXFP8_BLOCK_SCALING_SIZE: int = _core.make_spec(
    _core.mx_scheme(ELEMENTS[DType.kFloat8E4M3], False)
).block_length
NVFP4_BLOCK_SCALING_SIZE: int = _core.make_spec(
    _core.nvfp4_scheme(ELEMENTS[DType.kFloat4E2M1], False)
).block_length
FP8_BLOCK_SCALING_SIZE: int = _core.make_spec(
    _core.fp8_block_scheme(ELEMENTS[DType.kFloat8E4M3], False)
).block_length
