# SPDX-License-Identifier: Apache-2.0
"""State dictionaries that PyTorch broadcasts from rank 0: they are sent as values."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import torch

from narrowfloat.pytorch._types import Quantized

_MODULE = "torch.distributed._state_dict_utils"
_FUNCTION = "_broadcast_tensors"


def is_asked_by_state_broadcast() -> bool:
    """Returns whether PyTorch calls the caller, to broadcast an entry of a state dictionary.

    The other ranks receive into plain tensors, whatever rank 0 sends, so they take no part in a
    broadcast of codes. Only the frame distinguishes the caller from a program.
    """
    if torch.compiler.is_dynamo_compiling():
        return False
    caller = sys._getframe(1).f_back  # None if native code calls the method
    return (
        caller is not None
        and caller.f_code.co_name == _FUNCTION
        and caller.f_globals.get("__name__") == _MODULE
    )


def values_to_broadcast(tensor: Quantized) -> Any:  # noqa: ANN401  # plain where a class is expected
    """Returns the values, and warns that the ranks quantize them again."""
    if not tensor.HOLDS_VALUES:
        warnings.warn(
            f"broadcast_from_rank0 sends the values of a {type(tensor).__name__} of shape "
            f"{tuple(tensor.shape)}, which quantized parameters quantize again; to keep the codes, "
            "load with torch.distributed.checkpoint or give the tensors to every rank",
            stacklevel=4,
        )
    return tensor._plain()
