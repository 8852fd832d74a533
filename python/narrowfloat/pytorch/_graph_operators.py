# SPDX-License-Identifier: Apache-2.0
"""The verbs as operators of torch.library, for graphs; they write no argument."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from narrowfloat.pytorch import _verbs
from narrowfloat.pytorch._plans import ROLES, PlannedBuffer, parse_spec, plan

# The upper bound of seeds and offsets of stochastic rounding.
SEED_BOUND = torch.iinfo(torch.int64).max


def _own_buffers(spec: str, shape: Sequence[int]) -> list[PlannedBuffer]:
    """Returns the planned buffers that have memory of their own."""
    return [b for b in plan(parse_spec(spec), tuple(shape)) if b.storage == b.role]


def _empty_buffers(spec: str, x: torch.Tensor) -> list[torch.Tensor]:
    return [
        torch.empty(buffer.shape, dtype=buffer.dtype, device=x.device)
        for buffer in _own_buffers(spec, x.shape)
    ]


@torch.library.custom_op("narrowfloat::quantize", mutates_args=())
def quantize(
    x: torch.Tensor,
    spec: str,
    scale: torch.Tensor | None = None,
    amax: torch.Tensor | None = None,
    amax_columnwise: torch.Tensor | None = None,
    seeds: torch.Tensor | None = None,
) -> list[torch.Tensor]:
    """Returns the buffers of quantized `x` that have memory of their own, in the order of ROLES.

    spec: text form. scale, amax, amax_columnwise: float32 of one element, which replace the values
    computed from `x`. seeds: int64 seed and offset of stochastic rounding.
    """
    made = _empty_buffers(spec, x)
    for buffer in made[1:]:
        if buffer.dtype == torch.float32 and x.numel() == 0:
            buffer.zero_()
    named = dict(zip([b.role for b in _own_buffers(spec, x.shape)], made, strict=True))
    if scale is not None and "amax_rowwise" in named:
        named["amax_rowwise"].zero_()
    for planned in plan(parse_spec(spec), tuple(x.shape)):
        named.setdefault(planned.role, named[planned.storage])
    seed, offset = (0, 0) if seeds is None else seeds.tolist()
    _verbs.verbs.quantize(
        parse_spec(spec),
        x,
        tuple(named.get(role) for role in ROLES),
        None,
        scale,
        amax,
        amax_columnwise,
        seed,
        offset,
        _verbs.threads(),
    )
    return made


@quantize.register_fake
def _quantize_fake(
    x: torch.Tensor,
    spec: str,
    scale: torch.Tensor | None = None,
    amax: torch.Tensor | None = None,
    amax_columnwise: torch.Tensor | None = None,
    seeds: torch.Tensor | None = None,
) -> list[torch.Tensor]:
    return _empty_buffers(spec, x)


@torch.library.custom_op(
    "narrowfloat::draw_seeds", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,)
)
def draw_seeds(x: torch.Tensor) -> torch.Tensor:
    """Draws a seed and an offset for `x` from PyTorch's generator, as calls outside graphs do.

    It is a custom operator because compilers replace the generator of operators that they know.
    """
    return torch.randint(0, SEED_BOUND, (2,), device="cpu")


@draw_seeds.register_fake
def _draw_seeds_fake(x: torch.Tensor) -> torch.Tensor:
    return torch.empty(2, dtype=torch.int64, device="cpu")


def device_of(buffers: Sequence[torch.Tensor | None]) -> torch.device:
    """Returns the device of the first buffer that is not None."""
    return next(buffer.device for buffer in buffers if buffer is not None)


@torch.library.custom_op("narrowfloat::dequantize", mutates_args=())
def dequantize(
    buffers: Sequence[torch.Tensor | None], spec: str, shape: Sequence[int], dtype: torch.dtype
) -> torch.Tensor:
    """Returns the values of the buffers.

    buffers: a tensor or None for each role of ROLES. spec: text form.
    """
    out = torch.empty(shape, dtype=dtype, device=device_of(buffers))
    if out.numel() > 0:
        _verbs.verbs.dequantize(parse_spec(spec), tuple(buffers), out, _verbs.threads())
    return out


@dequantize.register_fake
def _dequantize_fake(
    buffers: Sequence[torch.Tensor | None], spec: str, shape: Sequence[int], dtype: torch.dtype
) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device=device_of(buffers))


def sum_columns(x: torch.Tensor) -> torch.Tensor:
    """Returns the result of column_sums(), computed without the operator."""
    out = torch.empty(x.shape[-1], dtype=torch.float32, device=x.device)
    _verbs.verbs.column_sums(x, out, _verbs.threads())
    return out


@torch.library.custom_op("narrowfloat::column_sums", mutates_args=())
def column_sums(x: torch.Tensor) -> torch.Tensor:
    """Returns the float32 sums of the columns of `x`, flattened to a matrix."""
    return sum_columns(x)


@column_sums.register_fake
def _column_sums_fake(x: torch.Tensor) -> torch.Tensor:
    return torch.empty(x.shape[-1], dtype=torch.float32, device=x.device)


def _derived(spec: str, shape: Sequence[int]) -> list[PlannedBuffer]:
    return [b for b in _own_buffers(spec, shape) if b.role.startswith("columnwise")]


@torch.library.custom_op("narrowfloat::derive_columnwise", mutates_args=())
def derive_columnwise(
    buffers: Sequence[torch.Tensor | None], spec: str, shape: Sequence[int]
) -> list[torch.Tensor]:
    """Returns the columnwise codes, and their scales if these have memory of their own.

    buffers: a tensor or None for each role of ROLES; the rowwise ones are read.
    """
    device = device_of(buffers)
    made = [torch.empty(b.shape, dtype=b.dtype, device=device) for b in _derived(spec, shape)]
    named = dict(zip(ROLES, buffers, strict=True))
    named.update(zip([b.role for b in _derived(spec, shape)], made, strict=True))
    _verbs.verbs.derive_columnwise(
        parse_spec(spec), tuple(shape), tuple(named.values()), _verbs.threads()
    )
    return made


@derive_columnwise.register_fake
def _derive_columnwise_fake(
    buffers: Sequence[torch.Tensor | None], spec: str, shape: Sequence[int]
) -> list[torch.Tensor]:
    device = device_of(buffers)
    return [torch.empty(b.shape, dtype=b.dtype, device=device) for b in _derived(spec, shape)]
