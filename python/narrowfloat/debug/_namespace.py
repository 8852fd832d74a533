# SPDX-License-Identifier: Apache-2.0
"""The name of the features' namespace in a configuration and in the host."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from narrowfloat.debug._host import BaseNamespaceAPI

HOST = "nvdlfw_inspect.api"

# TransformerEngine's name, so that its YAML files work unchanged.
DEFAULT = "transformer_engine"
VARIABLE = "NF_DEBUG_NAMESPACE"

_chosen: str | None = None


def namespace() -> str:
    """Returns the namespace: the one of set_namespace(), else $NF_DEBUG_NAMESPACE, else the
    default.

    The host reads it at every initialize().
    """
    return _chosen or os.environ.get(VARIABLE) or DEFAULT


def set_namespace(name: str | None) -> str:
    """Sets the namespace of sessions that begin later; None restores the default.

    With a different name, narrowfloat's features and TransformerEngine's can be loaded in one
    process, and a section of a configuration may hold a block of each. Returns the previous name.
    Errors: ValueError unless `name` is an identifier other than the host's own "base".
    """
    global _chosen
    if name is not None and (not name.isidentifier() or name == "base"):
        raise ValueError(f"set_namespace: needs an identifier other than 'base', got {name!r}")
    before, _chosen = namespace(), name
    return before


def namespace_api() -> BaseNamespaceAPI:
    """Returns `debug_api.<namespace>` of the session. Errors: RuntimeError without a session."""
    host = sys.modules.get(HOST)
    if host is None:
        raise RuntimeError("narrowfloat.debug: no session runs; call nvdlfw_inspect's initialize()")
    return getattr(host, namespace())
