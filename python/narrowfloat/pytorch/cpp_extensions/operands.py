# SPDX-License-Identifier: Apache-2.0
"""The operands of a product: their directions, storages and sizes."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import torch
from typing_extensions import TypeIs

from narrowfloat.pytorch._exported_tensors import name_buffers
from narrowfloat.pytorch._native import flatten_shape
from narrowfloat.pytorch._types import TensorLike
from narrowfloat.pytorch.quantized_tensor import QuantizedTensor, QuantizedTensorStorage
from narrowfloat.pytorch.tensor._hosted import native
from narrowfloat.pytorch.tensor.storage._scheme_storage import SchemeStorage

# An operand of a product: plain values, or codes with scales.
Codes: TypeAlias = torch.Tensor | SchemeStorage


class Layout(NamedTuple):
    """The operands that are transposed, which determines the direction of each that is read."""

    transa: bool
    transb: bool

    @property
    def usages(self) -> tuple[str, str]:
        """The directions of A and of B, "rowwise" or "columnwise"."""
        return (
            "rowwise" if self.transa else "columnwise",
            "columnwise" if self.transb else "rowwise",
        )


LAYOUTS = {"TN": Layout(True, False), "NN": Layout(False, False), "NT": Layout(False, True)}


def unwrap_tensor(
    tensor: Any,  # noqa: ANN401  # of any project: a wrapper or a custom tensor
    usage: str,
) -> Any:  # noqa: ANN401  # a custom tensor of any project
    """Returns the operand for a usage: a plain tensor, a storage or a custom tensor.

    Hybrid tensors and wrappers with get_tensor(transpose) choose the direction; a storage without
    codes is dequantized. Errors: ValueError for another usage; RuntimeError if the direction is
    absent.
    """
    if usage not in ("rowwise", "columnwise"):
        raise ValueError(f"unwrap_tensor: usage must be 'rowwise' or 'columnwise', got {usage!r}")
    if tensor is None:
        raise RuntimeError(f"general_gemm: an operand has no {usage} data")
    tensor = native(tensor)
    if isinstance(tensor, QuantizedTensor):
        name_buffers(tensor)
    if getattr(tensor, "custom", False):
        return tensor
    if hasattr(tensor, f"{usage}_sub_storage"):
        return unwrap_tensor(getattr(tensor, f"{usage}_sub_storage"), usage)
    if hasattr(tensor, "get_tensor"):
        return unwrap_tensor(tensor.get_tensor(usage == "columnwise"), usage)
    if is_scheme(tensor):
        return tensor
    if isinstance(tensor, QuantizedTensorStorage):
        return tensor.dequantize()
    if isinstance(tensor, torch.Tensor):
        return tensor
    raise TypeError(f"general_gemm: an operand must be a tensor, got {type(tensor)}")


def nominal_dtype(tensor: TensorLike) -> torch.dtype:
    """Returns the dtype of a tensor's values; of a bare storage, from its field."""
    dtype = getattr(tensor, "dtype", None)
    if dtype is None:
        assert isinstance(tensor, QuantizedTensorStorage)
        dtype = tensor._dtype
    return dtype


def is_scheme(tensor: object) -> TypeIs[SchemeStorage]:
    """Returns whether the operand has codes and scales for the core."""
    return hasattr(tensor, "BUFFERS") and not getattr(tensor, "HOLDS_VALUES", False)


def is_row_scaled(tensor: object) -> bool:
    """Returns whether each row has an amax of its own."""
    return bool(getattr(tensor, "_row_scaled_nvfp4", False))


class Sizes(NamedTuple):
    """Shape of the product, as returned and as a matrix, and the length of its sums."""

    shape: tuple[int, ...]
    rows: int
    cols: int
    inner: int


def product_sizes(a: Codes, b: Codes, layout: Layout) -> Sizes:
    """Returns the sizes of B times A.

    Errors: ValueError if an operand has no dimensions or inner sizes differ, naming both shapes.
    """
    a_shape, b_shape = tuple(a.shape), tuple(b.shape)
    if not a_shape or not b_shape:
        raise ValueError(
            f"general_gemm: A and B must have dimensions, got shapes {a_shape} and {b_shape}"
        )
    a_rows, a_cols = flatten_shape(a_shape)
    b_rows, b_cols = flatten_shape(b_shape)
    inner_a, cols = (a_cols, a_rows) if layout.transa else (a_rows, a_cols)
    inner, rows = (b_rows, b_cols) if layout.transb else (b_cols, b_rows)
    if inner_a != inner:
        raise ValueError(
            f"general_gemm: inner sizes differ, A is {a_shape} and B is {b_shape}, "
            f"{'T' if layout.transa else 'N'}{'T' if layout.transb else 'N'}"
        )
    shape = (rows, cols) if layout.transb else (*b_shape[:-1], cols)
    return Sizes(shape, rows, cols, inner)
