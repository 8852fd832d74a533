# SPDX-License-Identifier: Apache-2.0
"""Functions that rewritten modules call at run time, in place of CUDA's part of PyTorch."""

import importlib.util
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib.machinery import ModuleSpec
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

from narrowfloat.pytorch._slow_products import SLOW_DTYPES
from narrowfloat.te import _import_hook, cuda, dynamo

CPU = cuda.CPU
__all__ = [
    "baddbmm",
    "bmm",
    "coalescing_manager",
    "cuda",
    "device",
    "dynamo",
    "move",
    "spec_from_file_location",
]


def device(
    type: torch.device | str | int | None = None, index: int | None = None, **named: Any
) -> torch.device:
    """Returns torch.device(...); the CPU for an index alone and for a CUDA device."""
    type = named.pop("device", type)
    if isinstance(type, int) or (type is None and index is not None):
        return CPU
    if isinstance(type, str) and type.partition(":")[0] in ("cpu", "cuda"):
        return CPU
    given = [each for each in (type, index) if each is not None]
    return torch.device(*given)


def move(
    thing: Any,  # noqa: ANN401  # whatever has a method cuda()
    *args: Any,
    **named: Any,
) -> object:
    """Returns a tensor or module on the CPU; calls the method cuda() of anything else."""
    if isinstance(thing, torch.Tensor | torch.nn.Module | PackedSequence):
        return thing.cpu()
    return thing.cuda(*args, **named)


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


class coalescing_manager(AbstractContextManager):
    """Runs the collectives within it one after another: gloo cannot batch them."""

    def __init__(self, *args: Any, **named: Any) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        pass

    def wait(self) -> None:
        """Returns at once: the collectives have finished."""


def spec_from_file_location(
    name: str, location: str | os.PathLike | None = None, **named: Any
) -> ModuleSpec | None:
    """Returns importlib's answer, with the rewriting loader for files of rewritten packages."""
    spec = importlib.util.spec_from_file_location(name, location, **named)
    return _import_hook.rewritten_if_chosen(spec)
