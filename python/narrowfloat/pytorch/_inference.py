# SPDX-License-Identifier: Apache-2.0
"""Runs operators of tensor classes in inference mode, where PyTorch does less for the class."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch.utils._pytree import tree_flatten

from narrowfloat.pytorch._types import Operator

Run = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]


def run_in_inference_mode(
    run: Run, func: Operator, args: tuple[Any, ...], kwargs: dict[str, Any], gives_views: bool
) -> object:
    """Runs an operator with the same results as under no_grad().

    Requires: inference mode. Outside of it autograd decomposes composite operators. A view of a
    normal tensor is a normal tensor here too: it shares the version counter of its base.
    """
    parts = func.decompose(*args, **kwargs)
    if parts is not NotImplemented:
        return parts
    base = next(leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, torch.Tensor))
    normal = gives_views and not base.is_inference()
    with torch.inference_mode(False) if normal else nullcontext(), torch.no_grad():
        return run(func, args, kwargs)
