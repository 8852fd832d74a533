# SPDX-License-Identifier: Apache-2.0
"""The verbs on torch tensors, and specs and plans that were asked for before."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from narrowfloat import _core

ROLES: tuple[str, ...] = tuple(_core.buffer_roles())
verbs = _core.TorchTensors(torch)
threads = torch.get_num_threads

# What the verbs take as input and give as output.
FLOAT_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


class PlannedBuffer(NamedTuple):
    """A buffer that a spec asks for."""

    role: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    storage: str


@lru_cache(maxsize=1024)
def make_spec(
    scheme: str, rowwise: bool, columnwise: bool, options: tuple[tuple[str, Any], ...] = ()
) -> _core.QuantSpec:
    """The spec of a scheme, directions and options; the same object for the same question."""
    return _core.make_spec(scheme, rowwise, columnwise, **dict(options))


@lru_cache(maxsize=4096)
def plan(spec: _core.QuantSpec, shape: tuple[int, ...]) -> tuple[PlannedBuffer, ...]:
    """The buffers of a tensor of `shape`, in the order of ROLES."""
    return tuple(
        PlannedBuffer(role, getattr(torch, dtype), dims, storage)
        for role, dtype, dims, storage in spec.plan(shape)
    )


@torch.library.custom_op("narrowfloat::dequantize", mutates_args=())
def dequantize(
    buffers: Sequence[torch.Tensor | None], spec: str, shape: Sequence[int], dtype: torch.dtype
) -> torch.Tensor:
    """The values of the buffers, as an operator that a graph can hold.

    buffers: a tensor or None for each of ROLES. spec: text form.
    """
    out = torch.empty(shape, dtype=dtype)
    if out.numel() > 0:
        verbs.dequantize(_core.parse_spec(spec), tuple(buffers), out, threads())
    return out


@dequantize.register_fake
def _dequantize_fake(
    buffers: Sequence[torch.Tensor | None], spec: str, shape: Sequence[int], dtype: torch.dtype
) -> torch.Tensor:
    device = next(buffer.device for buffer in buffers if buffer is not None)
    return torch.empty(shape, dtype=dtype, device=device)


def flatten_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    """Rows and columns: all dimensions but the last, and the last; a scalar is 1 x 1."""
    rows = 1
    for size in shape[:-1]:
        rows *= size
    return rows, shape[-1] if len(shape) else 1
