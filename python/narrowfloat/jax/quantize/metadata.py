# SPDX-License-Identifier: Apache-2.0
"""Arguments of quantizers that a caller adds to a recipe, mostly their state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


class QuantizeMeta:
    """Keyword arguments for a quantizer, such as `scale`, `amax_history`, `use_rht`."""

    def __init__(self, **kwargs: Any) -> None:
        self._kwargs = kwargs

    def get_kwargs_dictionary(self) -> dict[str, Any]:
        """Returns the arguments."""
        return dict(self._kwargs)

    def merge(self, other: QuantizeMeta) -> QuantizeMeta:
        """Returns the arguments of both. Errors: AssertionError if the values of a name differ."""
        for name, value in other._kwargs.items():
            mine = self._kwargs.get(name, value)
            # Arrays are compared by identity only, because they may be traced.
            if mine is not value and (hasattr(mine, "shape") or mine != value):
                raise AssertionError(
                    f"QuantizeMeta: {name} must be the same in both, got {mine!r} and {value!r}"
                )
        return QuantizeMeta(**self._kwargs, **{
            name: value for name, value in other._kwargs.items() if name not in self._kwargs
        })  # fmt: skip

    def __repr__(self) -> str:
        return f"QuantizeMeta({', '.join(f'{k}={v!r}' for k, v in self._kwargs.items())})"


@dataclass(frozen=True)
class QuantizeMetaSet:
    """The arguments of a layer's three quantizers."""

    x: QuantizeMeta
    kernel: QuantizeMeta
    grad: QuantizeMeta
