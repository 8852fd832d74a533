# SPDX-License-Identifier: Apache-2.0
"""State dictionaries that PyTorch broadcasts from rank 0, which are sent as values."""

from __future__ import annotations

import warnings
from typing import Any

from narrowfloat.pytorch._tracing import called_method_of
from narrowfloat.pytorch._types import Quantized

_MODULE = "torch.distributed._state_dict_utils"
_FUNCTION = "_broadcast_tensors"


def is_asked_by_state_broadcast() -> bool:
    """Returns whether PyTorch calls the caller to broadcast an entry of a state dictionary.

    The other ranks always receive into plain tensors, so they cannot receive codes. Only the frame
    distinguishes this call from a program's.
    """
    return called_method_of(_FUNCTION) == _MODULE


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
