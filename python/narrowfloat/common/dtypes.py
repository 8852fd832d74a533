# SPDX-License-Identifier: Apache-2.0
"""Converts the spellings of a type that callers may use to names, for every face."""

import enum
from typing import Any

import numpy as np

from narrowfloat import _core

# narrowfloat's names of the element formats, and ml_dtypes' names.
ELEMENT_DTYPES: dict[str, str] = _core.ELEMENT_DTYPES


def dtype_name(dtype: object) -> str | None:
    """Returns the name of a type in NumPy and ml_dtypes; None for an object that names no type.

    dtype: a dtype of PyTorch, NumPy, ml_dtypes or JAX, a member of narrowfloat.pytorch.DType or of
        Format, the name of an element format such as "e4m3", or the name of a dtype,
        both in any case.
    """
    if isinstance(dtype, str):
        name = dtype.lower()
    elif isinstance(dtype, enum.Enum):  # DType.kFloat8E4M3, DType.kBFloat16, Format.E4M3
        name = dtype.name.removeprefix("kFloat8").removeprefix("kFloat4").removeprefix("k").lower()
    elif type(dtype).__module__ == "torch":  # an item of torch.float4_e2m1fn_x2 holds two codes
        name = str(dtype).removeprefix("torch.").removesuffix("_x2")
    else:
        try:
            name = np.dtype(dtype).name  # type: ignore[call-overload]  # any object may come
        except TypeError:
            return None
    return ELEMENT_DTYPES.get(name, name)


def element_dtype(dtype: object) -> Any:  # noqa: ANN401  (what a face takes as a dtype)
    """Returns the ml_dtypes name of an element format in any form; other objects unchanged."""
    name = dtype_name(dtype)
    return name if name in ELEMENT_DTYPES.values() else dtype
