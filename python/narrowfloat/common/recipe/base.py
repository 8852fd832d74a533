# SPDX-License-Identifier: Apache-2.0
"""The base class of recipes."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from itertools import count
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakKeyDictionary, WeakValueDictionary

from narrowfloat.common.recipe.parameters import Format, require

BACKWARD_OVERRIDES = (None, "high_precision", "dequantized")


@dataclass(repr=False, kw_only=True)
class Recipe:
    """The base class of recipes.

    backward_override: None, or the operands of the backward pass: "high_precision", the tensors
    before quantizing, or "dequantized". Default: NVTE_BACKWARD_OVERRIDE, else None.
    fp8_dpa, fp8_mha: attention in FP8, for layers that support it.
    Errors: AssertionError for options that exclude each other.
    """

    kind: ClassVar[str] = ""
    _noted: ClassVar[WeakValueDictionary[str, Recipe]] = WeakValueDictionary()

    backward_override: str | None = field(
        default_factory=lambda: os.environ.get("NVTE_BACKWARD_OVERRIDE") or None
    )
    fp8_dpa: bool = False
    fp8_mha: bool = False

    if TYPE_CHECKING:
        # Subclasses define further fields; callers check `kind` before they read them.
        def __getattr__(self, name: str) -> Any: ...  # noqa: ANN401

    def __post_init__(self) -> None:
        name = type(self).__name__
        require(
            self.backward_override in BACKWARD_OVERRIDES,
            f"{name}: backward_override must be one of {', '.join(map(repr, BACKWARD_OVERRIDES))}, "
            f"got {self.backward_override!r}",
        )
        fp8_format = getattr(self, "fp8_format", Format.E4M3)
        require(
            fp8_format != Format.E5M2, f"{name}: fp8_format E5M2 in both passes is not supported"
        )
        require(
            fp8_format is Format.E4M3 or fp8_format is Format.HYBRID,
            f"{name}: fp8_format must be E4M3 or HYBRID of narrowfloat.common.recipe.Format, "
            f"got {text_of(fp8_format)}",
        )

    def __setattr__(self, name: str, value: object) -> None:
        # The text identifies the recipe in the global state, so every change must clear it.
        self.__dict__.pop("_text", None)
        object.__setattr__(self, name, value)

    def __getstate__(self) -> dict[str, Any]:
        # A copy may have another function, and another process other numbers of functions.
        return {name: value for name, value in vars(self).items() if name != "_text"}

    def __repr__(self) -> str:
        text = self.__dict__.get("_text")
        if text is None:
            parts = [f"recipe_type={type(self).__name__}"]
            parts += [f"{f.name}={text_of(getattr(self, f.name))}" for f in fields(self)]
            parts += [f"{k}={text_of(v)}" for k, v in self._derived().items() if v is not None]
            text = ", ".join(parts)
            self.__dict__["_text"] = text
        return text

    def note(self) -> str:
        """Stores this recipe, so that noted() finds it by its text. Returns the text."""
        text = repr(self)
        Recipe._noted[text] = self
        return text

    @staticmethod
    def noted(text: str) -> Recipe:
        """Returns the last recipe that note() stored under this text."""
        return Recipe._noted[text]

    def _derived(self) -> dict[str, object]:
        """Returns the attributes that are not constructor fields; the text lists them too."""
        names = {f.name for f in fields(self)} | {"_text"}
        return {name: value for name, value in vars(self).items() if name not in names}

    def set_quantizer_factory(self, factory: Callable[[Any], object] | None) -> None:
        """Makes every quantizer with `factory(role)`; None restores the recipe's own quantizers.

        The rest of the recipe (formats, products, overrides) stays. `factory` gets QuantizerRole
        objects and returns a Quantizer or a QuantizerRequest, as in CustomRecipe.
        Errors: TypeError if it cannot be called.
        """
        if factory is not None and not callable(factory):
            raise TypeError(f"set_quantizer_factory: factory must be callable, got {type(factory)}")
        self.quantizer_factory = factory

    def get_quantizer_factory(self) -> Callable[[Any], object] | None:
        """Returns the function that makes the quantizers; None if the recipe makes them."""
        return vars(self).get("quantizer_factory")

    @classmethod
    def nvfp4(cls) -> bool:
        """Returns whether the format is NVFP4."""
        return cls.kind == "fp4_block"

    @classmethod
    def mxfp8(cls) -> bool:
        """Returns whether the format is MXFP8."""
        return cls.kind == "mxfp8"

    @classmethod
    def delayed(cls) -> bool:
        """Returns whether scales are computed from a history of amaxes."""
        return cls.kind == "delayed"

    @classmethod
    def float8_current_scaling(cls) -> bool:
        """Returns whether a tensor has one scale, which is computed from its own amax."""
        return cls.kind == "current"

    @classmethod
    def float8_per_tensor_scaling(cls) -> bool:
        """Returns whether a tensor has one scale."""
        return cls.delayed() or cls.float8_current_scaling()

    @classmethod
    def float8_block_scaling(cls) -> bool:
        """Returns whether the format is FP8 with one fp32 scale per block."""
        return cls.kind == "float8_block"

    @classmethod
    def custom(cls) -> bool:
        """Returns whether a factory makes the quantizers."""
        return cls.kind == "custom"


def text_of(value: object) -> str:
    """Returns a value as the text of a recipe contains it."""
    if isinstance(value, Format):
        return value.name
    if callable(value):
        place = f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', '')}"
        return f"{place}@{_number_of(value)}"
    return repr(value)


def _number_of(function: Any) -> int:  # noqa: ANN401
    """Returns the number of a function in this process; equal functions have the same.

    No later function gets the number, as one could get the address.
    """
    try:
        return _numbers.setdefault(function, next(_counter))
    except TypeError:  # it cannot be hashed or weakly referenced
        return _held.setdefault(id(function), (function, next(_counter)))[1]


_counter = count()
_numbers: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
_held: dict[int, tuple[object, int]] = {}  # by address, which stays in use
