# SPDX-License-Identifier: Apache-2.0
"""Debug features for the nvdlfw-inspect host, under TransformerEngine's names.

The host is the optional dependency narrowfloat[debug]. Importing this package does not import it.
"""

from __future__ import annotations

import importlib

from narrowfloat.debug._namespace import namespace, namespace_api, set_namespace

# Names that are imported at their first use, because they need torch.
_LAZY = {
    "fake_quantize": "narrowfloat.debug._fake_quantize",
    "set_weight_tensor_tp_group_reduce": "narrowfloat.debug.pytorch.debug_state",
}

__all__ = [
    "fake_quantize",
    "namespace",
    "namespace_api",
    "set_namespace",
    "set_weight_tensor_tp_group_reduce",
]


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)
