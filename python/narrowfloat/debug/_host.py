# SPDX-License-Identifier: Apache-2.0
"""The nvdlfw-inspect host as features use it; without it they can be imported and not run."""

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
        """Stands where the host would."""

        def __getattr__(self, name: str) -> Any:  # noqa: ANN401  # any name of the host
            raise ModuleNotFoundError(
                "narrowfloat.debug: features run in nvdlfw-inspect: pip install narrowfloat[debug]",
                name="nvdlfw_inspect",
            )

    debug_api = Registry = _Missing()
    BaseConfigAPIMapper = BaseNamespaceAPI = object

    def api_method(func: Callable) -> Callable:
        """Marks a method that the host may route to."""
        vars(func)["is_api"] = True
        return func


PACKAGE = "narrowfloat.debug.features"


def _original(copy: type) -> type | None:
    """Returns the package's class, if `copy` was made by the host executing its file once more.

    Importing the package registers nothing; each initialize() of the host does. What it then
    registers is the package's own class, so there is one of each, whoever looks at it.
    """
    if copy.__module__.startswith(PACKAGE):
        return None
    return getattr(importlib.import_module(f"{PACKAGE}.{copy.__module__}"), copy.__name__)


def feature(cls: Class) -> Class:
    """Registers a feature of ours in the namespace that is in use."""
    original = _original(cls)
    if original is not None:
        Registry.register_feature(namespace=namespace())(original)
    return cls


def namespace_class(cls: Class) -> Class:
    """Registers the class of the namespace's own object."""
    original = _original(cls)
    if original is not None:
        Registry.register_namespace_api(namespace=namespace())(original)
    return cls


_sessions_ended = 0


def note_end_of_session() -> None:
    """Lets log() write again what it wrote in the last session."""
    global _sessions_ended
    _sessions_ended += 1


def log(message: str, layer_name: str | None = None, level: int = logging.INFO) -> None:
    """Writes to the session's log, once per session for a message and a layer.

    By itself the host would write once per process for a line of code.
    """
    once_for = (message, _sessions_ended)
    debug_api.log_message(message, layer_name, level=level, extra_cachable_args=once_for)
