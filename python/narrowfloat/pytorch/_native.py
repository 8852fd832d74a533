# SPDX-License-Identifier: Apache-2.0
"""The verbs on torch tensors. For tensors of a graph they run operators of `_graph_operators`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from narrowfloat import _core
from narrowfloat.pytorch import _graph_operators
from narrowfloat.pytorch._graph_operators import dequantize
from narrowfloat.pytorch._plans import (
    ROLES,
    PlannedBuffer,
    PlannedFields,
    flatten_shape,
    make_spec,
    name_fields,
    plan,
)
from narrowfloat.pytorch._verbs import threads, verbs

__all__ = [
    "FLOAT_DTYPES",
    "ROLES",
    "PlannedBuffer",
    "PlannedFields",
    "column_sums",
    "dequantize",
    "flatten_shape",
    "in_float32_if_double",
    "make_spec",
    "name_fields",
    "plan",
    "threads",
    "verbs",
]

# The types of inputs and outputs of the verbs.
FLOAT_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def in_float32_if_double(values: torch.Tensor) -> torch.Tensor:
    """Returns float64 values rounded to float32, which quantizers support; others unchanged."""
    return values.float() if values.dtype is torch.float64 else values


_WITH_MEMORY = frozenset((torch.Tensor, torch.nn.Parameter))

Tensor = torch.Tensor | None
Buffers = tuple[Tensor, ...]  # one per role of ROLES
Seeds = Sequence[int] | torch.Tensor  # seed and offset


def in_memory(tensor: torch.Tensor) -> bool:
    """Returns whether native code can read the tensor; not if it is in a graph or on meta."""
    return type(tensor) in _WITH_MEMORY and not tensor.is_meta


def mode_of_make_fx() -> Any:  # noqa: ANN401  # a ProxyTorchDispatchMode, which is slow to import
    """Returns the active mode of make_fx, which records operators in a graph; else None."""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY)


def records_operators() -> bool:
    """Returns whether make_fx records operators, also of tensors with memory.

    Native code would leave no node in its graph, which would then read memory that nothing fills.
    """
    return mode_of_make_fx() is not None


def runs_natively(tensor: torch.Tensor) -> bool:
    """Returns whether native code may compute with the tensor; else operators do."""
    return in_memory(tensor) and not records_operators()


def _is_traced() -> bool:
    """Returns whether operators become nodes of a graph."""
    return records_operators() or torch._guards.TracingContext.try_get() is not None


def fake_mode() -> Any:  # noqa: ANN401  # a FakeTensorMode, which is slow to import
    """Returns the active FakeTensorMode, in which new tensors have no memory; else None."""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)


def outside_of_fakes() -> AbstractContextManager:
    """Returns a context in which tensors have memory and no graph records their creation, if the
    active mode accepts such tensors.

    The modes of torch.export and make_fx do. Tensors that a layer makes then are used after them.
    """
    mode = fake_mode()
    accepts_memory = records_operators() if mode is None else mode.allow_non_fake_inputs
    if not accepts_memory:
        return nullcontext()
    from torch.utils._python_dispatch import _disable_current_modes

    return _disable_current_modes()


def has_values(tensor: torch.Tensor) -> bool:
    """Returns whether a tensor has values that the host can read: not on meta, not a FakeTensor.

    A FakeTensor ends the traced graph, so that the caller runs outside of it.
    Errors: DataDependentOutputException, which the tracer catches.
    """
    if in_memory(tensor):
        return True
    if tensor.is_meta:
        return False
    from torch._subclasses.fake_tensor import DataDependentOutputException, is_fake

    if not is_fake(tensor):  # of another class, such as a result of a functional collective
        return True
    if _is_traced():
        raise DataDependentOutputException(torch.ops.aten._local_scalar_dense.default)
    return False


def skips(noop: torch.Tensor) -> bool:
    """Returns whether a flag stops a call: only a readable 1 does, as in the kernels."""
    return has_values(noop) and float(noop) == 1


def draw_seeds(src: torch.Tensor) -> Seeds:
    """Returns a seed and an offset drawn from PyTorch's generator; in a graph, as a tensor.

    The generator is the CPU's for every device, because the verb takes numbers of the host.
    """
    if runs_natively(src):
        return torch.randint(0, _graph_operators.SEED_BOUND, (2,), device="cpu").tolist()
    return _graph_operators.draw_seeds(src)


def quantize(
    spec: _core.QuantSpec,
    src: torch.Tensor,
    buffers: Buffers,
    noop: Tensor = None,
    *,
    scale: Tensor = None,
    amax: Tensor = None,
    amax_columnwise: Tensor = None,
    seeds: Seeds = (0, 0),
) -> None:
    """Quantizes `src` into `buffers`, on the device of all tensors.

    On CUDA the call starts work on the current stream of the device and reads no value.
    seeds: of stochastic rounding, from draw_seeds(). A noop of 1 changes no byte. With a `scale`
    the amax buffer becomes the maximum of its value and the amax of `src`.
    """
    if type(src) in _WITH_MEMORY and not records_operators():
        seed, offset = seeds
        try:
            verbs.quantize(
                spec, src, buffers, noop, scale, amax, amax_columnwise, seed, offset, threads()
            )
        except NotImplementedError:
            if not src.is_meta:  # meta tensors have shapes only
                raise
        return
    _quantize_in_graph(spec, src, buffers, noop, scale, (amax, amax_columnwise), seeds)


def check_call(src: torch.Tensor, noop: Tensor) -> None:
    """Raises the errors of quantize() for an input and a flag that it does not support.

    Does nothing in a graph, where only operators check their arguments.
    """
    if not runs_natively(src):
        return
    # The verb of any scheme checks its arguments, and writes nothing for an empty input.
    spec = make_spec(_core.schemes()[0], True, False)
    quantize(spec, src.new_empty((0, 1)), (None,) * len(ROLES), noop)


def column_sums(x: torch.Tensor) -> torch.Tensor:
    """Returns the float32 sums of the columns of `x`, flattened to a matrix.

    No bit depends on threads or instruction sets: docs/numerics.md defines the order.
    """
    return _graph_operators.sum_columns(x) if runs_natively(x) else _graph_operators.column_sums(x)


def _quantize_in_graph(
    spec: _core.QuantSpec,
    src: torch.Tensor,
    buffers: Buffers,
    noop: Tensor,
    scale: Tensor,
    amaxes: tuple[Tensor, Tensor],
    seeds: Seeds,
) -> None:
    """Implements quantize() with an operator that writes no argument, and copies."""
    drawn = seeds if isinstance(seeds, torch.Tensor) else None
    made = _graph_operators.quantize(src.detach(), spec.text, scale, *amaxes, drawn)
    planned = [buffer for buffer in plan(spec, tuple(src.shape)) if buffer.storage == buffer.role]
    for buffer, new in zip(planned, made, strict=True):
        old = buffers[ROLES.index(buffer.role)]
        if old is None:
            continue
        new = new.view(old.shape)
        if scale is not None and buffer.role == "amax_rowwise":
            new = torch.maximum(old, new)
        if noop is not None:
            new = torch.where(noop.reshape(()) == 1, old, new)
        old.copy_(new)


def derive_columnwise(spec: _core.QuantSpec, shape: tuple[int, ...], buffers: Buffers) -> None:
    """Fills the columnwise buffers from the rowwise ones."""
    if all(buffer is None or runs_natively(buffer) for buffer in buffers):
        verbs.derive_columnwise(spec, shape, buffers, threads())
        return
    named: dict[str, Any] = dict(zip(ROLES, buffers, strict=True))
    made = _graph_operators.derive_columnwise(list(buffers), spec.text, shape)
    for role, new in zip(("columnwise_data", "columnwise_scale_inv"), made, strict=False):
        named[role].copy_(new)
