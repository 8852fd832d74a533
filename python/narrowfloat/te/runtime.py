# SPDX-License-Identifier: Apache-2.0
"""Functions that rewritten modules call at run time, instead of PyTorch's CUDA functions."""

import contextlib
import functools
import importlib.util
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from importlib.machinery import ModuleSpec
from types import BuiltinFunctionType, ModuleType
from typing import Any, cast

import torch
from torch.distributed import distributed_c10d as c10d
from torch.nn.utils.rnn import PackedSequence

from narrowfloat.pytorch._slow_products import SLOW_DTYPES
from narrowfloat.te import _host, _import_hook, cuda, dynamo
from narrowfloat.te._rules import PLACING_ARGUMENTS

CPU = cuda.CPU
# Classes of PyTorch that store data on a device, and classes that cuda() moves.
_STORED = (torch.Tensor, torch.UntypedStorage, torch.TypedStorage)
_DATA = (*_STORED, PackedSequence)
_MOVED = (*_DATA, torch.nn.Module)
__all__ = [
    "autocast",
    "baddbmm",
    "bmm",
    "call",
    "coalescing_manager",
    "compile",
    "contains",
    "cuda",
    "device",
    "dynamo",
    "fork_rng",
    "get_autocast_dtype",
    "get_device_module",
    "is_on_gpu",
    "is_part_on_gpu",
    "move",
    "pin_memory",
    "place",
    "record_stream",
    "set_autocast_dtype",
    "spec_from_file_location",
    "to",
]


def _names_gpu(text: str) -> bool:
    return text.partition(":")[0] == "cuda"


def device(
    type: torch.device | str | int | None = None, index: int | None = None, **named: Any
) -> torch.device:
    """Returns torch.device(...); the CPU for an index alone and for a CUDA device."""
    type = named.pop("device", type)
    if isinstance(type, int) or (type is None and index is not None):
        return CPU
    if isinstance(type, str) and (_names_gpu(type) or type.partition(":")[0] == "cpu"):
        return CPU
    given = [each for each in (type, index) if each is not None]
    return torch.device(*given)


def place(device: object) -> object:
    """Returns "cpu" for the name or the number of a CUDA device, and the CPU for a CUDA device.

    Returns any other value unchanged.
    """
    if isinstance(device, str):
        return "cpu" if _names_gpu(device) else device
    if isinstance(device, torch.device):
        return CPU if device.type == "cuda" else device
    return "cpu" if isinstance(device, int) and not isinstance(device, bool) else device


def get_device_module(device: torch.device | str | None = None) -> ModuleType:
    """Returns torch.get_device_module(...); narrowfloat.te.cuda for the CPU and for None."""
    if device is None or torch.device(cast(Any, place(device))).type == "cpu":
        return cuda
    return torch.get_device_module(device)


def contains(name: str, container: Any) -> bool:  # noqa: ANN401  # whatever `in` takes
    """Returns `name in container`; if it is no mapping, also True for "cpu" in it.

    A string, such as a device's, or a list may contain a rewritten name or the CPU's own.
    """
    if isinstance(container, Mapping):
        return name in container
    return "cpu" in container or name in container


# The functions below process tensors on the CPU, and call the method of any other object: programs
# have methods and fields with these names, too.


def _is_rewritten(function: object) -> bool:
    """Returns whether a function, or one that it wraps, is from a rewritten module."""
    while function is not None:
        loader = getattr(function, "__globals__", {}).get("__loader__")
        if isinstance(loader, _import_hook.RewritingLoader):
            return True
        function = getattr(function, "__wrapped__", None)
    return False


@dynamo.assume_constant_result
def _has_own(kind: object, method: str) -> bool:
    """Returns whether a class, or the next class of a `super()`, has a rewritten method."""
    return _is_rewritten(getattr(kind, method, None))


def _subject(thing: object) -> object:
    """Returns the object of a `super()`; returns other values unchanged."""
    return cast(Any, thing).__self__ if type(thing) is super else thing


def _is_data(thing: object, classes: tuple[type, ...], method: str) -> bool:
    """Returns whether `thing` is an instance of `classes` without a rewritten method.

    Methods of other modules need a driver, like PyTorch's own.
    """
    if not isinstance(_subject(thing), classes):
        return False
    return not _has_own(thing if type(thing) is super else type(thing), method)


def move(
    thing: Any,  # noqa: ANN401  # whatever has a method cuda()
    *args: Any,
    **named: Any,
) -> object:
    """Returns a tensor, a storage or a module on the CPU; calls cuda() of other objects."""
    if _is_data(thing, _MOVED, "cuda"):
        return thing.cpu()
    return thing.cuda(*args, **named)


def to(
    thing: Any,  # noqa: ANN401  # likewise
    target: object,
    *args: Any,
    **named: Any,
) -> object:
    """Returns thing.to(target, ...), on the CPU if `target` is a CUDA device.

    A number is a device only for tensors and modules.
    """
    if not isinstance(target, int) or isinstance(thing, _MOVED):
        target = place(target)
    return thing.to(target, *args, **named)


def pin_memory(
    thing: Any,  # noqa: ANN401  # likewise
    *args: Any,
    **named: Any,
) -> object:
    """Returns a tensor unchanged: memory cannot be pinned without a driver."""
    if _is_data(thing, _DATA, "pin_memory"):
        return _subject(thing)
    return thing.pin_memory(*args, **named)


def record_stream(
    thing: Any,  # noqa: ANN401  # likewise
    *args: Any,
    **named: Any,
) -> object:
    """Does nothing for a tensor: memory of the CPU has no streams."""
    if _is_data(thing, _DATA, "record_stream"):
        return None
    return thing.record_stream(*args, **named)


@dynamo.assume_constant_result
def _is_needless(name: str, function: Any) -> bool:  # noqa: ANN401  # whatever is called
    """Returns whether an argument needs a GPU and belongs to a function of PyTorch."""
    if isinstance(function, type):
        function = cast(Any, function).__init__
    module = str(getattr(function, "__module__", None)).partition(".")[0]
    is_native = isinstance(function, BuiltinFunctionType)
    of_tensor = is_native and isinstance(function.__self__, torch.Tensor)
    if _is_rewritten(function) or not (module == "torch" or of_tensor):
        return False
    return name == "pin_memory" or name in PLACING_ARGUMENTS.get(function.__qualname__, ())


def call(
    function: Callable[..., object],
    *args: Any,
    **named: Any,
) -> object:
    """Returns function(...), without arguments of PyTorch's functions that need a GPU."""
    called = args[0] if function is functools.partial and args else function
    kept = {name: named[name] for name in named if not _is_needless(name, called)}
    return function(*args, **kept)


def is_on_gpu(thing: Any) -> object:  # noqa: ANN401  # likewise
    """Returns True for tensors and storages on the CPU; the attribute of other objects."""
    if isinstance(thing, PackedSequence):
        thing = thing.data
    return thing.is_cuda or (isinstance(thing, _STORED) and thing.device.type == "cpu")


def is_part_on_gpu(part: Any, owner: object) -> object:  # noqa: ANN401  # likewise
    """Returns is_cuda for `part` in a class's own is_cuda: False for CPU parts of a tensor.

    PyTorch reads a tensor's is_cuda, and would call CUDA's driver if it were True.
    """
    return part.is_cuda if isinstance(owner, torch.Tensor) else is_on_gpu(part)


def compile(function: Callable) -> Callable:
    """Returns torch.compile(function); returns TransformerEngine's functions unchanged.

    The latter need no compiler, unless NVTE_TORCH_COMPILE is set.
    """
    is_users = function.__module__.partition(".")[0] != _host.PACKAGE
    return torch.compile(function) if is_users or _host.has_compiler() else function


def fork_rng(
    devices: object = None, enabled: bool = True, *args: Any, **named: Any
) -> AbstractContextManager:
    """Returns torch.random.fork_rng(...), which forks the CPU's generator for any devices."""
    if named.get("device_type") in (None, "cpu", "cuda"):
        return torch.random.fork_rng(devices=(), enabled=enabled)
    return torch.random.fork_rng(devices, enabled, *args, **named)


# CUDA's autocast dtype while autocast is off. The CPU has another default, bfloat16.
_autocast_dtype = torch.float16


def autocast(
    device_type: str, dtype: torch.dtype | None = None, *args: Any, **named: Any
) -> torch.amp.autocast:
    """Returns torch.autocast(...); on the CPU, CUDA's dtype is the default."""
    if place(device_type) == "cpu":
        device_type, dtype = "cpu", dtype or get_autocast_dtype(device_type)
    return torch.amp.autocast(device_type, dtype, *args, **named)


def get_autocast_dtype(device_type: str) -> torch.dtype:
    """Returns the autocast dtype; CUDA's for the CPU while autocast is off."""
    if place(device_type) != "cpu":
        return torch.get_autocast_dtype(device_type)
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else _autocast_dtype


def set_autocast_dtype(device_type: str, dtype: torch.dtype) -> None:
    """Sets the autocast dtype; for CUDA or the CPU, sets both."""
    global _autocast_dtype
    if place(device_type) == "cpu":
        device_type, _autocast_dtype = "cpu", dtype
    torch.set_autocast_dtype(device_type, dtype)


def bmm(*args: Any, **named: Any) -> torch.Tensor:
    """Returns torch.bmm(...); for slow dtypes, the product in float32 rounded once."""
    return _multiplied(torch.bmm, args, named)


def baddbmm(*args: Any, **named: Any) -> torch.Tensor:
    """Returns torch.baddbmm(...); for slow dtypes, the product in float32 rounded once."""
    return _multiplied(torch.baddbmm, args, named)


def _multiplied(
    function: Callable[..., torch.Tensor], args: tuple[Any, ...], named: dict[str, Any]
) -> torch.Tensor:
    """Calls PyTorch's function; in float32 if all tensors have one dtype of SLOW_DTYPES.

    Calls with keyword tensors such as `out`, under autocast or in compiled code are unchanged:
    compilers omit the rounding between fused operators.
    """
    dtypes = {each.dtype for each in args if isinstance(each, torch.Tensor)}
    is_named = any(isinstance(each, torch.Tensor) for each in named.values())
    is_compiled = torch.compiler.is_compiling()
    if len(dtypes) != 1 or is_named or is_compiled or torch.is_autocast_enabled("cpu"):
        return function(*args, **named)
    (dtype,) = dtypes
    if dtype not in SLOW_DTYPES:
        return function(*args, **named)
    wide = (each.float() if isinstance(each, torch.Tensor) else each for each in args)
    return function(*wide, **named).to(dtype)


@contextlib.contextmanager
def coalescing_manager(
    group: c10d.ProcessGroup | None = None, device: object = None, async_ops: bool = False
) -> Iterator[c10d._CoalescingManager]:
    """Replaces torch.distributed's manager: starts the collectives within it one by one.

    gloo does not support batches for a device, and corrupts a batch of several dtypes. As with
    PyTorch's manager, the collectives start at the end, and wait() waits for all of them.
    Errors: ValueError within another manager of the group.
    """
    group = group or c10d._get_default_group()
    batches = c10d._world.pg_coalesce_state
    if group in batches:
        raise ValueError("coalescing_manager: must not be entered twice for a group")
    batches[group] = []
    manager = c10d._CoalescingManager()
    try:
        yield manager
    finally:
        batch = batches.pop(group)
    for each in batch:
        tensors = [each.tensor] if each.dst_tensor is None else [each.dst_tensor, each.tensor]
        reduction = {} if each.redop is None else {"op": each.redop}
        manager.append(each.op(*tensors, **reduction, group=group, async_op=async_ops))


def spec_from_file_location(
    name: str, location: str | os.PathLike | None = None, **named: Any
) -> ModuleSpec | None:
    """Returns importlib's spec, with the rewriting loader for files of rewritten packages."""
    spec = importlib.util.spec_from_file_location(name, location, **named)
    return _import_hook.rewritten_if_chosen(spec)
