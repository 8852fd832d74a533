# SPDX-License-Identifier: Apache-2.0
"""Tests messages about tensors on CUDA devices, on machines without such a device.

The native verbs read tensors through a table of functions. The table here is a copy of PyTorch's
that reports CUDA as the device of some CPU tensors. A call with such a tensor raises before it
reads their memory.
"""

import ctypes
from types import SimpleNamespace

import pytest
import torch
from dlpack_tensor import CUDA, DLTensor, new_capsule

from narrowfloat import _core

_NAME = b"dlpack_exchange_api"

_View = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(DLTensor))


class _Table(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_uint32 * 2),
        ("functions", ctypes.c_void_p * 4),  # the previous table, and 3 functions without calls
        ("view", ctypes.c_void_p),
        ("current_stream", ctypes.c_void_p),
    )


class OnCuda(torch.Tensor):
    device = torch.device("cuda:0")


def _table() -> _Table:
    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_of.argtypes, pointer_of.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_void_p
    own = _Table.from_address(pointer_of(torch.Tensor.__dlpack_c_exchange_api__, _NAME))
    return _Table.from_buffer_copy(own)


TABLE = _table()
_view = _View(TABLE.view)


@_View
def _moved(tensor: torch.Tensor, out: "ctypes._Pointer[DLTensor]") -> int:
    result = _view(tensor, out)
    if isinstance(tensor, OnCuda):
        out.contents.device_type = CUDA
    return result


TABLE.view = ctypes.cast(_moved, ctypes.c_void_p).value


class _Kind(type):
    def __instancecheck__(cls, tensor: object) -> bool:
        return isinstance(tensor, torch.Tensor)


def _capsule() -> object:
    return new_capsule(ctypes.addressof(TABLE), _NAME, None)


class _Tensor(metaclass=_Kind):
    __dlpack_c_exchange_api__ = _capsule()
    is_neg = torch.Tensor.is_neg
    storage_offset = torch.Tensor.storage_offset


@pytest.fixture
def verbs() -> _core.TorchTensors:
    return _core.TorchTensors(SimpleNamespace(Tensor=_Tensor, _C=SimpleNamespace()))


def _on_cuda(*shape: int) -> torch.Tensor:
    return torch.zeros(shape).as_subclass(OnCuda)


def test_all_tensors_are_on_one_device(verbs: _core.TorchTensors) -> None:
    verbs.amax(torch.ones(4, 4), torch.zeros(1))
    with pytest.raises(ValueError) as raised:
        verbs.amax(torch.ones(4, 4), _on_cuda(1))
    assert str(raised.value) == (
        "amax: all tensors must be on one device, got the input on cpu and the output on cuda:0"
    )
    spec = _core.make_spec("fp8_e4m3")
    codes, scale_inv = torch.zeros(4, 4, dtype=torch.uint8), torch.zeros(1)
    with pytest.raises(ValueError) as raised:
        buffers = (codes, scale_inv, *(None,) * 5)
        verbs.quantize(spec, torch.ones(4, 4), buffers, scale=_on_cuda(1))
    assert str(raised.value) == (
        "quantize: all tensors must be on one device, got the input on cpu and scale on cuda:0"
    )


def test_a_build_without_cuda_says_so(verbs: _core.TorchTensors) -> None:
    try:
        verbs.amax(_on_cuda(4, 4), torch.zeros(1))
    except ValueError:  # the error for tensors on two devices
        pytest.skip("this build of narrowfloat has a CUDA backend")
    except NotImplementedError as error:
        assert str(error) == (
            "amax: the input must be on the CPU, because this build of narrowfloat has no CUDA "
            "backend, got a tensor on cuda:0"
        )
    else:
        pytest.fail("the call was not refused")
