# SPDX-License-Identifier: Apache-2.0
"""The state of a recipe with quantizers from a factory."""

import warnings
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import torch

from narrowfloat.common.recipe import DelayedScaling
from narrowfloat.pytorch.quantization.recipe_state import RecipeState
from narrowfloat.pytorch.quantization.recipe_states import DelayedScalingRecipeState
from narrowfloat.pytorch.quantization.roles import (
    DelayedScalingRequest,
    QuantizerRequest,
    QuantizerRole,
)
from narrowfloat.pytorch.quantized_tensor import Quantizer


class CustomRecipeState(
    RecipeState, keeps=lambda recipe: recipe.get_quantizer_factory() is not None
):
    """Makes one quantizer per slot with the factory; requests share one delayed state."""

    _ds_state: DelayedScalingRecipeState | None = None
    _ds_slots: Sequence[int] = ()  # of its quantizers

    def make_quantizers(self) -> list[Quantizer]:
        """Calls the factory once per slot, with its role.

        Without roles a CustomRecipe's factory gets empty ones, with a warning; the factory of
        another recipe gets the tensor types of a linear layer's slots.
        Errors: ValueError if the factory returns None, or different requests; TypeError if it
        returns neither a quantizer nor a known request.
        """
        if self.roles is None and self.recipe.custom():
            warnings.warn(
                f"CustomRecipeState: no roles were given, the factory gets {QuantizerRole()} "
                f"for each of {self.num_quantizers} quantizers",
                UserWarning,
                stacklevel=2,
            )
        factory: Any = self.recipe.get_quantizer_factory()
        made: list[Any] = [_checked(factory(role), role) for role in self._factory_roles()]
        slots = [i for i, result in enumerate(made) if isinstance(result, QuantizerRequest)]
        delayed = self._delayed_quantizers(slots, [made[i] for i in slots])
        for slot, quantizer in zip(slots, delayed, strict=True):
            made[slot] = quantizer
        return made

    def inherit_state_from(self, other: RecipeState) -> bool:
        """Runs the base's method, and inherits the delayed state of the requests, if it exists."""
        if not super().inherit_state_from(other):
            return False
        self._ds_state, self._ds_slots = other._ds_state, other._ds_slots
        return True

    @property
    def delayed_state(self) -> DelayedScalingRecipeState | None:  # type: ignore[override]  # a field
        """The state of the requested quantizers."""
        return self._ds_state

    @property
    def scale(self) -> torch.Tensor | None:
        """Scales of the requested quantizers, in the order of their slots."""
        return None if self._ds_state is None else self._ds_state.scale

    @property
    def amax_history(self) -> torch.Tensor | None:
        """Histories of the requested quantizers, in the order of their slots."""
        return None if self._ds_state is None else self._ds_state.amax_history

    def _factory_roles(self) -> list[QuantizerRole]:
        roles = [self._slot_role(i) for i in range(self.num_quantizers)]
        if self.roles is None and not self.recipe.custom():
            roles = [
                QuantizerRole(tensor_type=self._slot_tensor_type(i))
                for i in range(self.num_quantizers)
            ]
        return roles

    def _delayed_quantizers(
        self, slots: list[int], requests: list[QuantizerRequest]
    ) -> list[Quantizer]:
        if not requests:
            self._ds_state = None
            return []
        if any(request != requests[0] for request in requests):
            raise ValueError(
                "CustomRecipeState: all requests of one state must be the same, got "
                + " and ".join(sorted({repr(request) for request in requests}))
            )
        request = requests[0]
        recipe = DelayedScaling(**{f.name: getattr(request, f.name) for f in fields(request)})
        state = DelayedScalingRecipeState(
            recipe, mode=self.mode, num_quantizers=len(requests), device=self.device
        )
        if self._ds_state is not None and self._ds_slots == slots:
            state.continue_from(self._ds_state)
        self._ds_state, self._ds_slots = state, slots
        return state.make_quantizers()


def _checked(result: object, role: QuantizerRole) -> object:
    if result is None:
        raise ValueError(f"CustomRecipeState: the factory returned None for {role}")
    if isinstance(result, QuantizerRequest):
        if not isinstance(result, DelayedScalingRequest):
            raise TypeError(
                f"CustomRecipeState: a {type(result)} is not supported, got one for {role}"
            )
        return result
    if not callable(getattr(result, "quantize", None)):
        raise TypeError(
            f"CustomRecipeState: the factory must return a Quantizer or a QuantizerRequest, "
            f"got {type(result)} for {role}"
        )
    return result
