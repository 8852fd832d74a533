# SPDX-License-Identifier: Apache-2.0
"""The product of two matrices of codes: by the core, or in a graph by an operator."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import torch

from narrowfloat import _core
from narrowfloat.pytorch import _native
from narrowfloat.pytorch._arrays import NUMPY_DTYPES, Operand, array_of
from narrowfloat.pytorch._graph_operators import device_of
from narrowfloat.pytorch._product_mode import FAST, REPRODUCIBLE, get_product_mode
from narrowfloat.pytorch.cpp_extensions._expanded_product import multiply_expanded

Tensor = torch.Tensor | None


def qgemm(
    first: Operand,
    second: Operand,
    layout: str,
    shape: tuple[int, int],
    dtype: torch.dtype,
    bias: Tensor = None,
    out: Tensor = None,
    accumulate: bool = False,
    mode: str | None = None,
) -> torch.Tensor:
    """Returns the product as a matrix of `shape`, or in `out` if it is given.

    layout: of the two operands, as in the core's qgemm. bias: of `dtype`, added. mode: None is the
    current one.
    Errors: NotImplementedError for codes that are not on the CPU.
    """
    mode = get_product_mode() if mode is None else mode
    if not (first.runs_natively() and second.runs_natively()):
        bias = None if bias is None else bias.detach()
        addend = out.detach().reshape(shape) if out is not None and accumulate else None
        operands = (*_parts(first), *_parts(second))
        made = _qgemm(*operands, layout, shape, dtype, mode, bias, addend)
        return made if out is None else out.copy_(made.reshape(out.shape))
    _require_cpu(first, second)
    if out is None:
        out = matrix = torch.empty(shape, dtype=dtype, device="cpu")
    else:
        matrix = out.reshape(shape)
    if mode == FAST and multiply_expanded(first, second, layout, matrix, bias, accumulate):
        return out
    _native.verbs.qgemm(
        *first.native(),
        *second.native(),
        layout,
        matrix,
        None if bias is None else bias.detach().reshape(-1).contiguous(),
        accumulate,
        _native.threads(),
    )
    return out


def qgemm_gelu(
    first: Operand,
    second: Operand,
    layout: str,
    out: torch.Tensor,
    gelu_in: torch.Tensor,
    grad: bool,
    bias: Tensor = None,
    accumulate: bool = False,
) -> None:
    """Writes GELU of the reproducible product to the matrix `out`, and its input to `gelu_in`.

    grad: the product times GELU's derivative at `gelu_in` instead. gelu_in: of the shape and dtype
    of `out`.
    """
    if not (first.runs_natively() and second.runs_natively()):
        bias = None if bias is None else bias.detach()
        made, kept = _qgemm_gelu(
            *_parts(first), *_parts(second), layout, out, gelu_in, grad, bias, accumulate
        )
        out.copy_(made)
        if not grad:
            gelu_in.copy_(kept)
        return
    _require_cpu(first, second)
    _core.qgemm(
        first.core(),
        second.core(),
        layout=layout,
        dtype=NUMPY_DTYPES[out.dtype],
        bias=None if bias is None else array_of(bias.reshape(-1).contiguous()),
        out=array_of(out),
        accumulate=accumulate,
        threads=torch.get_num_threads(),
        mode=REPRODUCIBLE,  # the environment may set another mode
        gelu=True,
        gelu_in=array_of(gelu_in),
        grad=grad,
    )


def _require_cpu(*operands: Operand) -> None:
    """Raises NotImplementedError for codes in device memory."""
    for operand in operands:
        if operand.device.type != "cpu":
            raise NotImplementedError(
                f"qgemm: codes must be on the CPU to be multiplied, got {operand.device}; "
                "dequantize() them there"
            )


def _text(operand: Operand) -> str:
    """Returns scheme and options as text, for arguments of operators."""
    return json.dumps([operand.scheme, dict(operand.options)])


def _parts(operand: Operand) -> tuple[list[Tensor], str, tuple[int, int]]:
    """Returns the operand as arguments of operators."""
    buffers = [operand.buffers.get(role) for role in _native.ROLES]
    return buffers, _text(operand), operand.shape


def _operand(buffers: Sequence[Tensor], text: str, shape: Sequence[int]) -> Operand:
    scheme, options = json.loads(text)
    named = {r: b for r, b in zip(_native.ROLES, buffers, strict=True) if b is not None}
    rows, cols = shape
    return Operand(scheme, tuple(options.items()), (rows, cols), named)


@torch.library.custom_op("narrowfloat::qgemm", mutates_args=())
def _qgemm(
    a: Sequence[torch.Tensor | None],
    a_format: str,
    a_shape: Sequence[int],
    b: Sequence[torch.Tensor | None],
    b_format: str,
    b_shape: Sequence[int],
    layout: str,
    shape: Sequence[int],
    dtype: torch.dtype,
    mode: str,
    bias: torch.Tensor | None = None,
    addend: torch.Tensor | None = None,
) -> torch.Tensor:
    """Returns the product of two matrices of codes, `shape`, plus `bias` and `addend`.

    a, b: a tensor or None for each role of ROLES. a_format, b_format: scheme and options as JSON.
    """
    operands = _operand(a, a_format, a_shape), _operand(b, b_format, b_shape)
    out = None if addend is None else addend.clone()
    rows, cols = shape
    return qgemm(*operands, layout, (rows, cols), dtype, bias, out, out is not None, mode)


@_qgemm.register_fake
def _qgemm_fake(
    a: Sequence[Tensor],
    _a_format: str,
    _a_shape: Sequence[int],
    _b: Sequence[Tensor],
    _b_format: str,
    _b_shape: Sequence[int],
    _layout: str,
    shape: Sequence[int],
    dtype: torch.dtype,
    *_: Any,
) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device=device_of(a))


@torch.library.custom_op("narrowfloat::qgemm_gelu", mutates_args=())
def _qgemm_gelu(
    a: Sequence[torch.Tensor | None],
    a_format: str,
    a_shape: Sequence[int],
    b: Sequence[torch.Tensor | None],
    b_format: str,
    b_shape: Sequence[int],
    layout: str,
    out: torch.Tensor,
    gelu_in: torch.Tensor,
    grad: bool,
    bias: torch.Tensor | None,
    accumulate: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns `out` and `gelu_in` as qgemm_gelu() writes them; a, b and formats as in qgemm."""
    operands = _operand(a, a_format, a_shape), _operand(b, b_format, b_shape)
    made, kept = out.clone(), gelu_in.clone()
    qgemm_gelu(*operands, layout, made, kept, grad, bias, accumulate)
    return made, kept


@_qgemm_gelu.register_fake
def _qgemm_gelu_fake(*arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
    *_, out, gelu_in, _grad, _bias, _accumulate = arguments
    return torch.empty_like(out), torch.empty_like(gelu_in)
