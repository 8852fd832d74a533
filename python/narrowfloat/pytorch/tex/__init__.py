# SPDX-License-Identifier: Apache-2.0
"""Stands in for TransformerEngine's native module: its entries, over the one implementation.

Every file holds a group of entries and lists them in its `__all__`.
"""

from typing import Any

from narrowfloat.pytorch.tex import _absent, casts, gemm, groups, scales, types
from narrowfloat.pytorch.tex.casts import *  # noqa: F403
from narrowfloat.pytorch.tex.gemm import *  # noqa: F403
from narrowfloat.pytorch.tex.groups import *  # noqa: F403
from narrowfloat.pytorch.tex.scales import *  # noqa: F403
from narrowfloat.pytorch.tex.types import *  # noqa: F403

_GROUPS = (casts, gemm, groups, scales, types)

__all__ = sorted(name for group in _GROUPS for name in group.__all__)


def __getattr__(name: str) -> Any:
    """Errors: NotImplementedError naming an entry that is unknown, when it is read."""
    if name in _absent.NEEDS:
        return _absent.refused(name)
    raise _absent.missing(name)
