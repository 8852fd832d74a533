# SPDX-License-Identifier: Apache-2.0
"""Converts quantized torch tensors to the core's, over the same memory."""

from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import torch

from narrowfloat import _core
from narrowfloat.pytorch import _native
from narrowfloat.pytorch._plans import roles_of_directions
from narrowfloat.pytorch.tensor.storage._scheme_storage import SchemeStorage

NUMPY_DTYPES = {
    torch.float32: np.dtype(np.float32),
    torch.float16: np.dtype(np.float16),
    torch.bfloat16: np.dtype(ml_dtypes.bfloat16),
}
_HELD = dict(NUMPY_DTYPES)  # also receives the dtypes of codes


def array_of(tensor: torch.Tensor) -> np.ndarray:
    """Returns the tensor's memory as an array; bfloat16 is ml_dtypes' type.

    The memory of a tensor with the negative bit has the opposite signs: the array is then a copy
    that cannot be written.
    Errors: NotImplementedError unless it is on the CPU.
    """
    if tensor.device.type != "cpu":
        raise NotImplementedError(f"narrowfloat: tensors must be on the CPU, got {tensor.device}")
    dtype = _HELD.get(tensor.dtype)
    if dtype is None:
        dtype = _HELD[tensor.dtype] = tensor.new_empty(0).numpy().dtype
    negated = tensor.is_neg()
    array = np.asarray(_Memory(tensor.resolve_neg() if negated else tensor, dtype, negated))
    return array.view(dtype)


class _Memory:
    """The memory of a tensor, in NumPy's array interface.

    Tensor.numpy() would make the memory not resizable, and FSDP2 resizes it to free it.
    """

    def __init__(self, tensor: torch.Tensor, dtype: np.dtype, read_only: bool) -> None:
        self.tensor = tensor
        size = dtype.itemsize
        self.__array_interface__ = {
            "version": 3,
            "shape": tuple(tensor.shape),
            "typestr": dtype.str if dtype.isbuiltin == 1 else f"<i{size}",
            "data": (tensor.data_ptr(), read_only),
            "strides": tuple(stride * size for stride in tensor.stride()),
        }


class Operand(NamedTuple):
    """A matrix of codes that a product reads. buffers: dense, by role, with planned shapes."""

    scheme: str
    options: tuple[tuple[str, Any], ...]
    shape: tuple[int, int]
    buffers: dict[str, torch.Tensor]

    @property
    def device(self) -> torch.device:
        """The device of the buffers."""
        return next(iter(self.buffers.values())).device

    def runs_natively(self) -> bool:
        """Returns whether native code may compute with the buffers."""
        return all(map(_native.runs_natively, self.buffers.values()))

    def native(self) -> tuple[_core.QuantSpec, tuple[int, int], tuple[torch.Tensor | None, ...]]:
        """Returns spec, shape and buffers, the arguments of the verbs on torch tensors."""
        buffers = tuple(map(self.buffers.get, _native.ROLES))
        rowwise, columnwise = (buffers[_DATA[d]] is not None for d in _DATA)
        spec = _native.make_spec(self.scheme, rowwise, columnwise, self.options)
        return spec, self.shape, buffers

    def core(self) -> _core.QuantizedTensor:
        """Returns the matrix for the core's verbs, over the same memory."""
        arrays = {role: array_of(buffer) for role, buffer in self.buffers.items()}
        return _core.from_buffers(self.scheme, self.shape, arrays, **dict(self.options))


def operand(storage: SchemeStorage, directions: tuple[str, ...]) -> Operand:
    """Returns the matrix with the given directions ("rowwise", "columnwise").

    Shapes: leading dimensions flattened. Buffers that are not dense are copied.
    Errors: RuntimeError if a direction is absent.
    """
    rows, cols = _native.flatten_shape(tuple(storage._logical_shape()))
    present = storage._whole_buffers()
    if "columnwise" in directions and not storage._has_columnwise():
        present = _with_transpose(storage, present, rows, cols)
    for direction in directions:
        if present[_DATA[direction]] is None:
            raise RuntimeError(f"{type(storage).__name__} has no {direction} data")
    scheme, options = storage._scheme(), storage._layout_options()
    buffers = {}
    for role, index, planned in roles_of_directions(scheme, options, directions, (rows, cols)):
        buffer = present[index]
        if buffer is not None:
            buffer = buffer if buffer.shape == planned else buffer.reshape(planned)
            buffers[role] = buffer.detach() if buffer.requires_grad else buffer
    return Operand(scheme, options, (rows, cols), buffers)


_DATA = {d: _native.ROLES.index(f"{d}_data") for d in ("rowwise", "columnwise")}


def core_tensor(storage: SchemeStorage, directions: tuple[str, ...]) -> _core.QuantizedTensor:
    """Returns operand() as a tensor of the core."""
    return operand(storage, directions).core()


def transposed_operand(storage: SchemeStorage) -> Operand:
    """Returns the rowwise codes of the transposed matrix: the columnwise buffers renamed.

    Errors: RuntimeError if they are absent; NotImplementedError if they are not transposed.
    """
    columns = operand(storage, ("columnwise",))
    rows, cols = columns.shape
    if not storage._spec().columnwise_transposed:
        raise NotImplementedError(
            f"{columns.scheme} is not supported, its columnwise codes are not stored transposed"
        )
    names = {"columnwise_data": "rowwise_data", "columnwise_scale_inv": "rowwise_scale_inv"}
    names["amax_columnwise"] = "amax_rowwise"
    buffers = {names[role]: buffer for role, buffer in columns.buffers.items()}
    return Operand(columns.scheme, columns.options, (cols, rows), buffers)


def _with_transpose(
    storage: SchemeStorage, present: tuple[torch.Tensor | None, ...], rows: int, cols: int
) -> tuple[torch.Tensor | None, ...]:
    """Returns the buffers with a transpose of the rowwise codes, if these are valid in any layout.

    Else returns them without columnwise codes, because an existing transpose may be out of date.
    """
    found = dict(zip(_native.ROLES, present, strict=True))
    data, found["columnwise_data"] = found["rowwise_data"], None
    shared = found["rowwise_scale_inv"] is found["columnwise_scale_inv"]
    if data is not None and shared and storage._reads_any_layout():
        found["columnwise_data"] = data.reshape(rows, cols).t().contiguous()
    return tuple(found.values())
