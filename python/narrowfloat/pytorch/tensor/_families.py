# SPDX-License-Identifier: Apache-2.0
"""Families register themselves here, each at the end of its file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from narrowfloat.pytorch.constants import DType
from narrowfloat.pytorch.quantized_tensor import QuantizedTensorStorage, Quantizer
from narrowfloat.pytorch.tensor._scheme_tensor import _make_tensor_in_reduce_ex

torch.serialization.add_safe_globals([DType, _make_tensor_in_reduce_ex])


def register_family(
    tensor: type[torch.Tensor],
    storage: type[QuantizedTensorStorage],
    *quantizers: type[Quantizer],
    default: Callable[[Any], Quantizer] | None = None,
    reconstructor: Callable[..., Any] | None = None,
) -> None:
    """Ties the classes of a family together and lets torch.load(weights_only=True) rebuild them.

    default: makes the quantizer of a tensor (its argument) that has none. reconstructor: the
    function of the module that payloads name; without one they name the class.
    """
    for quantizer in quantizers:
        quantizer.TENSOR, quantizer.STORAGE = tensor, storage
    if default is not None:
        storage._build_default_quantizer = default
    if reconstructor is not None:
        tensor.RECONSTRUCTOR = staticmethod(reconstructor)
    torch.serialization.add_safe_globals(
        [tensor, storage, *quantizers, *([] if reconstructor is None else [reconstructor])]
    )
