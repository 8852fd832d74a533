# SPDX-License-Identifier: Apache-2.0
"""The state of a recipe that a layer keeps for one pass, with one quantizer per slot."""

import abc
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from narrowfloat.common.recipe import Recipe
from narrowfloat.pytorch.quantization.roles import (
    BACKWARD_TYPES,
    FORWARD_TYPES,
    LINEAR_TYPES,
    QuantizerRole,
)
from narrowfloat.pytorch.quantized_tensor import Quantizer


class RecipeState(abc.ABC):
    """The quantizers of a layer's slots in one pass, and the buffers they share.

    recipe: defines the quantizers. mode: "forward" or "backward". num_quantizers: the number of
    slots; roles: one per slot, or None if it is unknown. device: of the buffers.
    Errors: ValueError for another mode or another number of roles.
    """

    # Names of the attributes with buffers that exist as long as the layer.
    PERSISTENT: ClassVar[tuple[str, ...]] = ()

    # The state with delayed scaling, or None: this state itself, or a part of it.
    delayed_state: "RecipeState | None" = None

    # A condition on recipes for each class; later entries are tested first.
    _kinds: ClassVar[list[tuple[Callable[[Recipe], bool], type["RecipeState"]]]] = []

    if TYPE_CHECKING:
        # The buffers listed in PERSISTENT.
        def __getattr__(self, name: str) -> Any: ...  # noqa: ANN401  # a field of any type
        def __setattr__(self, name: str, value: Any) -> None: ...  # noqa: ANN401  # likewise

    def __init_subclass__(
        cls, keeps: Callable[[Recipe], bool] | None = None, **kwargs: object
    ) -> None:
        super().__init_subclass__(**kwargs)
        if keeps is not None:
            RecipeState._kinds.append((keeps, cls))

    def __init__(
        self,
        recipe: Recipe,
        *,
        mode: str,
        num_quantizers: int = 1,
        device: torch.device | str | None = None,
        roles: Sequence[QuantizerRole | None] | None = None,
    ) -> None:
        if mode not in ("forward", "backward"):
            raise ValueError(f"RecipeState: mode must be 'forward' or 'backward', got {mode!r}")
        if roles is not None and len(roles) != num_quantizers:
            raise ValueError(
                f"RecipeState: roles must have one entry per quantizer, got {len(roles)} roles for "
                f"{num_quantizers} quantizers"
            )
        self.recipe = recipe
        self.mode = mode
        self.num_quantizers = num_quantizers
        self.device = torch.device(torch.get_default_device() if device is None else device)
        self.roles = None if roles is None else list(roles)

    @staticmethod
    def create(
        recipe: Recipe,
        *,
        mode: str,
        num_quantizers: int = 1,
        device: torch.device | str | None = None,
        roles: Sequence[QuantizerRole | None] | None = None,
    ) -> "RecipeState":
        """Returns the state of a recipe; a CustomRecipeState if the recipe has a factory.

        Errors: ValueError as the constructor's; NotImplementedError for an unknown recipe.
        """
        for keeps, state in reversed(RecipeState._kinds):
            if keeps(recipe):
                return state(
                    recipe, mode=mode, num_quantizers=num_quantizers, device=device, roles=roles
                )
        raise NotImplementedError(f"RecipeState: a recipe of {type(recipe)} is not supported")

    @abc.abstractmethod
    def make_quantizers(self) -> list[Quantizer]:
        """Returns one new quantizer per slot, over the same buffers."""

    def inherit_state_from(self, other: "RecipeState") -> bool:
        """Shares the buffers of a state with the same class, shapes and dtypes.

        Call it before make_quantizers(). Returns whether it did; else changes nothing.
        """
        if type(other) is not type(self):
            return False
        for name in self.PERSISTENT:
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
                return False
        for name in self.PERSISTENT:
            setattr(self, name, getattr(other, name))
        return True

    def continue_from(self, other: "RecipeState") -> None:
        """Keeps what is still valid of a replaced state. Call it before make_quantizers()."""
        self.inherit_state_from(other)

    def _slot_role(self, index: int) -> QuantizerRole:
        """Returns the role of a slot; an empty one without roles."""
        role = None if self.roles is None else self.roles[index]
        return QuantizerRole() if role is None else role

    def _slot_tensor_type(self, index: int) -> str:
        """Returns the tensor type of a slot: of its role in a linear layer, else by index."""
        tensor_type = self._slot_role(index).tensor_type
        if tensor_type in LINEAR_TYPES:
            return tensor_type
        types = FORWARD_TYPES if self.mode == "forward" else BACKWARD_TYPES
        return types[index % len(types)]
