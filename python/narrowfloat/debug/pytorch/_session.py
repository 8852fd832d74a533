# SPDX-License-Identifier: Apache-2.0
"""The host's running session, which is looked up: nothing here imports the host."""

from __future__ import annotations

import itertools
import sys
import weakref
from types import ModuleType
from typing import Any

from narrowfloat.debug._namespace import namespace, namespace_api

_HOST = "nvdlfw_inspect.api"

_count = itertools.count()
_numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


def is_imported() -> bool:
    """Whether the program uses the host at all."""
    return _HOST in sys.modules


def running_host() -> ModuleType | None:
    """The host's api module while a session of it runs."""
    host = sys.modules.get(_HOST)
    return None if host is None or host.DEBUG_MANAGER is None else host


def has_features(manager: Any) -> bool:
    """Whether a session knows our namespace; another library may have begun it for itself."""
    return namespace() in manager._namespace_apis


def ask(question: str, layer_name: str, **arguments: Any) -> Any:
    """What the features of the running session answer for a layer. Errors: as the features have."""
    return getattr(namespace_api(), question)(layer_name, **arguments)


def log_once(message: str, layer_name: str, key: tuple[Any, ...]) -> None:
    """Logs a message about a layer, once a session and key."""
    host = running_host()
    manager = host.DEBUG_MANAGER
    if manager not in _numbers:
        _numbers[manager] = next(_count)
    # The host remembers keys for as long as the process lives.
    host.log_message(message, layer_name=layer_name, extra_cachable_args=(_numbers[manager], *key))
