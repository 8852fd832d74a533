# SPDX-License-Identifier: Apache-2.0
"""Exports NumPy arrays by DLPack without a framework: bfloat16, odd strides, other devices."""

import ctypes

import ml_dtypes
import numpy as np

FLOAT, BFLOAT = 2, 4
CPU, CUDA = 1, 2


class DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    _fields_ = (
        ("tensor", DLTensor),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


# A separate function object: every module may change the argument types of ctypes.pythonapi's.
new_capsule = ctypes.PyDLL(None).PyCapsule_New
new_capsule.restype = ctypes.py_object
new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)


class DlpackTensor:
    """Exports `array` as if it were on `device_type`, and keeps it alive."""

    def __init__(self, array: np.ndarray, device_type: int = CPU) -> None:
        self._array = array
        item = array.dtype.itemsize
        rank = array.ndim
        code = BFLOAT if array.dtype == ml_dtypes.bfloat16 else FLOAT
        self._shape = (ctypes.c_int64 * rank)(*array.shape)
        self._strides = (ctypes.c_int64 * rank)(*(stride // item for stride in array.strides))
        # The address is split in two, so that a reader that ignores byte_offset gets wrong items.
        tensor = DLTensor(
            array.ctypes.data - 64, device_type, 0, rank, code, 8 * item, 1,
            self._shape, self._strides, 64,
        )  # fmt: skip
        self._managed = _Managed(tensor, None, None)

    def __dlpack__(self, stream: object = None) -> object:
        return new_capsule(ctypes.addressof(self._managed), b"dltensor", None)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (self._managed.tensor.device_type, 0)
