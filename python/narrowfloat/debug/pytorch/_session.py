# SPDX-License-Identifier: Apache-2.0
"""The host's running session, which is looked up: nothing here imports the host."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from narrowfloat.debug._namespace import HOST, namespace, namespace_api


def is_imported() -> bool:
    """Whether the program uses the host at all."""
    return HOST in sys.modules


def running_host() -> ModuleType | None:
    """The host's api module while a session of it runs."""
    host = sys.modules.get(HOST)
    return None if host is None or host.DEBUG_MANAGER is None else host


def has_features(manager: Any) -> bool:
    """Whether a session knows our namespace; another library may have begun it for itself."""
    return namespace() in manager._namespace_apis


def ask(question: str, layer_name: str, **arguments: Any) -> Any:
    """What the features of the running session answer for a layer. Errors: as the features have."""
    return getattr(namespace_api(), question)(layer_name, **arguments)


def log_once(message: str, layer_name: str) -> None:
    """Logs a message about a layer, once a session."""
    from narrowfloat.debug._host import log  # which imports the host

    log(message, layer_name)
