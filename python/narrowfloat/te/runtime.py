# SPDX-License-Identifier: Apache-2.0
"""Functions that rewritten modules call at run time, in place of CUDA's part of PyTorch."""

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
# Classes of PyTorch's whose instances are data on a device, and those that cuda() moves.
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
    """Returns torch.get_device_module(...); the stand-in for the CPU, and for no device."""
    if device is None or torch.device(cast(Any, place(device))).type == "cpu":
        return cuda
    return torch.get_device_module(device)


def contains(name: str, container: Any) -> bool:  # noqa: ANN401  # whatever `in` takes
    """Returns `name in container`, and whether it holds "cpu" if it is no mapping.

    A text, such as a device's, or a list then holds what was rewritten or is the CPU's.
    """
    if isinstance(container, Mapping):
        return name in container
    return "cpu" in container or name in container


# The functions below do to tensors what there is to do on the CPU, and call the method of anything
# else. Programs have methods and fields of these names, too.


def _is_rewritten(function: object) -> bool:
    """Returns whether a function, or one that it wraps, is of a rewritten module."""
    while function is not None:
        loader = getattr(function, "__globals__", {}).get("__loader__")
        if isinstance(loader, _import_hook.RewritingLoader):
            return True
        function = getattr(function, "__wrapped__", None)
    return False


@dynamo.assume_constant_result
def _has_own(kind: object, method: str) -> bool:
    """Returns whether a class, or what follows it in a `super()`, has a rewritten method."""
    return _is_rewritten(getattr(kind, method, None))


def _subject(thing: object) -> object:
    """Returns the object of a `super()`, and anything else itself."""
    return cast(Any, thing).__self__ if type(thing) is super else thing


def _is_data(thing: object, classes: tuple[type, ...], method: str) -> bool:
    """Returns whether a thing is of one of PyTorch's classes, without a rewritten method.

    A method of another module that is not rewritten needs a driver, as PyTorch's own.
    """
    if not isinstance(_subject(thing), classes):
        return False
    return not _has_own(thing if type(thing) is super else type(thing), method)


def move(
    thing: Any,  # noqa: ANN401  # whatever has a method cuda()
    *args: Any,
    **named: Any,
) -> object:
    """Returns a tensor, a storage or a module on the CPU. Otherwise: calls cuda()."""
    if _is_data(thing, _MOVED, "cuda"):
        return thing.cpu()
    return thing.cuda(*args, **named)


def to(
    thing: Any,  # noqa: ANN401  # likewise
    target: object,
    *args: Any,
    **named: Any,
) -> object:
    """Returns thing.to(target, ...), on the CPU for the name of a CUDA device.

    A number is a device of tensors and modules alone.
    """
    if not isinstance(target, int) or isinstance(thing, _MOVED):
        target = place(target)
    return thing.to(target, *args, **named)


def pin_memory(
    thing: Any,  # noqa: ANN401  # likewise
    *args: Any,
    **named: Any,
) -> object:
    """Returns a tensor as it is: without a driver no memory is pinned."""
    if _is_data(thing, _DATA, "pin_memory"):
        return _subject(thing)
    return thing.pin_memory(*args, **named)


def record_stream(
    thing: Any,  # noqa: ANN401  # likewise
    *args: Any,
    **named: Any,
) -> object:
    """Does nothing to a tensor: memory of the CPU has no streams."""
    if _is_data(thing, _DATA, "record_stream"):
        return None
    return thing.record_stream(*args, **named)


@dynamo.assume_constant_result
def _is_needless(name: str, function: Any) -> bool:  # noqa: ANN401  # whatever is called
    """Returns whether an argument needs a GPU and is one of a function of PyTorch's."""
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
    """Returns function(...); PyTorch's without pinned memory, and not placed on a GPU."""
    called = args[0] if function is functools.partial and args else function
    kept = {name: named[name] for name in named if not _is_needless(name, called)}
    return function(*args, **kept)


def is_on_gpu(thing: Any) -> object:  # noqa: ANN401  # likewise
    """Returns True for tensors and storages on the CPU. Otherwise: the attribute."""
    if isinstance(thing, PackedSequence):
        thing = thing.data
    return thing.is_cuda or (isinstance(thing, _STORED) and thing.device.type == "cpu")


def is_part_on_gpu(part: Any, owner: object) -> object:  # noqa: ANN401  # likewise
    """Returns what a class's is_cuda has for a part of it: a tensor's is False on the CPU.

    PyTorch itself reads it there, and would call CUDA's driver.
    """
    return part.is_cuda if isinstance(owner, torch.Tensor) else is_on_gpu(part)


def compile(function: Callable) -> Callable:
    """Returns torch.compile(function); TransformerEngine's own functions as they are.

    A compiler need not be there for those, unless NVTE_TORCH_COMPILE asks for it.
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


# CUDA's dtype of autocast where autocast is off. The CPU's has another default, bfloat16.
_autocast_dtype = torch.float16


def autocast(
    device_type: str, dtype: torch.dtype | None = None, *args: Any, **named: Any
) -> torch.amp.autocast:
    """Returns torch.autocast(...); of CUDA's dtype on the CPU, unless another one is given."""
    if place(device_type) == "cpu":
        device_type, dtype = "cpu", dtype or get_autocast_dtype(device_type)
    return torch.amp.autocast(device_type, dtype, *args, **named)


def get_autocast_dtype(device_type: str) -> torch.dtype:
    """Returns the dtype of autocast; CUDA's for the CPU."""
    if place(device_type) != "cpu":
        return torch.get_autocast_dtype(device_type)
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else _autocast_dtype


def set_autocast_dtype(device_type: str, dtype: torch.dtype) -> None:
    """Sets the dtype of autocast; CUDA's for the CPU."""
    global _autocast_dtype
    if place(device_type) == "cpu":
        device_type, _autocast_dtype = "cpu", dtype
    torch.set_autocast_dtype(device_type, dtype)


def bmm(*args: Any, **named: Any) -> torch.Tensor:
    """Returns torch.bmm(...); of slow dtypes, the product in float32 rounded once."""
    return _multiplied(torch.bmm, args, named)


def baddbmm(*args: Any, **named: Any) -> torch.Tensor:
    """Returns torch.baddbmm(...), likewise."""
    return _multiplied(torch.baddbmm, args, named)


def _multiplied(
    function: Callable[..., torch.Tensor], args: tuple[Any, ...], named: dict[str, Any]
) -> torch.Tensor:
    """Calls PyTorch's function; with float32 where all tensors have one of SLOW_DTYPES.

    Tensors that are named, `out` among them, autocast and compiled code are left to PyTorch:
    compilers drop a rounding between two operators that they fuse.
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
    """Stands in for torch.distributed's manager: starts the collectives within it one by one.

    gloo has no batch for a device, and corrupts a batch of several dtypes. As with PyTorch's
    manager, the collectives start at the end, and wait() waits for all of them.
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
    """Returns importlib's answer, with the rewriting loader for files of rewritten packages."""
    spec = importlib.util.spec_from_file_location(name, location, **named)
    return _import_hook.rewritten_if_chosen(spec)
