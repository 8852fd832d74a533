# SPDX-License-Identifier: Apache-2.0
"""Quantized torch tensors as the core's, over the same memory."""

import ml_dtypes
import numpy as np
import torch

from narrowfloat import _core
from narrowfloat.pytorch import _native
from narrowfloat.pytorch.tensor.storage._scheme_storage import SchemeStorage
from narrowfloat.pytorch.utils import is_non_tn_fp8_gemm_supported

NUMPY_DTYPES = {
    torch.float32: np.dtype(np.float32),
    torch.float16: np.dtype(np.float16),
    torch.bfloat16: np.dtype(ml_dtypes.bfloat16),
}


def array_of(tensor: torch.Tensor) -> np.ndarray:
    """The tensor's memory as an array; NumPy has no bfloat16 of its own.

    Errors: NotImplementedError unless it is on the CPU.
    """
    if tensor.device.type != "cpu":
        raise NotImplementedError(f"narrowfloat: tensors are on the CPU, got {tensor.device}")
    tensor = tensor.detach()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def core_tensor(storage: SchemeStorage, directions: tuple[str, ...]) -> _core.QuantizedTensor:
    """The matrix of those directions ("rowwise", "columnwise"), for the core's verbs to read.

    Shapes: leading dimensions flattened. Buffers that are not dense are copied.
    Errors: RuntimeError if a direction is not there.
    """
    rows, cols = _native.flatten_shape(tuple(storage._logical_shape()))
    wanted = {f"{d}_{part}" for d in directions for part in ("data", "scale_inv")}
    wanted |= {f"amax_{d}" for d in directions}
    present = dict(zip(_native.ROLES, storage._whole_buffers(), strict=True))
    if "columnwise" in directions and not storage._has_columnwise():
        present["columnwise_data"] = None  # a transpose may be there and out of date
    if "columnwise" in directions and present["columnwise_data"] is None:
        _transpose_of_rows(storage, present, rows, cols)
    for direction in directions:
        if present[f"{direction}_data"] is None:
            raise RuntimeError(f"{type(storage).__name__} has no {direction} data")
    options = storage._layout_options()
    spec = _native.make_spec(
        storage._scheme(), "rowwise" in directions, "columnwise" in directions, options
    )
    buffers = {
        planned.role: array_of(present[planned.role].detach().reshape(planned.shape).contiguous())
        for planned in _native.plan(spec, (rows, cols))
        if planned.role in wanted and present[planned.role] is not None
    }
    return _core.from_buffers(storage._scheme(), (rows, cols), buffers, **dict(options))


def transposed_core_tensor(storage: SchemeStorage) -> _core.QuantizedTensor:
    """The rowwise codes of the transposed matrix: the columnwise buffers under another name.

    Errors: RuntimeError if there are none; NotImplementedError where columns keep the orientation.
    """
    q = core_tensor(storage, ("columnwise",))
    rows, cols = q.shape
    if not storage._spec().columnwise_transposed:
        raise NotImplementedError(f"{q.scheme}: columnwise codes are not stored transposed")
    names = {"columnwise_data": "rowwise_data", "columnwise_scale_inv": "rowwise_scale_inv"}
    names["amax_columnwise"] = "amax_rowwise"
    buffers = {names[key]: q.buffers[key] for key in names if key in q.buffers}
    return _core.from_buffers(q.scheme, (cols, rows), buffers, **dict(storage._layout_options()))


def _transpose_of_rows(
    storage: SchemeStorage, present: dict[str, torch.Tensor | None], rows: int, cols: int
) -> None:
    """Per-tensor codes stand for both directions where a device's products read any layout."""
    data = present["rowwise_data"]
    whole = present["rowwise_scale_inv"] is present["columnwise_scale_inv"]
    if data is not None and whole and is_non_tn_fp8_gemm_supported():
        present["columnwise_data"] = data.reshape(rows, cols).t().contiguous()
