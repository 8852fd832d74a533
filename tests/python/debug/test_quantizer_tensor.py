# SPDX-License-Identifier: Apache-2.0
"""Tests a tensor in two forms: the form per gemm, dropping forms, saving for backward."""

import pytest
import torch
from narrowfloat.debug.pytorch.debug_tensor import DebugQuantizedTensor
from narrowfloat.pytorch import (
    DType,
    MXFP8Quantizer,
    QuantizedTensorStorage,
    prepare_for_saving,
    restore_from_saved,
)
from narrowfloat.pytorch.cpp_extensions.operands import unwrap_tensor


class Told(QuantizedTensorStorage):
    """Records the arguments of update_usage()."""

    def __init__(self) -> None:
        self.told: list[tuple[bool | None, bool | None]] = []

    def update_usage(
        self, rowwise_usage: bool | None = None, columnwise_usage: bool | None = None
    ) -> None:
        self.told.append((rowwise_usage, columnwise_usage))


def pair(rowwise: object, columnwise: object) -> DebugQuantizedTensor:
    return DebugQuantizedTensor(rowwise, columnwise, quantizer=None)


def test_gemms_read_their_form() -> None:
    rowwise, columnwise = torch.zeros(2, 3), torch.ones(2, 3)
    tensor = pair(rowwise, columnwise)
    assert tensor.get_tensor(False) is rowwise and tensor.get_tensor(True) is columnwise
    assert unwrap_tensor(tensor, "rowwise") is rowwise
    assert unwrap_tensor(tensor, "columnwise") is columnwise
    assert tensor.shape == (2, 3) and tensor.device == rowwise.device


def test_a_shared_object_is_told_once() -> None:
    shared = Told()
    tensor = pair(shared, shared)
    tensor.update_usage(rowwise_usage=False, columnwise_usage=True)
    assert shared.told == [(False, True)]
    assert tensor.get_tensor(False) is shared


def test_forms_of_their_own_are_dropped_one_by_one() -> None:
    rowwise, columnwise = Told(), torch.ones(2, 2)
    tensor = pair(rowwise, columnwise)
    tensor.update_usage(rowwise_usage=True, columnwise_usage=False)
    assert tensor.get_usages() == {"rowwise": True, "columnwise": False}
    assert rowwise.told == [] and tensor.get_tensor(True) is None
    tensor.update_usage()
    assert tensor.get_tensor(False) is rowwise


@pytest.mark.parametrize(
    ("dropped", "other"), [("rowwise", "columnwise"), ("columnwise", "rowwise")]
)
def test_what_was_dropped_cannot_come_back_and_nothing_else_goes(dropped: str, other: str) -> None:
    tensor = pair(torch.zeros(2, 2), torch.ones(2, 2))
    tensor.update_usage(**{f"{dropped}_usage": False})
    message = f"Cannot recreate {dropped} tensor from {other} tensor in debug mode."
    with pytest.raises(RuntimeError, match=f"^{message}$"):
        tensor.update_usage(**{f"{dropped}_usage": True, f"{other}_usage": False})
    assert tensor.get_usages()[other]


def test_the_size_of_a_tensor_without_rows_is_still_known() -> None:
    tensor = pair(torch.zeros(2, 3), torch.ones(2, 3))
    tensor.update_usage(rowwise_usage=False)
    assert tensor.size() == (2, 3) and torch.equal(tensor.dequantize(), torch.ones(2, 3))


def test_a_shared_object_is_saved_once() -> None:
    shared = torch.ones(2, 2)
    saved, objects = prepare_for_saving(pair(shared, shared), torch.zeros(1))
    assert len(saved) == 2
    tensor, rest = restore_from_saved(objects, saved)
    assert tensor.get_tensor(False) is shared and tensor.get_tensor(True) is shared
    assert torch.equal(rest, torch.zeros(1))


def test_bare_storages_get_their_buffers_back() -> None:
    quantizer = MXFP8Quantizer(DType.kFloat8E4M3)
    quantizer.internal = True
    x = torch.randn(32, 64)
    storage, plain = quantizer.quantize(x), torch.ones(32, 64)
    expected = storage.dequantize()
    saved, objects = prepare_for_saving(pair(storage, plain))
    assert all(t is None or isinstance(t, torch.Tensor) for t in saved)
    (tensor,) = restore_from_saved(objects, saved)
    assert torch.equal(tensor.dequantize(), expected) and tensor.get_tensor(True) is plain


def test_a_kept_tensor_is_saved_by_several_passes() -> None:
    rowwise, columnwise = torch.zeros(2, 2), torch.ones(2, 2)
    tensor = pair(rowwise, columnwise)
    first, second = prepare_for_saving(tensor), prepare_for_saving(tensor)
    for saved, objects in (first, second):
        (restored,) = restore_from_saved(objects, saved)
        assert restored.get_tensor(False) is rowwise and restored.get_tensor(True) is columnwise
