# SPDX-License-Identifier: Apache-2.0
"""The base class of quantized linear layers: recipe states, cached weights, parameters."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from types import MethodType
from typing import Any

import torch

from narrowfloat.common.recipe import Recipe
from narrowfloat.pytorch._extra_state import pack_extra_state, unpack_extra_state
from narrowfloat.pytorch._types import Group, TensorLike
from narrowfloat.pytorch.module.function import quantize_weight
from narrowfloat.pytorch.module.parameters import (
    ParameterInit,
    keep_initial_values,
    memory_of_whole,
    set_parameter,
)
from narrowfloat.pytorch.module.scales import is_delayed
from narrowfloat.pytorch.module.sharded import local, part_of
from narrowfloat.pytorch.module.states import PASSES, LayerStates, Roles
from narrowfloat.pytorch.module.watching import (
    Slots,
    Watcher,
    is_watching,
    next_layer_number,
    watcher_factory,
)
from narrowfloat.pytorch.quantization import FP8GlobalStateManager, QuantizerRole, RecipeState
from narrowfloat.pytorch.quantization.roles import BACKWARD_TYPES, FORWARD_TYPES
from narrowfloat.pytorch.quantized_tensor import QuantizedTensorStorage, Quantizer

# Fields that a copy of a layer creates again.
_NOT_COPIED = ("_states", "_watcher", "_fp8_workspaces", "_delayed_gradients")


class QuantizedLayer(torch.nn.Module):
    """A layer with one or several weights; the recipe of the autocast quantizes its products.

    weight_names, bias_names: of its parameters, in the order of the products; no biases is an empty
    tuple. name: as debug configurations select it; None is `Layer_<n>`. tp_group, tp_size: the
    tensor-parallel group, which debug features may reduce over.
    """

    MODULE_TYPE = "linear"

    weight_names: tuple[str, ...]
    bias_names: tuple[str, ...]

    def _begin(
        self,
        name: str | None,
        tp_group: Group = None,
        tp_size: int = 1,
        parameter_init: ParameterInit = ParameterInit(),  # noqa: B008
        return_bias: bool = False,
        fuse_wgrad_accumulation: bool = False,
        delay_wgrad_compute: bool = False,
        save_original_input: bool = False,
    ) -> None:
        """Sets the fields of every layer other than its parameters."""
        self.return_bias = return_bias
        self.fuse_wgrad_accumulation = fuse_wgrad_accumulation
        self.delay_wgrad_compute = delay_wgrad_compute
        self.save_original_input = save_original_input
        self.wgrad_accumulation_and_reduce_hooks: list[Callable[[], object]] = []
        self._name = f"Layer_{next_layer_number()}" if name is None else name
        self.tp_group, self.tp_size = tp_group, tp_size
        self.parameter_init = parameter_init
        self._output_quantizer_role: QuantizerRole | None = None
        self._grad_input_quantizer_role: QuantizerRole | None = None
        model_init = FP8GlobalStateManager.get_model_init_state()
        self.primary_weights_in_fp8 = model_init.enabled
        self.preserve_high_precision_init_val = model_init.preserve_high_precision_init_val
        self._init_recipe = FP8GlobalStateManager.get_fp8_recipe() if model_init.enabled else None
        self._forget()
        self._find_watcher(is_new_layer=True)

    def _forget(self) -> None:
        """Sets the fields that a copy of the layer does not share with it."""
        self._states = LayerStates()
        self._watcher: Watcher | None = None
        self._fp8_workspaces: dict[str, Any] = {}
        self._delayed_gradients: list[Any] = []

    @property
    def name(self) -> str:
        """The name that debug configurations and roles contain."""
        return self._name

    @name.setter
    def name(self, value: str) -> None:
        self._name = value
        self._states.forget_recipe()
        if self._watcher is not None:
            self._watcher.name = value

    @property
    def output_quantizer_role(self) -> QuantizerRole | None:
        """The role of the output's quantizer; None if its consumer is unknown."""
        return self._output_quantizer_role

    @output_quantizer_role.setter
    def output_quantizer_role(self, role: QuantizerRole | None) -> None:
        if role != self._output_quantizer_role:
            self._output_quantizer_role = role
            self._states.forget_recipe()

    @property
    def grad_input_quantizer_role(self) -> QuantizerRole | None:
        """The role of the quantizer of the input's gradient; None if its consumer is unknown."""
        return self._grad_input_quantizer_role

    @grad_input_quantizer_role.setter
    def grad_input_quantizer_role(self, role: QuantizerRole | None) -> None:
        if role != self._grad_input_quantizer_role:
            self._grad_input_quantizer_role = role
            self._states.forget_recipe()

    @property
    def fp8_meta(self) -> dict[str, RecipeState]:
        """The recipe states by TransformerEngine's names, scaling_fwd and scaling_bwd."""
        return self._states.meta

    @property
    def quantizers(self) -> dict[str, list[Quantizer]]:
        """The quantizers of both passes by the same names."""
        return self._states.quantizers

    # Quantizers.

    def get_quantizer_roles(self, *, fwd: bool, num_quantizers: int) -> list[QuantizerRole | None]:
        """Returns the roles of one pass: input, weight, output; or grad_output, grad_input."""
        types = ("input", "weight") if fwd else ("grad_output",)
        boundary = self.output_quantizer_role if fwd else self.grad_input_quantizer_role
        roles = [QuantizerRole(self.MODULE_TYPE, tensor_type, self.name) for tensor_type in types]
        slots = [*roles, boundary]
        return [slots[i % len(slots)] for i in range(num_quantizers)]

    def _roles(self) -> Roles:
        count = len(self.weight_names)
        return {
            mode: self.get_quantizer_roles(fwd=mode == "forward", num_quantizers=per_gemm * count)
            for mode, per_gemm in (
                ("forward", len(FORWARD_TYPES)),
                ("backward", len(BACKWARD_TYPES)),
            )
        }

    def _follow(self, recipe: Recipe, group: Group) -> None:
        self._warn_of_change(recipe)
        if self._states.follow(recipe, group, self._roles):
            self._fp8_workspaces = {}
            self._link_weights()

    def _warn_of_change(self, recipe: Recipe) -> None:
        """Warns if the type of the recipe changes, and if quantized weights keep their format."""
        if not self._states.is_other_recipe(recipe):
            return
        before, now = type(self._states.recipe), type(recipe)
        texts = []
        if not issubclass(now, before) and not issubclass(before, now):
            texts.append(f"Recipe type changed from {before.__name__} to {now.__name__}. This")
        if any(getattr(weight, "_quantizer", None) is not None for weight in self._weights()):
            texts.append("Quantizer is being updated, this")
        for text in texts:
            warnings.warn(f"layer {self.name}: {text} may affect model behavior", stacklevel=2)

    def _link_weights(self) -> None:
        """Makes quantized weights with delayed scaling use the scales and amaxes of this state."""
        forward = self.quantizers[PASSES["forward"][0]]
        slots = forward[FORWARD_TYPES.index("weight") :: len(FORWARD_TYPES)]
        for name, quantizer in zip(self.weight_names, slots, strict=True):
            weight = getattr(self, name, None)  # None while they are being replaced
            own: Any = None if weight is None else getattr(local(weight), "_quantizer", None)
            if is_delayed(own) and is_delayed(quantizer):
                own.scale, own.amax = quantizer.scale, quantizer.amax

    def register_parameter(self, name: str, param: torch.nn.Parameter | None) -> None:
        """Runs torch.nn.Module's method, drops a replaced weight's cached value, and links the new
        weight to this state.
        """
        super().register_parameter(name, param)
        self.__dict__.get("_fp8_workspaces", {}).pop(name, None)
        states = self.__dict__.get("_states")  # absent before _begin()
        if states is not None and states.quantizers and name in self.weight_names:
            self._link_weights()

    def _parents(
        self, recipe: Recipe, group: Group, fp8_output: bool = False, fp8_grad: bool = False
    ) -> list[Slots]:
        """Returns the quantizers of a recipe, one set per weight."""
        self._follow(recipe, group)
        forward, backward = (self.quantizers[key] for key, _ in PASSES.values())
        made = []
        for i in range(len(self.weight_names)):
            activation, weight, output = forward[
                len(FORWARD_TYPES) * i : len(FORWARD_TYPES) * (i + 1)
            ]
            gradient, dgrad = backward[len(BACKWARD_TYPES) * i : len(BACKWARD_TYPES) * (i + 1)]
            made.append(
                Slots(
                    activation=activation,
                    weight=weight,
                    output=output if fp8_output else None,
                    dgrad=dgrad if fp8_grad else None,
                    gradient=gradient,
                )
            )
        return made

    def _find_watcher(self, is_new_layer: bool = False) -> None:
        factory = watcher_factory()
        if self._watcher is None and factory is not None:
            self._watcher = factory(self.name, self.tp_group, self.tp_size, is_new_layer)

    def _watched(self, parents: Sequence[Slots]) -> list[Slots] | None:
        self._find_watcher()
        return None if self._watcher is None else self._watcher.watch_group(parents)

    # Weights.

    def _weights(self) -> list[torch.Tensor]:
        """Returns this rank's parts of the weights."""
        return [local(getattr(self, name)) for name in self.weight_names]

    def _biases(self) -> list[torch.Tensor | None]:
        if not self.bias_names:
            return [None] * len(self.weight_names)
        return [getattr(self, name) for name in self.bias_names]

    def _kept(
        self, slots: Sequence[Slots], dtype: torch.dtype, is_first_microbatch: bool | None
    ) -> list[Any]:
        """Returns the weights that microbatches share; None if each quantizes its own."""
        if is_first_microbatch is None:
            return [None] * len(slots)
        return [
            self._kept_weight(name, each.weight, dtype, is_first_microbatch)
            for name, each in zip(self.weight_names, slots, strict=True)
        ]

    @torch.no_grad()
    def _kept_weight(
        self, name: str, quantizer: Quantizer | None, dtype: torch.dtype, is_first: bool
    ) -> TensorLike | None:
        if quantizer is None:
            return None
        weight, kept = local(getattr(self, name)), self._fp8_workspaces.get(name)
        if kept is not None and not _is_kept_for(kept, quantizer):
            kept = None
        if kept is None:
            internal, quantizer.internal = quantizer.internal, False
            try:
                kept = quantize_weight(weight, quantizer, dtype, needs_dgrad=True)
            finally:
                quantizer.internal = internal
        elif is_first:
            quantizer.set_usage(rowwise=True, columnwise=True)
            quantizer.update_quantized(weight, kept)
        if kept is not weight:  # the next pass reads the parameter, which may be another one
            self._fp8_workspaces[name] = kept
        return kept

    def _check_recipe_of_weights(self, recipe: Recipe) -> None:
        """Raises RuntimeError if a quantized weight needs another recipe."""
        for name, weight in zip(self.weight_names, self._weights(), strict=True):
            quantizer = getattr(weight, "_quantizer", None)
            wanted = None if quantizer is None else quantizer._get_compatible_recipe()
            if wanted is not None and not isinstance(recipe, wanted) and not recipe.custom():
                raise RuntimeError(
                    f"Recipe mismatch for {name!r} of layer {self.name}: its quantized values need "
                    f"{wanted.__name__}, got {type(recipe).__name__}; enter quantized_model_init "
                    "and autocast with the same recipe"
                )

    def reset_parameters(self, defer_init: bool = False) -> None:
        """Initialises the parameters again; weights made in quantized_model_init are quantized.

        Parameters on the meta device get memory. defer_init: does nothing. On every rank, sharded
        parameters become parts of the first rank's values.
        Errors: as sharding a quantized weight.
        """
        if defer_init:
            return
        bias_names = self.bias_names or [None] * len(self.weight_names)
        for weight_name, bias_name in zip(self.weight_names, bias_names, strict=True):
            weight = getattr(self, weight_name)
            bias = None if bias_name is None else getattr(self, bias_name)
            values = memory_of_whole(weight)
            bias_values = None if bias is None else memory_of_whole(bias)
            self.parameter_init.fill(values, bias_values)
            if self.primary_weights_in_fp8:
                self._quantize_parameter(weight_name, values)
            else:
                set_parameter(self, weight_name, values)
            if bias_name is not None and bias_values is not None:
                set_parameter(self, bias_name, bias_values)
        self._fp8_workspaces = {}

    @torch.no_grad()
    def _quantize_parameter(self, name: str, values: torch.Tensor) -> None:
        weight, initial = getattr(self, name), values.detach().cpu().clone()
        if isinstance(weight, QuantizedTensorStorage):
            weight.quantize_(values)
        else:
            quantized: Any = self._weight_quantizer(name).quantize(values.detach())
            set_parameter(self, name, quantized)
            weight = getattr(self, name)
        if self.preserve_high_precision_init_val:
            keep_initial_values(local(weight), part_of(weight, initial))

    def _weight_quantizer(self, name: str) -> Quantizer:
        """Returns the quantizer of a whole weight: its shard's, or the first recipe's."""
        shard = local(getattr(self, name))
        if isinstance(shard, QuantizedTensorStorage):
            own: Any = shard._quantizer
            quantizer = own.copy()
            usages = shard.get_usages()
        else:
            assert self._init_recipe is not None
            self._follow(self._init_recipe, FP8GlobalStateManager.get_fp8_group())
            index = self.weight_names.index(name)
            quantizer = self.quantizers[PASSES["forward"][0]][
                len(FORWARD_TYPES) * index + FORWARD_TYPES.index("weight")
            ]
            usages = {"rowwise": True, "columnwise": True}
        quantizer.set_usage(**usages)
        quantizer.internal = False
        return quantizer

    def _apply(self, *args: Any, **kwargs: Any) -> torch.nn.Module:
        """Runs torch.nn.Module's _apply(); keeps callers' attributes on quantized parameters."""
        before = {
            name: (parameter, dict(parameter.__dict__))
            for name, parameter in self._parameters.items()
            if isinstance(parameter, QuantizedTensorStorage)
        }
        module = super()._apply(*args, **kwargs)
        self._fp8_workspaces = {}
        for name, (old, attributes) in before.items():
            new = self._parameters[name]
            for key, value in attributes.items():
                if key not in new.__dict__:
                    if isinstance(value, MethodType) and value.__self__ is old:
                        value = MethodType(value.__func__, new)
                    setattr(new, key, value)
        return module

    # Delayed gradients of weights.

    def need_backward_dw(self) -> bool:
        """Returns whether backward_dw() computes the gradients of weights."""
        return self.delay_wgrad_compute

    def register_wgrad_accumulation_and_reduce_hooks(
        self, wgrad_accumulation_and_reduce_hook: Callable[[], object]
    ) -> None:
        """Adds a function that backward_dw() calls at its end, after the earlier ones."""
        self.wgrad_accumulation_and_reduce_hooks.append(wgrad_accumulation_and_reduce_hook)

    def backward_dw(self) -> None:
        """Computes and adds the gradients of the oldest backward pass without them, and then calls
        the registered hooks.

        With fuse_wgrad_accumulation the gradients of weights are added to main_grad only. Does
        nothing without delay_wgrad_compute. Errors: RuntimeError if there is no such pass.
        """
        if not self.need_backward_dw():
            return
        if not self._delayed_gradients:
            raise RuntimeError(
                f"backward_dw: layer {self.name} needs a backward pass for each call, got none left"
            )
        dws, dbs = self._delayed_gradients.pop(0)()
        if self.fuse_wgrad_accumulation:
            dws = [None] * len(dws)  # of zeros, for autograd
        parameters: list[Any] = [*self._weights(), *self._biases()]
        for parameter, gradient in zip(parameters, [*dws, *dbs], strict=True):
            if gradient is not None:
                gradient = gradient.to(parameter.dtype)
                before = parameter.grad
                parameter.grad = gradient if before is None else before + gradient
        for hook in self.wgrad_accumulation_and_reduce_hooks:
            hook()

    # Copies and checkpoints.

    def get_extra_state(self) -> torch.Tensor:
        """Returns scales and amax histories as bytes; an empty tensor without such state."""
        return pack_extra_state(self._states.export())

    def set_extra_state(self, state: object) -> None:
        """Loads a result of get_extra_state(), of this library or TransformerEngine.

        Errors: RuntimeError for an untrusted pickle that may hold state, or another type;
        ValueError for another number of quantizers than the layer's.
        """
        tensors = unpack_extra_state(state, f"{type(self).__name__} {self.name}")
        if not tensors:
            return
        if FP8GlobalStateManager.is_fp8_enabled():
            recipe, group = (
                FP8GlobalStateManager.get_fp8_recipe(),
                FP8GlobalStateManager.get_fp8_group(),
            )
            self._follow(recipe, group)
        self._states.load(tensors)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        """Runs torch.nn.Module's method; extra state may be missing, as in nn.Linear's checkpoints.

        Extra state is loaded first, because it has the scale of quantized weights.
        """
        self._fp8_workspaces = {}
        key = f"{prefix}_extra_state"
        missing_keys = args[2] if len(args) > 2 else kwargs["missing_keys"]
        if key in state_dict:
            self.set_extra_state(state_dict[key])
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
        if key in missing_keys:
            missing_keys.remove(key)

    def __getstate__(self) -> dict[str, Any]:
        state = {key: value for key, value in self.__dict__.items() if key not in _NOT_COPIED}
        state["_exported"] = self._states.export()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        exported = state.pop("_exported", None)
        super().__setstate__(state)
        self._forget()
        if exported:
            self._states.load(exported)

    def extra_repr(self) -> str:
        """Returns the arguments as torch.nn.Linear prints them."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={bool(self.bias_names)}"
        )


def _is_kept_for(kept: TensorLike, quantizer: Quantizer) -> bool:
    """Returns whether a cached weight is valid for this quantizer: equal plans in debug mode."""
    watcher: Any = getattr(kept, "quantizer", None)
    if not is_watching(quantizer):
        return not is_watching(watcher)
    return is_watching(watcher) and watcher.makes_as(quantizer)
