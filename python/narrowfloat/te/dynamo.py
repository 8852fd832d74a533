# SPDX-License-Identifier: Apache-2.0
"""Replaces torch._dynamo in rewritten modules until something imports the real module.

Importing the real module takes longer than importing TransformerEngine. Its decorators affect only
compiled code, and compilation imports it.
"""

import functools
import importlib
import sys
from collections.abc import Callable
from typing import Any

import torch

from narrowfloat.te import _import_hook

_NAME = "torch._dynamo"
_is_imported = _NAME in sys.modules
# Names to bind in modules, and settings to make, when the real module is imported.
_late_names: list[tuple[dict[str, Any], str, str, str]] = []
_late_settings: dict[str, Any] = {}


def __getattr__(name: str) -> object:
    """Imports the real module and returns its attribute."""
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(importlib.import_module(_NAME), name)


def _follow(module: object) -> None:
    """Applies the stored settings and names to the real module."""
    global _is_imported
    _is_imported = True
    for name, value in _late_settings.items():
        setattr(torch._dynamo.config, name, value)
    for names, name, path, attribute in _late_names:
        names[name] = getattr(importlib.import_module(path), attribute)
    _late_settings.clear()
    _late_names.clear()


if not _is_imported:
    _import_hook.AFTER[_NAME] = _follow


class _Config:
    """Replaces torch._dynamo.config: stores settings for later, reads the real ones."""

    def __getattr__(self, name: str) -> object:
        return getattr(__getattr__("config"), name)

    def __setattr__(self, name: str, value: object) -> None:
        if _is_imported:
            setattr(torch._dynamo.config, name, value)
        else:
            _late_settings[name] = value


config = _Config()


def bind(names: dict[str, Any], name: str, path: str, attribute: str) -> object:
    """Returns PATH.ATTRIBUTE; None before the real module's import, which then binds `name`."""
    if _is_imported:
        return getattr(importlib.import_module(path), attribute)
    _late_names.append((names, name, path, attribute))
    return None


def disable(function: Callable | None = None, recursive: bool = True, **named: Any) -> Callable:
    """Returns a function that compilers do not trace. Also a decorator with arguments."""
    if _is_imported:
        return torch._dynamo.disable(function, recursive, **named)
    if function is None:
        return functools.partial(disable, recursive=recursive, **named)
    disabled = torch._disable_dynamo(function, recursive)

    @functools.wraps(function)
    def until_compiled(*args: Any, **kwargs: Any) -> object:
        if _is_imported:
            return disabled(*args, **kwargs)
        return function(*args, **kwargs)

    # With these attributes, a tracer recognises a disabled function.
    vars(until_compiled).update(
        _torchdynamo_disable=True,
        _torchdynamo_disable_msg=named.get("reason"),
        _torchdynamo_orig_callable=function,
    )
    return until_compiled


def assume_constant_result(function: Callable) -> Callable:
    """Marks a function as torch.compiler.assume_constant_result() does."""
    vars(function)["_dynamo_marked_constant"] = True
    return function
