# SPDX-License-Identifier: Apache-2.0
"""Rows of the operator table that multiply the codes of two quantized tensors.

PyTorch multiplies the values if one operand is plain, or if general_gemm() does not support the
operands: a direction is absent, or the formats differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from narrowfloat.pytorch._dispatch import find_row, implements
from narrowfloat.pytorch._read_only import ReadOnlyValues, reads_transposed
from narrowfloat.pytorch._types import Operator, RowResult
from narrowfloat.pytorch.cpp_extensions.operands import Layout, is_scheme, unwrap_tensor
from narrowfloat.pytorch.cpp_extensions.product import Epilogue, multiply
from narrowfloat.pytorch.quantized_tensor import QuantizedTensor
from narrowfloat.pytorch.tensor.storage._scheme_storage import SchemeStorage

aten = torch.ops.aten

Row = Callable[..., Any]


class _Factor(NamedTuple):
    """A quantized tensor, and whether its last two dimensions are exchanged."""

    tensor: QuantizedTensor
    is_transposed: bool


class _Pair(NamedTuple):
    """The storages that a product of two factors reads."""

    first: Any
    second: Any
    layout: Layout
    dtype: torch.dtype


def _product_row(operator: Operator) -> Callable[[Row], Row]:
    """Adds a row to the table of quantized tensors and to the table of their transposes."""

    def register(row: Row) -> Row:
        return reads_transposed(operator)(implements(operator, QuantizedTensor)(row))

    return register


def _factor(value: torch.Tensor) -> _Factor | None:
    if isinstance(value, QuantizedTensor):
        return _Factor(value, False)
    if isinstance(value, ReadOnlyValues) and value.transposed is not None:
        return _Factor(value.transposed, True)
    return None


def _storage(factor: _Factor, usage: str) -> SchemeStorage | None:
    """Returns the storage of a factor for general_gemm(); None without codes in the direction."""
    tensor = factor.tensor
    if tensor.HOLDS_VALUES or tensor.custom or not tensor.get_usages()[usage]:
        return None
    storage = unwrap_tensor(tensor, usage)
    return storage if is_scheme(storage) and not storage.custom else None


def _transform(storage: SchemeStorage, usage: str) -> object:
    """Returns the signs of the Hadamard transform of a direction's values; None without one.

    For a storage without a quantizer they are unknown: the result equals no other transform.
    """
    if usage == "rowwise":
        return None
    quantizer = storage._quantizer
    if quantizer is None:
        return object()
    if not getattr(quantizer, "with_rht", False):
        return None
    return quantizer.rht_matrix_random_sign_mask_t


def _pair(first: torch.Tensor, second: torch.Tensor) -> _Pair | None:
    """Returns the operands for a product of codes of matrices or of stacks; None for values."""
    left, right = _factor(first), _factor(second)
    if left is None or right is None or first.dtype != second.dtype:
        return None
    fits = first.shape[:-2] == second.shape[:-2] and first.shape[-1] == second.shape[-2]
    if not fits or 0 in (*first.shape, *second.shape):
        return None
    layout = Layout(transa=right.is_transposed, transb=left.is_transposed)
    right_usage, left_usage = layout.usages
    a, b = _storage(right, right_usage), _storage(left, left_usage)
    if a is None or b is None or a.FAMILY is not b.FAMILY:
        return None
    if _transform(a, right_usage) != _transform(b, left_usage):
        return None
    if layout.transa and layout.transb and not b._spec().columnwise_transposed:
        return None
    return _Pair(b, a, layout, first.dtype)


def _matrices(storage: SchemeStorage, usage: str, count: int) -> list[Any] | None:
    """Returns the `count` matrices of a stack in a direction; None if they are not whole blocks.

    The storage has the shape of the stack; NVFP4 with only columnwise data, the flattened shape.
    """
    if not isinstance(storage, QuantizedTensor):
        return None
    if usage == "rowwise":  # columns are not read, and must not restrict the bounds of matrices
        storage = storage.detach()
        storage.update_usage(rowwise_usage=True, columnwise_usage=False)
    row, lines = find_row(aten.slice.Tensor, type(storage)), storage.shape[0] // count
    if row is None:
        return None
    pieces = [row(storage, 0, i * lines, (i + 1) * lines) for i in range(count)]
    return None if any(piece is NotImplemented for piece in pieces) else pieces


def _start(
    addend: torch.Tensor | None, shape: Sequence[int], dtype: torch.dtype, beta: float
) -> torch.Tensor | None:
    """Returns a new tensor with the addend of a product; None without one."""
    if addend is None or beta == 0:
        return None
    return addend.detach().expand(shape).to(dtype, copy=True).contiguous()


def _multiply(pair: _Pair, out: torch.Tensor | None, **options: Any) -> torch.Tensor:
    epilogue = Epilogue(out_dtype=pair.dtype, **options)
    return multiply(pair.second, pair.first, pair.layout, epilogue, out)[0]


@_product_row(aten.mm.default)
def _mm(first: torch.Tensor, second: torch.Tensor) -> RowResult:
    return _addmm(None, first, second)


@_product_row(aten.addmm.default)
def _addmm(
    addend: torch.Tensor | None,
    first: torch.Tensor,
    second: torch.Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
) -> RowResult:
    pair = _pair(first, second)
    if pair is None or not _is_plain_or_none(addend, pair.dtype):
        return NotImplemented
    if addend is not None and addend.shape == second.shape[1:] and beta == 1:
        return _multiply(pair, None, bias=addend, alpha=alpha)
    shape = (first.shape[0], second.shape[1])
    out = _start(addend, shape, pair.dtype, beta)
    if out is None:
        return _multiply(pair, None, alpha=alpha)
    return _multiply(pair, out, alpha=alpha, beta=beta, accumulate=True)


@_product_row(aten.bmm.default)
def _bmm(first: torch.Tensor, second: torch.Tensor) -> RowResult:
    return _baddbmm(None, first, second)


@_product_row(aten.baddbmm.default)
def _baddbmm(
    addend: torch.Tensor | None,
    first: torch.Tensor,
    second: torch.Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
) -> RowResult:
    pair = _pair(first, second)
    if pair is None or not _is_plain_or_none(addend, pair.dtype):
        return NotImplemented
    second_usage, first_usage = pair.layout.usages
    count = first.shape[0]
    left = _matrices(pair.first, first_usage, count)
    right = _matrices(pair.second, second_usage, count)
    if left is None or right is None:
        return NotImplemented
    shape = (*first.shape[:-1], second.shape[-1])
    out = _start(addend, shape, pair.dtype, beta)
    accumulated = {} if out is None else {"beta": beta, "accumulate": True}
    if out is None:
        out = torch.empty(shape, dtype=pair.dtype, device=first.device)
    for b, a, target in zip(left, right, out, strict=True):
        _multiply(pair._replace(first=b, second=a), target, alpha=alpha, **accumulated)
    return out


def _is_plain_or_none(addend: torch.Tensor | None, dtype: torch.dtype) -> bool:
    return addend is None or (_factor(addend) is None and addend.dtype == dtype)


# PyTorch decomposes these operators before the dispatch, except in inference mode.
_COMPOSITE = (aten.linear.default, aten.matmul.default, aten.numpy_T.default, aten.mT.default)


def _take_apart(operator: Operator) -> None:
    @_product_row(operator)
    def row(*args: Any, **kwargs: Any) -> object:
        return operator.decompose(*args, **kwargs)


for _operator in _COMPOSITE:
    _take_apart(_operator)


def _exchanged(func: Operator, tensor: QuantizedTensor) -> RowResult:
    if tensor.HOLDS_VALUES or tensor.dim() < 2:
        return NotImplemented
    return ReadOnlyValues.of_transpose(tensor, f"{func} gave of a {type(tensor).__name__}")


@implements(aten.t.default, QuantizedTensor)
def _t(tensor: QuantizedTensor) -> RowResult:
    if tensor.dim() > 2:
        torch.empty(tensor.shape, device="meta").t()  # raises as PyTorch does
    return _exchanged(aten.t.default, tensor)


@implements(aten.transpose.int, QuantizedTensor)
def _transpose(tensor: QuantizedTensor, dim0: int, dim1: int) -> RowResult:
    rank = tensor.dim()
    if rank < 2 or {dim0 % rank, dim1 % rank} != {rank - 2, rank - 1}:
        return NotImplemented
    return _exchanged(aten.transpose.int, tensor)


@implements(aten.permute.default, QuantizedTensor)
def _permute(tensor: QuantizedTensor, dims: Sequence[int]) -> RowResult:
    rank = tensor.dim()
    wanted = [*range(rank - 2), rank - 1, rank - 2]
    if rank < 2 or [dim % rank for dim in dims] != wanted:
        return NotImplemented
    return _exchanged(aten.permute.default, tensor)


@implements(aten.expand.default, QuantizedTensor)
def _expand(tensor: QuantizedTensor, size: Sequence[int], *, implicit: bool = False) -> RowResult:
    """Returns an alias if no dimension grows, because torch.matmul() of stacks expands both."""
    return aten.alias.default(tensor) if _is_shape(tensor, size) else NotImplemented


def _is_shape(tensor: torch.Tensor, size: Sequence[int]) -> bool:
    wanted = zip(size, tensor.shape, strict=False)
    return len(size) == tensor.dim() and all(n in (-1, own) for n, own in wanted)


def _keeps_transpose(operator: Operator) -> None:
    @reads_transposed(operator)
    def row(values: ReadOnlyValues, size: Sequence[int] | None = None, **kwargs: Any) -> object:
        if values.transposed is None or not (size is None or _is_shape(values, size)):
            return NotImplemented
        return values.alias()


for _operator in (
    aten.detach.default,
    aten.alias.default,
    aten.expand.default,
    aten.reshape.default,
    aten.view.default,
    aten._unsafe_view.default,
):
    _keeps_transpose(_operator)
