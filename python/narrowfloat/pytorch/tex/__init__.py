# SPDX-License-Identifier: Apache-2.0
"""Replaces TransformerEngine's native module: its functions, on narrowfloat's implementation.

Every file has a group of these functions ("entries"), and lists them in its `__all__`.
"""

from narrowfloat.pytorch.tex import (
    _absent,
    activations,
    attention,
    auxiliary_loss,
    casts,
    communication,
    context_parallel,
    dropout,
    enums,
    gemm,
    groups,
    master_weights,
    norms,
    nvfp4_weights,
    optimizers,
    permutation,
    rope,
    router,
    scaled_activations,
    scales,
    softmax,
    transposes,
    types,
)
from narrowfloat.pytorch.tex.activations import *  # noqa: F403
from narrowfloat.pytorch.tex.attention import *  # noqa: F403
from narrowfloat.pytorch.tex.auxiliary_loss import *  # noqa: F403
from narrowfloat.pytorch.tex.casts import *  # noqa: F403
from narrowfloat.pytorch.tex.communication import *  # noqa: F403
from narrowfloat.pytorch.tex.context_parallel import *  # noqa: F403
from narrowfloat.pytorch.tex.dropout import *  # noqa: F403
from narrowfloat.pytorch.tex.enums import *  # noqa: F403
from narrowfloat.pytorch.tex.gemm import *  # noqa: F403
from narrowfloat.pytorch.tex.groups import *  # noqa: F403
from narrowfloat.pytorch.tex.master_weights import *  # noqa: F403
from narrowfloat.pytorch.tex.norms import *  # noqa: F403
from narrowfloat.pytorch.tex.nvfp4_weights import *  # noqa: F403
from narrowfloat.pytorch.tex.optimizers import *  # noqa: F403
from narrowfloat.pytorch.tex.permutation import *  # noqa: F403
from narrowfloat.pytorch.tex.rope import *  # noqa: F403
from narrowfloat.pytorch.tex.router import *  # noqa: F403
from narrowfloat.pytorch.tex.scaled_activations import *  # noqa: F403
from narrowfloat.pytorch.tex.scales import *  # noqa: F403
from narrowfloat.pytorch.tex.softmax import *  # noqa: F403
from narrowfloat.pytorch.tex.transposes import *  # noqa: F403
from narrowfloat.pytorch.tex.types import *  # noqa: F403

_GROUPS = (
    activations,
    attention,
    auxiliary_loss,
    casts,
    communication,
    context_parallel,
    dropout,
    enums,
    gemm,
    groups,
    master_weights,
    norms,
    nvfp4_weights,
    optimizers,
    permutation,
    rope,
    router,
    scaled_activations,
    scales,
    softmax,
    transposes,
    types,
)

__all__ = sorted(name for group in _GROUPS for name in group.__all__)


def __getattr__(name: str) -> object:
    """Returns an entry whose calls raise, or raises NotImplementedError for an unknown name."""
    if name in _absent.NEEDS:
        return _absent.refused(name)
    raise _absent.missing(name)
