# SPDX-License-Identifier: Apache-2.0
"""The recipe that is defined by a function."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from narrowfloat.common.recipe.base import Recipe
from narrowfloat.common.recipe.parameters import Format


@dataclass(repr=False)
class CustomRecipe(Recipe):
    """Makes quantizers with a function of the caller.

    qfactory: called with a QuantizerRole once per tensor; returns a Quantizer or a
    QuantizerRequest. fp8_format: has no effect on the factory's quantizers and requests; functions
    such as get_fp8_te_dtype read it. quantization_alignment: the multiple that layers pad rows to;
    ValueError unless it is a positive integer.
    backward_override, fp8_dpa, fp8_mha: as in Recipe.
    """

    kind: ClassVar[str] = "custom"

    qfactory: Callable[[Any], object]
    fp8_format: Format = Format.HYBRID
    quantization_alignment: int = 128

    def __post_init__(self) -> None:
        super().__post_init__()
        alignment = self.quantization_alignment
        if isinstance(alignment, bool) or not isinstance(alignment, int) or alignment <= 0:
            raise ValueError(
                "CustomRecipe: quantization_alignment must be positive and whole, got "
                f"{alignment!r}"
            )

    def set_quantizer_factory(self, factory: Callable[[Any], object] | None) -> None:
        """Replaces `qfactory`. Errors: TypeError if it cannot be called or is None."""
        if not callable(factory):
            raise TypeError(f"set_quantizer_factory: factory must be callable, got {type(factory)}")
        self.qfactory = factory

    def get_quantizer_factory(self) -> Callable[[Any], object]:
        """Returns `qfactory`."""
        return self.qfactory
