# SPDX-License-Identifier: Apache-2.0
"""convert_model: replaces torch.nn.Linear layers of a model by narrowfloat's."""

from __future__ import annotations

from collections.abc import Callable

import torch

from narrowfloat.pytorch.module.linear import Linear
from narrowfloat.pytorch.quantization import FP8GlobalStateManager

Filter = Callable[[str, torch.nn.Module], bool]


def convert_model(model: torch.nn.Module, filter: Filter | None = None) -> torch.nn.Module:
    """Replaces torch.nn.Linear layers in place by Linear, and returns the model.

    filter: a function of a layer's full name and the layer that returns whether to replace it; None
    replaces all. The new layer has the same parameters, hooks, training flag and other attributes
    as the old one, so an optimizer with the parameters stays valid. A layer used in several places
    stays one layer. Subclasses of torch.nn.Linear, and layers with a replaced forward, are not
    replaced, because their behavior is unknown. If the model is a torch.nn.Linear, the new layer is
    returned. torch.nn.TransformerEncoderLayer loses its fused inference path, which reads weights
    without calling the layers.
    Errors: RuntimeError inside quantized_model_init: quantized weights would not be shared.
    """
    if FP8GlobalStateManager.with_fp8_parameters():
        raise RuntimeError(
            "convert_model: weights are shared with the old layers, so it must be called outside "
            "quantized_model_init"
        )
    made: dict[torch.nn.Module, Linear] = {}
    for name, module in list(model.named_modules()):
        if type(module) is not torch.nn.Linear or "forward" in vars(module):
            continue
        if filter is None or filter(name, module):
            made[module] = _converted(name, module)
    for parent in list(model.modules()):
        found = {key: made[child] for key, child in parent._modules.items() if child in made}
        parent._modules.update(found)
        if found and isinstance(parent, torch.nn.TransformerEncoderLayer):
            parent.activation_relu_or_gelu = 0
    return made.get(model, model)


def _converted(name: str, module: torch.nn.Linear) -> Linear:
    layer = Linear.__new__(Linear)
    # The same dictionaries of parameters and hooks, so that handles of hooks stay valid.
    layer.__dict__.update(module.__dict__)
    layer._begin(name or None)
    return layer
