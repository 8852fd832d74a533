# SPDX-License-Identifier: Apache-2.0
"""The registry of families; each module registers its classes at its end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from narrowfloat.pytorch._exported_tensors import CLASSES, full_name
from narrowfloat.pytorch.constants import DType
from narrowfloat.pytorch.quantized_tensor import QuantizedTensorStorage, Quantizer
from narrowfloat.pytorch.tensor._scheme_tensor import _make_tensor_in_reduce_ex

torch.serialization.add_safe_globals([DType, _make_tensor_in_reduce_ex])


@dataclass(frozen=True)
class Family:
    """The classes of one format. `storage` has the table of fields."""

    tensor: type[torch.Tensor]
    storage: type[QuantizedTensorStorage]
    quantizers: tuple[type[Quantizer], ...]

    def classes(self) -> tuple[type, ...]:
        """Returns every class of the family."""
        return (self.tensor, self.storage, *self.quantizers)


_FAMILIES: dict[type, Family] = {}


def family_of(cls: type) -> Family | None:
    """Returns the family of a quantizer, storage or tensor class, or of one of its bases."""
    return next((_FAMILIES[base] for base in cls.__mro__ if base in _FAMILIES), None)


def registered(module: str, name: str) -> type | None:
    """Returns the class of a family with this module and name, or None."""
    return CLASSES.get(f"{module}.{name}")


def _assign(cls: type, **attributes: object) -> None:
    for name, value in attributes.items():
        setattr(cls, name, value)


def register_family(
    tensor: type[torch.Tensor],
    storage: type[QuantizedTensorStorage],
    *quantizers: type[Quantizer],
    default: Callable[[Any], Quantizer] | None = None,
    reconstructor: Callable[..., Any] | None = None,
) -> None:
    """Registers the classes of a family, also for torch.load(weights_only=True).

    default: makes a quantizer for a tensor (its argument) without one. reconstructor: the module's
    function that pickles refer to; without it they refer to the class.
    """
    family = Family(tensor, storage, quantizers)
    _FAMILIES.update(dict.fromkeys(family.classes(), family))
    CLASSES.update({full_name(cls): cls for cls in family.classes()})
    for quantizer in quantizers:
        _assign(quantizer, TENSOR=tensor, STORAGE=storage)
    if default is not None:
        _assign(storage, _build_default_quantizer=default)
    if reconstructor is not None:
        _assign(tensor, RECONSTRUCTOR=staticmethod(reconstructor))
    torch.serialization.add_safe_globals(
        [tensor, storage, *quantizers, *([] if reconstructor is None else [reconstructor])]
    )
