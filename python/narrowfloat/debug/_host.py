# SPDX-License-Identifier: Apache-2.0
"""Imports the nvdlfw-inspect host for features; without it they can be imported but not run."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from typing import Any, TypeVar

from narrowfloat.debug._namespace import namespace

Class = TypeVar("Class", bound=type)

try:
    import nvdlfw_inspect.api as debug_api
    from nvdlfw_inspect.base import BaseConfigAPIMapper, BaseNamespaceAPI
    from nvdlfw_inspect.registry import Registry, api_method
except ModuleNotFoundError as error:
    if (error.name or "").split(".")[0] != "nvdlfw_inspect":
        raise

    class _Missing:
        """Replaces the host if it is not installed."""

        def __getattr__(self, name: str) -> Any:  # noqa: ANN401  # any name of the host
            raise ModuleNotFoundError(
                "narrowfloat.debug: features run in nvdlfw-inspect: pip install narrowfloat[debug]",
                name="nvdlfw_inspect",
            )

    debug_api = Registry = _Missing()
    BaseConfigAPIMapper = BaseNamespaceAPI = object

    def api_method(func: Callable) -> Callable:
        """Marks a method that the host may call."""
        vars(func)["is_api"] = True
        return func


PACKAGE = "narrowfloat.debug.features"


def _original(copy: type) -> type | None:
    """Returns the package's class if the host made `copy` by executing its file again, else None.

    Importing the package registers nothing; each initialize() of the host executes the files of
    features. Registering the package's own class keeps one class of each name.
    """
    if copy.__module__.startswith(PACKAGE):
        return None
    return getattr(importlib.import_module(f"{PACKAGE}.{copy.__module__}"), copy.__name__)


def feature(cls: Class) -> Class:
    """Registers a feature of narrowfloat in the namespace in use."""
    original = _original(cls)
    if original is not None:
        Registry.register_feature(namespace=namespace())(original)
    return cls


def namespace_class(cls: Class) -> Class:
    """Registers the class of the namespace's API object."""
    original = _original(cls)
    if original is not None:
        Registry.register_namespace_api(namespace=namespace())(original)
    return cls


_sessions_ended = 0


def note_end_of_session() -> None:
    """Makes log() repeat the messages of the session that ends."""
    global _sessions_ended
    _sessions_ended += 1


def log(message: str, layer_name: str | None = None, level: int = logging.INFO) -> None:
    """Writes to the session's log, once per session for a message and a layer.

    The host alone would write once per process and line of code.
    """
    once_for = (message, _sessions_ended)
    debug_api.log_message(message, layer_name, level=level, extra_cachable_args=once_for)
