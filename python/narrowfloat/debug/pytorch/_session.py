# SPDX-License-Identifier: Apache-2.0
"""Finds the host's running session without importing the host."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any, Protocol

from narrowfloat.debug._namespace import HOST, namespace, namespace_api


class HostManager(Protocol):
    """The attributes of the host's manager that are read here."""

    _namespace_apis: Mapping[str, object]


def is_imported() -> bool:
    """Returns whether the program has imported the host."""
    return HOST in sys.modules


def running_host() -> ModuleType | None:
    """Returns the host's api module while it runs a session, else None."""
    host = sys.modules.get(HOST)
    return None if host is None or host.DEBUG_MANAGER is None else host


def has_features(manager: HostManager) -> bool:
    """Returns whether a session has narrowfloat's namespace; another library may have begun it."""
    return namespace() in manager._namespace_apis


def ask(question: str, layer_name: str, **arguments: Any) -> Any:  # noqa: ANN401  # the answer of any feature
    """Returns the result of an api call to the features of the running session, for a layer.

    Errors: as the features.
    """
    return getattr(namespace_api(), question)(layer_name, **arguments)


def log_once(message: str, layer_name: str) -> None:
    """Logs a message about a layer, once per session."""
    from narrowfloat.debug._host import log  # imports the host

    log(message, layer_name)
