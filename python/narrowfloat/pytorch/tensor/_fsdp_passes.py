# SPDX-License-Identifier: Apache-2.0
"""FSDP2's groups and passes, as a sharded parameter sees them, and refusals by the caller."""

from __future__ import annotations

import sys
import types
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from narrowfloat.pytorch._autograd import is_in_backward
from narrowfloat.pytorch._types import Quantized

if TYPE_CHECKING:
    from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam
    from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

_FSDP_PARAMETER = "torch.distributed.fsdp._fully_shard._fsdp_param"
_REPLICATING = "torch.distributed.utils"
_SHARDING = (_FSDP_PARAMETER, "torch.distributed.tensor.placement_types")

# The parameter group of each module that owns a sharded parameter.
_groups: weakref.WeakKeyDictionary[torch.nn.Module, Any] = weakref.WeakKeyDictionary()


def _owns(group: FSDPParamGroup, module: torch.nn.Module) -> bool:
    return any(param._module_info.module is module for param in group.fsdp_params)


def find_parameter_group(module: torch.nn.Module) -> FSDPParamGroup:
    """Returns the FSDP2 group of a module's parameters, which may be an ancestor's.

    Errors: RuntimeError if FSDP2 does not shard the module.
    """
    known = None if module is None else _groups.get(module)
    group = None if known is None else known()
    if group is not None:
        return group
    from torch.distributed._composable_state import _module_state_mapping
    from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState

    for reference in list(_module_state_mapping.values()):
        state = reference() if isinstance(reference, weakref.ref) else reference
        if not isinstance(state, FSDPState):
            continue
        groups = getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group]
        for candidate in groups:
            if candidate is not None and _owns(candidate, module):
                _groups[module] = weakref.ref(candidate)
                return candidate
    raise RuntimeError(
        f"fsdp_pre_all_gather: {type(module).__name__} must be in an FSDP2 parameter group"
    )


# Modules by whether activation checkpointing may run their forward pass again. Modules that do not
# report their passes are absent.
_runs_again: weakref.WeakKeyDictionary[torch.nn.Module, bool] = weakref.WeakKeyDictionary()


def note_forward(module: torch.nn.Module, may_run_again: bool) -> None:
    """Stores whether activation checkpointing may run this forward pass of a module again.

    Requires: the module calls it in every forward pass, and its parameters are only read in its
    forward pass and the corresponding backward pass.
    """
    _runs_again[module] = may_run_again or _runs_again.get(module, False)


def _may_run_again(module: torch.nn.Module, shard: Quantized) -> bool:
    """Returns whether the forward pass of a parameter's module may run during backward.

    True for modules that do not report their passes, and for parameters that modules share.
    """
    param = parameter_of(module, shard)
    shared = param is not None and bool(param._module_info.shared_modules)
    return shared or _runs_again.get(module, True)


def usages_of_pass(module: torch.nn.Module, shard: Quantized) -> tuple[bool, bool]:
    """Returns which directions the gathered parameter needs.

    If it is gathered for one pass, only the direction of that pass. If it stays gathered, as after
    unshard(), also the columnwise one, if the quantizer makes it. So too if it is gathered in
    backward and a checkpoint runs the forward pass again there, without resharding.
    """
    from torch.distributed.fsdp._fully_shard._fsdp_common import TrainingState

    group, quantizer = find_parameter_group(module), shard._quantizer
    state = group._training_state
    if group._reshard_after_forward:
        if state == TrainingState.FORWARD and not is_in_backward():
            return True, False
        if state == TrainingState.PRE_BACKWARD and not _may_run_again(module, shard):
            return False, True
    return True, quantizer is None or quantizer.columnwise_usage


def parameter_of(module: torch.nn.Module, shard: Quantized) -> FSDPParam | None:
    """Returns FSDP2's record of a sharded parameter; None without a record."""
    try:
        params = find_parameter_group(module).fsdp_params
    except RuntimeError:
        return None
    owned = (param for param in params if param._module_info.module is module)
    return next((param for param in owned if param._sharded_local_tensor is shard), None)


def _name_of(module: torch.nn.Module, shard: Quantized) -> str:
    """Returns the name of a sharded parameter, from the root if FSDP2 knows it."""
    param = parameter_of(module, shard)
    if param is None:
        return f"of {type(module).__name__}"
    return param._param_fqn or f"{type(module).__name__}.{param._module_info.param_name}"


def make_room(param: FSDPParam | None, sent: Sequence[torch.Tensor], world: int) -> None:
    """Makes FSDP2 allocate new memory if the sizes of the buffers changed.

    FSDP2 keeps the tensors of the first gather, without memory while the parameter is sharded, and
    would gather into them. If they are removed, it allocates new ones, as in the first gather.
    """
    if param is None:
        return
    wanted = [(world * buffer.numel(), buffer.dtype) for buffer in sent]
    if [(memory.numel(), memory.dtype) for memory in param.all_gather_outputs] != wanted:
        param.all_gather_outputs = []
        param._unsharded_inner_tensors = []


@contextmanager
def naming(module: torch.nn.Module | None, shard: Quantized) -> Iterator[None]:
    """Adds the parameter's name to errors that are raised inside."""
    try:
        yield
    except (NotImplementedError, RuntimeError) as error:
        if module is None:
            raise
        raise type(error)(f"{error} (parameter {_name_of(module, shard)})") from error


def _frames() -> Iterator[types.FrameType]:
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def is_asked_by_fsdp() -> bool:
    """Returns whether FSDP2 runs the operator that is being dispatched."""
    return any(frame.f_globals.get("__name__") == _FSDP_PARAMETER for frame in _frames())


def refuse_plain_shards(tensor: Quantized, why: str) -> None:
    """Raises if torch.distributed shards a tensor and an operator would return plain values.

    FSDP2 and DTensor would use the unquantized values instead of the tensor without a warning. Only
    the callers' frames distinguish them from a program that reads values.
    Errors: NotImplementedError, with the parameter's name under FSDP2.
    """
    for frame in _frames():
        if frame.f_globals.get("__name__") in _SHARDING:
            info = getattr(frame.f_locals.get("self"), "_module_info", None)
            name = "" if info is None else f" {info.param_name} of {type(info.module).__name__}"
            raise NotImplementedError(
                f"{type(tensor).__name__}{name} of shape {tuple(tensor.shape)} cannot be sharded: "
                f"{why}"
            )


def refuse_replicas_of_values(tensor: Quantized) -> None:
    """Raises if DistributedDataParallel sends the values of a tensor from rank 0 to the others.

    The other ranks would quantize the values again, and train different weights.
    Errors: NotImplementedError.
    """
    if any(frame.f_globals.get("__name__") == _REPLICATING for frame in _frames()):
        raise NotImplementedError(
            f"DistributedDataParallel cannot broadcast the values of a {type(tensor).__name__} of "
            f"shape {tuple(tensor.shape)}: call torch.distributed.broadcast(parameter.data, 0) for "
            "each parameter, which sends the codes, and pass init_sync=False"
        )
